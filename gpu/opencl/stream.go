package opencl

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Stream is an in-order command queue. It implements driver.Stream; its methods
// may be called from many goroutines, and calls that enqueue take turns. After
// Close they return event.Closed.
type Stream struct {
	d     *Device
	a     *api
	queue uintptr
	gate  clib.Gate

	// shared: other code may queue work of its own, which pending does not cover.
	shared atomic.Bool
	// unflushed: the queue may hold commands that were not handed to the device.
	unflushed atomic.Bool

	enq sync.Mutex // one enqueue at a time; taken before st

	st      sync.Mutex
	pending eventQueue // events of the commands that were not seen to end yet
	probe   uintptr    // event of a marker that query put behind foreign work
	stale   int        // probes in a row that were complete when found
	failed  error      // the first failure, sticky
}

var _ driver.Stream = (*Stream)(nil)

// Of returns the OpenCL stream behind x: a *Stream, a driver.Stream that is one,
// or anything with a method Driver() driver.Stream, as the gpu package's streams
// have.
func Of(x any) (*Stream, bool) {
	if w, ok := x.(interface{ Driver() driver.Stream }); ok {
		x = w.Driver()
	}
	s, ok := x.(*Stream)
	return s, ok && s != nil
}

var errStreamClosed = event.New(event.Closed, "opencl stream")

// enter keeps the queue from being released until leave, which must follow in
// either case.
func (s *Stream) enter() bool { return s != nil && s.gate.Enter() }

func (s *Stream) leave() {
	if s != nil && s.gate.Leave() {
		s.shut()
	}
}

// Device returns the *Device that made or adopted the stream.
func (s *Stream) Device() driver.Device {
	if s == nil {
		return (*Device)(nil)
	}
	return s.d
}

// Handle returns the cl_command_queue, for work that other code queues; it is 0
// once the stream is closed. From the first call on Query puts a marker behind
// such work, since nothing else tells of it.
func (s *Stream) Handle() uintptr {
	ok := s.enter()
	defer s.leave()
	if !ok {
		return 0
	}
	s.shared.Store(true)
	return s.queue
}

// Capturing returns false: OpenCL queues have no capture mode.
func (s *Stream) Capturing() (bool, error) {
	ok := s.enter()
	defer s.leave()
	if !ok {
		return false, errStreamClosed
	}
	return false, nil
}

// enqueue runs one clEnqueue* call, which returns its event. Nothing is queued on
// a stream that has failed.
func (s *Stream) enqueue(subject string, flush bool, do func() (ev uintptr, rc int32)) error {
	ok := s.enter()
	defer s.leave()
	if !ok {
		return errStreamClosed
	}
	s.enq.Lock()
	defer s.enq.Unlock()
	if err := s.failure(); err != nil {
		return err
	}
	ev, rc := do()
	if rc != 0 {
		return backend(subject, rc)
	}
	err := s.queued(ev)
	if !flush {
		s.unflushed.Store(true)
		return err
	}
	s.unflushed.Store(false)
	if rc := call1(s.a.flush, s.queue); rc != 0 && err == nil {
		err = backend("clFlush", rc)
	}
	return err
}

func (s *Stream) failure() error {
	s.st.Lock()
	defer s.st.Unlock()
	return s.failed
}

// queued notes the event of a command that was just queued.
//
// The command before it is looked at only now, and that order closes a gap: if it
// has failed by now, the stream fails, whatever becomes of the new command; if it
// is still pending, the new one was queued behind it and fails with it. An event
// wait list would tell the driver the same, but PoCL 3.1 and 6.0 never end a
// command that waits for an event which has already failed, and clFinish hangs.
//
// Every event is held until its command has ended: PoCL 3.1 aborts the process
// when it has to fail a command whose event nobody holds.
func (s *Stream) queued(ev uintptr) error {
	s.st.Lock()
	defer s.st.Unlock()
	s.stale = 0
	if s.drain(); !s.pending.empty() {
		s.ended(s.pending.back())
	}
	s.pending.push(ev)
	return s.failed
}

