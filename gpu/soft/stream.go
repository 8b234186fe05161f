package soft

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// Stream is an in-order queue of work. It implements driver.Stream; all methods
// may be called from many goroutines.
type Stream struct {
	d        *Device
	ring     int
	syncs    futures    // a word that counts blocking waits reached
	progress *line.Word // counts functions and gates reached by the engine
	number   uintptr

	mu        sync.Mutex
	closed    bool
	dead      bool   // the memory behind the stream is gone, or another's
	finish    int64  // when the timed work queued so far ends
	todo      []item // waits for a function, a gate, or room in the ring
	fenced    uint64 // functions and gates queued to the engine so far
	passed    uint64 // of these, those done
	running   bool   // runFunctions is at work
	syncN     uint64
	events    uint64
	eventWord *line.Word
	capturing bool
	drop      int
	delay     time.Duration
	hold      bool
}

type item struct {
	kind int
	dur  time.Duration // of timed work
	e    entry
	fn   func() error
	gate chan struct{}
}

const (
	itemTimed = iota // takes dur, then e happens
	itemFunc
	itemGate
)

var streamNumbers atomic.Uint64

// NewStream implements driver.Device.
func (d *Device) NewStream() (driver.Stream, error) {
	if err := d.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.refs == 0 {
		return nil, event.New(event.Closed, "soft device")
	}
	i := d.takeRing()
	if i < 0 {
		for s := range d.streams {
			if s.isClosed() {
				d.reap(s)
			}
		}
		i = d.takeRing()
	}
	if i < 0 {
		return nil, event.New(event.NotSupported, "another stream", "a soft device has at most "+strconv.Itoa(maxStreams))
	}
	// Four words of the stream's own, on a line that no other stream touches.
	l := &d.words.Lines[i]
	for j := range l {
		l[j].Zero()
	}
	s := &Stream{
		d: d, ring: i, syncs: futures{&l[0]}, progress: &l[1], eventWord: &l[2],
		number: uintptr(streamNumbers.Add(1)),
	}
	d.streams[s] = struct{}{}
	return s, nil
}

// AdoptStream implements driver.Device. The handle is one that Stream.Handle of
// this device returned.
func (d *Device) AdoptStream(handle uintptr) (driver.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.streams {
		if s.number == handle {
			return &adopted{Stream: s}, nil
		}
	}
	return nil, event.New(event.ForeignStream, "adopt of "+strconv.FormatUint(uint64(handle), 10), "no stream of this device has this handle").WithStatus(event.StatusForeign)
}

// adopted is a stream whose owner is somebody else. Closing it ends its use, and
// leaves the owner's stream alone.
type adopted struct {
	*Stream
	shut atomic.Bool
}

// Driver makes Of work on an adopted stream.
func (a *adopted) Driver() driver.Stream { return a.Stream }

func (a *adopted) Close() error {
	a.shut.Store(true)
	return nil
}

func (a *adopted) open() error {
	if a.shut.Load() {
		return errClosed
	}
	return nil
}

func (a *adopted) Store(host uintptr, dev uint64, value uint64) error {
	if err := a.open(); err != nil {
		return err
	}
	return a.Stream.Store(host, dev, value)
}

func (a *adopted) Record() (driver.Event, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	return a.Stream.Record()
}

func (a *adopted) Query() (bool, error) {
	if err := a.open(); err != nil {
		return false, err
	}
	return a.Stream.Query()
}

func (a *adopted) Sync() error {
	if err := a.open(); err != nil {
		return err
	}
	return a.Stream.Sync()
}

func (a *adopted) Capturing() (bool, error) {
	if err := a.open(); err != nil {
		return false, err
	}
	return a.Stream.Capturing()
}

func (a *adopted) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	if err := a.open(); err != nil {
		return err
	}
	return a.Stream.CopyToDevice(dst, src, n)
}

func (a *adopted) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	if err := a.open(); err != nil {
		return err
	}
	return a.Stream.CopyToHost(dst, src, n)
}

func (a *adopted) Fill(dst driver.Mem, value byte, n int) error {
	if err := a.open(); err != nil {
		return err
	}
	return a.Stream.Fill(dst, value, n)
}

var errClosed = event.New(event.Closed, "soft stream")

// Device implements driver.Stream.
func (s *Stream) Device() driver.Device { return s.d }

// Handle implements driver.Stream: a number that stands for the stream.
func (s *Stream) Handle() uintptr { return s.number }

// Close implements driver.Stream: queued work still runs; its ring is used again
// once it is done.
func (s *Stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reap(s)
	return nil
}

