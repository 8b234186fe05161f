package soft

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// Statuses of the soft device's errors, those of the CUDA driver for the same
// faults.
const (
	StatusIllegalAddress = 700
	StatusLaunchFailed   = 719
	StatusNotSupported   = 801
	StatusUnknown        = 999
)

// Device is one soft device. It implements driver.Device; its methods may be
// called from many goroutines.
type Device struct {
	cfg  Config
	info driver.Info
	mem  *memory
	eng  engine
	bell bell
	wg   sync.WaitGroup // the front

	gone    chan struct{} // closed when the device shuts down
	faulted chan struct{} // closed with the first fault
	queries blocker
	fault   atomic.Pointer[event.Error]

	engMu   sync.Mutex
	engines []int64 // when each engine is free

	mu       sync.Mutex // taken before a stream's
	closed   bool
	refs     int
	pages    map[uintptr]*line.Mapping
	quit     []*line.Mapping // freed pages, watched for late writes until Close
	device   map[driver.Mem]*line.Mapping
	sizes    map[driver.Mem]int
	streams  map[*Stream]struct{}
	freeRing []int
	held     []late // stores that HoldStores or LieSync keep back
	words    *line.Mapping
	lateRing int
	funcs    atomic.Uint64
}

// late is a store that is not made in its place in the queue.
type late struct {
	s *Stream
	e entry
}

func open(cfg Config, info driver.Info) (*Device, error) {
	m, err := newMemory()
	if err != nil {
		return nil, err
	}
	words, err := line.Map(maxStreams, true)
	if err != nil {
		m.free()
		return nil, err
	}
	d := &Device{
		cfg: cfg, info: info, mem: m, words: words, refs: 1,
		pages: map[uintptr]*line.Mapping{}, device: map[driver.Mem]*line.Mapping{}, sizes: map[driver.Mem]int{},
		streams: map[*Stream]struct{}{}, engines: make([]int64, cfg.Engines), gone: make(chan struct{}), faulted: make(chan struct{}),
	}
	if err := d.startEngine(); err != nil {
		_ = words.Close()
		m.free()
		return nil, err
	}
	d.lateRing = d.takeRing()
	d.wg.Add(1)
	go d.front()
	return d, nil
}

// takeRing hands out a ring; d.mu is held, or nobody else knows d yet.
func (d *Device) takeRing() int {
	if n := len(d.freeRing); n > 0 {
		i := d.freeRing[n-1]
		d.freeRing = d.freeRing[:n-1]
		return i
	}
	n := d.mem.ctl.rings.Load()
	if n >= maxStreams {
		return -1
	}
	d.mem.ctl.rings.Store(n + 1)
	return int(n)
}

// Info implements driver.Device.
func (d *Device) Info() driver.Info { return d.info }

// Caps implements driver.Device. Words prove success unless Config.Unproven: once
// failing work has run, the store engine drops everything.
func (d *Device) Caps() driver.Caps {
	c := driver.Caps{
		StreamStore: true, WordProves: true, Events: true, Capture: true, Memory: true,
		WhyProves: "the store engine drops everything that is queued behind failed work (a test proves it)",
	}
	if d.cfg.Unproven {
		c.WordProves, c.WhyProves = false, "the device was made with Config.Unproven"
	}
	if d.cfg.Lie == NoStores {
		c.StreamStore, c.NoStore = false, "the device was made with NoStores"
	}
	return c
}

// Err returns the device's sticky fault, or nil.
func (d *Device) Err() error {
	if f := d.fault.Load(); f != nil {
		return f
	}
	return nil
}

// Status implements driver.Device.
func (d *Device) Status() error {
	d.queries.pass()
	return d.Err()
}

// Lose makes the device fail at once, as when it falls off the bus: nothing lands
// any more, and every call reports event.DeviceLost with status 999.
func (d *Device) Lose(why string) {
	d.setFault(event.New(event.DeviceLost, "soft:"+strconv.Itoa(d.info.Ordinal), why).WithStatus(StatusUnknown))
	d.mem.ctl.fault.Store(1)
	d.wakeAll()
}

func (d *Device) setFault(e *event.Error) {
	if d.fault.CompareAndSwap(nil, e) {
		close(d.faulted)
	}
}

