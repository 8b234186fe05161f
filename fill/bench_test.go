package fill_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
)

const many = 100_000

func mustRunB(b testing.TB, opt fill.Options, main func(*fill.Task) error) fill.Stats {
	s, err := fill.Run(context.Background(), opt, main)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkSwitch is a task that yields, resumed.
func BenchmarkSwitch(b *testing.B) {
	b.Run("tasks=1", func(b *testing.B) {
		b.ReportAllocs()
		mustRunB(b, fill.Options{}, func(t *fill.Task) error {
			b.ResetTimer()
			for range b.N {
				t.Yield()
			}
			return nil
		})
	})
	b.Run("tasks=100000", func(b *testing.B) {
		b.ReportAllocs()
		mustRunB(b, fill.Options{}, func(t *fill.Task) error {
			turns, stop := 0, false
			for range many {
				t.Spawn(func(t *fill.Task) error {
					for !stop {
						turns++
						t.Yield()
					}
					return nil
				})
			}
			t.Yield()
			b.ResetTimer()
			for turns = 0; turns < b.N; {
				t.Yield()
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed())/float64(turns), "ns/switch")
			stop = true
			return nil
		})
	})
}

// BenchmarkSpawn is a task from Spawn to its end.
func BenchmarkSpawn(b *testing.B) {
	b.ReportAllocs()
	mustRunB(b, fill.Options{}, func(t *fill.Task) error {
		nop := func(*fill.Task) error { return nil }
		b.ResetTimer()
		for range b.N {
			t.Spawn(nop)
			t.Yield()
		}
		return nil
	})
}

// completions has waiters tasks wait, spread over words of as many lines as that
// takes, and completes batch of them per store or round of stores.
func completions(b *testing.B, tasks, words int) {
	lines := (words + line.Words - 1) / line.Words
	m, err := line.Map(lines, false)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	word := func(i int) *line.Word { i %= words; return &m.Lines[i/line.Words][i%line.Words] }
	slots := make([]line.Slot, line.Words)
	for i := range slots {
		slots[i], _ = line.NewSlot(i)
	}
	b.ReportAllocs()
	mustRunB(b, fill.Options{}, func(t *fill.Task) error {
		done, stop := 0, false
		for i := range tasks {
			t.Spawn(func(t *fill.Task) error {
				d := line.Descriptor{Line: &m.Lines[i%words/line.Words], Slot: slots[i%words%line.Words], Target: uint64(i/words) + 1}
				for !stop {
					t.Await(d)
					done++
					d.Target += uint64(tasks / words)
				}
				return nil
			})
		}
		t.Yield()
		// As many completions at a time as there are words, and 64 if that is more.
		step := uint64(max(1, min(64, tasks)/words))
		round := func() {
			for i := range words {
				w := word(i)
				w.Store(w.Load() + step)
			}
			t.Yield() // to what the look before it found
		}
		for range 3*tasks/words/int(step) + 1 {
			round() // every slice grows to its size
		}
		b.ResetTimer()
		for done = 0; done < b.N; {
			round()
		}
		b.StopTimer()
		b.ReportMetric(float64(b.Elapsed())/float64(done), "ns/completion")
		stop = true
		for i := range words {
			word(i).Store(1 << 60)
		}
		return nil
	})
}

// BenchmarkCompletion is a completion: found, its task resumed, and waiting again.
func BenchmarkCompletion(b *testing.B) {
	b.Run("tasks=1/words=1", func(b *testing.B) { completions(b, 1, 1) })
	b.Run("tasks=64/words=64", func(b *testing.B) { completions(b, 64, 64) })
	b.Run("tasks=100000/words=1", func(b *testing.B) { completions(b, many, 1) })
	b.Run("tasks=100000/words=100", func(b *testing.B) { completions(b, many, 100) })
	b.Run("tasks=100000/words=100000", func(b *testing.B) { completions(b, many, many) })
}

// BenchmarkTimer is a sleep among the timers of other tasks.
func BenchmarkTimer(b *testing.B) {
	r := newRig(b, 1)
	r.opt.Idle = nil
	b.ReportAllocs()
	mustRunB(b, r.opt, func(t *fill.Task) error {
		turns, stop := 0, false
		for i := range many {
			t.Spawn(func(t *fill.Task) error {
				for !stop {
					turns++
					t.Sleep(ms + time.Duration(i%977)*us)
				}
				return nil
			})
		}
		t.Yield()
		b.ResetTimer()
		for turns = 0; turns < b.N; {
			t.Sleep(us)
		}
		b.StopTimer()
		b.ReportMetric(float64(b.Elapsed())/float64(turns), "ns/timer")
		stop = true
		return nil
	})
}

