package result

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// synthetic is a run of the given noise (standard deviation of the logarithm
// between processes, of which a part is shared by the cell's rows) in which ours are
// slower by slow.
func synthetic(seed uint64, noise, slow float64) *File {
	rnd := rand.New(rand.NewPCG(seed, 1))
	f := &File{Mode: "quick", Driver: "soft"}
	off := func(sd float64) float64 { return math.Exp(sd * rnd.NormFloat64()) }
	cell := 0
	for _, work := range []string{"20us", "2ms", "20ms"} {
		for _, load := range []string{"idle", "busy"} {
			cell++
			shared := off(noise / 3)
			for m := range 12 {
				r := &Row{Cell: Cell{work, 1, load}, Method: fmt.Sprintf("m%d", m), Ours: m >= 6}
				k := shared
				if r.Ours {
					k *= slow
				}
				base := float64(1+m) * 1000 * float64(cell)
				for range 3 {
					r.Samples = append(r.Samples, Sample{
						N: 1000, P50: base * k * off(noise), P99: 10 * base * k * off(2*noise), PerWait: 3 * base * k * off(noise),
						Neighbour: 1e6 * off(noise), Threads: 5, Memory: 1 << 20,
					})
				}
				f.Rows = append(f.Rows, r)
			}
		}
	}
	for x := range 4 {
		s := &Scale{Name: "completion, one word", X: x, XName: "pending", Unit: "ns", Lower: true}
		for range 3 {
			s.Samples = append(s.Samples, 90*slow*off(noise/2))
		}
		f.Scales = append(f.Scales, s)
	}
	return f
}

func find(cs []Change, what, metric string) *Change {
	for i := range cs {
		if cs[i].What == what && cs[i].Metric == metric {
			return &cs[i]
		}
	}
	return nil
}

func TestPlantedSlowdownIsReported(t *testing.T) {
	cpu := 0
	for seed := range uint64(50) {
		c := Compare(synthetic(2*seed+1, 0.06, 1), synthetic(2*seed+2, 0.06, 1.2))
		for _, want := range [][2]string{{"all of ours", "p50"}, {"completion, one word", "ns"}} {
			x := find(c.Summary, want[0], want[1])
			if x == nil {
				t.Fatalf("seed %d: a slowdown of 20 %% in %v was not reported: %+v", seed, want, c.Summary)
			}
			if x.Better || x.Ratio < 1.12 || x.Ratio > 1.29 || !x.Ours {
				t.Errorf("seed %d: %v was reported as %+v", seed, want, x)
			}
		}
		// Only three cells have it, which is few.
		if x := find(c.Summary, "all of ours", "CPU/wait"); x != nil && !x.Better {
			cpu++
		}
		if x := find(c.Summary, "all baselines", "p50"); x != nil {
			t.Errorf("seed %d: the baselines did not change, but: %+v", seed, x)
		}
	}
	if cpu < 40 {
		t.Errorf("20 %% more CPU time in three cells was reported %d times of 50", cpu)
	}
}

func TestSameIsSame(t *testing.T) {
	wrong, compared := 0, 0
	for seed := range uint64(50) {
		c := Compare(synthetic(2*seed+1, 0.15, 1), synthetic(2*seed+2, 0.15, 1))
		for _, x := range c.Summary {
			wrong++
			t.Logf("seed %d: %+v", seed, x)
		}
		wrong += len(c.Changes)
		compared += c.Compared
	}
	if compared == 0 || wrong > compared/2000 {
		t.Errorf("%d changes among %d comparisons of equals", wrong, compared)
	}
}

func TestImprovementAndMachine(t *testing.T) {
	c := Compare(synthetic(1, 0.05, 1.5), synthetic(2, 0.05, 1))
	if x := find(c.Summary, "all of ours", "p50"); x == nil || !x.Better {
		t.Errorf("half the latency: %+v", x)
	}
	b := synthetic(2, 0.05, 1)
	b.Machine.CPUs = 8
	for _, r := range b.Rows {
		for i := range r.Samples {
			r.Samples[i].P50 *= 1.3
		}
	}
	c = Compare(synthetic(1, 0.05, 1), b)
	if x := find(c.Summary, "all baselines", "p50"); x == nil || x.Better {
		t.Errorf("a slower machine shows in the baselines: %+v", x)
	}
	if len(c.Warnings) == 0 {
		t.Error("another number of processors is worth a warning")
	}
}

func TestLittleInCommon(t *testing.T) {
	if c := Compare(&File{}, synthetic(1, 0.1, 1)); c.Compared != 0 || len(c.Changes)+len(c.Summary) != 0 {
		t.Errorf("an empty run: %+v", c)
	}
	one := synthetic(1, 0.1, 1)
	for _, r := range one.Rows {
		r.Samples = r.Samples[:1]
	}
	one.Scales = nil
	if c := Compare(one, synthetic(2, 0.1, 3)); c.Compared != 0 {
		t.Errorf("one sample has no spread: %d compared", c.Compared)
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := t.TempDir() + "/r.json"
	f := synthetic(1, 0.1, 1)
	h := NewHist()
	for i := range int64(1000) {
		_ = h.RecordValue(1 + i*1000)
	}
	f.Rows[0].Add(Sample{Hist: Encode(h)})
	f.Rows[0].Add(Sample{Hist: Encode(h)})
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	g, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := Decode(g.Rows[0].Hist).TotalCount(); n != 2000 {
		t.Errorf("%d latencies, want those of both samples", n)
	}
	if q, ok := g.Rows[0].Quantile(0.5); !ok || q < 495e3 || q > 505e3 {
		t.Errorf("median %v", q)
	}
	if _, ok := g.Rows[0].Quantile(0.999); ok {
		t.Error("2 latencies beyond the quantile are enough to tell")
	}
	f.Format = 99
	if _, err := Load(t.TempDir() + "/none"); err == nil {
		t.Error("a missing file loads")
	}
}
