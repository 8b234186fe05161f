package metal

import (
	"sync"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
	"github.com/gpuline/gpuline/line"
)

const (
	// commandBuffers is how many command buffers a queue of NewStream allows to
	// be uncompleted. One mark takes one; the default of 64 is soon used up.
	commandBuffers = 1024
	// slice bounds one wait for the event, after which the goroutine looks whether
	// the command buffer failed and will never signal.
	slice = 100 * time.Millisecond
)

// Stream is a MTLCommandQueue with the shared event that its marks signal. Its
// methods may be called as driver.Stream says.
type Stream struct {
	dev   *Device
	queue id
	event id
	gate  clib.Gate

	// commit orders what is committed and the numbers it signals.
	commit sync.Mutex
	next   uint64

	mu      sync.Mutex
	moved   sync.Cond // done grew
	pending []mark    // in order of n
	done    uint64    // every mark up to here is settled
	last    id        // the newest command buffer, owned
	lastN   uint64    // and what it signals
	running bool      // the goroutine runs
	closing bool
	kick    chan struct{} // pending or closing changed
}

// mark is a committed command buffer that signals the event with n, and the
// word that is then to hold value (nil: none).
type mark struct {
	n     uint64
	word  *line.Word
	value uint64
	cb    id // owned
}

var _ driver.Stream = (*Stream)(nil)

// Of returns the Metal stream beneath x: x itself, or what x.Driver() returns.
func Of(x any) (*Stream, bool) {
	if w, ok := x.(interface{ Driver() driver.Stream }); ok {
		x = w.Driver()
	}
	s, ok := x.(*Stream)
	return s, ok && s != nil
}

// NewStream makes a command queue.
func (d *Device) NewStream() (driver.Stream, error) {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return nil, d.closed()
	}
	f := clib.Get()
	defer f.Put()
	queue := id(d.objc.send(f, d.id, selNewQueue, commandBuffers))
	if queue == 0 {
		return nil, event.New(event.Backend, messages[selNewQueue].selector, "nil")
	}
	return d.stream(f, queue)
}

// AdoptStream wraps a MTLCommandQueue that other code made. The stream keeps a
// reference until it is closed. A queue of another device is
// event.ForeignStream. The handle must be a command queue: a message to anything
// else ends the process.
func (d *Device) AdoptStream(handle uintptr) (driver.Stream, error) {
	ok := d.gate.Enter()
	defer d.leave()
	switch {
	case !ok:
		return nil, d.closed()
	case handle == 0:
		return nil, event.New(event.InvalidArgument, "metal stream", "nil command queue")
	}
	f := clib.Get()
	defer f.Put()
	queue := id(handle)
	// By registry id and not by address: it names the GPU, whichever object does.
	other := id(d.objc.send(f, queue, selQueueDevice))
	if d.objc.send(f, other, selRegistryID) != d.objc.send(f, d.id, selRegistryID) {
		return nil, event.New(event.ForeignStream, "metal", "the command queue belongs to another device").WithStatus(event.StatusForeign)
	}
	d.objc.send(f, queue, selRetain)
	return d.stream(f, queue)
}

// stream takes the caller's reference on the queue over.
func (d *Device) stream(f *clib.Frame, queue id) (driver.Stream, error) {
	ev := id(d.objc.send(f, d.id, selNewSharedEvent))
	if ev == 0 {
		d.objc.release(f, queue)
		return nil, event.New(event.Backend, messages[selNewSharedEvent].selector, "nil")
	}
	s := &Stream{dev: d, queue: queue, event: ev, kick: make(chan struct{}, 1)}
	s.moved.L = &s.mu
	return s, nil
}

func (s *Stream) closed() error { return event.New(event.Closed, "metal stream") }

// Device returns the device that made or adopted the stream.
func (s *Stream) Device() driver.Device { return s.dev }

// Handle returns the MTLCommandQueue.
func (s *Stream) Handle() uintptr { return uintptr(s.queue) }

// mark commits a signal, with commit held.
func (s *Stream) mark(f *clib.Frame, word *line.Word, value uint64) (n uint64, cb id, err error) {
	o := s.dev.objc
	n = s.next + 1
	cb = o.signal(f, s.queue, s.event, n)
	if cb == 0 {
		return 0, 0, event.New(event.Backend, messages[selCommandBuffer].selector, "nil")
	}
	s.next = n
	o.send(f, cb, selRetain) // for last
	s.mu.Lock()
	old := s.last
	s.last, s.lastN = cb, n
	s.pending = append(s.pending, mark{n, word, value, cb})
	start := !s.running
	s.running = true
	s.mu.Unlock()
	if old != 0 {
		o.release(f, old)
	}
	if start {
		s.dev.mu.Lock()
		s.dev.streams[s] = struct{}{}
		s.dev.mu.Unlock()
		go s.run()
	} else {
		s.wake()
	}
	return n, cb, nil
}

