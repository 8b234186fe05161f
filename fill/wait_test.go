package fill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
)

// The heap gives out its entries in order, whatever was removed in between.
func TestWaitHeap(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range 200 {
		var h waitHeap
		var all []entry
		for seq := range uint64(200) {
			if len(all) > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(len(all))
				task := all[i].t
				if h[task.at[inTimers]].t != task {
					t.Fatal("a task does not know its place")
				}
				h.remove(inTimers, int(task.at[inTimers]))
				if task.at[inTimers] != -1 {
					t.Fatal("a task removed still has a place")
				}
				all = slices.Delete(all, i, i+1)
				continue
			}
			e := entry{rng.Uint64N(50), seq, &Task{}}
			all = append(all, e)
			h.push(inTimers, e)
		}
		slices.SortFunc(all, func(a, b entry) int {
			if a.before(&b) {
				return -1
			}
			return 1
		})
		for _, want := range all {
			if h[0] != want {
				t.Fatalf("got key %d, want %d", h[0].key, want.key)
			}
			h.remove(inTimers, 0)
		}
		if len(h) != 0 {
			t.Fatal("entries left")
		}
	}
}

// A run does not remember every line that it ever waited for.
func TestLinesAreForgotten(t *testing.T) {
	m, err := line.Map(3*keptLines, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var w waits
	task := &Task{at: [heapKinds]int32{-1, -1, -1}}
	for i := range m.Lines {
		w.add(task, line.Descriptor{Line: &m.Lines[i], Target: 1}, never, 0, 0)
		w.drop(task)
	}
	if len(w.lines) > keptLines+1 || len(w.active) != 0 || len(w.hot) != 0 {
		t.Errorf("%d lines, %d active, %d hot", len(w.lines), len(w.active), len(w.hot))
	}
	spare := len(w.spare)
	for range 100 {
		w.add(task, line.Descriptor{Line: &m.Lines[2*keptLines], Target: 1}, never, 0, 0)
		w.drop(task)
	}
	if len(w.spare) > spare+1 {
		t.Errorf("%d spare lines, were %d", len(w.spare), spare)
	}
}

// words relies on the layout of line.Line.
func TestWords(t *testing.T) {
	var l line.Line
	for i := range l {
		l[i].Store(uint64(i) + 1)
		if v := words(&l)[i].Load(); v != uint64(i)+1 {
			t.Errorf("word %d reads %d", i, v)
		}
	}
}

// The default idle notices a store to any line, with the park that goes round
// the lines and with the loop that looks at all.
func TestThreadIdleNotices(t *testing.T) {
	const lines = 9
	m, err := line.Map(lines, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, rotate := range []bool{false, true} {
		for _, spin := range []time.Duration{-1, time.Hour} {
			idle := newThreadIdle(new(threadSleeper), spin, 0)
			idle.rotate = rotate
			watches := make([]*Watch, lines)
			for i := range watches {
				watches[i] = &Watch{Line: &m.Lines[i]}
			}
			for i := range lines * line.Words {
				for j := range watches {
					for k := range line.Words {
						watches[j].Seen[k] = m.Lines[j][k].Load()
					}
				}
				stored := make(chan struct{})
				go func() {
					w := &m.Lines[i/line.Words][i%line.Words]
					w.Store(w.Load() + 1)
					close(stored)
				}()
				start := idle.clock.Now()
				idle.Park(watches, start, start+time.Hour) // returns, or the test times out
				if !changed(watches) {
					t.Fatalf("rotate %v, spin %v: the park ended for no reason", rotate, spin)
				}
				<-stored
			}
			start := idle.clock.Now()
			for j := range watches {
				for k := range line.Words {
					watches[j].Seen[k] = m.Lines[j][k].Load()
				}
			}
			idle.Park(watches, start, start+300*time.Microsecond)
			if idle.clock.Now() < start+300*time.Microsecond {
				t.Errorf("rotate %v, spin %v: a park without a store ended before its bound", rotate, spin)
			}
		}
	}
}

// A park on one line looks at the others after each slice.
func TestParkLooksAtOtherLines(t *testing.T) {
	ls := make([]line.Line, 3)
	watches := []*Watch{{Line: &ls[0]}, {Line: &ls[1]}, {Line: &ls[2]}}
	idle := newThreadIdle(new(threadSleeper), 0, 0)
	idle.rotate = true
	parked := map[int]bool{}
	for range ls {
		if idle.hold(watches, 0, time.Microsecond) {
			t.Fatal("nothing was stored")
		}
		parked[idle.turn%len(ls)] = true
	}
	if len(parked) != len(ls) {
		t.Errorf("parked on %d of %d lines in as many slices", len(parked), len(ls))
	}
	ls[1][3].Store(1)
	for range ls {
		if !idle.hold(watches, 0, time.Microsecond) {
			t.Errorf("a slice on line %d did not notice the store to line 1", idle.turn%len(ls))
		}
	}
}

// sleepers are the kernel sleeps that there are here.
func sleepers(t *testing.T) map[string]func() sleeper {
	all := map[string]func() sleeper{"thread": func() sleeper { return new(threadSleeper) }}
	if why := ProbeCaps().NoRing; why == "" {
		all["ring"] = func() sleeper { return new(ringSleeper) }
	} else {
		t.Logf("not on a ring: %s", why)
	}
	return all
}

// entered runs f on a thread that has entered the idle.
func entered(t *testing.T, idle *threadIdle, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := idle.enter(); err != nil {
		t.Error(err)
		return
	}
	defer idle.leave()
	f()
}

func TestNaps(t *testing.T) {
	idle := newThreadIdle(new(threadSleeper), 0, 80*time.Microsecond)
	for waited, want := range map[time.Duration]time.Duration{
		0:                       10 * time.Microsecond,
		80 * time.Microsecond:   10 * time.Microsecond,
		160 * time.Microsecond:  20 * time.Microsecond,
		640 * time.Microsecond:  80 * time.Microsecond,
		5120 * time.Microsecond: 80 * time.Microsecond,
		64 * time.Millisecond:   time.Millisecond,
	} {
		if got := idle.napAfter(waited); got != want {
			t.Errorf("after %v: %v, want %v", waited, got, want)
		}
	}
}

func TestThreadIdleSleeps(t *testing.T) {
	for name, s := range sleepers(t) {
		idle := newThreadIdle(s(), 0, 0)
		entered(t, idle, func() {
			for _, d := range []time.Duration{0, 1, time.Microsecond, 50 * time.Microsecond, 3 * time.Millisecond} {
				start := idle.clock.Now()
				idle.SleepUntil(start + d)
				if took := idle.clock.Now() - start; took < d {
					t.Errorf("%s: slept %v, want %v", name, took, d)
				}
			}
		})
	}
}

// Wake ends a sleep or park under way and all later ones.
func TestThreadIdleWakes(t *testing.T) {
	var l line.Line
	for name, s := range sleepers(t) {
		for what, wait := range map[string]func(*threadIdle){
			"sleep": func(i *threadIdle) { i.SleepUntil(i.clock.Now() + time.Hour) },
			"nap": func(i *threadIdle) {
				now := i.clock.Now()
				i.Park([]*Watch{{Line: &l}}, now, now+time.Hour)
			},
			"spin": func(i *threadIdle) {
				i.spin = time.Hour
				now := i.clock.Now()
				i.Park([]*Watch{{Line: &l}}, now, now+time.Hour)
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				idle := newThreadIdle(s(), -1, time.Hour)
				ready, wake, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
				go func() {
					defer close(done)
					entered(t, idle, func() {
						close(ready)
						wait(idle) // returns, or the test times out
						wait(idle)
						<-wake
					})
				}()
				<-ready
				time.Sleep(time.Millisecond)
				idle.Wake()
				close(wake)
				<-done
			})
		}
	}
}

// With one P, a goroutine that is ready runs before the thread naps.
func TestThreadIdleLetsGoroutinesRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	idle := newThreadIdle(new(threadSleeper), -1, 0)
	entered(t, idle, func() {
		for range 20 {
			var ran atomic.Bool
			go ran.Store(true)
			// Now and then the scheduler takes the thread that has just yielded.
			for range 5 {
				if idle.kernel(time.Nanosecond); ran.Load() {
					break
				}
			}
			if !ran.Load() {
				t.Error("the goroutine did not run")
				return
			}
		}
	})
}

// A thread leaves a run with the timer slack that it came with.
func TestThreadIsRestored(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := timerSlack()
	_, err := Run(context.Background(), Options{}, func(t *Task) error {
		if inside := timerSlack(); before > 1 && inside != 1 {
			return fmt.Errorf("timer slack %d ns in a run", inside)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if after := timerSlack(); after != before {
		t.Errorf("timer slack %d ns, was %d", after, before)
	}
}

// An executor that can't have its thread is refused before any task runs.
func TestRefused(t *testing.T) {
	cause := errors.New("no ring")
	_, err := Run(context.Background(), Options{Executor: IOUring, Idle: refusing{err: cause}}, func(*Task) error {
		t.Error("ran")
		return nil
	})
	if !errors.Is(err, event.ExecutorRefused) || !errors.Is(err, cause) {
		t.Errorf("error %v, want ExecutorRefused and the cause", err)
	}
}

type refusing struct {
	Idle
	err error
}

func (r refusing) enter() error { return r.err }
func (refusing) leave()         { panic("left without having entered") }
