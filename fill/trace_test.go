package fill_test

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
)

func TestReachedAlready(t *testing.T) {
	r := newRig(t, 1)
	r.lines[0][2].Store(7)
	s := r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(*fill.Task) error { r.log("other"); return nil })
		t.Await(r.at(0, 2, 7))
		if !t.AwaitUntil(r.at(0, 2, 3), 0) {
			r.t.Error("an earlier target is not reached")
		}
		if t.AwaitUntil(r.at(0, 2, 8), 0) {
			r.t.Error("a later target is reached")
		}
		r.log("main")
		return nil
	})
	r.wantTrace("0s main", "0s other")
	if want := (fill.Stats{Spawned: 2, Polls: 2}); s != want {
		t.Errorf("stats %+v, want %+v", s, want)
	}
}

func TestParksOnWhatIsWaitedFor(t *testing.T) {
	r := newRig(t, 3)
	r.store(2500*time.Microsecond, 1, 4, 1)
	r.store(3*ms, 2, 0, 9)
	s := r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error {
			t.Await(r.at(2, 0, 5))
			r.log("b")
			return nil
		})
		t.Await(r.at(1, 4, 1))
		r.log("a")
		return nil
	})
	r.wantTrace(
		"0s park on [1 2] until 1ms",
		"1ms park on [1 2] until 2ms",
		"2ms park on [1 2] until 3ms",
		"2.5ms a",
		"2.5ms park on [2] until 3.5ms",
		"3ms b",
	)
	want := fill.Stats{Spawned: 2, Polls: 4, Woke: 2, Parked: 4, Looks: 11, Idle: 3 * ms, Total: 3 * ms}
	if s != want {
		t.Errorf("stats %+v, want %+v", s, want)
	}
}

func TestSleepsToTheEarliestTime(t *testing.T) {
	r := newRig(t, 1)
	s := r.mustRun(func(t *fill.Task) error {
		for i, d := range []time.Duration{7 * ms, 3 * ms, 5 * ms, 3 * ms} {
			t.Spawn(func(t *fill.Task) error {
				t.Sleep(d)
				r.log("%d", i)
				return nil
			})
		}
		t.SleepUntil(6 * ms)
		r.log("main")
		t.SleepUntil(1 * ms)
		t.Sleep(-1)
		t.Sleep(0)
		r.log("no sleep")
		return nil
	})
	r.wantTrace(
		"0s sleep until 3ms", "3ms 1", "3ms 3",
		"3ms sleep until 5ms", "5ms 2",
		"5ms sleep until 6ms", "6ms main", "6ms no sleep",
		"6ms sleep until 7ms", "7ms 0",
	)
	want := fill.Stats{Spawned: 5, Polls: 10, Expired: 5, Slept: 4, Idle: 7 * ms, Total: 7 * ms}
	if s != want {
		t.Errorf("stats %+v, want %+v", s, want)
	}
}

func TestNeverParksPastADeadline(t *testing.T) {
	r := newRig(t, 2)
	r.store(4*ms, 0, 0, 1)
	r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error {
			t.SleepUntil(200 * time.Microsecond)
			r.log("slept")
			return nil
		})
		r.log("%v", t.AwaitUntil(r.at(1, 0, 1), 1500*time.Microsecond))
		r.log("%v", t.AwaitUntil(r.at(0, 0, 1), 4500*time.Microsecond))
		return nil
	})
	r.wantTrace(
		"0s park on [1] until 200µs",
		"200µs slept",
		"200µs park on [1] until 1.2ms",
		"1.2ms park on [1] until 1.5ms",
		"1.5ms false",
		"1.5ms park on [0] until 2.5ms",
		"2.5ms park on [0] until 3.5ms",
		"3.5ms park on [0] until 4.5ms",
		"4ms true",
	)
}

// A target reached counts as reached also when a task kept the thread until
// after the deadline.
func TestReachedBeatsDeadline(t *testing.T) {
	r := newRig(t, 1)
	r.store(1*ms, 0, 0, 1)
	r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error {
			r.log("in time: %v", t.AwaitUntil(r.at(0, 0, 1), 2*ms))
			return nil
		})
		t.Spawn(func(t *fill.Task) error {
			r.log("not in time: %v", t.AwaitUntil(r.at(0, 0, 2), 2*ms))
			return nil
		})
		t.Spawn(func(t *fill.Task) error {
			r.work(3 * ms)
			return nil
		})
		return nil
	})
	r.wantTrace("3ms in time: true", "3ms not in time: false")
}

