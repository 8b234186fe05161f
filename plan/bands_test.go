package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"
)

// TestRuledSetting has one setting that is in use in the field.
func TestRuledSetting(t *testing.T) {
	const flag = "flag:park_us=100,backstop_us=1000+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8"
	const text = "block;rows>=32:" + flag
	b, err := ParseBands(text)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != text {
		t.Errorf("label %q", b)
	}
	for rows, want := range map[uint64]string{0: "block", 1: "block", 31: "block", 32: flag, 33: flag, math.MaxUint64: flag} {
		if got := b.At(rows); got != mustParse(t, want) {
			t.Errorf("%d rows: %v, want %s", rows, got, want)
		}
	}
}

func TestParseBands(t *testing.T) {
	const staged = "staged:spin_us=1,nap_us=2,backstop_us=3"
	for text, want := range map[string][]Band{
		"poll":                            {{0, Plan{kind: Poll}}},
		"block;rows>=1:poll":              {{0, Plan{}}, {1, Plan{kind: Poll}}},
		"block;rows>=0032:poll":           {{0, Plan{}}, {32, Plan{kind: Poll}}},
		"poll;rows>=5:poll":               {{0, Plan{kind: Poll}}, {5, Plan{kind: Poll}}},
		"block;rows>=2:" + staged:         {{0, Plan{}}, {2, mustParse(t, staged)}},
		"poll;rows>=2:block;rows>=3:poll": {{0, Plan{kind: Poll}}, {2, Plan{}}, {3, Plan{kind: Poll}}},
		"block;rows>=1:poll;rows>=2:block;rows>=18446744073709551615:poll": {
			{0, Plan{}}, {1, Plan{kind: Poll}}, {2, Plan{}}, {math.MaxUint64, Plan{kind: Poll}},
		},
	} {
		b, err := ParseBands(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got := b.All()
		if b.Len() != len(want) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
		if again, err := ParseBands(b.String()); err != nil || again != b {
			t.Errorf("%q parses as %v, %v", b, again, err)
		}
		for i, band := range want {
			if b.Index(band.From) != i || b.At(band.From) != band.Plan {
				t.Errorf("%q: the edge row %d is in band %d", text, band.From, b.Index(band.From))
			}
			if i > 0 && b.Index(band.From-1) != i-1 {
				t.Errorf("%q: the row below edge %d is in band %d", text, band.From, b.Index(band.From-1))
			}
		}
		got[0].Plan = Plan{kind: Staged}
		if b.All()[0].Plan == got[0].Plan {
			t.Errorf("%q can be changed from outside", text)
		}
	}
}

func TestParseBandsRefuses(t *testing.T) {
	for _, c := range []struct{ text, fault string }{
		{";", `band 1: unknown park "", want block, poll, flag:<fields>, staged:<fields>, park:<fields>`},
		{"block;", `band 2: "" is not rows>=<n>:<plan>`},
		{"block;poll", `band 2: "poll" is not rows>=<n>:<plan>`},
		{"block;rows>=32", `band 2: "rows>=32" is not rows>=<n>:<plan>`},
		{"block;rows>32:poll", `band 2: "rows>32:poll" is not rows>=<n>:<plan>`},
		{"block; rows>=32:poll", `band 2: " rows>=32:poll" is not rows>=<n>:<plan>`},
		{"block;rows>=:poll", `band 2: rows>="" is not an unsigned 64-bit number`},
		{"block;rows>=-1:poll", `band 2: rows>="-1" is not an unsigned 64-bit number`},
		{"block;rows>=18446744073709551616:poll", `band 2: rows>="18446744073709551616" is not an unsigned 64-bit number`},
		{"block;rows>=0:poll", "band 2: rows>=0 is not above the previous edge 0"},
		{"block;rows>=5:poll;rows>=5:block", "band 3: rows>=5 is not above the previous edge 5"},
		{"block;rows>=5:poll;rows>=4:block", "band 3: rows>=4 is not above the previous edge 5"},
		{"block;rows>=5:", `band 2: unknown park "", want block, poll, flag:<fields>, staged:<fields>, park:<fields>`},
		{"rows>=0:block", `unknown park "rows>=0:block", want block, poll, flag:<fields>, staged:<fields>, park:<fields>`},
		{"block;rows>=5:flag:park_us=0,backstop_us=1", "band 2: park_us=0 is out of range, want 1..10000"},
		{"flag;rows>=0:poll", "band 1: missing field park_us"},
		{"block;rows>=1:poll;rows>=2:poll;rows>=3:poll;rows>=4:poll", "5 bands, want at most 4"},
		{"spin;;;;;", "6 bands, want at most 4"},
	} {
		b, err := ParseBands(c.text)
		checkRefused(t, err, c.text, c.fault)
		if b != (Bands{}) {
			t.Errorf("%q is refused and still gives %v", c.text, b)
		}
	}
}

func TestBandsRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5_000 {
		text, label := randomText(r)
		from := uint64(0)
		for range r.IntN(MaxBands) {
			from += 1 + r.Uint64N(1<<uint(r.IntN(60)))
			p, l := randomText(r)
			text += fmt.Sprintf(";rows>=%d:%s", from, p)
			label += fmt.Sprintf(";rows>=%d:%s", from, l)
		}
		b, err := ParseBands(text)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != label {
			t.Fatalf("%q has the label %q, want %q", text, b, label)
		}
		if again, err := ParseBands(label); err != nil || again != b {
			t.Fatalf("%q parses as %v, %v", label, again, err)
		}
	}
}

func TestSteps(t *testing.T) {
	var s Steps
	if s.Load() != 0 || (*Steps)(nil).Load() != 0 {
		t.Error("nothing published is not 0 rows")
	}
	s.Publish(32)
	if s.Load() != 32 {
		t.Errorf("published 32, got %d", s.Load())
	}
	if n := unsafe.Sizeof(s); n != 64 {
		t.Errorf("a cell takes %d bytes, not a cache line", n)
	}
	// Readers beside the publisher see what was published, in order.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for last := uint64(32); last < 2000; {
				now := s.Load()
				if now < last || now > 2000 {
					t.Errorf("rows went from %d to %d", last, now)
					return
				}
				last = now
			}
		})
	}
	for n := uint64(33); n <= 2000; n++ {
		s.Publish(n)
	}
	wg.Wait()
}