func (s *Stream) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Store queues the store of value into the word at host, which must lie in memory
// of AllocHost. It waits when the queue's command buffers are used up.
func (s *Stream) Store(host uintptr, _ uint64, value uint64) error {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return s.closed()
	}
	if host%8 != 0 {
		return event.New(event.InvalidArgument, "metal word", "the address is not 8-byte aligned")
	}
	lines, err := line.FromAddr(host&^(line.Size-1), line.Size)
	if err != nil {
		return err
	}
	slot, err := line.NewSlot(int(host % line.Size / 8))
	if err != nil {
		return err
	}
	f := clib.Get()
	defer f.Put()
	s.commit.Lock()
	defer s.commit.Unlock()
	_, _, err = s.mark(f, lines[0].Word(slot), value)
	return err
}

// run is the stream's goroutine: it waits for the event and makes the stores,
// and it ends once the stream is closed and nothing is pending.
func (s *Stream) run() {
	f := clib.Get()
	defer f.Put()
	o := s.dev.objc
	for {
		s.mu.Lock()
		if len(s.pending) == 0 {
			if s.closing {
				s.running = false
				last := s.last
				s.last = 0
				s.mu.Unlock()
				s.dev.mu.Lock()
				delete(s.dev.streams, s)
				s.dev.mu.Unlock()
				if last != 0 {
					o.release(f, last)
				}
				o.release(f, s.event)
				o.release(f, s.queue)
				return
			}
			s.mu.Unlock()
			<-s.kick
			continue
		}
		first := s.pending[0]
		s.mu.Unlock()

		reached := o.waitSignaled(f, s.event, first.n, slice)
		if !line.Reached(reached, first.n) {
			// Nothing yet. A command buffer that failed may never signal: its mark,
			// and only its, is given up.
			done, err := o.status(f, first.cb)
			switch {
			case err != nil:
				s.dev.fail(err)
			case done:
				// Completed without a signal that arrived: look once more, since the two
				// are not seen at the same instant.
				if reached = o.waitSignaled(f, s.event, first.n, 0); !line.Reached(reached, first.n) {
					s.dev.fail(event.New(event.StoreLost, "metal stream", "a completed command buffer did not signal its event"))
				}
			default:
				continue
			}
			if !line.Reached(reached, first.n) {
				first.word = nil
				s.settled(f, first)
				continue
			}
		}
		s.arrived(f, reached)
	}
}

// arrived makes the stores of all marks up to reached.
func (s *Stream) arrived(f *clib.Frame, reached uint64) {
	for {
		s.mu.Lock()
		if len(s.pending) == 0 || !line.Reached(reached, s.pending[0].n) {
			s.mu.Unlock()
			return
		}
		m := s.pending[0]
		s.mu.Unlock()
		// The event can be signalled before the status says completed, but a command
		// buffer that says failed has not done what it was for.
		if _, err := s.dev.objc.status(f, m.cb); err != nil {
			s.dev.fail(err)
			m.word = nil
		}
		s.settled(f, m)
	}
}

// settled stores the word of the first pending mark, if it has one, and takes
// the mark away. The store is the last touch of the page: who sees done grow may
// free it.
func (s *Stream) settled(f *clib.Frame, m mark) {
	if m.word != nil {
		m.word.Store(m.value)
	}
	s.mu.Lock()
	s.pending[0] = mark{}
	if s.pending = s.pending[1:]; len(s.pending) == 0 {
		s.pending = nil // lets a long queue's array go
	}
	s.done = m.n
	s.moved.Broadcast()
	s.mu.Unlock()
	s.dev.objc.release(f, m.cb)
}

// fail keeps the first failure.
func (d *Device) fail(err error) { d.fault.CompareAndSwap(nil, &err) }

// settle waits until everything that is pending now is settled.
func (s *Stream) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return
	}
	target := s.pending[len(s.pending)-1].n
	for !line.Reached(s.done, target) {
		s.moved.Wait()
	}
}

