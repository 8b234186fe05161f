package fill

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
)

// Options sets how a run spends its time. The zero value is useful.
type Options struct {
	// Clock is the run's clock, event.RealClock by default.
	Clock event.Clock
	// Idle is how the run waits. By default it is ManualIdle on
	// an *event.ManualClock and the thread's own sleep and park on an
	// event.RealClock; any other clock needs one of its own.
	Idle Idle
	// Executor is how waits are spent, GPUReactor by default. See
	// Executor.Resolve for one that depends on what there is.
	Executor Executor
	// ParkBound bounds every park: a store to a line waited for is noticed within
	// it whatever the park is made of. Default 1 ms, at most 10 ms.
	ParkBound time.Duration
	// Spin is how long the default park on a real clock keeps the processor, in
	// its park instruction or a loop, after which it naps in the kernel between
	// looks. Default 200 us; negative means not at all.
	Spin time.Duration
	// Nap is the length of those naps. They start at Nap/8 and grow to Nap with
	// the time already waited, so that a nap adds at most about an eighth to
	// a wait. In long waits they grow on, to a 64th of the time waited but not
	// beyond the park bound. Default 100 us, at most 10 ms.
	Nap time.Duration
}

const (
	defaultParkBound = time.Millisecond
	maxParkBound     = 10 * time.Millisecond
	defaultSpin      = 200 * time.Microsecond
	defaultNap       = 100 * time.Microsecond
)

// Stats is what a run did.
type Stats struct {
	Spawned uint64 // tasks, the main task included
	Polls   uint64 // times a task was started or resumed
	Woke    uint64 // polls because a descriptor was reached
	Expired uint64 // polls because a deadline passed
	Slept   uint64 // sleeps with only times to wait for
	Parked  uint64 // parks on lines
	Blocked uint64 // blocking waits of ports and streams
	Looks   uint64 // lines looked at
	// Idle is the time spent in sleeps, parks and blocking waits, Total all of the
	// run.
	Idle, Total time.Duration
	// LongestPoll is the longest time that a task kept the thread.
	LongestPoll time.Duration
}

// Run runs main as the first task of a new run, and the tasks that it spawns, on
// the calling goroutine, locked to its thread. It returns once all of them have
// returned, or with the first error:
//
//   - a task's own error, unchanged;
//   - event.Panicked when a task panicked, with the panic's value and stack as the
//     second argument, and the value itself wrapped where it is an error;
//   - an error that wraps the context's, when that ended first;
//   - event.Stalled with the number of tasks left, when none of them could ever
//     be resumed;
//   - event.ExecutorRefused when the executor can't run here;
//   - event.InvalidArgument for a nil argument or an option out of range, before
//     anything runs.
//
// Errors of tasks that are being stopped are dropped, panics in their deferred
// functions are joined to the error. Several runs, each on its own goroutine, do
// not touch one another.
func Run(ctx context.Context, opt Options, main func(*Task) error) (Stats, error) {
	r, err := newRun(ctx, opt, main)
	if err != nil {
		return Stats{}, err
	}
	return r.run(opt.Executor, main)
}

func (r *run) run(e Executor, main func(*Task) error) (Stats, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if i, ok := r.idle.(threadBound); ok {
		if err := i.enter(); err != nil {
			return Stats{}, event.New(event.ExecutorRefused, e.String(), err.Error()).Wrap(err)
		}
		defer i.leave()
	}
	defer r.follow(r.ctx)()
	// Also when Idle panics or a task calls runtime.Goexit.
	defer r.end()
	start := r.clock.Now()
	r.now = start
	r.spawn(main)
	if r.loop(); r.err == nil && r.live > 0 {
		r.err = r.cancelledErr(r.ctx)
	}
	r.end()
	r.stats.Total = r.clock.Now() - start
	return r.stats, r.err
}

// threadBound is an Idle that changes its thread's state.
type threadBound interface {
	enter() error
	leave()
}

type run struct {
	ctx       context.Context
	clock     event.Clock
	idle      Idle
	looker    Looker      // idle, if it is one
	thread    *threadIdle // idle, if it is one
	parkBound time.Duration
	inline    bool // naive: waits hold the thread
	rehearses bool // idle is one of real time: see rehearse

	cur    *Task
	warmed *Task // the last whose time to look has come, while nothing else was to do
	woken  list
	ready  list // yielded or spawned
	quota  int  // woken tasks to run before the next of ready, -1 for all there are
	waits  waits
	one    [1]*Watch // of a wait that holds the thread
	oldest *Task
	newest *Task
	live   int

	now       time.Duration // when the last poll or idle stretch ended
	since     time.Duration // when this idle stretch began, or its last sleep ended
	idling    bool
	after     step
	ending    bool
	cancelled atomic.Bool
	reached   func(*Task)
	err       error
	stats     Stats
}