// reap takes a closed stream's ring back once its work is done; d.mu is held.
func (d *Device) reap(s *Stream) {
	if s.done() {
		s.kill()
		delete(d.streams, s)
		d.freeRing = append(d.freeRing, s.ring)
	}
}

// kill keeps the stream from touching the engine's memory.
func (s *Stream) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.dead = true, true
}

func (s *Stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// done reports whether everything queued is done. It takes s.mu.
func (s *Stream) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done0()
}

func (s *Stream) done0() bool {
	return s.dead || len(s.todo) == 0 && s.passed == s.fenced && s.d.mem.empty(s.ring)
}

// queue appends an item.
func (s *Stream) queue(it item) error {
	if err := s.d.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if it.kind == itemTimed && len(s.todo) == 0 && s.passed == s.fenced && s.d.mem.room(s.ring) {
		s.hand(it.dur, it.e)
		s.d.mem.ring(s.d.eng)
		return nil
	}
	s.todo = append(s.todo, it)
	s.pump()
	return nil
}

// hand gives timed work to the engine: e happens once dur has passed behind what
// is queued; s.mu is held.
func (s *Stream) hand(dur time.Duration, e entry) {
	e.at = max(clock(), s.finish)
	if dur > 0 {
		e.at = s.d.schedule(e.at, dur)
	}
	s.finish = e.at
	if e.op == opStore || e.op == opEvent {
		wordAt(e.a).Publish()
	}
	s.d.mem.push(s.ring, e)
}

// pump hands what can be handed to the engine; s.mu is held. A function or gate
// goes to the engine as a fence: the engine notes that it has come to it, and
// nothing behind it is handed over until it has been passed.
func (s *Stream) pump() {
	if s.dead {
		return
	}
	m := s.d.mem
	pushed := false
	for len(s.todo) > 0 && s.passed == s.fenced && m.room(s.ring) {
		it := &s.todo[0]
		if it.kind == itemTimed {
			s.hand(it.dur, it.e)
			*it = item{}
			s.todo = s.todo[1:]
		} else {
			s.fenced++
			s.hand(0, entry{op: opSignal, a: uint64(s.progress.Addr()), b: s.fenced})
		}
		pushed = true
	}
	if pushed {
		m.ring(s.d.eng)
	}
	if len(s.todo) > 0 && s.passed == s.fenced {
		// No room: come back when there is.
		time.AfterFunc(time.Millisecond, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pump()
		})
	}
}

// schedule returns when work of length dur ends that can begin at the given time:
// at once, or when the first of the engines is free.
func (d *Device) schedule(at int64, dur time.Duration) int64 {
	if len(d.engines) == 0 {
		return at + int64(dur)
	}
	d.engMu.Lock()
	defer d.engMu.Unlock()
	first := 0
	for i, free := range d.engines {
		if free < d.engines[first] {
			first = i
		}
	}
	end := max(at, d.engines[first]) + int64(dur)
	d.engines[first] = end
	return end
}

// atFunction reports whether the engine has come to a function or gate that
// nobody runs yet.
func (s *Stream) atFunction() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.running && s.passed < s.fenced && s.progress.Load() >= s.fenced
}

// runFunctions runs the functions that the engine has come to.
func (s *Stream) runFunctions() {
	s.mu.Lock()
	if s.running || s.passed == s.fenced || s.progress.Load() < s.fenced {
		s.mu.Unlock()
		return
	}
	s.running = true
	for len(s.todo) > 0 && s.todo[0].kind != itemTimed {
		it := s.todo[0]
		s.mu.Unlock()
		switch {
		case s.d.Err() != nil: // nothing runs behind a fault
		case it.kind == itemGate:
			select {
			case <-it.gate:
			case <-s.d.gone:
			case <-s.d.faulted:
			}
		default:
			s.d.funcs.Add(1)
			if err := it.fn(); err != nil {
				s.d.failWork(err)
			}
		}
		s.mu.Lock()
		s.todo[0] = item{}
		s.todo = s.todo[1:]
	}
	s.finish = max(s.finish, clock())
	s.passed = s.fenced
	s.running = false
	s.pump()
	s.mu.Unlock()
}

// failWork makes the device fail as after a kernel that wrote through a bad
// pointer.
func (d *Device) failWork(err error) {
	d.setFault(event.New(event.WorkFailed, "soft:"+strconv.Itoa(d.info.Ordinal), err.Error()).WithStatus(StatusIllegalAddress).Wrap(err))
	if !d.cfg.StoreAfterFault {
		d.mem.ctl.fault.Store(1)
	}
	d.wakeAll()
}

