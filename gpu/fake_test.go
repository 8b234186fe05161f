package gpu

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// fake is a driver table that logs what is called and does what the test says.
// Stores land when the test lets them.
type fake struct {
	mu    sync.Mutex
	log   []string
	fail  map[string]error         // by step
	block map[string]chan struct{} // steps that do not return until the channel is closed
	refs  int
	live  map[uintptr]*line.Mapping
	mem   map[driver.Mem][]byte

	caps    driver.Caps
	manual  bool          // stores wait for land
	drop    bool          // stores never land
	hang    chan struct{} // when set, Query, Status and Settle block until it is closed
	fault   error         // what Query and Status answer
	pending bool          // what Query says
	streams []*fakeStream
}

func newFake() *fake {
	return &fake{
		fail: map[string]error{}, block: map[string]chan struct{}{}, live: map[uintptr]*line.Mapping{}, mem: map[driver.Mem][]byte{},
		caps: driver.Caps{StreamStore: true, WordProves: true, Events: true, Capture: true, Memory: true},
	}
}

// step logs a call and returns the error planned for it.
func (f *fake) step(name string) error {
	f.mu.Lock()
	f.log = append(f.log, name)
	err, c := f.fail[name], f.block[name]
	f.mu.Unlock()
	if c != nil {
		<-c
	}
	return err
}

// stop makes a step block until the function that it returns is called.
func (f *fake) stop(step string) (goOn func()) {
	c := make(chan struct{})
	f.set(func() { f.block[step] = c })
	return sync.OnceFunc(func() {
		f.set(func() { delete(f.block, step) })
		close(c)
	})
}

// called reports whether the step was called since the last forget.
func (f *fake) called(step string) bool { return slices.Contains(f.steps(), step) }

// left returns what the driver still holds.
func (f *fake) left() (refs, pages int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refs, len(f.live)
}

func (f *fake) steps() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Name() string                    { return "fake" }
func (f *fake) Devices() ([]driver.Info, error) { return []driver.Info{f.Info()}, nil }
func (f *fake) Open(int) (driver.Device, error) { return f, f.step("open") }
func (f *fake) Info() driver.Info               { return driver.Info{Driver: "fake", Name: "fake device"} }
func (f *fake) Caps() driver.Caps               { return f.caps }
func (f *fake) Close() error                    { return f.step("close") }

func (f *fake) Retain() error {
	err := f.step("retain")
	if err == nil {
		f.set(func() { f.refs++ })
	}
	return err
}

func (f *fake) Release() error {
	f.set(func() { f.refs-- })
	return f.step("release")
}

func (f *fake) AllocHost(n int) (uintptr, error) {
	if err := f.step("alloc"); err != nil {
		return 0, err
	}
	m, err := line.Map((n+line.Size-1)/line.Size, false)
	if err != nil {
		return 0, err
	}
	for i := range m.Lines { // undefined content, as with real drivers
		for j := range m.Lines[i] {
			m.Lines[i][j].Store(^uint64(0))
		}
	}
	at := m.Lines[0][0].Addr()
	f.set(func() { f.live[at] = m })
	return at, nil
}

