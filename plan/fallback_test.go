package plan

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuline/gpuline/event"
)

var (
	all    = Caps{Capability{OK: true}, Capability{OK: true}}
	noPark = Caps{Capability{OK: true}, Capability{Why: "no umwait"}}
	noWord = Caps{Capability{Why: "status 801"}, Capability{OK: true}}
	none   = Caps{Capability{Why: "status 801"}, Capability{Why: "no umwait"}}
)

func TestResolve(t *testing.T) {
	const (
		pred   = "+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8"
		flag   = "flag:park_us=100,backstop_us=1000"
		staged = "staged:spin_us=50,nap_us=100,backstop_us=1000"
		park   = "park:park_us=100,spin_us=50,nap_us=100,backstop_us=1000"

		wait, store = "device word wait", "device word store"
		noUmwait    = "no processor park: no umwait"
		no801       = "no device word store: status 801"
	)
	for _, c := range []struct {
		text, running string
		caps          Caps
		missing, why  string
	}{
		{"block", "block", none, "", ""},
		{"poll", "poll", none, "", ""},
		{"poll" + pred, "poll" + pred, none, "", ""},

		{flag, flag, all, "", ""},
		{flag, "poll", noPark, wait, noUmwait},
		{flag, "poll", noWord, wait, no801},
		{flag + pred, "poll" + pred, none, wait, no801 + "; " + noUmwait},
		{flag, "poll", Caps{}, wait, "no device word store; no processor park"},

		{staged, staged, all, "", ""},
		{staged + pred, staged + pred, noPark, "", ""},
		{staged + pred, "poll" + pred, noWord, store, no801},
		{staged, "poll", none, store, no801},

		{park + pred, park + pred, all, "", ""},
		{park + pred, staged + pred, noPark, wait, noUmwait},
		{park + pred, "poll" + pred, noWord, wait, no801},
		{park, "poll", none, wait, no801 + "; " + noUmwait},
	} {
		p := mustParse(t, c.text)
		r := p.Resolve(c.caps)
		if r.Requested != p || r.Running != mustParse(t, c.running) {
			t.Errorf("%s with %+v: runs %v for %v, want %s", c.text, c.caps, r.Running, r.Requested, c.running)
		}
		if again := p.Resolve(c.caps); again.Requested != r.Requested || again.Running != r.Running || again.String() != r.String() {
			t.Errorf("%s: a second look gives %v, the first %v", c.text, again, r)
		}
		if c.why == "" {
			if r.Warning != nil || r.String() != c.running {
				t.Errorf("%s with %+v: warns %v, label %q", c.text, c.caps, r.Warning, r)
			}
			continue
		}
		if want := c.running + " (fallback from " + c.text + ")"; r.String() != want {
			t.Errorf("label %q, want %q", r, want)
		}
		if r.Warning == nil {
			t.Errorf("%s with %+v: no warning", c.text, c.caps)
			continue
		}
		if want := []string{c.text, c.missing, c.why, c.running}; !errors.Is(r.Warning, event.ParkFallback) || !slices.Equal(r.Warning.Args, want) {
			t.Errorf("warning %v %q, want %q", r.Warning.Code, r.Warning.Args, want)
		}
	}
}