// TestNoAllocations: nothing that a task does again and again allocates.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, 20)
	p := newPoints(t).Point("p")
	p.Exact(ms)
	n := uint64(0)
	device := func() { // has every line's word 1 reach the next n
		n++
		for l := range r.lines {
			r.store(r.clock.Now()+us, l, 1, n)
		}
	}
	for _, e := range []fill.Executor{fill.GPUReactor, fill.Naive} {
		for name, f := range map[string]func(*fill.Task){
			"yield":   func(t *fill.Task) { t.Yield() },
			"reached": func(t *fill.Task) { t.Await(r.at(0, 0, 0)) },
			"sleep":   func(t *fill.Task) { t.Sleep(ms) },
			"await": func(t *fill.Task) {
				device()
				for l := range r.lines {
					t.Await(r.at(l, 1, n))
				}
			},
			"deadline": func(t *fill.Task) { t.AwaitUntil(r.at(0, 2, 1), t.Now()+ms) },
			"point": func(t *fill.Task) {
				t.AwaitPointUntil(p, r.at(0, 2, 1), t.Now()+2*ms)
			},
		} {
			opt := r.opt
			opt.Executor, opt.Idle = e, nil
			// The scripted device allocates its timers.
			own := 0.0
			if name == "await" {
				own = testing.AllocsPerRun(100, func() {
					device()
					r.clock.Advance(us)
				})
			}
			mustRunB(t, opt, func(task *fill.Task) error {
				if n := testing.AllocsPerRun(100, func() { f(task) }) - own; n != 0 {
					t.Errorf("%v, %s: %v allocations", e, name, n)
				}
				return nil
			})
		}
	}
}

// TestManyTasks has 100,000 tasks wait for one word, and then for a word each,
// with a deadline that is never reached.
func TestManyTasks(t *testing.T) {
	tasks := many
	if testing.Short() || raceEnabled {
		tasks /= 10
	}
	for _, words := range []int{1, tasks} {
		m, err := line.Map((words+line.Words-1)/line.Words, false)
		if err != nil {
			t.Fatal(err)
		}
		slots := make([]line.Slot, line.Words)
		for i := range slots {
			slots[i], _ = line.NewSlot(i)
		}
		resumed := 0
		r := newRig(t, 1)
		r.opt.Idle = nil
		for i := range words {
			r.clock.At(ms, func() { m.Lines[i/line.Words][i%line.Words].Store(uint64(tasks)) })
		}
		s := r.mustRun(func(t *fill.Task) error {
			for i := range tasks {
				t.Spawn(func(t *fill.Task) error {
					w := i % words
					if !t.AwaitUntil(line.Descriptor{Line: &m.Lines[w/line.Words], Slot: slots[w%line.Words], Target: uint64(tasks - i)}, 10*ms) {
						r.t.Error("a deadline passed")
					}
					resumed++
					return nil
				})
			}
			return nil
		})
		if resumed != tasks || s.Woke != uint64(tasks) || s.Total != ms {
			t.Errorf("%d words: %d tasks resumed, stats %+v", words, resumed, s)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		runtime.GC()
	}
}

// storing is an Idle whose park makes the store that is waited for and returns.
type storing struct {
	w     *line.Word
	store func()
}

func (s *storing) SleepUntil(time.Duration)                 {}
func (s *storing) Park(_ []*fill.Watch, _, _ time.Duration) { s.store() }

// BenchmarkReturn is the way from a park that has seen the store to the task: what
// a wake costs beyond seeing it.
func BenchmarkReturn(b *testing.B) {
	for _, predicted := range []bool{false, true} {
		name := "plain"
		if predicted {
			name = "predicted"
		}
		b.Run(name, func(b *testing.B) {
			m, err := line.Map(1, false)
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			w := &m.Lines[0][0]
			seq, stored, total := uint64(0), uint64(0), uint64(0)
			idle := &storing{store: func() {
				w.Store(seq)
				stored = asm.Ticks()
			}}
			var pt *plan.Point
			if predicted {
				p, err := plan.Parse("poll+predict:margin_us=1000,min_sleep_us=20,max_sleep_us=50000,window=8")
				if err != nil {
					b.Fatal(err)
				}
				pred, _ := p.Prediction()
				pt = plan.NewEstimator[int](pred).Point(0)
			}
			b.ReportAllocs()
			mustRunB(b, fill.Options{Idle: idle}, func(t *fill.Task) error {
				d := line.Descriptor{Line: &m.Lines[0]}
				for range b.N {
					seq++
					d.Target = seq
					t.AwaitPoint(pt, d)
					total += asm.Ticks() - stored
				}
				return nil
			})
			b.ReportMetric(float64(total)/float64(b.N), "ticks/wake")
		})
	}
}
