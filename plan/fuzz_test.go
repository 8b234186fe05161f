package plan

import (
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var seeds = []string{
	"", "block", "poll", "flag", "flag:park_us=100,backstop_us=1000",
	"flag:backstop_us=1,park_us=0010000", "flag:park_us=10001,backstop_us=1",
	"staged:spin_us=0,nap_us=1,backstop_us=1", "staged:nap_us=1,nap_us=1,backstop_us=1",
	"park:park_us=1,spin_us=10000,nap_us=10000,backstop_us=1000000",
	"poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8",
	"block+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8",
	"poll+predict:window=16,max_sleep_us=9223372036854776,min_sleep_us=0,margin_us=18446744073709551615",
	"flag:park_us=100,backstop_us=1000+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=17",
	"poll+", "poll+predict:", "poll+predict:a=b=c", "poll++", "\x00:=,+;\xff",
	"block;rows>=32:poll", "block;rows>=0:poll", "poll;rows>=1:block;rows>=18446744073709551615:poll",
	"block;rows>=1:poll;rows>=2:poll;rows>=3:poll;rows>=4:poll", ";;;", "block;rows>=:poll",
}

// The grammar once more, by other means than the parser's.
const list = `(?:[a-z_]+=[0-9]+)(?:,[a-z_]+=[0-9]+)*`

var grammar = regexp.MustCompile(`\A(block|poll|(?:flag|staged|park):(` + list + `))(?:\+predict:(` + list + `))?\z`)

// valid is the oracle for Parse.
func valid(text string) bool {
	m := grammar.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	name, _, _ := strings.Cut(m[1], ":")
	ranges := map[string]map[string][2]int64{
		"block":  {},
		"poll":   {},
		"flag":   {"park_us": {1, 10000}, "backstop_us": {1, 1000000}},
		"staged": {"spin_us": {0, 10000}, "nap_us": {1, 10000}, "backstop_us": {1, 1000000}},
		"park":   {"park_us": {1, 10000}, "spin_us": {0, 10000}, "nap_us": {1, 10000}, "backstop_us": {1, 1000000}},
	}[name]
	if _, ok := fields(m[2], ranges); !ok {
		return false
	}
	if m[3] == "" {
		return true
	}
	const huge = 9223372036854775
	v, ok := fields(m[3], map[string][2]int64{
		"margin_us": {0, huge}, "min_sleep_us": {0, huge}, "max_sleep_us": {0, huge}, "window": {1, 16},
	})
	return ok && name != "block" && v["min_sleep_us"].Cmp(v["max_sleep_us"]) <= 0
}

func fields(text string, ranges map[string][2]int64) (map[string]*big.Int, bool) {
	v := map[string]*big.Int{}
	if text == "" {
		return v, len(ranges) == 0
	}
	for _, f := range strings.Split(text, ",") {
		key, digits, _ := strings.Cut(f, "=")
		r, ok := ranges[key]
		n, good := new(big.Int).SetString(digits, 10)
		if !ok || !good || v[key] != nil || n.Cmp(big.NewInt(r[0])) < 0 || n.Cmp(big.NewInt(r[1])) > 0 {
			return nil, false
		}
		v[key] = n
	}
	return v, len(v) == len(ranges)
}

func FuzzParse(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if (err == nil) != valid(text) {
			t.Fatalf("%q: error %v, but valid is %v", text, err, valid(text))
		}
		if err != nil {
			checkQuoted(t, err, text)
			return
		}
		again, err := Parse(p.String())
		if err != nil || again != p || again.String() != p.String() {
			t.Fatalf("%q is %+v, its label %q is %+v, %v", text, p, p, again, err)
		}
		// A single plan is one band.
		if b, err := ParseBands(text); err != nil || b != One(p) {
			t.Fatalf("%q is %v, as bands %v, %v", text, p, b, err)
		}
		for _, caps := range []Caps{all, noPark, noWord, none} {
			r := p.Resolve(caps)
			if r.Running.kind == Block && p.kind != Block || r.Running.pred != p.pred {
				t.Fatalf("%v falls back to %v", p, r.Running)
			}
			if q, err := Parse(r.Running.String()); err != nil || q != r.Running {
				t.Fatalf("%v falls back to %v, which parses as %v, %v", p, r.Running, q, err)
			}
		}
	})
}

func FuzzParseBands(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ParseBands(text)
		if (err == nil) != validBands(text) {
			t.Fatalf("%q: error %v, but valid is %v", text, err, validBands(text))
		}
		if err != nil {
			checkQuoted(t, err, text)
			return
		}
		again, err := ParseBands(b.String())
		if err != nil || again != b {
			t.Fatalf("%q is %v, its label is %v, %v", text, b, again, err)
		}
		for i, band := range b.All() {
			if b.Index(band.From) != i || i > 0 && b.Index(band.From-1) != i-1 {
				t.Fatalf("%v: edge %d is not where band %d starts", b, band.From, i)
			}
		}
	})
}

// validBands is the oracle for ParseBands.
func validBands(text string) bool {
	parts := strings.Split(text, ";")
	edge := new(big.Int)
	for i, part := range parts {
		if i > 0 {
			m := regexp.MustCompile(`\Arows>=([0-9]+):`).FindStringSubmatch(part)
			if m == nil {
				return false
			}
			n, _ := new(big.Int).SetString(m[1], 10)
			if n.Cmp(edge) <= 0 || n.BitLen() > 64 {
				return false
			}
			edge, part = n, part[len(m[0]):]
		}
		if !valid(part) {
			return false
		}
	}
	return len(parts) <= MaxBands
}

// checkQuoted fails unless err is a refusal that quotes text.
func checkQuoted(t *testing.T, err error, text string) {
	t.Helper()
	_, fault, _ := strings.Cut(err.Error(), strconv.Quote(text)+": ")
	if fault == "" {
		t.Fatalf("%q is refused without quote or fault: %v", text, err)
	}
	checkRefused(t, err, text, fault)
}