func (f *fake) FreeHost(host uintptr) error {
	if err := f.step("free"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.live[host]
	if m == nil {
		return fmt.Errorf("free of %#x, which is not allocated", host)
	}
	delete(f.live, host)
	return m.Close()
}

const fakeOffset = 1 << 40 // device addresses are not host addresses

func (f *fake) DeviceAddr(host uintptr) (uint64, error) {
	return uint64(host) + fakeOffset, f.step("devaddr")
}

func (f *fake) wait() error {
	f.mu.Lock()
	c := f.hang
	f.mu.Unlock()
	if c != nil {
		<-c
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}

func (f *fake) Settle() error {
	if err := f.step("settle"); err != nil {
		return err
	}
	if err := f.wait(); err != nil {
		return err
	}
	// Settled means that everything queued has happened.
	f.mu.Lock()
	streams := slices.Clone(f.streams)
	f.mu.Unlock()
	for _, s := range streams {
		s.land(-1)
	}
	return nil
}

func (f *fake) Status() error { return f.wait() }

func (f *fake) NewStream() (driver.Stream, error) {
	if err := f.step("stream"); err != nil {
		return nil, err
	}
	s := &fakeStream{f: f}
	f.set(func() { f.streams = append(f.streams, s) })
	return s, nil
}

func (f *fake) AdoptStream(h uintptr) (driver.Stream, error) {
	if h == 0 {
		return nil, event.New(event.ForeignStream, "adopt", "stream of another context").WithStatus(event.StatusForeign)
	}
	return f.NewStream()
}

func (f *fake) Alloc(n int) (driver.Mem, error) {
	b := make([]byte, n)
	m := driver.Mem(uintptr(unsafe.Pointer(&b[0])))
	f.set(func() { f.mem[m] = b })
	return m, f.step("memalloc")
}

func (f *fake) Free(m driver.Mem) error {
	f.set(func() { delete(f.mem, m) })
	return f.step("memfree")
}

type fakeStream struct {
	f         *fake
	todo      []func()
	capturing bool
	closed    bool
}

func (s *fakeStream) Device() driver.Device { return s.f }
func (s *fakeStream) Handle() uintptr       { return 1 }

func (s *fakeStream) queue(f func()) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.manual {
		s.todo = append(s.todo, f)
	} else {
		f()
	}
}

// land lets the first n queued operations happen; n < 0 means all.
func (s *fakeStream) land(n int) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if n < 0 || n > len(s.todo) {
		n = len(s.todo)
	}
	for _, f := range s.todo[:n] {
		f()
	}
	s.todo = slices.Delete(s.todo, 0, n)
}

func (s *fakeStream) Store(host uintptr, dev uint64, value uint64) error {
	if dev != uint64(host)+fakeOffset {
		return fmt.Errorf("store to device address %#x, want %#x", dev, uint64(host)+fakeOffset)
	}
	err := s.f.step("store")
	lines, lerr := line.FromAddr(host&^63, 64)
	if lerr != nil {
		return lerr
	}
	w := &lines[0][host%64/8]
	s.queue(func() {
		if !s.f.drop {
			w.Store(value)
		}
	})
	return err
}

func (s *fakeStream) Query() (bool, error) {
	if err := s.f.wait(); err != nil {
		return false, err
	}
	_ = s.f.step("query")
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return len(s.todo) == 0 && !s.f.pending, nil
}

func (s *fakeStream) Sync() error              { return s.f.wait() }
func (s *fakeStream) Capturing() (bool, error) { return s.capturing, nil }

type fakeEvent struct {
	s    *fakeStream
	done bool
}

func (s *fakeStream) Record() (driver.Event, error) {
	e := &fakeEvent{s: s}
	err := s.f.step("record")
	s.queue(func() { e.done = true })
	return e, err
}

func (e *fakeEvent) Query() (bool, error) {
	_ = e.s.f.step("event query")
	if err := e.s.f.wait(); err != nil {
		return false, err
	}
	e.s.f.mu.Lock()
	defer e.s.f.mu.Unlock()
	return e.done, nil
}

func (e *fakeEvent) Release() { _ = e.s.f.step("event release") }

func (s *fakeStream) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	err := s.f.step("h2d")
	at := uintptr(src) // as a device would: the garbage collector must not know
	s.queue(func() { copy(s.f.mem[dst], bytesAt(at, n)) })
	return err
}

func (s *fakeStream) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	err := s.f.step("d2h")
	at := uintptr(dst)
	s.queue(func() { copy(bytesAt(at, n), s.f.mem[src]) })
	return err
}

func (s *fakeStream) Fill(dst driver.Mem, value byte, n int) error {
	err := s.f.step("fill")
	s.queue(func() {
		for i := range s.f.mem[dst][:n] {
			s.f.mem[dst][i] = value
		}
	})
	return err
}

func (s *fakeStream) Close() error {
	s.closed = true
	return s.f.step("stream close")
}

func pageWords() int { return os.Getpagesize() / 8 }

var _ driver.Driver = (*fake)(nil)
var _ testing.TB = (*testing.T)(nil)