// Work queues work that keeps the stream busy for d. It does not block.
func (s *Stream) Work(d time.Duration) error {
	if d < 0 {
		return event.New(event.InvalidArgument, "work of "+d.String(), "want a duration of at least 0")
	}
	return s.queue(item{kind: itemTimed, dur: d, e: entry{op: opNop}})
}

// Run queues a function, which runs on a goroutine of the device when its turn
// has come. An error makes the device fail: its sticky fault, as after a kernel
// that wrote through a bad pointer.
func (s *Stream) Run(f func() error) error {
	if f == nil {
		return event.New(event.InvalidArgument, "function", "nil")
	}
	return s.queue(item{kind: itemFunc, fn: f})
}

// HostFunc queues a host callback, for comparison with the word.
func (s *Stream) HostFunc(f func()) error {
	if f == nil {
		return event.New(event.InvalidArgument, "host function", "nil")
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
	return s.queue(item{kind: itemTimed, e: entry{op: opPost, a: uint64(fd)}})
}

// Gate queues work that lasts until open is called. open may be called any number
// of times.
func (s *Stream) Gate() (open func(), err error) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	return open, s.queue(item{kind: itemGate, gate: c})
}

// Fail queues failing work.
func (s *Stream) Fail(err error) error {
	if err == nil {
		err = fmt.Errorf("illegal address")
	}
	return s.Run(func() error { return err })
}

// BeginCapture and EndCapture put the stream into capture mode and back. What is
// queued meanwhile runs as always: only the state is simulated.
func (s *Stream) BeginCapture() { s.setCapture(true) }

// EndCapture ends what BeginCapture began.
func (s *Stream) EndCapture() { s.setCapture(false) }

func (s *Stream) setCapture(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capturing = on
}

// Capturing implements driver.Stream.
func (s *Stream) Capturing() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, errClosed
	}
	return s.capturing, nil
}

// DropStores makes the next n stores of the stream never land; n < 0 means all.
func (s *Stream) DropStores(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop = n
}

// DelayStores makes the stream's stores land d after their turn, while the
// status says done at their turn.
func (s *Stream) DelayStores(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// HoldStores keeps the stream's stores back until ReleaseStores: so stores of
// several streams land in any order the caller likes.
func (s *Stream) HoldStores() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = true
}

// ReleaseStores lets what HoldStores kept back land, in order.
func (s *Stream) ReleaseStores() {
	s.mu.Lock()
	s.hold = false
	s.mu.Unlock()
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	keep := s.d.held[:0]
	for _, l := range s.d.held {
		if l.s == s {
			l.e.at = clock()
			s.d.pushLate(l.e)
		} else {
			keep = append(keep, l)
		}
	}
	s.d.held = keep
}

// Store implements driver.Stream.
func (s *Stream) Store(host uintptr, dev uint64, value uint64) error {
	switch s.d.cfg.Lie {
	case LieUnsupported, NoStores:
		return event.New(event.NotSupported, "store from a stream", "status 801").WithStatus(StatusNotSupported)
	}
	if dev != uint64(host)+deviceOffset || dev%8 != 0 {
		return event.New(event.Backend, "store to an address that is not the device's, or not 8-byte aligned", strconv.Itoa(StatusIllegalAddress)).WithStatus(StatusIllegalAddress)
	}
	e := entry{op: opStore, a: uint64(host), b: value}
	s.mu.Lock()
	drop, delay, hold := s.drop != 0, s.delay, s.hold
	if s.drop > 0 {
		s.drop--
	}
	s.mu.Unlock()
	switch {
	case drop || s.d.cfg.Lie == LieNever:
		return s.queue(item{kind: itemTimed, e: entry{op: opNop}})
	case hold || s.d.cfg.Lie == LieSync || delay > 0:
		return s.storeLater(e, delay)
	}
	return s.queue(item{kind: itemTimed, e: e})
}

// storeLater queues a store that leaves the queue in its turn and lands later:
// after the delay, or when it is released.
func (s *Stream) storeLater(e entry, delay time.Duration) error {
	wordAt(e.a).Publish()
	return s.Run(func() error {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		s.mu.Lock()
		held := s.hold || s.d.cfg.Lie == LieSync // perhaps released by now
		s.mu.Unlock()
		if held {
			s.d.held = append(s.d.held, late{s, e})
		} else {
			e.at = clock() + int64(delay)
			s.d.pushLate(e)
		}
		return nil
	})
}