// step is what the run did before a look.
type step uint8

const (
	afterPoll step = iota
	afterPark
	afterSleep
)

func newRun(ctx context.Context, opt Options, main func(*Task) error) (*run, error) {
	bad := func(subject, why string) (*run, error) {
		return nil, event.New(event.InvalidArgument, subject, why)
	}
	switch {
	case ctx == nil:
		return bad("fill context", "nil")
	case main == nil:
		return bad("fill main task", "nil function")
	case opt.ParkBound < 0 || opt.ParkBound > maxParkBound:
		return bad("fill park bound "+opt.ParkBound.String(), "out of range, want up to "+maxParkBound.String())
	case opt.Nap < 0 || opt.Nap > maxParkBound:
		return bad("fill nap "+opt.Nap.String(), "out of range, want up to "+maxParkBound.String())
	}
	if _, err := opt.Executor.Resolve(Caps{}, true); err != nil {
		return nil, err
	}
	if opt.Clock == nil {
		opt.Clock = event.RealClock{}
	}
	if opt.ParkBound == 0 {
		opt.ParkBound = defaultParkBound
	}
	if opt.Idle == nil {
		switch c := opt.Clock.(type) {
		case *event.ManualClock:
			opt.Idle = ManualIdle{c}
		case event.RealClock:
			var s sleeper = new(threadSleeper)
			if opt.Executor == IOUring {
				s = new(ringSleeper)
			}
			opt.Idle = newThreadIdle(s, opt.Spin, opt.Nap)
		default:
			return bad("fill idle", "none given for a clock that is neither real nor manual")
		}
	}
	r := &run{ctx: ctx, clock: opt.Clock, idle: opt.Idle, parkBound: opt.ParkBound, quota: -1, inline: opt.Executor == Naive, one: [1]*Watch{{}}}
	r.looker, _ = r.idle.(Looker)
	r.thread, r.rehearses = r.idle.(*threadIdle)
	r.reached = func(t *Task) {
		t.hit = true
		if t.timed {
			t.seen = r.sight(t)
		}
		r.stats.Woke++
		r.wake(t)
	}
	return r, nil
}

// follow makes the end of ctx end the run. The returned function undoes that, and
// returns once nothing that it started is running.
func (r *run) follow(ctx context.Context) func() {
	if ctx.Done() == nil {
		return func() {}
	}
	if ctx.Err() != nil {
		r.cancelled.Store(true)
		return func() {}
	}
	gone := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(gone)
		r.cancelled.Store(true)
		if w, ok := r.idle.(Waker); ok {
			w.Wake()
		}
	})
	return func() {
		if !stop() {
			<-gone
		}
	}
}

func (r *run) cancelledErr(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("gpuline: fill run cancelled with %d tasks left: %w", r.live, err)
}

func (r *run) spawn(f func(*Task) error) {
	if r.ending {
		return
	}
	r.stats.Spawned++
	t := &Task{r: r, id: r.stats.Spawned, f: f, at: [heapKinds]int32{-1, -1, -1}}
	if t.older = r.newest; t.older != nil {
		t.older.newer = t
	} else {
		r.oldest = t
	}
	r.newest = t
	r.live++
	r.ready.push(t)
}

// loop runs tasks until there are none, or until the run has to end.
func (r *run) loop() {
	for r.live > 0 && r.err == nil && !r.cancelled.Load() {
		r.look(r.woken.n+r.ready.n == 0)
		if t := r.next(); t != nil {
			r.poll(t)
		} else {
			r.rest()
		}
	}
}

// look turns what happened since the last look into woken work.
func (r *run) look(all bool) {
	w := &r.waits
	if len(w.active) > 0 {
		r.stats.Looks += uint64(w.look(all, r.now, r.reached))
	}
	for len(w.timers) > 0 && w.timers[0].key <= uint64(r.now) {
		t := w.timers[0].t
		// The word once more: a partial look may have left it out.
		if t.line != nil && t.line.watch.Line[t.slot].Reached(t.target) {
			r.reached(t)
			continue
		}
		t.hit = false
		r.stats.Expired++
		r.wake(t)
	}
	for len(w.looks) > 0 && w.looks[0].key <= uint64(r.now) {
		t := w.looks[0].t
		w.warm(t)
		if r.rehearses && r.after == afterSleep {
			r.warmed = t
		}
	}
}

