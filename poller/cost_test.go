package poller

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// turn registers one wait behind those pending, stores the next number, and lets
// the waiter's own code find and deliver it, on this goroutine: the cost of
// a registration and a completion without any scheduling in it.
type turner struct {
	t     testing.TB
	w     *Waiter
	x     *Watch
	store func(uint64)
	next  uint64
	done  uint64
	free  []*Wait
	sink  Sink
}

func newTurner(t testing.TB, pending int) *turner {
	w := NewWaiter(Config{})
	w.started.Store(true) // nobody else scans
	word, x := testWatch(t, w, WatchOptions{})
	r := &turner{t: t, w: w, x: x, store: word.Store}
	r.sink = sinkFunc(func(wt *Wait, err error) { r.free = append(r.free, wt) })
	for range pending {
		r.add(&Wait{Sink: r.sink})
	}
	w.admit()
	return r
}

func (r *turner) add(wt *Wait) {
	r.next++
	mustAdd(r.t, r.x, wt, r.next)
}

func (r *turner) turn() {
	r.done++
	r.store(r.done)
	r.w.admit()
	if s := r.w.scan(nanotime(), true); !s.work {
		r.t.Fatal("nothing to deliver")
	}
	r.w.deliver(nanotime())
	for _, wt := range r.free {
		r.add(wt)
	}
	r.free = r.free[:0]
}

func TestTurnsAllocateNothing(t *testing.T) {
	r := newTurner(t, 100)
	if n := testing.AllocsPerRun(1000, r.turn); n != 0 {
		t.Errorf("%v allocations per registration and completion", n)
	}
}

// The cost of a completion does not grow with the number of pending waits.
func TestCostDoesNotDependOnPending(t *testing.T) {
	if os.Getenv("GPULINE_GUARDS") == "" {
		t.Skip("a measurement: set GPULINE_GUARDS=1")
	}
	few, many := newTurner(t, 10), newTurner(t, 10_000)
	measure := func(r *turner) time.Duration {
		start := time.Now()
		for range 2000 {
			r.turn()
		}
		return time.Since(start) / 2000
	}
	var ratios []float64
	for range 51 {
		a, b := measure(few), measure(many)
		ratios = append(ratios, float64(b)/float64(a))
	}
	slices.Sort(ratios)
	t.Logf("10,000 pending over 10 pending: %.2f (p10 %.2f, p90 %.2f)", ratios[25], ratios[5], ratios[45])
	if ratios[25] > 2 {
		t.Errorf("10,000 pending waits cost %.2f times as much per completion as 10", ratios[25])
	}
}

func BenchmarkCompletion(b *testing.B) {
	for _, n := range []int{1, 10, 1000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("pending=%d", n), func(b *testing.B) {
			r := newTurner(b, n)
			b.ReportAllocs()
			for b.Loop() {
				r.turn()
			}
		})
	}
}

// BenchmarkScan is the cost of one look at each of n busy words.
func BenchmarkScan(b *testing.B) {
	for _, n := range []int{1, 8, 64, 1024} {
		b.Run(fmt.Sprintf("words=%d", n), func(b *testing.B) {
			w := NewWaiter(Config{})
			w.started.Store(true)
			lines := testLines(b, (n+7)/8)
			for i := range n {
				x, err := w.Watch(&lines[i/8][i%8], WatchOptions{})
				if err != nil {
					b.Fatal(err)
				}
				mustAdd(b, x, &Wait{Sink: Chan{}}, 1)
			}
			w.admit()
			for b.Loop() {
				w.scan(nanotime(), true)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/word")
		})
	}
}

// BenchmarkBatch completes a whole batch of waits on each of 1024 words with one
// look.
func BenchmarkBatch(b *testing.B) {
	const words, depth = 1024, 98 // about 100,000 waits
	w := NewWaiter(Config{})
	w.started.Store(true)
	lines := testLines(b, words/8)
	var xs [words]*Watch
	var free []*Wait
	sink := sinkFunc(func(wt *Wait, err error) { free = append(free, wt) })
	for i := range words {
		x, err := w.Watch(&lines[i/8][i%8], WatchOptions{})
		if err != nil {
			b.Fatal(err)
		}
		xs[i] = x
	}
	for range words * depth {
		free = append(free, &Wait{Sink: sink})
	}
	seq := uint64(0)
	var registered, completed time.Duration
	b.ReportAllocs()
	for b.Loop() {
		t0 := time.Now()
		for _, x := range xs {
			for d := range uint64(depth) {
				last := len(free) - 1
				mustAdd(b, x, free[last], seq+d+1)
				free = free[:last]
			}
		}
		t1 := time.Now()
		seq += depth
		for i := range xs {
			xs[i].word.Store(seq)
		}
		w.admit()
		w.scan(nanotime(), true)
		w.deliver(nanotime())
		registered += t1.Sub(t0)
		completed += time.Since(t1)
		if len(free) != words*depth {
			b.Fatalf("%d of %d waits completed", len(free), words*depth)
		}
	}
	n := float64(b.N) * words * depth
	b.ReportMetric(float64(registered.Nanoseconds())/n, "ns/registration")
	b.ReportMetric(float64(completed.Nanoseconds())/n, "ns/completion")
}