func TestWokenWorkRunsFirst(t *testing.T) {
	r := newRig(t, 1)
	r.store(2*ms, 0, 0, 1)
	r.store(2*ms, 0, 1, 1)
	r.mustRun(func(t *fill.Task) error {
		for i := range 2 {
			t.Spawn(func(t *fill.Task) error {
				t.Await(r.at(0, i, 1))
				r.log("woken %d", i)
				t.Yield()
				r.log("again %d", i)
				return nil
			})
		}
		for i := range 3 {
			t.Spawn(func(t *fill.Task) error {
				for range 2 {
					r.work(1 * ms)
					r.log("slice of %d", i)
					t.Yield()
				}
				return nil
			})
		}
		return nil
	})
	r.wantTrace(
		"1ms slice of 0",
		"2ms slice of 1",
		"2ms woken 0", "2ms woken 1", // before the slice of 2, which was ready earlier
		"3ms slice of 2",
		"4ms slice of 0",
		"5ms slice of 1",
		"5ms again 0", "5ms again 1", // in turn with those that yielded before
		"6ms slice of 2",
	)
}

// Tasks that wake each other for ever do not starve those that yield.
func TestWokenWorkDoesNotStarve(t *testing.T) {
	r := newRig(t, 1)
	const rounds = 20
	turns := 0
	done := false
	r.mustRun(func(t *fill.Task) error {
		for side := range 2 {
			t.Spawn(func(t *fill.Task) error {
				for n := uint64(1); !done; n++ {
					r.lines[0][side].Store(n)
					t.Await(r.at(0, 1-side, n))
				}
				r.lines[0][side].Store(1 << 40)
				return nil
			})
		}
		for range rounds {
			t.Yield()
			turns++
		}
		done = true
		return nil
	})
	if turns != rounds {
		t.Errorf("%d turns, want %d", turns, rounds)
	}
}

func TestTargetOrderOnOneWord(t *testing.T) {
	r := newRig(t, 1)
	start := ^uint64(0) - 2 // the targets wrap around
	r.lines[0][0].Store(start)
	r.store(1*ms, 0, 0, start+4)
	r.store(2*ms, 0, 0, start+9)
	r.mustRun(func(t *fill.Task) error {
		for i, target := range []uint64{5, 2, 9, 2, 4, 1, 7} {
			t.Spawn(func(t *fill.Task) error {
				t.Await(r.at(0, 0, start+target))
				r.log("+%d (%d)", target, i)
				return nil
			})
		}
		return nil
	})
	r.wantTrace(
		"0s park on [0] until 1ms",
		"1ms +1 (5)", "1ms +2 (1)", "1ms +2 (3)", "1ms +4 (4)",
		"1ms park on [0] until 2ms",
		"2ms +5 (0)", "2ms +7 (6)", "2ms +9 (2)",
	)
}

// With many lines a look between two polls covers a part of them, in turn.
func TestPartialLooks(t *testing.T) {
	const lines = 100
	r := newRig(t, lines)
	slices := 0
	seen := -1
	r.mustRun(func(t *fill.Task) error {
		for i := range lines {
			t.Spawn(func(t *fill.Task) error {
				t.Await(r.at(i, 0, 1))
				if i == 70 {
					seen = slices
				}
				return nil
			})
		}
		for range lines + 1 {
			t.Yield() // the others begin to wait
		}
		r.lines[70][0].Store(1)
		for range 20 {
			slices++
			t.Yield()
		}
		for i := range lines {
			r.lines[i][0].Store(1)
		}
		return nil
	})
	if seen < 0 || seen > (lines+15)/16 {
		t.Errorf("the completion was seen after %d polls, want at most %d", seen, (lines+15)/16)
	}
}

