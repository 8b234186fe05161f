package poller

import (
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
)

// Wait is one registration of interest in a word. It is made once and may be
// used any number of times, one registration at a time, without allocating.
//
// Sink must be set before the first registration; Data and User belong to the
// sink. DoneAt, PendingAt and Late may be read from Complete on, until the Wait is
// registered again.
type Wait struct {
	// Sink receives the completion.
	Sink Sink
	// Data and User are for the sink's own use.
	Data any
	User uint64
	// Look is how long after its registration the wait is expected to need at
	// least: until then the waiter sleeps rather than spins for it. It is set by
	// the owner before each registration; 0 means look at once.
	Look time.Duration
	// Again, when it is longer than Look, is how long after its registration the wait is
	// expected to need if it is pending at the end of Look: the waiter sleeps once more
	// until then if no other wait is pending on the word. It is set like Look, from
	// plan.Point.Again.
	Again time.Duration
	// Early asks for Complete with ErrLook at the end of Look when the word has
	// not been reached by then, so that the owner can watch the word himself.
	Early bool
	// Spun says that the owner has just looked for some time himself: the waiter
	// goes straight to its naps.
	Spun bool

	// DoneAt is when the completion was seen, on the clock of Now.
	DoneAt time.Duration
	// PendingAt is the last time at which the word was seen not to be reached, not
	// before AddedAt: the work took between that and DoneAt. The two are
	// microseconds apart when the word was watched, a nap when the waiter napped.
	PendingAt time.Duration
	// Late says that the first look, after Look was over, found the word reached: how
	// long the work took is known only as an upper bound.
	Late bool
	// LateAgain says the same of the look after Again was over, and PendingAt is the look
	// after Look (see plan.Point.MissedAgain).
	LateAgain bool

	target     uint64
	addedAt    int64
	lookAt     int64
	againAt    int64 // when to look after that; 0 once it has been slept for, or not at all
	slept      bool  // lookAt is what againAt was
	on         atomic.Pointer[Watch]
	prev, next *Wait
	hunted     *waitHeap    // the heap by look time that it is in, if any
	checked    reflect.Type // of a Sink that is comparable
	index      int32        // in the heap by target
	lookIndex  int32        // in the heap by look time
	where      uint8
}

// Target returns the number that the Wait was last registered for.
func (wt *Wait) Target() uint64 { return wt.target }

// AddedAt returns when the Wait was last registered, on the clock of Now.
func (wt *Wait) AddedAt() time.Duration { return time.Duration(wt.addedAt) }

// Cancel removes the registration. True: it was pending and Complete will not
// be called for it. False: Complete was called, or is about to be, or there was
// no registration.
func (wt *Wait) Cancel() bool {
	if x := wt.on.Load(); x != nil {
		return x.Cancel(wt)
	}
	return false
}

// WatchOptions says how a word is to be watched. The zero value is useful.
type WatchOptions struct {
	// Name appears in errors.
	Name string
	// Confirm, when set, is called before a completion is reported as success,
	// once per wake batch, on the waiter's goroutine and with no lock held: a
	// reached word alone does not prove that the work behind it succeeded. A nil
	// error confirms everything up to the number the word held before the call;
	// an error ends every wait of the Watch, now and later.
	Confirm func() error
}

// Watch is one word under a Waiter's eyes. All methods may be called from many
// goroutines.
type Watch struct {
	// The first fields are what the waiter reads at every look.
	word  *line.Word
	min   atomic.Uint64 // earliest pending target, while n > 0
	look  atomic.Int64  // when the first of them may complete, while n > 0
	n     atomic.Int64  // pending waits
	early atomic.Int64  // when the first of those with Early set is to be handed back
	spun  atomic.Bool   // the earliest wait has Spun set
	again atomic.Int64  // the earliest wait's againAt

	confirmed atomic.Uint64 // everything up to here is known to have succeeded
	failed    atomic.Pointer[stickyError]

	// The waiter's own, touched by its goroutine alone.
	spinFor   uint64 // the target that spinUntil was computed for
	spinUntil int64
	pendingAt int64 // the last look that saw the earliest wait pending

	w      *Waiter
	opt    WatchOptions
	nextIn *Watch // link in the waiter's list of newly busy watches

	immediate atomic.Uint64

	mu     sync.Mutex
	q      queue
	listed bool // in the waiter's active list, or on its way there
}

type stickyError struct{ err error }

// Pending returns the number of pending registrations.
func (x *Watch) Pending() int { return int(x.n.Load()) }