// StoreTime returns when the stream's engine made the store of value, on the
// clock of Now, for the last 1023 values stored by this stream.
func (s *Stream) StoreTime(value uint64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return 0
	}
	return time.Duration(s.d.mem.stamps[s.ring*ringEntries+int(value%ringEntries)].Load() - clockOffset())
}

// Now is the clock of StoreTime: event.RealClock's.
func Now() time.Duration { return event.RealClock{}.Now() }

// Query implements driver.Stream.
func (s *Stream) Query() (bool, error) {
	s.d.queries.pass()
	if err := s.d.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, errClosed
	}
	return s.done0(), s.d.Err()
}

// Sync implements driver.Stream: the calling thread blocks in the kernel, as it
// would in a vendor's blocking wait.
func (s *Stream) Sync() error {
	s.d.queries.pass()
	if s.isClosed() {
		return errClosed
	}
	if err := s.drain(); err != nil {
		return err
	}
	if s.d.cfg.Lie == LieSync {
		s.d.mu.Lock()
		s.d.releaseHeld()
		s.d.mu.Unlock()
	}
	return s.d.Err()
}

// drain blocks until everything queued so far is done or the device has failed.
func (s *Stream) drain() error {
	s.mu.Lock()
	if s.done0() {
		s.mu.Unlock()
		return s.d.Err()
	}
	s.syncN++
	target := s.syncN
	s.todo = append(s.todo, item{kind: itemTimed, e: entry{op: opWake, a: s.syncs.addr(), b: target}})
	s.pump()
	s.mu.Unlock()
	for {
		seen := s.syncs.word.Load()
		if seen >= target {
			return s.d.Err()
		}
		if err := s.d.Err(); err != nil {
			return err
		}
		waitWord(s.syncs.addr(), uint32(seen), 100*time.Millisecond)
	}
}

// SyncSpin is Sync that keeps a processor busy instead of blocking, as the
// vendors' default does.
func (s *Stream) SyncSpin() error {
	for n := 0; ; n++ {
		done, err := s.Query()
		if done || err != nil {
			return err
		}
		if n%64 == 63 {
			runtime.Gosched() // a spinning vendor call would let other threads run, too
		}
	}
}

// Record implements driver.Stream.
func (s *Stream) Record() (driver.Event, error) {
	if err := s.d.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.events++
	n := s.events
	s.mu.Unlock()
	return &mark{s, n}, s.queue(item{kind: itemTimed, e: entry{op: opEvent, a: uint64(s.eventWord.Addr()), b: n}})
}

// mark is an event: its number has been reached, or not.
type mark struct {
	s *Stream
	n uint64
}

// Query implements driver.Event.
func (m *mark) Query() (bool, error) {
	m.s.d.queries.pass()
	m.s.mu.Lock()
	done := m.s.dead || m.s.eventWord.Reached(m.n)
	m.s.mu.Unlock()
	if done {
		return true, nil
	}
	return false, m.s.d.Err()
}

// Release implements driver.Event.
func (m *mark) Release() {}

// CopyToDevice implements driver.Stream. The source is read when the copy's turn
// has come.
func (s *Stream) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	return s.move(dst, n, src == nil, entry{op: opCopy, a: uint64(dst), b: uint64(uintptr(src)), n: uint64(n)})
}

// CopyToHost implements driver.Stream.
func (s *Stream) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	return s.move(src, n, dst == nil, entry{op: opCopy, a: uint64(uintptr(dst)), b: uint64(src), n: uint64(n)})
}

// Fill implements driver.Stream.
func (s *Stream) Fill(dst driver.Mem, value byte, n int) error {
	return s.move(dst, n, false, entry{op: opFill, a: uint64(dst), b: uint64(value), n: uint64(n)})
}

// move queues e, which moves n bytes from, to or in device memory at m.
func (s *Stream) move(m driver.Mem, n int, nilHost bool, e entry) error {
	switch {
	case n == 0 && s.isClosed():
		return errClosed
	case n == 0:
		return nil
	case nilHost:
		return event.New(event.InvalidArgument, "copy of "+strconv.Itoa(n)+" bytes", "nil host memory")
	}
	s.d.mu.Lock()
	ok := n > 0 && s.d.within(m, n)
	s.d.mu.Unlock()
	if !ok {
		return event.New(event.InvalidArgument, "copy or fill of "+strconv.Itoa(n)+" bytes", "reaches outside the device memory")
	}
	return s.queue(item{kind: itemTimed, e: e})
}