// maxDrain bounds what one call does for the commands of many earlier ones. It
// is above 1, so that the queue of events shrinks faster than it grows.
const maxDrain = 64

// drain lets go of the events of commands that have ended, oldest first, and
// reports whether all have. st is held.
func (s *Stream) drain() (idle bool) {
	for range maxDrain {
		if s.pending.empty() {
			return true
		}
		if !s.ended(s.pending.front()) {
			return false
		}
		call1(s.a.releaseEvent, s.pending.pop())
	}
	// In order: once the newest has ended, all have.
	return s.pending.empty() || s.ended(s.pending.back())
}

// ended reports whether a command has ended, and remembers a failure. st is held.
func (s *Stream) ended(ev uintptr) bool {
	done, err := s.a.done(ev, "opencl stream")
	if err != nil && s.failed == nil {
		s.failed = err
	}
	return done || err != nil
}

// done reports whether the command of an event is complete, or its failure.
func (a *api) done(ev uintptr, subject string) (bool, error) {
	switch status, rc := a.eventStatus(ev); {
	case rc != 0:
		return false, backend("clGetEventInfo", rc)
	case status < 0:
		return false, event.New(event.WorkFailed, subject, "a command ended with event status "+statusText(status)).WithStatus(int64(status))
	default:
		return status == 0, nil
	}
}

// eventQueue is a FIFO of event handles.
type eventQueue struct {
	list []uintptr
	head int
}

func (q *eventQueue) empty() bool     { return q.head == len(q.list) }
func (q *eventQueue) front() uintptr  { return q.list[q.head] }
func (q *eventQueue) back() uintptr   { return q.list[len(q.list)-1] }
func (q *eventQueue) push(ev uintptr) { q.list = append(q.list, ev) }

func (q *eventQueue) pop() uintptr {
	ev := q.list[q.head]
	q.head++
	// Move the rest down once it is the smaller half: amortised, one move each.
	if q.head*2 >= len(q.list) {
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		q.head = 0
	}
	return ev
}

// Store queues an 8-byte fill of the word at dev, an 8-byte aligned address inside
// memory that AllocHost of this device returned, and hands it to the device:
// without the flush a driver may keep the command to itself. Errors:
// event.NotSupported where Caps.NoStore says why; the stream's failure;
// event.Backend.
func (s *Stream) Store(host uintptr, dev uint64, value uint64) error {
	switch {
	case s == nil:
		return errStreamClosed
	case !s.d.caps.StreamStore:
		return event.New(event.NotSupported, "storing a word from an OpenCL stream", s.d.caps.NoStore)
	case dev == 0 || dev%8 != 0:
		return event.New(event.InvalidArgument, "store", "the address is null or not 8-byte aligned")
	}
	return s.enqueue("clEnqueueSVMMemFill", true, func() (uintptr, int32) {
		return s.a.fill(s.queue, uintptr(dev), value, 8, 8)
	})
}

// fill queues a fill with the low bytes of pattern, which the call copies.
func (a *api) fill(queue, dst uintptr, pattern uint64, patternSize, n uintptr) (ev uintptr, rc int32) {
	f := clib.Get()
	defer f.Put()
	p := f.At(0)
	f.Out[0] = pattern
	rc = int32(f.Call(a.svmFill, queue, dst, p, patternSize, n, 0, 0, f.At(1)))
	return uintptr(f.Out[1]), rc
}

// Record queues a marker and returns its event.
func (s *Stream) Record() (driver.Event, error) {
	var r *recorded
	err := s.enqueue("clEnqueueMarkerWithWaitList", true, func() (uintptr, int32) {
		ev, rc := s.a.mark(s.queue, 0)
		if rc != 0 {
			return 0, rc
		}
		// One reference for the stream's own book-keeping, one for the user.
		if rc = call1(s.a.retainEvent, ev); rc != 0 {
			call1(s.a.releaseEvent, ev)
			return 0, rc
		}
		r = &recorded{a: s.a, ev: ev}
		return ev, 0
	})
	if err != nil {
		if r != nil {
			r.Release()
		}
		return nil, err
	}
	return r, nil
}