func TestFallbackTable(t *testing.T) {
	rows := Fallbacks()
	seen := map[Kind]bool{}
	for i, row := range rows {
		if row.To == Block {
			t.Errorf("%v falls back to block", row.From)
		}
		if row.From == Block || row.From == Poll {
			t.Errorf("%v needs %v, and should need nothing", row.From, row.Needs)
		}
		if seen[row.From] {
			t.Errorf("two rows for %v", row.From)
		}
		seen[row.From] = true
		for _, above := range rows[:i+1] {
			if above.From == row.To {
				t.Errorf("%v falls back to %v, whose row is not further down", row.From, row.To)
			}
		}
		for _, param := range kindTable[row.To].params {
			if !slices.Contains(kindTable[row.From].params, param) {
				t.Errorf("%v has no %s to give to %v", row.From, paramTable[param].name, row.To)
			}
		}
	}
	for k := range kindTable {
		// With nothing to go by, whatever looks at a word must end up polling.
		p := Plan{kind: Kind(k)}
		if want := p.Word(); want != seen[Kind(k)] || want != (p.Resolve(Caps{}).Running.kind != p.kind) {
			t.Errorf("%v: looks at the word %v, has a row %v, runs as %v", p.kind, want, seen[Kind(k)], p.Resolve(Caps{}).Running)
		}
	}
	rows[0].To = Block
	if Fallbacks()[0].To == Block {
		t.Error("the table can be changed from outside")
	}
}

func TestDefault(t *testing.T) {
	for _, c := range []struct {
		caps Caps
		want Kind
	}{{all, Park}, {noPark, Staged}, {noWord, Poll}, {none, Poll}, {Caps{}, Poll}} {
		p := Default(c.caps)
		if p.Kind() != c.want {
			t.Errorf("with %+v the default is %v, want %v", c.caps, p, c.want)
		}
		if r := p.Resolve(c.caps); r.Warning != nil {
			t.Errorf("the default needs what is missing: %v", r.Warning)
		}
		if q := mustParse(t, p.String()); q != p {
			t.Errorf("the default %v is not what its label says, %v", p, q)
		}
		pred, ok := p.Prediction()
		if !ok || p.Word() && p.Spin() <= pred.Margin() {
			t.Errorf("%v: the spin ends before the predicted completion", p)
		}
	}
}

func TestWarningText(t *testing.T) {
	w := mustParse(t, "flag:park_us=100,backstop_us=1000").Resolve(noPark).Warning
	const want = "gpuline: wait plan flag:park_us=100,backstop_us=1000 needs device word wait (no processor park: no umwait): running poll"
	if w.Error() != want {
		t.Errorf("warning reads\n %s, want\n %s", w, want)
	}
	if s := DeviceWordStore.String() + ", " + DeviceWordWait.String(); s != "device word store, device word wait" {
		t.Error(s)
	}
}

func TestResolveBands(t *testing.T) {
	const flag = "flag:park_us=100,backstop_us=1000"
	const text = "block;rows>=8:" + flag + ";rows>=32:staged:spin_us=1,nap_us=2,backstop_us=3;rows>=64:" + flag
	b, err := ParseBands(text)
	if err != nil {
		t.Fatal(err)
	}
	if r := b.Resolve(all); r.Running != b || r.Requested != b || r.Warnings != nil || r.String() != text {
		t.Errorf("with everything there: %v, %v", r, r.Warnings)
	}
	r := b.Resolve(noPark)
	const running = "block;rows>=8:poll;rows>=32:staged:spin_us=1,nap_us=2,backstop_us=3;rows>=64:poll"
	if r.Requested != b || r.Running.String() != running || r.String() != running+" (fallback from "+text+")" {
		t.Errorf("without a park: %v", r)
	}
	if len(r.Warnings) != 2 || r.Warnings[0].Args[0] != flag || r.Warnings[1].Args[3] != "poll" {
		t.Errorf("warnings %v", r.Warnings)
	}
	for i, band := range r.Running.All() {
		if one := b.All()[i].Plan.Resolve(noPark).Running; band.Plan != one || band.From != b.All()[i].From {
			t.Errorf("band %d is %v, resolved alone %v", i, band, one)
		}
	}
	if again, err := ParseBands(r.Running.String()); err != nil || again != r.Running {
		t.Errorf("the running label parses as %v, %v", again, err)
	}
	if b.String() != text || strings.Contains(b.Resolve(none).Running.String(), "flag") {
		t.Errorf("resolving changed the bands, or left a flag: %v, %v", b, b.Resolve(none))
	}
}