// Three waits of 2, 4 and 6 ms and 5 ms of CPU work in slices take 6 ms when the
// waits are filled and 11 ms when they are not.
func TestFillsWaits(t *testing.T) {
	for _, c := range []struct {
		executor fill.Executor
		total    time.Duration
	}{{fill.GPUReactor, 6 * ms}, {fill.Naive, 11 * ms}} {
		t.Run(c.executor.String(), func(t *testing.T) {
			r := newRig(t, 1)
			r.opt.Executor = c.executor
			worked := 0
			s := r.mustRun(func(t *fill.Task) error {
				for i := range 3 {
					d := time.Duration(i+1) * 2 * ms
					r.store(d, 0, i, 1)
					t.Spawn(func(t *fill.Task) error {
						t.Await(r.at(0, i, 1))
						return nil
					})
				}
				t.Spawn(func(t *fill.Task) error {
					for range 50 {
						r.work(ms / 10)
						worked++
						t.Yield()
					}
					return nil
				})
				return nil
			})
			if s.Total != c.total || s.Idle != c.total-5*ms || worked != 50 {
				t.Errorf("%v with %v idle and %d slices, want %v with %v and 50", s.Total, s.Idle, worked, c.total, c.total-5*ms)
			}
		})
	}
}

func TestStalled(t *testing.T) {
	r := newRig(t, 1)
	r.store(1*ms, 0, 0, 1)
	stopped := 0
	s, err := r.run(func(t *fill.Task) error {
		for range 3 {
			t.Spawn(func(t *fill.Task) error {
				defer func() { stopped++ }()
				t.Await(line.Descriptor{})
				r.log("resumed")
				return nil
			})
		}
		r.log("%v", t.AwaitUntil(line.Descriptor{}, ms/2))
		t.Await(r.at(0, 0, 1))
		return nil
	})
	if !errors.Is(err, event.Stalled) {
		t.Fatalf("error %v, want Stalled", err)
	}
	var e *event.Error
	if !errors.As(err, &e) || !reflect.DeepEqual(e.Args, []string{"3"}) {
		t.Errorf("arguments %v, want 3 tasks", e.Args)
	}
	if stopped != 3 || s.Total != 1*ms {
		t.Errorf("%d tasks stopped after %v, want 3 after 1ms", stopped, s.Total)
	}
	r.wantTrace("0s sleep until 500µs", "500µs false", "500µs park on [0] until 1.5ms")
}

func TestPanic(t *testing.T) {
	r := newRig(t, 1)
	cause := errors.New("broken sampler")
	var stopped []uint64
	_, err := r.run(func(t *fill.Task) error {
		for range 2 {
			t.Spawn(func(t *fill.Task) error {
				defer func() { stopped = append(stopped, t.ID()) }()
				t.Await(r.at(0, 0, 1))
				return nil
			})
		}
		t.Yield()
		t.Spawn(func(*fill.Task) error { r.t.Error("ran after the panic"); return nil })
		deepPanic(cause)
		return nil
	})
	if !errors.Is(err, event.Panicked) || !errors.Is(err, cause) {
		t.Fatalf("error %v, want Panicked and the cause", err)
	}
	if !strings.Contains(err.Error(), "fill task 1") || !strings.Contains(err.Error(), "deepPanic") {
		t.Errorf("no task or stack in %v", err)
	}
	if !reflect.DeepEqual(stopped, []uint64{2, 3}) {
		t.Errorf("stopped %v, want 2 and 3", stopped)
	}
}

//go:noinline
func deepPanic(v any) { panic(v) }

func TestFirstErrorEndsTheRun(t *testing.T) {
	r := newRig(t, 1)
	first := errors.New("first")
	var trace []string
	_, err := r.run(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error {
			defer func() {
				trace = append(trace, "deferred")
				defer func() { trace = append(trace, "inner: "+recover().(error).Error()) }()
				t.Spawn(func(*fill.Task) error { r.t.Error("a task spawned while stopping ran"); return nil })
				t.Sleep(ms) // a stopped task can't wait
				trace = append(trace, "not reached")
			}()
			t.Await(r.at(0, 0, 1))
			return nil
		})
		t.Spawn(func(t *fill.Task) error {
			defer func() { panic("in a deferred function") }()
			t.Await(r.at(0, 0, 1))
			return nil
		})
		t.Sleep(ms)
		return first
	})
	if !errors.Is(err, first) || !errors.Is(err, event.Panicked) {
		t.Errorf("error %v, want the first and the panic that followed", err)
	}
	if want := []string{"deferred", "inner: " + fill.ErrStopped.Error()}; !reflect.DeepEqual(trace, want) {
		t.Errorf("trace %q, want %q", trace, want)
	}

	if _, err := r.run(func(*fill.Task) error { panic(fill.ErrStopped) }); !errors.Is(err, event.Panicked) {
		t.Errorf("error %v, want Panicked: nobody stopped the task", err)
	}
	if _, err := r.run(func(*fill.Task) error { return first }); err != first {
		t.Errorf("error %v, want the task's own, unchanged", err)
	}
}