// wakeAll ends blocking waits after a fault.
func (d *Device) wakeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.streams {
		s.syncs.broadcast()
	}
}

// BlockQueries makes Status, Stream.Query and the like block until
// UnblockQueries.
func (d *Device) BlockQueries() { d.queries.block() }

// UnblockQueries ends what BlockQueries began and lets the callers go.
func (d *Device) UnblockQueries() { d.queries.unblock() }

// Counters returns the device's counters.
func (d *Device) Counters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queries.mu.Lock()
	blocked := d.queries.now
	d.queries.mu.Unlock()
	c := Counters{
		Retained: d.refs, HostPages: len(d.pages), Memory: len(d.device), Streams: len(d.streams),
		Functions: d.funcs.Load(), BlockedNow: blocked,
	}
	_, isGo := d.eng.(*goEngine)
	c.EngineInAsm = !isGo
	for _, p := range d.quit {
		if written(p) {
			c.LateWrites++
		}
	}
	return c
}

func written(p *line.Mapping) bool {
	for i := range p.Lines {
		for j := range p.Lines[i] {
			if p.Lines[i][j].Load() != 0 {
				return true
			}
		}
	}
	return false
}

// Retain implements driver.Device.
func (d *Device) Retain() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs == 0 {
		return event.New(event.Closed, "soft device")
	}
	d.refs++
	return nil
}

// Release implements driver.Device.
func (d *Device) Release() error {
	d.mu.Lock()
	if d.refs == 0 {
		d.mu.Unlock()
		return event.New(event.Closed, "soft device")
	}
	d.refs--
	last := d.refs == 0
	d.mu.Unlock()
	if last {
		d.shutDown()
	}
	return nil
}

// garbage is what fresh host memory holds: it is not zeroed by any real driver.
const garbage = 0xa5a5a5a5a5a5a5a5

// AllocHost implements driver.Device. The memory holds garbage.
func (d *Device) AllocHost(n int) (uintptr, error) {
	if n < 1 || n > 1<<30 {
		return 0, event.New(event.InvalidArgument, "host memory of "+strconv.Itoa(n)+" bytes", "want 1..2^30")
	}
	m, err := line.Map((n+line.Size-1)/line.Size, true)
	if err != nil {
		return 0, err
	}
	for i := range min(len(m.Lines), os.Getpagesize()/line.Size) {
		for j := range m.Lines[i] {
			m.Lines[i][j].Store(garbage)
		}
	}
	at := m.Lines[0][0].Addr()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs == 0 {
		_ = m.Close()
		return 0, event.New(event.Closed, "soft device")
	}
	d.pages[at] = m
	return at, nil
}

// FreeHost implements driver.Device. The memory stays mapped, zeroed, until the
// device is gone, so that a store that lands in it late is counted (LateWrites)
// rather than fatal.
func (d *Device) FreeHost(host uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.pages[host]
	if m == nil {
		return event.New(event.Backend, "free of host memory that is not allocated", "1").WithStatus(1)
	}
	delete(d.pages, host)
	for i := range m.Lines {
		for j := range m.Lines[i] {
			m.Lines[i][j].Zero()
		}
	}
	d.quit = append(d.quit, m)
	return nil
}

// deviceOffset keeps device addresses of host memory apart from host addresses,
// so that using one for the other is found.
const deviceOffset = 1 << 48

// DeviceAddr implements driver.Device.
func (d *Device) DeviceAddr(host uintptr) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pages[host] == nil {
		return 0, event.New(event.Backend, "device address of memory that is not allocated", "1").WithStatus(1)
	}
	return uint64(host) + deviceOffset, nil
}

// Settle implements driver.Device. It waits for everything queued, late stores
// included, and fails on a device that failed or was lost only if work may
// still be under way, which is never.
func (d *Device) Settle() error {
	d.queries.pass()
	d.mu.Lock()
	d.releaseHeld()
	all := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		all = append(all, s)
	}
	d.mu.Unlock()
	for _, s := range all {
		if err := s.drain(); err != nil && d.Err() == nil {
			return err
		}
		// Behind a fault nothing lands, unless the device was made so that it does.
		for d.mem.ctl.fault.Load() == 0 && !s.done() {
			time.Sleep(50 * time.Microsecond)
		}
	}
	for !d.mem.empty(d.lateRing) {
		time.Sleep(50 * time.Microsecond)
	}
	return nil
}

