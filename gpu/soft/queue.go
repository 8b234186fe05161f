package soft

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// queue is what is behind a Stream and those that adopted it.
type queue struct {
	d      *Device
	handle uintptr
	ring   int

	mu     sync.Mutex
	closed bool // by its owner: nothing more is queued
	gone   bool // the ring is given back, or the device is gone
	late   int  // ring for stores that land after their turn, -1 until needed
	finish int64
	todo   []item // not yet given to the engine
	fence  fence
	// The ring positions of the entries that tell Go.
	fenceAt, callAt uint64
	callQueued      bool
	syncs, events   uint64
	capture         *Graph
	invalid         bool // the capture

	drop  int
	delay time.Duration
	hold  bool
	held  []entry

	// handed carries the order of work and of those who learn that it is done to the
	// race detector, which does not see the engine.
	handed atomic.Uint64
}

// fence is the state of a function or gate: nothing behind it is given to the
// engine until it is done.
type fence uint8

const (
	noFence fence = iota
	fenceQueued
	fenceRuns
)

// item is a piece of work.
type item struct {
	kind itemKind
	dur  time.Duration // of timed work, after which e happens
	late time.Duration // how much later still e happens, while the queue goes on
	e    entry
	fn   func() error
	gate chan struct{}
}

type itemKind uint8

const (
	itemTimed itemKind = iota
	itemFunc
	itemGate
)

var errStreamClosed = event.New(event.Closed, "soft stream")

func (q *queue) slot() *slot { return &q.d.mem.slots[q.ring] }

func (q *queue) syncAddr() uint64 { return uint64(uintptr(unsafe.Pointer(&q.slot().syncs))) }

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// faulted reports whether the device has failed; mu is held and the queue not gone.
func (q *queue) faulted() bool { return q.d.mem.ctl.fault.Load() != 0 }

// usable returns why nothing can be queued; mu is held.
func (q *queue) usable() error {
	if q.closed || q.gone {
		return errStreamClosed
	}
	if q.faulted() {
		return q.d.Err()
	}
	return nil
}

// add queues an item.
func (q *queue) add(it item) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.addLocked(it)
}

func (q *queue) addLocked(it item) error {
	if err := q.usable(); err != nil {
		return err
	}
	if q.capture != nil {
		q.capture.items = append(q.capture.items, it)
		return nil
	}
	q.append(it)
	return nil
}

// append queues an item; mu is held.
func (q *queue) append(it item) {
	if it.kind == itemTimed && it.late == 0 && len(q.todo) == 0 && q.fence == noFence && q.d.mem.used(q.ring) < ringEntries-2 {
		if q.hand(&it) {
			q.d.tell()
		}
		return
	}
	q.d.startFront()
	q.todo = append(q.todo, it)
	q.pump()
}

// hand gives timed work to the engine; mu is held. It reports whether the engine
// has to be told.
func (q *queue) hand(it *item) (news bool) {
	d := q.d
	if it.dur > 0 {
		q.finish = d.schedule(max(clock(), q.finish), it.dur)
	}
	e := it.e
	e.at = q.finish // may be past: then it is the engine's turn at once
	switch e.op & 0xff {
	case opStore:
		wordAt(e.a).Publish()
	case opWord:
		q.handed.Add(1)
	}
	if it.late > 0 {
		l := e
		l.at = end(max(clock(), e.at), it.late)
		news = d.mem.push(q.late, l)
		e.op = opNop
	}
	return d.mem.push(q.ring, e) || news
}

// pump gives the engine what can be given; mu is held. Two places of the ring are
// kept for entries that tell Go: that a function's turn has come, and that there
// is room for more.
func (q *queue) pump() {
	m, news := q.d.mem, false
	if q.faulted() && m.ctl.keep.Load() == 0 {
		q.todo = nil
	}
	for len(q.todo) > 0 && q.fence == noFence {
		it, used := &q.todo[0], m.used(q.ring)
		if it.kind != itemTimed {
			if used == 0 && q.finish <= clock() {
				q.startFunctions()
				break
			}
			q.fence, q.fenceAt = fenceQueued, q.slot().tail.Load()
			news = m.push(q.ring, entry{at: q.finish, op: opCall}) || news
			break
		}
		if used >= ringEntries/2 && !q.callQueued {
			q.callQueued, q.callAt = true, q.slot().tail.Load()
			news = m.push(q.ring, entry{at: q.finish, op: opCall}) || news
			used++
		}
		if used >= ringEntries-2 {
			break
		}
		if it.late > 0 && m.used(q.late) >= ringEntries {
			q.again()
			break
		}
		news = q.hand(it) || news
		*it = item{}
		q.todo = q.todo[1:]
	}
	if news {
		q.d.tell()
	}
}

// again comes back when a ring of late stores may have room.
func (q *queue) again() {
	time.AfterFunc(time.Millisecond, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.gone {
			q.pump()
			q.land()
		}
	})
}

