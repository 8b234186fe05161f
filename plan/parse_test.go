package plan

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func mustParse(t testing.TB, text string) Plan {
	t.Helper()
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkRefused fails unless err is a refusal of text with that fault.
func checkRefused(t testing.TB, err error, text, fault string) {
	t.Helper()
	if !errors.Is(err, event.InvalidPlan) {
		t.Fatalf("%q: error %v, want event.InvalidPlan", text, err)
	}
	var e *event.Error
	if !errors.As(err, &e) || len(e.Args) != 2 || e.Args[0] != "completion wait plan" {
		t.Fatalf("%q: arguments %q", text, e.Args)
	}
	if want := fmt.Sprintf("%q: %s", text, fault); e.Args[1] != want {
		t.Errorf("refused with\n %s\nwant\n %s", e.Args[1], want)
	}
}

func TestParse(t *testing.T) {
	pred := Prediction{margin: 150 * us, minSleep: 20 * us, maxSleep: 50 * ms, window: 8}
	const predText = "predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8"
	for _, c := range []struct {
		text  string
		want  Plan
		label string // "" when the text is canonical
	}{
		{text: "block", want: Plan{kind: Block}},
		{text: "poll", want: Plan{kind: Poll}},
		{text: "poll+" + predText, want: Plan{kind: Poll, pred: pred}},
		{
			text: "flag:park_us=100,backstop_us=1000",
			want: Plan{kind: Flag, v: [params]time.Duration{parkUS: 100 * us, backstopUS: ms}},
		}, {
			text: "flag:park_us=100,backstop_us=1000+" + predText,
			want: Plan{kind: Flag, v: [params]time.Duration{parkUS: 100 * us, backstopUS: ms}, pred: pred},
		}, {
			text: "staged:spin_us=50,nap_us=100,backstop_us=2000",
			want: Plan{kind: Staged, v: [params]time.Duration{spinUS: 50 * us, napUS: 100 * us, backstopUS: 2 * ms}},
		}, {
			text: "park:park_us=10,spin_us=50,nap_us=100,backstop_us=2000+" + predText,
			want: Plan{kind: Park, v: [params]time.Duration{10 * us, 50 * us, 100 * us, 2 * ms}, pred: pred},
		},
		// Any order, leading zeros.
		{
			text:  "flag:backstop_us=1000,park_us=00100+predict:window=8,max_sleep_us=50000,margin_us=150,min_sleep_us=020",
			want:  Plan{kind: Flag, v: [params]time.Duration{parkUS: 100 * us, backstopUS: ms}, pred: pred},
			label: "flag:park_us=100,backstop_us=1000+" + predText,
		},
		// The ends of every range.
		{
			text: "flag:park_us=1,backstop_us=1",
			want: Plan{kind: Flag, v: [params]time.Duration{parkUS: us, backstopUS: us}},
		}, {
			text: "park:park_us=10000,spin_us=10000,nap_us=10000,backstop_us=1000000",
			want: Plan{kind: Park, v: [params]time.Duration{10 * ms, 10 * ms, 10 * ms, time.Second}},
		}, {
			text: "staged:spin_us=0,nap_us=1,backstop_us=1",
			want: Plan{kind: Staged, v: [params]time.Duration{napUS: us, backstopUS: us}},
		}, {
			text: "poll+predict:margin_us=0,min_sleep_us=0,max_sleep_us=0,window=1",
			want: Plan{kind: Poll, pred: Prediction{window: 1}},
		}, {
			text: "poll+predict:margin_us=9223372036854775,min_sleep_us=9223372036854775,max_sleep_us=9223372036854775,window=16",
			want: Plan{kind: Poll, pred: Prediction{9223372036854775 * us, 9223372036854775 * us, 9223372036854775 * us, 16}},
		},
	} {
		got, err := Parse(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if got != c.want {
			t.Errorf("%q is %+v, want %+v", c.text, got, c.want)
		}
		if c.label == "" {
			c.label = c.text
		}
		if got.String() != c.label {
			t.Errorf("%q has the label %q, want %q", c.text, got, c.label)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%q parses as %+v, %v", got, again, err)
		}
	}
}

func TestAccessors(t *testing.T) {
	p := mustParse(t, "park:park_us=10,spin_us=50,nap_us=100,backstop_us=2000+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8")
	if p.Kind() != Park || p.Park() != 10*us || p.Spin() != 50*us || p.Nap() != 100*us || p.Backstop() != 2*ms {
		t.Errorf("%v: %v %v %v %v %v", p, p.Kind(), p.Park(), p.Spin(), p.Nap(), p.Backstop())
	}
	q, ok := p.Prediction()
	if !ok || q.Margin() != 150*us || q.MinSleep() != 20*us || q.MaxSleep() != 50*ms || q.Window() != 8 {
		t.Errorf("prediction %+v, %v", q, ok)
	}
	if q, ok := mustParse(t, "poll").Prediction(); ok || q != (Prediction{}) || q.String() != "" {
		t.Errorf("poll predicts %q, %v", q, ok)
	}
	for text, word := range map[string]bool{
		"block": false, "poll": false, "flag:park_us=1,backstop_us=1": true,
		"staged:spin_us=1,nap_us=1,backstop_us=1": true, "park:park_us=1,spin_us=1,nap_us=1,backstop_us=1": true,
	} {
		if got := mustParse(t, text).Word(); got != word {
			t.Errorf("%s: Word is %v", text, got)
		}
	}
	if s := Kind(99).String(); s != "Kind(99)" {
		t.Errorf("unknown kind reads %q", s)
	}
}

func TestZeroPlanIsBlock(t *testing.T) {
	if p := mustParse(t, "block"); p != (Plan{}) {
		t.Errorf("block is %+v", p)
	}
	if b, err := ParseBands("block"); err != nil || b != (Bands{}) || (Bands{}).String() != "block" {
		t.Errorf("block is %+v, %v", b, err)
	}
}

func TestParseRefuses(t *testing.T) {
	const unknown = ", want block, poll, flag:<fields>, staged:<fields>, park:<fields>"
	const good = "margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8"
	for _, c := range []struct{ text, fault string }{
		// A field that is not key=<n>.
		{"poll+predict:", `field "" is not key=<n>`},
		{"poll+predict:margin_us", `field "margin_us" is not key=<n>`},
		{"poll+predict:" + good + ",", `field "" is not key=<n>`},
		{"flag:", `field "" is not key=<n>`},
		{"flag:park_us=1,,backstop_us=1", `field "" is not key=<n>`},
		// An unknown field.
		{"poll+predict:depth=8", `unknown field "depth", want margin_us, min_sleep_us, max_sleep_us, window`},
		{"poll+predict: margin_us=1", `unknown field " margin_us", want margin_us, min_sleep_us, max_sleep_us, window`},
		{"poll+predict:=8", `unknown field "", want margin_us, min_sleep_us, max_sleep_us, window`},
		{"flag:nap_us=1", `unknown field "nap_us", want park_us, backstop_us`},
		{"staged:park_us=1", `unknown field "park_us", want spin_us, nap_us, backstop_us`},
		{"park:window=1", `unknown field "window", want park_us, spin_us, nap_us, backstop_us`},
		// A field stated twice.
		{"poll+predict:window=8,window=8", "field window is stated twice"},
		{"poll+predict:" + good + ",window=9", "field window is stated twice"},
		{"staged:nap_us=1,nap_us=2", "field nap_us is stated twice"},
		// Not a u64.
		{"poll+predict:window=", `window="" is not an unsigned 64-bit number`},
		{"poll+predict:window=-1", `window="-1" is not an unsigned 64-bit number`},
		{"poll+predict:window=+1", `window="+1" is not an unsigned 64-bit number`},
		{"poll+predict:window=1_0", `window="1_0" is not an unsigned 64-bit number`},
		{"poll+predict:window=0x8", `window="0x8" is not an unsigned 64-bit number`},
		{"poll+predict:window=8=8", `window="8=8" is not an unsigned 64-bit number`},
		{"poll+predict:window=٨", `window="٨" is not an unsigned 64-bit number`},
		{"poll+predict:margin_us=18446744073709551616", `margin_us="18446744073709551616" is not an unsigned 64-bit number`},
		{"flag:park_us=1.5,backstop_us=1", `park_us="1.5" is not an unsigned 64-bit number`},
		// A missing field.
		{"poll+predict:min_sleep_us=20,max_sleep_us=50000,window=8", "missing field margin_us"},
		{"poll+predict:margin_us=150,max_sleep_us=50000,window=8", "missing field min_sleep_us"},
		{"poll+predict:margin_us=150,min_sleep_us=20,window=8", "missing field max_sleep_us"},
		{"poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000", "missing field window"},
		{"flag", "missing field park_us"},
		{"flag:park_us=100", "missing field backstop_us"},
		{"staged", "missing field spin_us"},
		{"staged:spin_us=1,backstop_us=1", "missing field nap_us"},
		{"park:park_us=1,spin_us=1,nap_us=1", "missing field backstop_us"},
		// Window out of range.
		{"poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=0", "window=0 is out of range, want 1..16"},
		{"poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=17", "window=17 is out of range, want 1..16"},
		// Min above max.
		{"poll+predict:margin_us=150,min_sleep_us=21,max_sleep_us=20,window=8", "min_sleep_us=21 is above max_sleep_us=20"},
		// An unknown park.
		{"", `unknown park ""` + unknown},
		{" poll", `unknown park " poll"` + unknown},
		{"Poll", `unknown park "Poll"` + unknown},
		{"poll:", `unknown park "poll:"` + unknown},
		{"block:park_us=1", `unknown park "block:park_us=1"` + unknown},
		{"predict:" + good, `unknown park "predict:` + good + `"` + unknown},
		{"spin", `unknown park "spin"` + unknown},
		{"\xff\x00", `unknown park "\xff\x00"` + unknown},
		// Out of range.
		{"flag:park_us=0,backstop_us=1", "park_us=0 is out of range, want 1..10000"},
		{"flag:park_us=10001,backstop_us=1", "park_us=10001 is out of range, want 1..10000"},
		{"flag:park_us=1,backstop_us=0", "backstop_us=0 is out of range, want 1..1000000"},
		{"flag:park_us=1,backstop_us=1000001", "backstop_us=1000001 is out of range, want 1..1000000"},
		{"flag:park_us=18446744073709551615,backstop_us=1", "park_us=18446744073709551615 is out of range, want 1..10000"},
		{"staged:spin_us=10001,nap_us=1,backstop_us=1", "spin_us=10001 is out of range, want 0..10000"},
		{"staged:spin_us=0,nap_us=0,backstop_us=1", "nap_us=0 is out of range, want 1..10000"},
		{"staged:spin_us=0,nap_us=10001,backstop_us=1", "nap_us=10001 is out of range, want 1..10000"},
		{"park:park_us=0,spin_us=0,nap_us=1,backstop_us=1", "park_us=0 is out of range, want 1..10000"},
		{"park:park_us=1,spin_us=0,nap_us=1,backstop_us=0", "backstop_us=0 is out of range, want 1..1000000"},
		// What follows + is not predict:.
		{"poll+", `"" after + is not predict:<fields>`},
		{"poll+predict", `"predict" after + is not predict:<fields>`},
		{"poll+Predict:" + good, `"Predict:` + good + `" after + is not predict:<fields>`},
		{"poll+ predict:" + good, `" predict:` + good + `" after + is not predict:<fields>`},
		{"poll++predict:" + good, `"+predict:` + good + `" after + is not predict:<fields>`},
		{"poll+predict:" + good + "+predict:" + good, `window="8+predict:margin_us=150" is not an unsigned 64-bit number`},
		// Overflow.
		{"poll+predict:margin_us=9223372036854776,min_sleep_us=0,max_sleep_us=0,window=1", "margin_us=9223372036854776 overflows when turned into nanoseconds"},
		{"poll+predict:margin_us=0,min_sleep_us=9223372036854776,max_sleep_us=9223372036854776,window=1", "min_sleep_us=9223372036854776 overflows when turned into nanoseconds"},
		{"poll+predict:margin_us=0,min_sleep_us=0,max_sleep_us=18446744073709551615,window=1", "max_sleep_us=18446744073709551615 overflows when turned into nanoseconds"},
		// Block with predict.
		{"block+predict:" + good, "block takes no prediction: there is nothing to sleep in front of"},

		// The order of faults: within a list from left to right, then what is
		// missing, then values; the prediction before the park, block with predict
		// last.
		{"poll+predict:window=x,depth", `window="x" is not an unsigned 64-bit number`},
		{"poll+predict:depth,window=x", `field "depth" is not key=<n>`},
		{"poll+predict:window=17", "missing field margin_us"},
		{"poll+predict:margin_us=18446744073709551615,min_sleep_us=2,max_sleep_us=1,window=0", "window=0 is out of range, want 1..16"},
		{"poll+predict:margin_us=18446744073709551615,min_sleep_us=2,max_sleep_us=1,window=1", "min_sleep_us=2 is above max_sleep_us=1"},
		{"spin+predict:window=x", `window="x" is not an unsigned 64-bit number`},
		{"spin+predict:margin_us=18446744073709551615,min_sleep_us=1,max_sleep_us=1,window=1", "margin_us=18446744073709551615 overflows when turned into nanoseconds"},
		{"spin+sleep", `"sleep" after + is not predict:<fields>`},
		{"flag:park_us=0+predict:", `field "" is not key=<n>`},
		{"flag:park_us=0,backstop_us=0+predict:" + good, "park_us=0 is out of range, want 1..10000"},
		{"flag:park_us=0+predict:" + good, "missing field backstop_us"},
		{"block+predict:window=1", "missing field margin_us"},
		{"block:+predict:" + good, `unknown park "block:"` + unknown},
	} {
		p, err := Parse(c.text)
		checkRefused(t, err, c.text, c.fault)
		if p != (Plan{}) {
			t.Errorf("%q is refused and still gives %+v", c.text, p)
		}
		// A single plan is one band: the fault is the same.
		_, err = ParseBands(c.text)
		checkRefused(t, err, c.text, c.fault)
	}
}

// randomText returns a plan's text in random field order, and its label.
func randomText(r *rand.Rand) (text, label string) {
	list := func(fields []string) string {
		shuffled := append([]string(nil), fields...)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		return strings.Join(shuffled, ",")
	}
	park := fmt.Sprintf("park_us=%d", 1+r.IntN(10000))
	spin := fmt.Sprintf("spin_us=%d", r.IntN(10001))
	nap := fmt.Sprintf("nap_us=%d", 1+r.IntN(10000))
	backstop := fmt.Sprintf("backstop_us=%d", 1+r.IntN(1000000))
	kind := r.IntN(5)
	switch kind {
	case 0:
		return "block", "block"
	case 1:
		text, label = "poll", "poll"
	default:
		fields := [][]string{{park, backstop}, {spin, nap, backstop}, {park, spin, nap, backstop}}[kind-2]
		name := []string{"flag:", "staged:", "park:"}[kind-2]
		text, label = name+list(fields), name+strings.Join(fields, ",")
	}
	if r.IntN(2) == 0 {
		return text, label
	}
	small := r.Uint64N(9223372036854776)
	fields := []string{
		fmt.Sprintf("margin_us=%d", r.Uint64N(9223372036854776)>>r.IntN(50)),
		fmt.Sprintf("min_sleep_us=%d", small),
		fmt.Sprintf("max_sleep_us=%d", small+r.Uint64N(9223372036854776-small)),
		fmt.Sprintf("window=%d", 1+r.IntN(16)),
	}
	return text + "+predict:" + list(fields), label + "+predict:" + strings.Join(fields, ",")
}

func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		text, label := randomText(r)
		p := mustParse(t, text)
		if p.String() != label {
			t.Fatalf("%q has the label %q, want %q", text, p, label)
		}
		if q := mustParse(t, label); q != p {
			t.Fatalf("%q is %+v, its label is %+v", text, p, q)
		}
	}
}

func TestTextMarshaling(t *testing.T) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var p Plan
	var b Bands
	fs.TextVar(&p, "plan", mustParse(t, "poll"), "")
	fs.TextVar(&b, "bands", One(mustParse(t, "poll")), "")
	if p.String() != "poll" || b.String() != "poll" {
		t.Errorf("defaults: %v, %v", p, b)
	}
	if err := fs.Parse([]string{"-plan=flag:park_us=1,backstop_us=2", "-bands=block;rows>=4:poll"}); err != nil {
		t.Fatal(err)
	}
	if p.String() != "flag:park_us=1,backstop_us=2" || b.String() != "block;rows>=4:poll" {
		t.Errorf("parsed: %v, %v", p, b)
	}
	for _, arg := range []string{"-plan=spin", "-bands=block;poll"} {
		if err := fs.Parse([]string{arg}); err == nil {
			t.Errorf("%s: accepted", arg)
		}
	}
	if p.String() != "flag:park_us=1,backstop_us=2" || b.String() != "block;rows>=4:poll" {
		t.Errorf("a refused text changed the value: %v, %v", p, b)
	}
}
