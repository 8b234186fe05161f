package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/rig"
)

// guard measures on a machine that has nothing else to do. It gets three tries. The
// bounds are generous: they catch what has gone wrong, not what has become a little
// slower; the figures themselves are in the log.
func guard(t *testing.T, f func() (ok bool, text string)) {
	t.Helper()
	if os.Getenv("GPULINE_GUARDS") == "" {
		t.Skip("a measurement: set GPULINE_GUARDS=1")
	}
	for i := range 3 {
		ok, text := f()
		t.Logf("try %d: %s", i+1, text)
		if ok {
			return
		}
	}
	t.Error("out of bounds in every try")
}

// medianOf repeats a measurement in three processes, and returns the one in the
// middle by f.
func medianOf(t *testing.T, j rig.Job, f func(rig.Answer) float64) rig.Answer {
	var as []rig.Answer
	for range 3 {
		a := do(t, j)
		if a.Skip != "" {
			t.Skip(a.Skip)
		}
		as = append(as, a)
	}
	slices.SortFunc(as, func(a, b rig.Answer) int {
		if f(a) < f(b) {
			return -1
		}
		return 1
	})
	return as[1]
}

func p50(a rig.Answer) float64 { return a.Sample.P50 }

func cellJob(method, work string) rig.Job {
	return rig.Job{Kind: "cell", Name: method, Driver: "soft", Cell: result.Cell{Work: work, Streams: 1, Load: "idle"}, Warm: 60 * time.Millisecond, Measure: 250 * time.Millisecond}
}

func floorJob(name string) rig.Job {
	return rig.Job{Kind: "floor", Name: name, Measure: 250 * time.Millisecond}
}

func ns(v float64) string { return time.Duration(v).String() }

// clockRead is what two readings of the clock add to a latency whatever is measured.
const clockRead = 150

// A goroutine in Wait on an otherwise idle machine learns of the store about as soon
// as a thread that does nothing but look.
func TestGuardWait(t *testing.T) {
	guard(t, func() (bool, string) {
		spin := medianOf(t, floorJob("spinning reader"), p50).Sample.P50
		wait := medianOf(t, cellJob("wait+predict", "200us"), p50).Sample.P50
		return wait <= 3*spin+clockRead, "spinning reader " + ns(spin) + ", Wait " + ns(wait)
	})
}

// A goroutine is woken through a channel before a thread on a processor that has been idle for
// as long can be woken at all, and usually in a third of the time. The aim is 0.4.
func TestGuardDone(t *testing.T) {
	guard(t, func() (bool, string) {
		raw := medianOf(t, floorJob(result.EventfdWake("200us")), p50).Sample.P50
		done := medianOf(t, cellJob("done+predict", "200us"), p50).Sample.P50
		return done <= 0.8*raw, "eventfd wake " + ns(raw) + ", Done " + ns(done)
	})
}

// With a prediction, a wait of 2 ms costs a small part of what spinning does and is
// about as fast. The aims are 5 % and 10 us.
func TestGuardPrediction(t *testing.T) {
	guard(t, func() (bool, string) {
		cpu := func(a rig.Answer) float64 { return a.Sample.PerWait }
		spin, wait := medianOf(t, cellJob("spin", "2ms"), cpu).Sample, medianOf(t, cellJob("wait+predict", "2ms"), cpu).Sample
		return wait.PerWait <= 0.15*spin.PerWait && wait.P50 <= spin.P50+20e3,
			"spin " + ns(spin.PerWait) + " CPU, median " + ns(spin.P50) + "; Wait " + ns(wait.PerWait) + ", " + ns(wait.P50)
	})
}

// FILL's wake needs no scheduler.
func TestGuardFill(t *testing.T) {
	guard(t, func() (bool, string) {
		spin := medianOf(t, floorJob("spinning reader"), p50).Sample.P50
		fill := medianOf(t, cellJob("fill+predict", "200us"), p50).Sample.P50
		return fill <= 6*spin+clockRead, "spinning reader " + ns(spin) + ", FILL " + ns(fill)
	})
}

// 1024 streams with 100,000 pending waits. The aim is 300 ns, which a slow processor just makes.
func TestGuardCompletions(t *testing.T) {
	guard(t, func() (bool, string) {
		a := medianOf(t, rig.Job{Kind: "scale", Name: "completion, 1024 words", X: 102_400, Warm: 20 * time.Millisecond, Measure: 200 * time.Millisecond},
			func(a rig.Answer) float64 { return a.Values[0] })
		allocs, err := strconv.ParseFloat(strings.Fields(a.Note)[0], 64)
		return a.Values[0] <= 450 && err == nil && allocs == 0, ns(a.Values[0]) + " of CPU per completion, " + a.Note
	})
}

// The comparison finds a waiter that is a fifth slower.
func TestGuardPlanted(t *testing.T) {
	guard(t, func() (bool, string) {
		file := func(plant float64) *result.File {
			f := &result.File{}
			for _, s := range rig.Scales() {
				if !strings.HasPrefix(s.Name, "completion") {
					continue
				}
				for _, x := range s.X[:3] {
					sc := &result.Scale{Name: s.Name, X: x, XName: s.XName, Unit: s.Unit, Lower: s.Lower}
					for range 5 {
						a := do(t, rig.Job{Kind: "scale", Name: s.Name, X: x, Warm: 20 * time.Millisecond, Measure: 100 * time.Millisecond, Plant: plant})
						sc.Samples = append(sc.Samples, a.Values...)
					}
					f.Scales = append(f.Scales, sc)
				}
			}
			return f
		}
		before := file(0)
		same, slow := result.Compare(before, file(0)), result.Compare(before, file(0.2))
		text := "equals: nothing"
		if len(same.Summary) > 0 {
			text = "equals differ by " + strconv.FormatFloat(same.Summary[0].Ratio, 'f', 2, 64)
		}
		for _, c := range slow.Summary {
			if c.What == "all of ours" && !c.Better {
				return len(same.Summary) == 0, text + "; planted 1.20, found " + strconv.FormatFloat(c.Ratio, 'f', 2, 64)
			}
		}
		return false, text + "; planted 1.20, not found"
	})
}

// BenchmarkMethods is one measurement of 100 ms per iteration.
func BenchmarkMethods(b *testing.B) {
	for _, name := range []string{"thread", "spin", "wait+predict", "done+predict", "fill+predict"} {
		for _, work := range []string{"200us", "2ms"} {
			b.Run("work="+work+"/"+name, func(b *testing.B) {
				var p50, p99, cpu float64
				for range b.N {
					j := cellJob(name, work)
					j.Measure = 100 * time.Millisecond
					s := do(b, j).Sample
					p50, p99, cpu = p50+s.P50, p99+s.P99, cpu+s.PerWait
				}
				n := float64(b.N)
				b.ReportMetric(p50/n, "p50-ns")
				b.ReportMetric(p99/n, "p99-ns")
				b.ReportMetric(cpu/n, "cpu-ns/wait")
			})
		}
	}
}