// Err returns the sticky error that ended the Watch, or nil.
func (x *Watch) Err() error {
	if f := x.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// Reached reports whether the word has reached target and that is known to be
// success. It costs one atomic load, two where the Watch needs confirmation.
func (x *Watch) Reached(target uint64) bool {
	if x.opt.Confirm != nil {
		return line.Reached(x.confirmed.Load(), target)
	}
	return x.word.Reached(target)
}

// Seen reports whether the word has reached target, confirmed or not.
func (x *Watch) Seen(target uint64) bool { return x.word.Reached(target) }

// Confirmed notes that a status query made after the word was seen at value
// found no fault.
func (x *Watch) Confirmed(value uint64) {
	for {
		old := x.confirmed.Load()
		if !line.Before(old, value) || x.confirmed.CompareAndSwap(old, value) {
			return
		}
	}
}

// Add registers wt for the word reaching target.
//
// True: registered; Complete will be called exactly once, unless Cancel returns
// true first. False without an error: the target was already reached, nothing
// was registered and the waiter was not touched. An error: the sticky error of
// the Watch, or wt is not usable (no sink, already registered).
//
// No wake-up is lost: the registration is made visible (the queue, then min and
// look), then the word is looked at again, then the waiter's state is read. The
// waiter, before a sleep, publishes its state and then reads min, look and the
// word. All of these are sequentially consistent atomics, so either the waiter
// sees the registration or Add sees the sleep and ends it.
//
// The waiter sees registrations of the watches on its list alone. Whoever makes the
// watch busy puts it there, after its lock is free, and reads look again after that:
// others that registered in between have found the watch as good as listed, and
// their own wake-up may have come before it was.
func (x *Watch) Add(wt *Wait, target uint64) (bool, error) {
	if wt == nil || wt.Sink == nil {
		return false, event.New(event.InvalidArgument, "wait on "+x.opt.Name, "no sink to complete to, set Wait.Sink")
	}
	if t := reflect.TypeOf(wt.Sink); t != wt.checked {
		switch k := t.Kind(); {
		case k == reflect.Pointer || k == reflect.Chan || t.Size() == 0 && t.Comparable():
			wt.checked = t
		case !reflect.ValueOf(wt.Sink).Comparable():
			return false, event.New(event.InvalidArgument, "wait on "+x.opt.Name, "a sink of type "+t.String()+" can't be compared, use a pointer")
		}
	}
	if f := x.failed.Load(); f != nil {
		return false, f.err
	}
	if x.Reached(target) {
		x.immediate.Add(1)
		return false, nil
	}
	if !wt.on.CompareAndSwap(nil, x) {
		return false, event.New(event.InvalidArgument, "wait for "+strconv.FormatUint(target, 10)+" on "+x.opt.Name, "this Wait is already registered, use one Wait per pending registration")
	}
	now := nanotime()
	lookAt := now
	if wt.Look > 0 {
		lead := &x.w.oversleep
		if wt.Early {
			lead = &x.w.handover
		}
		lookAt = satAdd(now, max(0, wt.Look-time.Duration(lead.Load())))
	}
	wt.target, wt.addedAt, wt.lookAt, wt.Late, wt.LateAgain = target, now, lookAt, false, false
	wt.againAt, wt.slept = 0, false
	if wt.Again > wt.Look && wt.Look > 0 && !wt.Early {
		wt.againAt = satAdd(now, max(0, wt.Again-time.Duration(x.w.oversleep.Load())))
	}
	perturb()
	x.mu.Lock()
	if f := x.failed.Load(); f != nil {
		x.mu.Unlock()
		wt.on.Store(nil)
		return false, f.err
	}
	x.q.push(wt)
	x.n.Store(int64(x.q.n))
	list := false
	if x.q.peek() == wt || wt.hunted != nil {
		x.refresh()
		list = !x.listed
		x.listed = true
	}
	perturb()
	// The last look. With a Confirm, success takes a status query, which is the
	// waiter's to make.
	if x.opt.Confirm == nil && x.word.Reached(target) {
		x.take(wt)
		x.immediate.Add(1)
		x.mu.Unlock()
		perturb()
		if list {
			// The promise to be on the list is kept: the waiter drops an idle
			// watch by itself.
			x.w.admitLater(x)
			perturb()
			if x.n.Load() > 0 {
				x.w.notify(x.look.Load())
			}
		}
		return false, nil
	}
	if x.word.Reached(target) {
		lookAt = now // nothing is left to sleep for but the query
	}
	x.mu.Unlock()
	perturb()
	if list {
		x.w.admitLater(x)
		perturb()
		lookAt = min(lookAt, x.look.Load())
	}
	// wt may have completed by now and be somebody else's.
	x.w.notify(lookAt)
	return true, nil
}

// take unlinks a queued wait; x.mu is held.
func (x *Watch) take(wt *Wait) {
	changes := x.q.peek() == wt || x.q.head == wt || wt.hunted != nil
	x.q.remove(wt)
	x.n.Store(int64(x.q.n))
	wt.on.Store(nil)
	if changes {
		x.refresh()
	}
}

// Resumed tells that the owner of wt, which ended with ErrLook, runs again. What it
// is late by, on average, later waits with Early set are handed back the sooner.
func (x *Watch) Resumed(wt *Wait) {
	late := nanotime() - satAdd(wt.addedAt, wt.Look)
	lead := x.w.handover.Load() + min(late, int64(maxOversleep))/8
	x.w.handover.Store(min(max(0, lead), int64(maxHandover)))
}

// refresh publishes the earliest wait, and when to look; x.mu is held. Taking
// a wait away only makes look later, so that nobody has to be woken for it.
func (x *Watch) refresh() {
	if h := x.q.peek(); h != nil {
		look, early := x.q.look()
		x.min.Store(h.target)
		x.look.Store(look)
		// These seldom change, and a store costs ten times a load.
		if x.early.Load() != early {
			x.early.Store(early)
		}
		if x.spun.Load() != h.Spun {
			x.spun.Store(h.Spun)
		}
		if x.again.Load() != h.againAt {
			x.again.Store(h.againAt)
		}
	}
}

// sleepAgain puts off the look at the earliest wait, which is pending at now, to the end
// of its Again. With others pending the order of their looks would not bear that.
func (x *Watch) sleepAgain(now int64) bool {
	if x.again.Load() <= now || x.n.Load() != 1 {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	h := x.q.peek()
	if x.q.n != 1 || h.where != inList || h.hunted != nil || h.againAt <= now || h.lookAt > now {
		return false
	}
	h.lookAt, h.againAt, h.slept = h.againAt, 0, true
	x.q.maxLook = h.lookAt
	x.refresh()
	return true
}

// collect moves every wait that value completes into the batch, in target order. late is
// how many of them were found done by the first look after a sleep.
func (x *Watch) collect(value uint64, b *batch) (late uint64) {
	x.mu.Lock()
	for h := x.q.peek(); h != nil && line.Reached(value, h.target); h = x.q.peek() {
		x.q.remove(h)
		h.on.Store(nil)
		h.PendingAt = time.Duration(max(x.pendingAt, h.addedAt))
		// A look since then was for another wait, whose time had come: it counts.
		switch {
		case h.Look <= 0 || x.pendingAt >= h.lookAt:
		case x.pendingAt <= h.addedAt:
			h.Late = true
			late++
		case h.slept:
			h.LateAgain = true
			late++
		}
		b.add(h)
	}
	x.n.Store(int64(x.q.n))
	x.refresh()
	x.mu.Unlock()
	return late
}

// Cancel removes wt's registration; see Wait.Cancel.
func (x *Watch) Cancel(wt *Wait) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if wt.on.Load() != x || wt.where == unqueued {
		return false
	}
	x.take(wt)
	x.w.stats.cancelled.Add(1)
	return true
}

// Fail ends every pending and later wait of the Watch with err, on the calling
// goroutine. Only the first call counts; a nil err is ignored.
func (x *Watch) Fail(err error) {
	if err == nil {
		return
	}
	x.failed.CompareAndSwap(nil, &stickyError{err})
	err = x.Err()
	var b batch
	x.mu.Lock()
	for h := x.q.peek(); h != nil; h = x.q.peek() {
		x.q.remove(h)
		h.on.Store(nil)
		b.add(h)
	}
	x.n.Store(0)
	x.mu.Unlock()
	x.w.stats.failed.Add(uint64(len(b.waits)))
	b.deliver(nanotime(), err)
}

// Close ends the Watch: pending and later waits end with event.Closed. The
// word is not looked at any more once Close has returned, so that its memory
// may be freed. It is idempotent.
func (x *Watch) Close() error {
	x.Fail(event.New(event.Closed, x.opt.Name))
	x.w.forget(x)
	return nil
}

// batch collects waits to complete with no lock held.
type batch struct {
	waits []*Wait
	sinks []Sink
}

func (b *batch) add(wt *Wait) { b.waits = append(b.waits, wt) }

// deliver completes the collected waits in order and flushes each sink once
// (more often only when more than a handful of sinks alternate).
func (b *batch) deliver(now int64, err error) {
	var last Sink
	for i, wt := range b.waits {
		b.waits[i] = nil
		if err == nil {
			wt.DoneAt = time.Duration(now)
		}
		s := wt.Sink
		s.Complete(wt, err)
		if s != last {
			last = s
			b.note(s)
		}
	}
	b.waits = b.waits[:0]
	for i, s := range b.sinks {
		b.sinks[i] = nil
		s.Flush()
	}
	b.sinks = b.sinks[:0]
}

func (b *batch) note(s Sink) {
	for i := len(b.sinks) - 1; i >= 0 && i >= len(b.sinks)-8; i-- {
		if b.sinks[i] == s {
			return
		}
	}
	b.sinks = append(b.sinks, s)
}

// satAdd adds a length of time that is not negative.
func satAdd(t int64, d time.Duration) int64 {
	if s := t + int64(d); s >= t {
		return s
	}
	return 1<<63 - 1
}

// Spin looks at the word until it has been seen at target, for at most about d, in
// the processor's park instruction where the Waiter uses that. It holds the
// processor and can't be preempted meanwhile: keep d to a few microseconds and loop.
// Like Seen, it does not confirm.
func (x *Watch) Spin(target uint64, d time.Duration) bool {
	// Reached once more, as a load of the word: what it publishes is seen from there on
	// (under the race detector, too).
	return x.w.instr.Wait(x.word.Atomic(), target, d) && x.word.Reached(target)
}