func TestGoexit(t *testing.T) {
	r := newRig(t, 1)
	stopped, returned := 0, false
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.run(func(t *fill.Task) error {
			for range 2 {
				t.Spawn(func(t *fill.Task) error {
					defer func() { stopped++ }()
					t.Await(r.at(0, 0, 1))
					return nil
				})
			}
			t.Sleep(ms)
			runtime.Goexit()
			return nil
		})
		returned = true
	}()
	<-done
	if returned || stopped != 2 {
		t.Errorf("Run returned: %v, tasks stopped: %d; want the goroutine to end after 2", returned, stopped)
	}
}

// A task that never yields holds up everything else; it shows in LongestPoll.
func TestHog(t *testing.T) {
	r := newRig(t, 1)
	r.store(1*ms, 0, 0, 1)
	s := r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error { t.Sleep(2 * ms); r.log("deadline"); return nil })
		t.Spawn(func(t *fill.Task) error { t.Await(r.at(0, 0, 1)); r.log("completion"); return nil })
		t.Spawn(func(*fill.Task) error { r.work(50 * ms); return nil })
		return nil
	})
	r.wantTrace("50ms completion", "50ms deadline")
	if s.LongestPoll != 50*ms {
		t.Errorf("longest poll %v, want 50ms", s.LongestPoll)
	}
}

// Blocking in ordinary Go code blocks the run, and nothing else.
func TestBlockingInGo(t *testing.T) {
	r := newRig(t, 1)
	c := make(chan int)
	ran := false
	r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(*fill.Task) error { ran = true; return nil })
		go func() { c <- 42 }()
		if v := <-c; v != 42 || ran {
			r.t.Errorf("got %d, other task ran: %v", v, ran)
		}
		runtime.Gosched()
		runtime.GC()
		return nil
	})
	if !ran {
		t.Error("the other task never ran")
	}
}

