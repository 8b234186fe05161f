package soft

import (
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Stream is an in-order queue of work. It implements driver.Stream; all methods
// may be called from many goroutines.
type Stream struct {
	q       *queue
	adopted bool
	closed  atomic.Bool
}

var handles atomic.Uint64

// NewStream implements driver.Device. A device has room for 4096 streams, fewer
// when stores of some are late or held.
func (d *Device) NewStream() (driver.Stream, error) {
	if d == nil {
		return nil, errNilDevice
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	d.sweep()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.dead {
		return nil, errDeviceClosed
	}
	q := &queue{d: d, handle: uintptr(handles.Add(1)), late: -1}
	var err error
	if q.ring, err = d.takeRing(q); err != nil {
		return nil, err
	}
	q.syncs, q.events = q.slot().syncs.Load(), q.slot().events.Load()
	d.queues[q] = struct{}{}
	return &Stream{q: q}, nil
}

// AdoptStream implements driver.Device. The handle is one that Stream.Handle of
// this device returned; any other is event.ForeignStream.
func (d *Device) AdoptStream(handle uintptr) (driver.Stream, error) {
	if d == nil {
		return nil, errNilDevice
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.dead {
		return nil, errDeviceClosed
	}
	for q := range d.queues {
		if q.handle == handle {
			return &Stream{q: q, adopted: true}, nil
		}
	}
	return nil, event.New(event.ForeignStream, "handle "+strconv.FormatUint(uint64(handle), 10), "no stream of this device has it").WithStatus(event.StatusForeign)
}

// Device implements driver.Stream.
func (s *Stream) Device() driver.Device {
	if s == nil {
		return (*Device)(nil)
	}
	return s.q.d
}

// Handle implements driver.Stream: a number that stands for the stream in this
// process.
func (s *Stream) Handle() uintptr {
	if s == nil {
		return 0
	}
	return s.q.handle
}

// Close implements driver.Stream: queued work still runs. It is idempotent.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	if s.closed.Swap(true) || s.adopted {
		return nil
	}
	s.q.mu.Lock()
	s.q.closed = true
	s.q.mu.Unlock()
	s.q.retire()
	return nil
}

func (s *Stream) add(it item) error {
	if s == nil {
		return errNilStream
	}
	if s.closed.Load() {
		return errStreamClosed
	}
	return s.q.add(it)
}

// Work queues work that keeps the stream busy for d. It does not block.
func (s *Stream) Work(d time.Duration) error {
	if d < 0 {
		return event.New(event.InvalidArgument, "work of "+d.String(), "want a duration of at least 0").WithStatus(statusInvalidValue)
	}
	return s.add(item{dur: d})
}

// Run queues a function, which runs on a goroutine of its own when its turn has
// come. An error that it returns, or a panic, makes the device fail with status
// 700, as after a kernel that wrote through a bad pointer: nothing behind it
// happens, on any stream. The function must return (no runtime.Goexit).
func (s *Stream) Run(f func() error) error {
	if f == nil {
		return event.New(event.InvalidArgument, "function", "nil").WithStatus(statusInvalidValue)
	}
	return s.add(item{kind: itemFunc, fn: f})
}

// HostFunc queues a host callback, for comparison with the word. It is not called
// once the device has failed.
func (s *Stream) HostFunc(f func()) error {
	if f == nil {
		return event.New(event.InvalidArgument, "host function", "nil").WithStatus(statusInvalidValue)
	}
	return s.Run(func() error { f(); return nil })
}

// Signal queues a write of 1 to the eventfd fd, made by the store engine like a
// store: what a driver with fence descriptors does, for comparison with the word.
// The descriptor must stay open until the stream has come to it. Linux only.
func (s *Stream) Signal(fd int) error {
	if !canPost {
		return event.New(event.NotSupported, "signal of a descriptor", "there are no eventfds on this system")
	}
	return s.add(item{e: entry{op: opPost, a: uint64(fd)}})
}

// Gate queues work that lasts until open is called, or the device fails. open may
// be called any number of times.
func (s *Stream) Gate() (open func(), err error) {
	c := make(chan struct{})
	return sync.OnceFunc(func() { close(c) }), s.add(item{kind: itemGate, gate: c})
}

// Fail queues work that fails: the device fails with err as the cause (status
// 700) when the stream has come to it. nil stands for an illegal address; an
// *event.Error is the fault as it is.
func (s *Stream) Fail(err error) error {
	if s == nil {
		return errNilStream
	}
	d := s.q.d
	if err == nil {
		err = errors.New("illegal address")
	}
	e, ok := err.(*event.Error)
	if !ok {
		e = event.New(event.WorkFailed, d.name(), err.Error()).WithStatus(StatusIllegalAddress).Wrap(err)
	}
	d.startFront() // it notices the fault for those who block
	d.mu.Lock()
	n := d.failure(e)
	d.mu.Unlock()
	return s.add(item{e: entry{op: opFault, b: n}})
}

// Store implements driver.Stream.
func (s *Stream) Store(host uintptr, dev uint64, value uint64) error {
	if s == nil {
		return errNilStream
	}
	if s.closed.Load() {
		return errStreamClosed
	}
	q := s.q
	d := q.d
	if d.cfg.Lie == LieUnsupported || d.cfg.Lie == NoStores {
		return event.New(event.NotSupported, "store from a stream", "status "+strconv.Itoa(StatusNotSupported)).WithStatus(StatusNotSupported)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	if host%8 != 0 || dev != uint64(host)+deviceOffset || d.find(uint64(host), 8, true) == nil {
		return event.New(event.InvalidArgument, "store to 0x"+strconv.FormatUint(uint64(host), 16)+", device address 0x"+strconv.FormatUint(dev, 16),
			"want an aligned word of this device's host memory, and its device address").WithStatus(statusInvalidValue)
	}
	it := item{e: entry{op: opStore, a: uint64(host), b: value}}
	if q.drop != 0 || d.cfg.Lie == LieNever {
		it.e = entry{}
		q.drop = max(q.drop-1, -1)
	} else if q.hold || d.cfg.Lie == LieSync {
		if err := q.needLate(); err != nil {
			return err
		}
		wordAt(it.e.a).Publish()
		it.kind, it.fn = itemFunc, q.keeper(it.e)
	} else if q.delay > 0 {
		if err := q.needLate(); err != nil {
			return err
		}
		it.late = q.delay
	}
	return q.addLocked(it)
}

// keeper returns the function that holds a store back in its turn.
func (q *queue) keeper(e entry) func() error {
	return func() error {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.gone || q.faulted() && q.d.mem.ctl.keep.Load() == 0 {
			return nil
		}
		q.held = append(q.held, e)
		if !q.hold && q.d.cfg.Lie != LieSync {
			q.land()
		}
		return nil
	}
}

// StoreTime returns when the engine stored value for this stream, on the clock of
// Now: read right before the store. Whoever has seen the word finds it. It is 0
// when the stream did not store the value, or stored another one since that is
// the same modulo 512.
func (s *Stream) StoreTime(value uint64) time.Duration {
	if s == nil {
		return 0
	}
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		return 0
	}
	for _, ring := range []int{q.ring, q.late} {
		if ring < 0 {
			continue
		}
		st := &q.d.mem.stamps(ring)[value%ringEntries]
		before := st.value.Load()
		ns := st.at.Load()
		if before == value+1 && st.value.Load() == before {
			return time.Duration(ns - clockOffset())
		}
	}
	return 0
}

// Now is the clock of StoreTime: event.RealClock's.
func Now() time.Duration { return event.RealClock{}.Now() }

// Query implements driver.Stream. On a stream that is capturing it is an error
// (status 900) and spoils the capture, as with CUDA.
func (s *Stream) Query() (bool, error) {
	if s == nil {
		return false, errNilStream
	}
	q := s.q
	q.d.queries.pass()
	if s.closed.Load() {
		return false, errStreamClosed
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.gone {
		return false, errStreamClosed
	}
	if err := q.spoilCapture("query"); err != nil {
		return false, err
	}
	if !q.d.eng.alive() {
		q.mu.Unlock()
		q.d.checkEngine()
		q.mu.Lock()
	}
	done := q.done() // before the look at the fault, which comes before the end of the work
	if q.gone {
		return false, errStreamClosed
	}
	if q.faulted() {
		return false, q.d.Err()
	}
	return done, nil
}

// Sync implements driver.Stream: the calling thread blocks in the kernel, as it
// would in a vendor's blocking wait.
func (s *Stream) Sync() error {
	if s == nil {
		return errNilStream
	}
	q := s.q
	q.d.queries.pass()
	if s.closed.Load() || q.isClosed() {
		return errStreamClosed
	}
	q.mu.Lock()
	err := q.spoilCapture("sync")
	q.mu.Unlock()
	if err != nil {
		return err
	}
	if q.d.cfg.Lie == LieSync {
		if err := q.settle(); err != nil {
			return err
		}
		return q.d.Err()
	}
	return q.sync()
}

// SyncSpin is Sync that keeps a processor busy instead of blocking, as the
// vendors' default does.
func (s *Stream) SyncSpin() error {
	for n := 1; ; n++ {
		if done, err := s.Query(); done || err != nil {
			return err
		}
		if n%64 == 0 {
			runtime.Gosched() // a spinning vendor call would let other threads run, too
		}
	}
}

// Record implements driver.Stream.
func (s *Stream) Record() (driver.Event, error) {
	if s == nil {
		return nil, errNilStream
	}
	if s.closed.Load() {
		return nil, errStreamClosed
	}
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(); err != nil {
		return nil, err
	}
	if q.capture != nil {
		return &mark{q: q, captured: true}, nil
	}
	q.events++
	q.append(item{e: entry{op: opWord, a: uint64(uintptr(unsafe.Pointer(&q.slot().events))), b: q.events}})
	return &mark{q: q, n: q.events}, nil
}

// mark is an event: its number has been reached, or not.
type mark struct {
	q        *queue
	n        uint64
	captured bool
	reached  atomic.Bool
}

// Query implements driver.Event.
func (m *mark) Query() (bool, error) {
	q := m.q
	q.d.queries.pass()
	if m.captured {
		return false, event.New(event.Backend, "query of an event of a capture", strconv.Itoa(statusCapturedEvent)).WithStatus(statusCapturedEvent)
	}
	if m.reached.Load() {
		return true, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		if err := q.d.Err(); err != nil {
			return false, err
		}
		// The ring was given back after all work was done, unless the device went first.
		select {
		case <-q.d.gone:
			return false, errStreamClosed
		default:
			return true, nil
		}
	}
	if int64(q.slot().events.Load()-m.n) >= 0 {
		q.handed.Load()
		m.reached.Store(true)
		return true, nil
	}
	if q.faulted() {
		return false, q.d.Err()
	}
	return false, nil
}

// Release implements driver.Event.
func (m *mark) Release() {}

// CopyToDevice implements driver.Stream. The source is read when the stream has
// come to the copy, whatever memory it lies in: reusing it earlier is visible. The
// race detector sees nothing of it.
func (s *Stream) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	return s.transfer(dst, src == nil, n, entry{op: opCopy, a: uint64(dst) - deviceOffset, b: uint64(uintptr(src))})
}

// CopyToHost implements driver.Stream.
func (s *Stream) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	return s.transfer(src, dst == nil, n, entry{op: opCopy, a: uint64(uintptr(dst)), b: uint64(src) - deviceOffset})
}

// Fill implements driver.Stream.
func (s *Stream) Fill(dst driver.Mem, value byte, n int) error {
	return s.transfer(dst, false, n, entry{op: opFill, a: uint64(dst) - deviceOffset, b: uint64(value)})
}

// transfer queues a copy or fill of n bytes of device memory.
func (s *Stream) transfer(m driver.Mem, null bool, n int, e entry) error {
	if s.closed.Load() {
		return errStreamClosed
	}
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	if n < 0 || null && n > 0 || q.d.find(uint64(m)-deviceOffset, uint64(n), false) == nil {
		return event.New(event.InvalidArgument, "copy or fill of "+strconv.Itoa(n)+" bytes at device address 0x"+strconv.FormatUint(uint64(m), 16),
			"want bytes of one allocation, and host memory that is not nil").WithStatus(statusInvalidValue)
	}
	if n == 0 {
		return nil
	}
	e.op |= uint64(n) << 8
	return q.addLocked(item{e: e})
}