// recorded is the event of a marker.
type recorded struct {
	mu sync.Mutex
	a  *api
	ev uintptr
}

// Query reports whether the marker's turn has come, or that the work before it
// failed.
func (r *recorded) Query() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ev == 0 {
		return false, event.New(event.Closed, "opencl event")
	}
	return r.a.done(r.ev, "opencl event")
}

// Release frees the event. A second Release does nothing.
func (r *recorded) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ev != 0 {
		call1(r.a.releaseEvent, r.ev)
		r.ev = 0
	}
}

// Query reports whether the work queued so far is done, or the stream's failure.
// While work is pending it costs one clGetEventInfo. On a stream whose queue other
// code has (adopted, or Handle was called) it also puts a marker behind that code's
// work; see maxLook for the one case in which it looks at that for longer.
func (s *Stream) Query() (bool, error) {
	ok := s.enter()
	defer s.leave()
	if !ok {
		return false, errStreamClosed
	}
	return s.query(true)
}

// maxLook bounds how long Query looks at a marker that it has just queued. Foreign
// work may have come after an older marker, so only a marker that is both new and
// complete proves a shared queue idle, and a caller that polls while each marker
// completes between its calls would never see that. So with every further marker
// in a row that was complete when found, Query looks twice as long at the next.
const (
	firstLook = 20 * time.Microsecond
	maxLook   = 5 * time.Millisecond
)

// query is Query. Without patience it never looks at a new marker for longer.
func (s *Stream) query(patient bool) (bool, error) {
	if s.unflushed.Swap(false) {
		if rc := call1(s.a.flush, s.queue); rc != 0 {
			return false, backend("clFlush", rc)
		}
	}
	s.st.Lock()
	defer s.st.Unlock()
	if idle := s.drain(); !idle || s.failed != nil || !s.shared.Load() {
		return idle && s.failed == nil, s.failed
	}
	if s.probe != 0 {
		if !s.dropProbe() || s.failed != nil {
			return false, s.failed
		}
		if patient {
			s.stale++
		}
	}
	ev, rc := s.a.mark(s.queue, 0)
	if rc != 0 {
		return false, backend("clEnqueueMarkerWithWaitList", rc)
	}
	s.probe = ev
	if rc := call1(s.a.flush, s.queue); rc != 0 {
		return false, backend("clFlush", rc)
	}
	var until time.Time
	if patient && s.stale > 1 {
		until = time.Now().Add(min(firstLook<<min(s.stale-2, 16), maxLook))
	}
	for !s.dropProbe() {
		if until.IsZero() || time.Now().After(until) {
			return false, nil
		}
	}
	s.stale = 0
	return s.failed == nil, s.failed
}

// dropProbe lets go of the probe if it has ended. st is held.
func (s *Stream) dropProbe() bool {
	if !s.ended(s.probe) {
		return false
	}
	call1(s.a.releaseEvent, s.probe)
	s.probe = 0
	return true
}

// Sync is clFinish, and then a look at the events: clFinish says success for a
// queue whose work failed.
func (s *Stream) Sync() error {
	ok := s.enter()
	defer s.leave()
	if !ok {
		return errStreamClosed
	}
	if s.shared.Load() {
		// A failure of foreign work shows in a marker behind it.
		if err := s.enqueue("clEnqueueMarkerWithWaitList", false, func() (uintptr, int32) { return s.a.mark(s.queue, 0) }); err != nil {
			return err
		}
	}
	s.unflushed.Store(false) // clFinish flushes
	rc := call1(s.a.finish, s.queue)
	s.st.Lock()
	defer s.st.Unlock()
	s.drain()
	if s.failed != nil {
		return s.failed
	}
	return backend("clFinish", rc)
}