// releaseHeld lets kept-back stores land; d.mu is held.
func (d *Device) releaseHeld() {
	for _, l := range d.held {
		l.e.at = clock()
		d.pushLate(l.e)
	}
	d.held = nil
}

// pushLate queues a store outside its stream's order; d.mu is held.
func (d *Device) pushLate(e entry) {
	for !d.mem.room(d.lateRing) {
		time.Sleep(10 * time.Microsecond)
	}
	d.mem.push(d.lateRing, e)
	d.mem.ring(d.eng)
}

// Alloc implements driver.Device. The memory is ordinary host memory, zeroed; see
// Bytes.
func (d *Device) Alloc(n int) (driver.Mem, error) {
	if n < 1 || n > 1<<30 {
		return 0, event.New(event.InvalidArgument, "device memory of "+strconv.Itoa(n)+" bytes", "want 1..2^30")
	}
	m, err := line.Map((n+line.Size-1)/line.Size, true)
	if err != nil {
		return 0, err
	}
	at := driver.Mem(m.Lines[0][0].Addr())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.refs == 0 {
		_ = m.Close()
		return 0, event.New(event.Closed, "soft device")
	}
	d.device[at], d.sizes[at] = m, n
	return at, nil
}

// Free implements driver.Device.
func (d *Device) Free(m driver.Mem) error {
	d.mu.Lock()
	p := d.device[m]
	delete(d.device, m)
	delete(d.sizes, m)
	d.mu.Unlock()
	if p == nil {
		return event.New(event.Backend, "free of device memory that is not allocated", "1").WithStatus(1)
	}
	return p.Close()
}

// Bytes views n bytes of device memory at m, for functions that run on the
// device; nil when they do not lie within one allocation.
func (d *Device) Bytes(m driver.Mem, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.within(m, n) {
		return nil
	}
	return bytesAt(uint64(m), uint64(n))
}

// within reports whether n bytes at m lie within one allocation; d.mu is held.
func (d *Device) within(m driver.Mem, n int) bool {
	if size, ok := d.sizes[m]; ok {
		return n >= 0 && n <= size
	}
	for base, size := range d.sizes {
		if m >= base && uint64(m-base) <= uint64(size) && n >= 0 && n <= size-int(m-base) {
			return true
		}
	}
	return false
}

// Close implements driver.Device: it drops the open device's reference. The
// engine ends with the last one.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	return d.Release()
}

// shutDown ends the engine and frees everything.
func (d *Device) shutDown() {
	close(d.gone)
	d.queries.unblock()
	d.eng.stop()
	d.bell.close()
	d.wg.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.streams {
		s.kill()
	}
	for _, p := range d.pages {
		_ = p.Close()
	}
	for _, p := range d.quit {
		_ = p.Close()
	}
	for _, p := range d.device {
		_ = p.Close()
	}
	_ = d.words.Close()
	d.mem.free()
}

// front runs the functions whose turn has come: the engine rings the bell when
// a stream reaches one.
func (d *Device) front() {
	defer d.wg.Done()
	for d.bell.wait() {
		if d.mem.ctl.fault.Load() != 0 {
			d.setFault(event.New(event.WorkFailed, "soft:"+strconv.Itoa(d.info.Ordinal), "failing work ran").WithStatus(StatusLaunchFailed))
			d.wakeAll()
		}
		d.mu.Lock()
		var turn []*Stream
		for s := range d.streams {
			if s.atFunction() {
				turn = append(turn, s)
			}
		}
		d.mu.Unlock()
		for _, s := range turn {
			d.wg.Add(1)
			go func() {
				defer d.wg.Done()
				s.runFunctions()
			}()
		}
	}
}

// futures is a place to block in until told, like a vendor's blocking wait.
type futures struct {
	word *line.Word // low half counts what was reached
}

func (f futures) addr() uint64 { return uint64(uintptr(unsafe.Pointer(f.word))) }

func (f futures) broadcast() { futexWakeAll(f.addr()) }