// called is the engine's word that it has come to an opCall of the ring.
func (q *queue) called() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		return
	}
	head := q.slot().head.Load()
	if q.callQueued && head > q.callAt {
		q.callQueued = false
	}
	if q.fence == fenceQueued && head > q.fenceAt {
		q.startFunctions()
	} else {
		q.pump()
	}
}

// startFunctions runs the functions and gates at the front of todo; mu is held.
func (q *queue) startFunctions() {
	q.fence = fenceRuns
	q.d.busy.Add(1)
	go q.runFunctions()
}

func (q *queue) runFunctions() {
	defer q.d.busy.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.todo) > 0 && q.todo[0].kind != itemTimed {
		it := q.todo[0]
		q.todo[0] = item{}
		q.todo = q.todo[1:]
		q.mu.Unlock()
		q.d.run(it)
		q.mu.Lock()
	}
	q.fence = noFence
	if q.gone {
		return
	}
	q.finish = max(q.finish, clock())
	q.pump()
}

// run runs one function, or waits for one gate. Behind failed work there is
// neither.
func (d *Device) run(it item) {
	select {
	case <-d.gone:
		return
	default:
	}
	if d.Err() != nil {
		return
	}
	if it.kind == itemGate {
		select {
		case <-it.gate:
		case <-d.failed:
		case <-d.gone:
		}
		return
	}
	d.functions.Add(1)
	if err := protect(it.fn); err != nil {
		d.fail(event.New(event.WorkFailed, d.name(), err.Error()).WithStatus(StatusIllegalAddress).Wrap(err))
	}
}

// protect turns a panic into an error: a kernel that crashes does not take the
// program with it.
func protect(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = event.New(event.Panicked, "device function", fmt.Sprintf("%v\n%s", p, debug.Stack()))
		}
	}()
	return f()
}

// done reports whether everything queued is done; mu is held.
func (q *queue) done() bool {
	return len(q.todo) == 0 && q.fence == noFence && q.d.mem.used(q.ring) == 0
}

// sync blocks the calling thread until everything queued so far is done, or the
// device has failed or gone.
func (q *queue) sync() error {
	q.mu.Lock()
	if q.gone {
		q.mu.Unlock()
		return errStreamClosed
	}
	if q.done() || q.faulted() {
		defer q.mu.Unlock()
		return q.d.Err()
	}
	q.syncs++
	target := q.syncs
	q.append(item{e: entry{op: opWake, a: q.syncAddr(), b: target}})
	q.d.busy.Add(1)
	q.mu.Unlock()
	defer q.d.busy.Done()
	q.d.startFront() // it is what notices a fault
	for {
		seen := q.slot().syncs.Load()
		if int64(seen-target) >= 0 {
			break
		}
		select {
		case <-q.d.failed:
			return q.d.Err()
		case <-q.d.gone:
			return errStreamClosed
		default:
		}
		futexWait(q.syncAddr(), uint32(seen), 100*time.Millisecond)
		q.d.checkEngine()
	}
	q.mu.Lock() // what was done happened before, for the race detector, too
	defer q.mu.Unlock()
	return q.d.Err()
}

// settle returns when nothing that was queued so far can write any more.
func (q *queue) settle() error {
	if err := q.sync(); err != nil && err != errStreamClosed && q.d.Err() == nil {
		return err
	}
	// What is under way on a device that has failed, and stores that are late.
	for first := true; ; first = false {
		q.mu.Lock()
		if q.gone {
			q.mu.Unlock()
			return nil
		}
		q.pump()
		if first {
			q.land()
		}
		idle := q.lateIdle() && (q.done() || !q.faulted())
		q.mu.Unlock()
		if idle {
			return nil
		}
		select {
		case <-q.d.gone:
			return errDeviceClosed
		case <-time.After(settleNap):
		}
	}
}

func (q *queue) lateIdle() bool {
	return len(q.held) == 0 && (q.late < 0 || q.d.mem.used(q.late) == 0)
}

// land lets held stores go, those of a stream that does not hold any more or
// all of a settle; mu is held.
func (q *queue) land() {
	news := false
	for len(q.held) > 0 && q.d.mem.used(q.late) < ringEntries {
		e := q.held[0]
		e.at = clock()
		news = q.d.mem.push(q.late, e) || news
		q.held = q.held[1:]
	}
	if news {
		q.d.tell()
	}
	if len(q.held) > 0 {
		q.again()
	}
}

// retire gives the ring of a closed queue back once its work is done.
func (q *queue) retire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone || !q.closed {
		return
	}
	q.pump()
	idle := q.done() && q.lateIdle()
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return
	}
	if !idle {
		d.closing[q] = struct{}{}
		return
	}
	q.gone = true
	delete(d.queues, q)
	delete(d.closing, q)
	for _, r := range []int{q.ring, q.late} {
		if r >= 0 {
			d.rings[r] = nil
			d.free = append(d.free, r)
		}
	}
}

// abandon is the device's end.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.gone = true, true
	q.todo, q.held = nil, nil
}

// needLate takes a ring for late stores; mu is held.
func (q *queue) needLate() error {
	if q.late >= 0 {
		return nil
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	i, err := q.d.takeRing(q)
	if err == nil {
		q.late = i
	}
	return err
}
