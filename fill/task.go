package fill

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
)

// ErrStopped is the value of the panic that ends a task whose run is over. A task
// that recovers it should clean up and return, or panic with it again.
var ErrStopped = errors.New("gpuline: task stopped: its run is over")

// Task is one task of a run. Its methods may be called only by the task's own
// function, while that runs; any other call panics with event.InvalidArgument.
type Task struct {
	r     *run
	id    uint64
	f     func(*Task) error
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	err   error

	link         *Task // in a list
	older, newer *Task // among all tasks of the run

	// What it waits for.
	line   *lineState
	slot   int
	target uint64
	at     [heapKinds]int32 // places in heaps, -1 for none
	hit    bool             // the target was reached
	began  time.Duration    // when the wait began, if timed
	timed  bool             // seen is wanted
	seen   sighting

	stream     Stream // that it waits for, if it does
	rehearsing bool   // its wait is not over: see run.rehearse
}

// sighting is how a completion was seen. Without an outcome the wait's length is
// an upper bound that tells little: the thread was busy for too much of it.
type sighting struct {
	outcome event.Outcome
	took    time.Duration
}

// ID returns the task's number: tasks are numbered from 1, which is the main
// task, in the order in which they were spawned.
func (t *Task) ID() uint64 { return t.id }

// Clock returns the run's clock, whose times deadlines are given in.
func (t *Task) Clock() event.Clock { return t.r.clock }

// Now returns the time on the run's clock.
func (t *Task) Now() time.Duration { return t.r.clock.Now() }

// Await returns once d has been reached. It knows of the word alone: when the device
// that was to store into it fails, that never happens. Wait is the one for streams.
//
// Where it has been already it returns at
// once, and no other task runs in between: a loop that may find everything done
// should Yield now and then. A d that names no line is never reached.
func (t *Task) Await(d line.Descriptor) { t.await(d, never, 0, false) }

// AwaitUntil waits for d, but not beyond the deadline, which is a time of the
// run's clock. It reports whether d was reached: true as soon as it is, also when
// that is seen only at or after the deadline, false otherwise. A deadline in the
// past is a look without a wait.
func (t *Task) AwaitUntil(d line.Descriptor, deadline time.Duration) bool {
	return t.await(d, deadline, 0, false)
}

// Sleep returns once the duration d has passed. d <= 0 returns at once.
func (t *Task) Sleep(d time.Duration) {
	now := t.Now()
	if d > never-1-now {
		d = never - 1 - now
	}
	t.await(line.Descriptor{}, now+d, 0, false)
}

// SleepUntil returns once the run's clock shows at or later.
func (t *Task) SleepUntil(at time.Duration) { t.await(line.Descriptor{}, at, 0, false) }

// Yield lets all woken work run, and the other tasks that yielded before.
func (t *Task) Yield() {
	t.check()
	t.r.ready.push(t)
	t.suspend()
}

// Spawn adds a task to the run. It first runs when the tasks that are ready now
// have had their turn. The task may outlive the one that spawned it. A nil f
// panics with event.InvalidArgument.
func (t *Task) Spawn(f func(*Task) error) {
	t.check()
	if f == nil {
		panic(event.New(event.InvalidArgument, "fill Spawn", "nil function"))
	}
	t.r.spawn(f)
}

func (t *Task) check() {
	if t.r.cur != t {
		panic(event.New(event.InvalidArgument, "fill task "+strconv.FormatUint(t.id, 10),
			"its methods may be called only by its own function, while that runs"))
	}
}

// await is every wait on descriptors and times. With sleep > 0 the word need not
// be parked on for that long. With timed set, t.seen tells of the completion.
func (t *Task) await(d line.Descriptor, deadline, sleep time.Duration, timed bool) bool {
	t.check()
	if d.Reached() {
		t.seen = sighting{outcome: event.Exact}
		return true
	}
	r := t.r
	var now time.Duration
	if deadline != never || timed {
		if now = r.clock.Now(); deadline <= now {
			return false
		}
	}
	look := time.Duration(0)
	if sleep > 0 {
		look = after(now, sleep)
	}
	t.timed, t.began = timed, now
	if r.inline && (d.Valid() || deadline != never) {
		return t.block(d, deadline, look)
	}
	seq := r.waits.add(t, d, deadline, look, now)
	for t.suspend(); t.rehearsing; t.suspend() {
		t.rehearsing = false
		if t.stream != nil {
			_, _ = t.stream.Descriptor(t.target)
		}
		r.waits.addAs(seq, t, d, deadline, 0, r.now)
	}
	return t.hit
}

// suspend gives the thread back to the run until the task is polled again.
func (t *Task) suspend() {
	if t.r.ending || !t.yield(struct{}{}) {
		panic(ErrStopped)
	}
}

// block is a wait of the naive executor: it holds the thread.
func (t *Task) block(d line.Descriptor, deadline, look time.Duration) bool {
	r := t.r
	w := r.one[0]
	w.Line = d.Line
	start := r.clock.Now()
	outcome := event.Exact
	for now := start; ; now = r.clock.Now() {
		if r.ending || r.cancelled.Load() {
			t.suspend() // for good: the run stops it
		}
		if d.Valid() {
			for i := range w.Seen {
				w.Seen[i] = d.Line[i].Load()
			}
			if line.Reached(w.Seen[d.Slot.Index()], d.Target) {
				t.seen = sighting{outcome, now - start}
				return true
			}
		}
		switch {
		case now >= deadline:
			return false
		case d.Valid() && now >= look:
			r.stats.Parked++
			r.idle.Park(r.one[:], start, min(deadline, after(now, r.parkBound)))
			outcome = event.Exact
		default:
			until := deadline
			if d.Valid() {
				until = min(look, deadline)
			}
			r.stats.Slept++
			r.idle.SleepUntil(until)
			outcome = event.Late
		}
		r.stats.Idle += r.clock.Now() - now
	}
}

// after returns t+d without overflow.
func after(t, d time.Duration) time.Duration {
	if d > never-t {
		return never
	}
	return t + d
}

// start makes the coroutine. The run does it, not Spawn: a coroutine is bound to
// the thread and to the number of LockOSThread calls that it is made under.
func (t *Task) start() { t.next, t.stop = iter.Pull(t.body) }

// body is the coroutine.
func (t *Task) body(yield func(struct{}) bool) {
	t.yield = yield
	returned := false
	defer func() {
		if returned {
			return
		}
		// A nil here is runtime.Goexit: iter.Pull passes that on to Run.
		if v := recover(); v != nil && !(t.r.ending && v == any(ErrStopped)) {
			t.err = panicked(t.id, v, debug.Stack())
		}
	}()
	t.err = t.f(t)
	returned = true
}

func panicked(id uint64, v any, stack []byte) error {
	e := event.New(event.Panicked, "fill task "+strconv.FormatUint(id, 10), fmt.Sprintf("%v\n\n%s", v, stack))
	if cause, ok := v.(error); ok {
		return e.Wrap(cause)
	}
	return e
}
