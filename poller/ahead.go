package poller

import (
	"runtime"
	"sync/atomic"
	"time"
)

// ahead wakes a second thread of the scheduler before it is needed.
//
// To make a goroutine runnable, by closing a channel for instance, also wakes an idle
// thread to look for work, unless one is looking already (runtime.wakep). That is a
// futex call, and it comes first: where it has to interrupt a virtual processor it
// takes 3 to 15 us, and the goroutine whose wait is over, which the closer's own
// thread is about to run, waits for it. To start another goroutine while there is
// still nothing to deliver has the thread woken early. It finds that goroutine next
// in line on a P that runs, and leaves it there for 3 us, to which Linux adds the
// thread's timer slack of 50 us (runtime.runqgrab). It uses no CPU meanwhile and counts
// as looking for work: a close within that time takes 0.3 to 1 us.
//
// After a long sleep there is another cost of a few microseconds: the code and data of the
// delivery have left the processor's caches. Hence it is rehearsed first then, with a wait
// and a goroutine of its own.
//
// All of this is how the scheduler happens to be made. Nothing but time depends on it,
// so time decides: what a delivery costs is taken both ways, and threads are woken
// ahead only where and as long as that pays (RATIONALE.md, "Why does the waiter start a
// goroutine that does nothing?").
//
// Touched by the waiter's goroutine alone, but for what is atomic.
type ahead struct {
	out atomic.Bool // a goroutine has been started and has not run yet
	run func()      // what the goroutine does, made once
	rehearsal
	// What a delivery takes on average, in ns, when no thread is woken ahead of it and
	// when that is tried, whether it has helped or not. 0 is not known.
	without, with atomic.Int64

	lastAt      int64 // when the last delivery ended
	rehearsesAt int64 // no rehearsal before that
	trial       bool  // the other way is due

	// The wait that is being looked for.
	x      *Watch
	target uint64
	on     bool
	starts int
	waits  uint
	blind  int64 // how long nobody has looked while it was reached

	// The last delivery, if nothing has been learned from it yet.
	last struct {
		due, out   bool
		start, end int64
	}
}

const (
	// aheadWorth is what a delivery must take for the other way to be tried, and
	// aheadGain what that has to save.
	aheadWorth = 2 * time.Microsecond
	aheadGain  = time.Microsecond
	// aheadTrial is how often the way that looks worse is taken, to see whether it
	// still is.
	aheadTrial = 32
	// aheadStarts bounds the threads woken for one wait: one lasts for 55 us, and a
	// prediction is off by less than two of them or by much more.
	aheadStarts = 2
	// aheadStale is how long after a delivery the next has to be rehearsed, and
	// aheadLong how long a rehearsal may take: when it takes longer, because the
	// scheduler has something else to do first, there is none for aheadRest.
	aheadStale = 500 * time.Microsecond
	aheadLong  = 50 * time.Microsecond
	aheadRest  = 100 * time.Millisecond
)

// looking is called before each look at the one word that something is pending on. It
// reports whether it has started a goroutine.
func (a *ahead) looking(x *Watch, target uint64, now int64) bool {
	if a.x != x || a.target != target {
		a.x, a.target, a.starts, a.blind = x, target, 0, 0
		a.waits++
		without := time.Duration(a.without.Load())
		a.on = without >= aheadWorth && time.Duration(a.with.Load()) <= without-aheadGain
		a.trial = a.trial || without >= aheadWorth && a.waits%aheadTrial == 0
		// The one that is still out would make a wait without it another's.
		if a.trial && !a.out.Load() {
			a.on, a.trial = !a.on, false
		}
	}
	if !a.on || a.starts == aheadStarts || a.out.Load() {
		return false
	}
	a.starts++
	if runtime.GOMAXPROCS(0) == 1 {
		return false // nobody to wake
	}
	if a.run == nil {
		a.run = func() { a.out.Store(false) }
	}
	begin := nanotime()
	if a.starts == 1 && now-a.lastAt > int64(aheadStale) && now >= a.rehearsesAt {
		a.rehearse(&x.w.batch, now)
		if end := nanotime(); end-begin > int64(aheadLong) {
			a.rehearsesAt = end + int64(aheadRest)
		}
	}
	a.out.Store(true)
	go a.run()
	if x.word.Reached(target) {
		a.blind += nanotime() - begin
	}
	return true
}

// delivered takes note of what it took to deliver the wait that looking was called for;
// out is whether a goroutine was out when the delivery began. learn follows, once the
// goroutine that was woken has had its turn.
func (a *ahead) delivered(out bool, start, end int64) {
	a.last.due, a.last.out, a.last.start, a.last.end = true, out, start, end
}

func (a *ahead) learn() {
	if !a.last.due {
		return
	}
	a.last.due = false
	took := a.last.end - a.last.start + a.blind
	a.x, a.lastAt = nil, a.last.end
	mean := &a.without
	switch {
	case a.on:
		mean = &a.with
	case a.last.out:
		return // one way was decided, and the other taken
	}
	old := mean.Load()
	took = max(1, min(took, max(2*old, int64(2*aheadWorth)))) // more is an accident
	if old == 0 {
		old = took
	}
	mean.Store(old + (took-old)/8)
}

// end waits until the goroutine that is out has run.
func (a *ahead) end() {
	for a.out.Load() {
		runtime.Gosched()
	}
}

// rehearsal is a delivery to nobody: a wait on a word of its own is completed, for which a
// channel is closed that a goroutine selects from. All of it is as it is when Done's channel
// is closed, so that what takes long the first time (code and data that are in no cache, and
// the translations of their addresses) has been done once before it is waited for. A channel
// can't be closed twice: each rehearsal allocates one.
type rehearsal struct {
	listen      func()
	back        chan struct{} // the listener is there, or has heard
	show, never chan struct{}
	x           Watch
	wait        Wait
}

func (r *rehearsal) rehearse(b *batch, now int64) {
	if r.listen == nil {
		r.back, r.never = make(chan struct{}, 1), make(chan struct{})
		r.wait.Sink, r.wait.target = rehearsed{}, 1
		r.listen = func() {
			r.back <- struct{}{}
			select {
			case <-r.show:
			case <-r.never:
			}
			r.back <- struct{}{}
		}
	}
	r.show = make(chan struct{})
	go r.listen()
	<-r.back
	r.wait.Data = r.show
	r.x.mu.Lock()
	r.x.q.push(&r.wait)
	r.x.mu.Unlock()
	r.x.collect(r.wait.target, b)
	b.deliver(now, nil)
	<-r.back
}

// rehearsed closes the channel in Data.
type rehearsed struct{}

func (rehearsed) Complete(wt *Wait, _ error) {
	c := wt.Data.(chan struct{})
	wt.Data = nil
	close(c)
}

func (rehearsed) Flush() {}