// CopyToDevice queues a copy of n bytes from host memory. src must stay valid
// and unchanged until the copy is done. dst must lie in memory of this device.
func (s *Stream) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	return s.copy(uintptr(dst), uintptr(src), dst, src, n)
}

// CopyToHost queues a copy of n bytes to host memory, which must stay valid until
// the copy is done. src must lie in memory of this device.
func (s *Stream) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	return s.copy(uintptr(dst), uintptr(src), src, dst, n)
}

// copy queues a copy after a check of its device side. Go memory at host is pinned
// by the caller (driver.Stream), so its address holds.
func (s *Stream) copy(to, from uintptr, dev driver.Mem, host unsafe.Pointer, n int) error {
	if skip, err := s.checkMem("copy", dev, n); skip || err != nil {
		return err
	}
	if host == nil {
		return event.New(event.InvalidArgument, "copy", "nil host memory")
	}
	return s.enqueue("clEnqueueSVMMemcpy", false, func() (uintptr, int32) {
		f := clib.Get()
		defer f.Put()
		rc := f.Call(s.a.svmCopy, s.queue, 0, to, from, uintptr(n), 0, 0, f.At(0))
		return uintptr(f.Out[0]), int32(rc)
	})
}

// Fill queues a fill of n bytes of this device's memory.
func (s *Stream) Fill(dst driver.Mem, value byte, n int) error {
	if skip, err := s.checkMem("fill", dst, n); skip || err != nil {
		return err
	}
	return s.enqueue("clEnqueueSVMMemFill", false, func() (uintptr, int32) {
		return s.a.fill(s.queue, uintptr(dst), uint64(value), 1, uintptr(n))
	})
}

// checkMem reports whether there is nothing to do, or what is wrong.
func (s *Stream) checkMem(what string, m driver.Mem, n int) (skip bool, err error) {
	ok := s.enter()
	defer s.leave()
	switch {
	case !ok:
		return false, errStreamClosed
	case !s.d.caps.Memory:
		return false, noMemory("OpenCL " + what)
	case n < 0:
		return false, event.New(event.InvalidArgument, what, "negative length")
	case n == 0:
		return true, nil
	case !s.d.mem.contains(uintptr(m), uintptr(n)):
		return false, notOurs(what+" range at device address", uintptr(m))
	}
	return false, nil
}

// Close gives the queue back. It does not wait: work under way goes on, and its
// queue is released once that is done. An adopted queue stays its owner's. A second
// Close returns nil.
func (s *Stream) Close() error {
	if s == nil {
		return errStreamClosed
	}
	if _, last := s.gate.Close(); last {
		s.shut()
	}
	return nil
}

// shut runs once, after Close and the last call.
func (s *Stream) shut() {
	if s.unflushed.Swap(false) {
		call1(s.a.flush, s.queue)
	}
	if s.shared.Load() {
		// Other code may have queued work behind the pending commands.
		if ev, rc := s.a.mark(s.queue, 0); rc == 0 {
			s.pending.push(ev)
			call1(s.a.flush, s.queue)
		}
	}
	idle := s.idle()
	s.d.mu.Lock()
	delete(s.d.live, s)
	if !idle {
		s.d.closing = append(s.d.closing, s)
	}
	s.d.mu.Unlock()
	if idle {
		s.free()
	}
}

// idle reports whether nothing that a closed stream knows of is under way. Work
// that failed is not.
func (s *Stream) idle() bool {
	s.st.Lock()
	defer s.st.Unlock()
	return s.drain() && (s.probe == 0 || s.dropProbe())
}

// free releases what a closed stream, idle by now, holds. It runs once.
func (s *Stream) free() {
	for !s.pending.empty() {
		call1(s.a.releaseEvent, s.pending.pop())
	}
	call1(s.a.releaseQueue, s.queue)
	_ = s.d.leave()
}