// Query reports whether the newest mark of this stream, and with it all work
// before that, is done. When there has been no mark yet it makes one, since
// Metal can't be asked about work that other code committed.
func (s *Stream) Query() (bool, error) {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return false, s.closed()
	}
	f := clib.Get()
	defer f.Put()
	o := s.dev.objc
	n, cb := s.newest(f)
	if cb == 0 {
		// A mark that is being committed right now is as good as one of ours, and
		// waiting for it could mean waiting for the device.
		if !s.commit.TryLock() {
			return false, nil
		}
		defer s.commit.Unlock()
		var err error
		if n, cb, err = s.mark(f, nil, 0); err != nil {
			return false, err
		}
		o.send(f, cb, selRetain)
	}
	defer o.release(f, cb)
	return s.query(f, n, cb)
}

// query reports whether a mark is done, its stores included.
func (s *Stream) query(f *clib.Frame, n uint64, cb id) (bool, error) {
	done, err := s.dev.objc.status(f, cb)
	if done {
		s.mu.Lock()
		done = line.Reached(s.done, n)
		s.mu.Unlock()
	}
	return done, err
}

// newest returns the newest mark's number and its command buffer, with a
// reference of the caller, or 0.
func (s *Stream) newest(f *clib.Frame) (uint64, id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != 0 {
		s.dev.objc.send(f, s.last, selRetain)
	}
	return s.lastN, s.last
}

// Sync waits for all work that is committed to the queue (waitUntilCompleted on
// a mark of its own), and for the stores that belong to it.
func (s *Stream) Sync() error {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return s.closed()
	}
	f := clib.Get()
	defer f.Put()
	o := s.dev.objc
	s.commit.Lock()
	n, cb, err := s.mark(f, nil, 0)
	if err == nil {
		o.send(f, cb, selRetain)
	}
	s.commit.Unlock()
	if err != nil {
		return err
	}
	defer o.release(f, cb)
	o.waitCompleted(f, cb)
	s.mu.Lock()
	for !line.Reached(s.done, n) {
		s.moved.Wait()
	}
	s.mu.Unlock()
	_, err = o.status(f, cb)
	return err
}

// Capturing returns false: Metal queues have no capture mode that replays work.
func (s *Stream) Capturing() (bool, error) { return false, nil }

// CopyToDevice returns event.NotSupported.
func (s *Stream) CopyToDevice(driver.Mem, unsafe.Pointer, int) error { return noMemory() }

// CopyToHost returns event.NotSupported.
func (s *Stream) CopyToHost(unsafe.Pointer, driver.Mem, int) error { return noMemory() }

// Fill returns event.NotSupported.
func (s *Stream) Fill(driver.Mem, byte, int) error { return noMemory() }

// Close gives the stream up. Stores that are queued are still made, and the
// queue and the event are released after the last of them, so Close does not
// wait.
func (s *Stream) Close() error {
	if _, destroy := s.gate.Close(); destroy {
		s.destroy()
	}
	return nil
}

func (s *Stream) leave() {
	if s.gate.Leave() {
		s.destroy()
	}
}

func (s *Stream) destroy() {
	s.mu.Lock()
	s.closing = true
	running := s.running
	s.mu.Unlock()
	if running {
		s.wake()
		return
	}
	f := clib.Get()
	defer f.Put()
	s.dev.objc.release(f, s.event)
	s.dev.objc.release(f, s.queue)
}

// Record commits a mark and returns it as an event.
func (s *Stream) Record() (driver.Event, error) {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return nil, s.closed()
	}
	f := clib.Get()
	defer f.Put()
	s.commit.Lock()
	defer s.commit.Unlock()
	n, cb, err := s.mark(f, nil, 0)
	if err != nil {
		return nil, err
	}
	s.dev.objc.send(f, cb, selRetain)
	return &recorded{stream: s, n: n, cb: cb}, nil
}

// recorded is a mark.
type recorded struct {
	stream *Stream
	n      uint64
	cb     id // owned
	gate   clib.Gate
}

// Query reports whether the work before the event is done, its stores included,
// or the error of the event's own command buffer.
func (e *recorded) Query() (bool, error) {
	ok := e.gate.Enter()
	defer e.leave()
	if !ok {
		return false, event.New(event.Closed, "metal event")
	}
	f := clib.Get()
	defer f.Put()
	return e.stream.query(f, e.n, e.cb)
}

// Release releases the command buffer.
func (e *recorded) Release() {
	if _, destroy := e.gate.Close(); destroy {
		e.destroy()
	}
}

func (e *recorded) leave() {
	if e.gate.Leave() {
		e.destroy()
	}
}

func (e *recorded) destroy() {
	f := clib.Get()
	defer f.Put()
	e.stream.dev.objc.release(f, e.cb)
}