func TestCancel(t *testing.T) {
	cause := errors.New("the user went away")
	for _, c := range []struct {
		name string
		main func(*rig, *fill.Task)
	}{
		{"while a task runs", func(r *rig, t *fill.Task) { t.Yield() }},
		{"before a park", func(r *rig, t *fill.Task) { t.Await(r.at(0, 0, 1)) }},
		{"before a sleep", func(r *rig, t *fill.Task) { t.Sleep(time.Hour) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1)
			ctx, cancel := context.WithCancelCause(context.Background())
			woken := make(chan struct{})
			r.opt.Idle = wakeIdle{r.opt.Idle, woken}
			stopped := false
			_, err := fill.Run(ctx, r.opt, func(t *fill.Task) error {
				defer func() { stopped = true }()
				cancel(cause)
				<-woken
				c.main(r, t)
				r.t.Error("resumed")
				return nil
			})
			if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "1 task") {
				t.Errorf("error %v, want the context's, its cause and the number of tasks", err)
			}
			if !stopped || len(r.trace) != 0 {
				t.Errorf("stopped: %v, trace %q", stopped, r.trace)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := fill.Run(ctx, fill.Options{}, func(*fill.Task) error { t.Error("ran"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

type wakeIdle struct {
	fill.Idle
	woken chan struct{}
}

func (i wakeIdle) Wake() { close(i.woken) }

// Run does not return while its Idle is still being woken.
func TestWakeIsOver(t *testing.T) {
	r := newRig(t, 1)
	idle := &slowWaker{Idle: r.opt.Idle}
	r.opt.Idle = idle
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := fill.Run(ctx, r.opt, func(*fill.Task) error { cancel(); return nil }); err != nil {
		t.Error(err)
	}
	if !idle.over {
		t.Error("Run returned before Wake did")
	}
}

type slowWaker struct {
	fill.Idle
	over bool
}

func (w *slowWaker) Wake() { time.Sleep(2 * ms); w.over = true }

// A context that ends as the last task returns does not spoil a finished run.
func TestFinishedRunIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	_, err := fill.Run(ctx, fill.Options{}, func(*fill.Task) error { cancel(); return nil })
	if err != nil {
		t.Error(err)
	}
}

func TestMisuse(t *testing.T) {
	r := newRig(t, 1)
	var main *fill.Task
	_, err := r.run(func(t *fill.Task) error {
		main = t
		t.Spawn(func(*fill.Task) error { main.Yield(); return nil })
		t.Sleep(ms)
		return nil
	})
	if !errors.Is(err, event.Panicked) || !errors.Is(err, event.InvalidArgument) {
		t.Errorf("another task's method: %v, want a panic with InvalidArgument", err)
	}
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, event.InvalidArgument) {
				t.Errorf("after the run: %v, want a panic with InvalidArgument", err)
			}
		}()
		main.Await(line.Descriptor{})
	}()
	nop := func(*fill.Task) error { return nil }
	for _, c := range []struct {
		name string
		ctx  context.Context
		opt  fill.Options
		main func(*fill.Task) error
	}{
		{"nil context", nil, fill.Options{}, nop},
		{"nil function", context.Background(), fill.Options{}, nil},
		{"park bound", context.Background(), fill.Options{ParkBound: 11 * ms}, nop},
		{"negative park bound", context.Background(), fill.Options{ParkBound: -1}, nop},
		{"nap", context.Background(), fill.Options{Nap: time.Second}, nop},
		{"clock of unknown kind", context.Background(), fill.Options{Clock: otherClock{}}, nop},
		{"executor", context.Background(), fill.Options{Executor: 99}, nop},
	} {
		if _, err := fill.Run(c.ctx, c.opt, c.main); !errors.Is(err, event.InvalidArgument) && !errors.Is(err, event.InvalidExecutor) {
			t.Errorf("%s: %v, want it refused", c.name, err)
		}
	}
	if _, err := r.run(func(t *fill.Task) error { t.Spawn(nil); return nil }); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("Spawn(nil): %v, want InvalidArgument", err)
	}
}

type otherClock struct{ event.RealClock }

// A task may run a run of its own, which blocks the outer one.
func TestNested(t *testing.T) {
	r := newRig(t, 1)
	r.store(1*ms, 0, 0, 1)
	r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(*fill.Task) error { r.log("outer"); return nil })
		inner := r.mustRun(func(t *fill.Task) error {
			t.Spawn(func(t *fill.Task) error { t.Sleep(2 * ms); r.log("inner"); return nil })
			t.Await(r.at(0, 0, 1))
			return nil
		})
		r.log("%d polls", inner.Polls)
		t.Yield()
		return nil
	})
	r.wantTrace("0s park on [0] until 1ms", "1ms sleep until 2ms", "2ms inner", "2ms 4 polls", "2ms outer")
}

// An Idle that panics takes Run with it, and the tasks are stopped.
func TestIdlePanics(t *testing.T) {
	r := newRig(t, 1)
	r.opt.Idle = badIdle{}
	stopped := false
	defer func() {
		if recover() != "bad idle" || !stopped {
			t.Errorf("stopped: %v", stopped)
		}
	}()
	_, _ = r.run(func(t *fill.Task) error {
		defer func() { stopped = true }()
		t.Sleep(ms)
		return nil
	})
}

type badIdle struct{}

func (badIdle) SleepUntil(time.Duration)                         { panic("bad idle") }
func (badIdle) Park([]*fill.Watch, time.Duration, time.Duration) { panic("bad idle") }

func TestNaive(t *testing.T) {
	r := newRig(t, 1)
	r.opt.Executor = fill.Naive
	r.store(1500*time.Microsecond, 0, 0, 1)
	r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error {
			r.log("%v", t.AwaitUntil(r.at(0, 0, 2), 2*ms))
			t.Sleep(ms)
			r.log("slept")
			return nil
		})
		t.Spawn(func(*fill.Task) error { r.log("last"); return nil })
		t.Await(r.at(0, 0, 1))
		r.log("main")
		return nil
	})
	r.wantTrace(
		"0s park on [0] until 1ms",
		"1ms park on [0] until 2ms",
		"1.5ms main",
		"1.5ms park on [0] until 2ms",
		"2ms false",
		"2ms sleep until 3ms",
		"3ms slept",
		"3ms last",
	)
	if _, err := r.run(func(t *fill.Task) error { t.Await(line.Descriptor{}); return nil }); !errors.Is(err, event.Stalled) {
		t.Errorf("error %v, want Stalled", err)
	}
}