// wake makes t woken work.
func (r *run) wake(t *Task) {
	r.waits.drop(t)
	r.woken.push(t)
}

// sight says how well the length of t's wait is known: exactly when a park on its
// line ended with it, as an upper bound only when the first look after a sleep
// found it done, and in between when nobody was looking for some time. A park that
// napped knows that it ended after the last look before the nap: that counts.
func (r *run) sight(t *Task) sighting {
	s := sighting{event.Exact, r.now - t.began}
	if r.looker != nil && r.after == afterPark {
		if seen := r.looker.Looked(); seen > max(t.began, r.since) {
			s.took = seen - t.began
		}
	}
	cold := t.at[inLooks] >= 0
	switch blind := r.now - max(t.line.looked, t.began); {
	case r.after == afterSleep:
		s.outcome = event.Late
	case (r.after == afterPoll || cold) && blind > s.took/8:
		s.outcome = event.NoOutcome
	}
	return s
}

// next takes the next task to poll, nil when none is ready.
func (r *run) next() *Task {
	if r.quota < 0 {
		r.quota = r.woken.n
	}
	switch {
	case r.woken.n > 0 && (r.quota > 0 || r.ready.n == 0):
		r.quota = max(r.quota-1, 0)
		return r.woken.pop()
	case r.ready.n > 0:
		r.quota = -1
		return r.ready.pop()
	}
	r.quota = -1
	return nil
}

// poll runs t until it waits, yields or returns.
func (r *run) poll(t *Task) {
	r.idling, r.after, r.warmed = false, afterPoll, nil
	r.stats.Polls++
	if t.next == nil {
		t.start()
	}
	r.cur = t
	_, alive := t.next()
	r.cur = nil
	now := r.clock.Now()
	r.stats.LongestPoll = max(r.stats.LongestPoll, now-r.now)
	r.now = now
	if !alive {
		r.finish(t)
		if r.err == nil {
			r.err = t.err
		}
	}
}

// rehearse is called when the time to look for a task's word has come, after a sleep, and there
// is nothing else to do. It takes the task through all that the end of its wait will take it
// through, back into waiting: code and data of that have left the processor's caches, and to
// fetch them would be part of the latency.
func (r *run) rehearse(t *Task) {
	stats, since := r.stats, r.since
	t.rehearsing = true
	r.reached(t)
	r.poll(r.next())
	r.stats, r.quota = stats, -1
	// The last look saw the word pending: what comes now is not late.
	r.idling, r.since, r.after = true, since, afterPark
}

// finish forgets a task that has returned.
func (r *run) finish(t *Task) {
	if t.older != nil {
		t.older.newer = t.newer
	} else {
		r.oldest = t.newer
	}
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		r.newest = t.older
	}
	r.live--
}

// rest is steps 2 and 3 of the idle decision; look has done step 1.
func (r *run) rest() {
	w := &r.waits
	if !r.idling {
		r.idling, r.since = true, r.now
	}
	first := never
	if len(w.timers) > 0 {
		first = time.Duration(w.timers[0].key)
	}
	if len(w.looks) > 0 {
		first = min(first, time.Duration(w.looks[0].key))
	}
	start := r.now
	switch {
	case r.warmed != nil && r.warmed.line != nil:
		r.rehearse(r.warmed)
		return
	case len(w.hot) > 0:
		r.stats.Parked++
		r.after = afterPark
		r.idle.Park(w.hot, r.since, min(first, after(start, r.parkBound)))
		if r.thread != nil && r.thread.hit {
			r.now = max(start, r.thread.at)
		} else {
			r.now = r.clock.Now()
		}
	case first < never:
		r.stats.Slept++
		r.after = afterSleep
		r.idle.SleepUntil(first)
		r.now = r.clock.Now()
		r.since = r.now
	default:
		r.err = event.New(event.Stalled, strconv.Itoa(r.live))
		return
	}
	r.stats.Idle += r.now - start
}

// end stops the tasks that are left, oldest first. It is idempotent.
func (r *run) end() {
	r.ending = true
	for r.oldest != nil {
		t := r.oldest
		r.finish(t)
		if t.next == nil {
			continue
		}
		t.err = nil
		r.cur = t
		t.stop()
		r.cur = nil
		if errors.Is(t.err, event.Panicked) {
			r.err = errors.Join(r.err, t.err)
		}
	}
}
