package soft

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

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

const (
	statusInvalidValue       = 1
	statusOutOfMemory        = 2
	statusCaptureUnsupported = 900
	statusCaptureInvalidated = 901
	statusCapturedEvent      = 907
)

// CloseBound is how long the last Release waits for functions that still run.
const CloseBound = 5 * time.Second

var (
	errDeviceClosed = event.New(event.Closed, "soft device")
	errNilDevice    = event.New(event.InvalidArgument, "nil soft device", "DeviceOf was given something else")
	errNilStream    = event.New(event.InvalidArgument, "nil soft stream", "Of was given something else")
)

// Device is one soft device. It implements driver.Device; its methods may be
// called from many goroutines.
type Device struct {
	cfg     Config
	info    driver.Info
	mem     *memory
	eng     engine
	bell    *bell
	queries blocker
	busy    sync.WaitGroup // goroutines inside: front, functions, blocking calls
	gone    chan struct{}  // closed when the device goes
	failed  chan struct{}  // closed when a fault has been noticed
	blocks  atomic.Pointer[[]*block]

	closeBound time.Duration

	// planMu guards when each engine is free. It is a leaf, as mu is: neither is held
	// while anything else is locked.
	planMu  sync.Mutex
	engines []int64

	mu         sync.Mutex
	closed     bool // by its owner
	dead       bool // the last reference is gone, the memory goes
	refs       int
	fronted    bool
	queues     map[*queue]struct{}
	closing    map[*queue]struct{} // those that are closed and not yet done
	rings      []*queue            // by ring
	free       []int               // rings to use again
	failures   []*event.Error
	fault      *event.Error
	noticed    bool
	kept       []*line.Mapping // freed under queued work
	freedInUse uint64
	functions  atomic.Uint64
}

func open(cfg Config, info driver.Info) (*Device, error) {
	m, err := newMemory()
	if err != nil {
		return nil, err
	}
	d := &Device{
		cfg: cfg, info: info, mem: m, refs: 1, closeBound: CloseBound,
		gone: make(chan struct{}), failed: make(chan struct{}),
		engines: make([]int64, max(cfg.Engines, 0)), queues: map[*queue]struct{}{}, closing: map[*queue]struct{}{},
	}
	d.blocks.Store(&[]*block{})
	if cfg.StoreAfterFault {
		m.ctl.keep.Store(1)
	}
	m.ctl.near = int64(near)
	if cfg.Busy {
		m.ctl.near = forever
	}
	if d.bell, err = newBell(); err == nil {
		if err = d.startEngine(); err == nil {
			return d, nil
		}
		d.bell.close()
	}
	m.free()
	return nil, err
}

// startEngine starts the engine in assembly or, where there is none, or it does
// not start and need not be a process, the one in Go.
func (d *Device) startEngine() (err error) {
	why := "asked for"
	if !d.cfg.GoEngine {
		if d.eng, err = startAsm(d.mem, d.bell, d.cfg.Process); err == nil {
			return nil
		}
		why = err.Error()
	}
	if d.cfg.Process {
		if err == nil {
			err = event.New(event.InvalidArgument, "soft device", "Process and GoEngine exclude each other")
		}
		return err
	}
	d.eng = startGoEngine(d.mem, d.bell.ring, why)
	return nil
}

func (d *Device) name() string { return "soft:" + strconv.Itoa(d.info.Ordinal) }

// Engine says what stores the words: "thread" or "process" and its number, or
// "goroutine" and why.
func (d *Device) Engine() string {
	if d == nil {
		return ""
	}
	return d.eng.String()
}

// Info implements driver.Device.
func (d *Device) Info() driver.Info {
	if d == nil {
		return driver.Info{}
	}
	return d.info
}

// Caps implements driver.Device. Words prove success unless Config.Unproven says
// otherwise: once failing work has run, the store engine drops everything.
func (d *Device) Caps() driver.Caps {
	if d == nil {
		return driver.Caps{}
	}
	c := driver.Caps{
		StreamStore: true, WordProves: true, Events: true, Capture: true, Memory: true,
		WhyProves: "the store engine drops everything that is queued behind failed work (a test proves it)",
	}
	if d.cfg.Unproven || d.cfg.StoreAfterFault {
		c.WordProves, c.WhyProves = false, "the device was made with Config.Unproven"
	}
	if d.cfg.Lie == NoStores {
		c.StreamStore, c.NoStore = false, "the device was made with NoStores"
	}
	return c
}

// Err returns the device's sticky fault, or nil. Unlike Status it is no call of
// the driver: it does not block, and it goes on after Close.
func (d *Device) Err() error {
	if d == nil {
		return errNilDevice
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err()
}

// err is Err with mu held.
func (d *Device) err() error {
	if d.fault == nil && !d.dead {
		if n := d.mem.ctl.fault.Load(); n > 0 {
			d.fault = d.failures[n-1]
		}
	}
	if d.fault == nil {
		return nil
	}
	return d.fault
}

// Status implements driver.Device.
func (d *Device) Status() error {
	if d == nil {
		return errNilDevice
	}
	d.queries.pass()
	d.checkEngine()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.err(); err != nil {
		return err
	}
	if d.dead {
		return errDeviceClosed
	}
	return nil
}

// checkEngine finds out that somebody has killed the engine's process.
func (d *Device) checkEngine() {
	d.mu.Lock()
	lost := !d.dead && !d.eng.alive()
	d.mu.Unlock()
	if lost {
		d.Lose("the store engine is gone")
	}
}

// Lose makes the device fail at once, as when it falls off the bus: nothing lands
// any more, and every call reports event.DeviceLost with status 999.
func (d *Device) Lose(why string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	if !d.dead {
		d.mem.ctl.keep.Store(0)
	}
	d.mu.Unlock()
	d.fail(event.New(event.DeviceLost, d.name(), why).WithStatus(StatusUnknown))
}

// failure registers a failure that the engine can come to; its number is for
// opFault. mu is held.
func (d *Device) failure(e *event.Error) uint64 {
	d.failures = append(d.failures, e)
	return uint64(len(d.failures))
}

// fail makes the device fail now. The first failure is the one that stays.
func (d *Device) fail(e *event.Error) {
	d.mu.Lock()
	if d.dead {
		d.mu.Unlock()
		return
	}
	d.mem.ctl.fault.CompareAndSwap(0, d.failure(e))
	d.notice()
	d.busy.Add(1)
	d.mu.Unlock()
	d.tell() // what is queued far ahead is dropped now
	d.busy.Done()
}

// notice ends blocking waits after a fault; mu is held.
func (d *Device) notice() {
	if d.noticed || d.err() == nil {
		return
	}
	d.noticed = true
	close(d.failed)
	d.wakeSyncs()
}

func (d *Device) wakeSyncs() {
	for q := range d.queues {
		futexWake(q.syncAddr())
	}
}

// BlockQueries makes the driver's calls that ask or wait for the device's state
// block until UnblockQueries: Status, Settle, Stream.Query, Stream.Sync and
// Event.Query.
func (d *Device) BlockQueries() {
	if d != nil {
		d.queries.block()
	}
}

// UnblockQueries ends what BlockQueries began and lets the callers go.
func (d *Device) UnblockQueries() {
	if d != nil {
		d.queries.unblock()
	}
}

// Counters returns the device's counters.
func (d *Device) Counters() Counters {
	if d == nil {
		return Counters{}
	}
	_, isGo := d.eng.(*goEngine)
	c := Counters{Functions: d.functions.Load(), BlockedNow: d.queries.count(), EngineInAsm: !isGo}
	for _, b := range *d.blocks.Load() {
		if b.host {
			c.HostPages++
		} else {
			c.Memory++
		}
	}
	d.mu.Lock()
	queues := d.list()
	c.Retained, c.FreedInUse = d.refs, d.freedInUse
	d.mu.Unlock()
	for _, q := range queues {
		if !q.isClosed() {
			c.Streams++
		}
	}
	return c
}

// list returns the queues; mu is held. Queues are locked only without mu.
func (d *Device) list() []*queue { return slices.Collect(maps.Keys(d.queues)) }

// takeRing hands out a ring; mu is held.
func (d *Device) takeRing(q *queue) (int, error) {
	if n := len(d.free); n > 0 {
		i := d.free[n-1]
		d.free = d.free[:n-1]
		d.rings[i] = q
		return i, nil
	}
	i := len(d.rings)
	if i >= maxStreams {
		return -1, event.New(event.NotSupported, "another stream", "a soft device has at most "+strconv.Itoa(maxStreams)).WithStatus(statusOutOfMemory)
	}
	if err := d.mem.addRing(i); err != nil {
		return -1, err
	}
	d.rings = append(d.rings, q)
	return i, nil
}

// sweep gives back the rings of closed streams whose work is done.
func (d *Device) sweep() {
	d.mu.Lock()
	queues := slices.Collect(maps.Keys(d.closing))
	d.mu.Unlock()
	for _, q := range queues {
		q.retire()
	}
}

// Retain implements driver.Device.
func (d *Device) Retain() error {
	if d == nil {
		return errNilDevice
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs == 0 {
		return errDeviceClosed
	}
	d.refs++
	return nil
}

// Release implements driver.Device. The last one ends the device: what is still
// queued is dropped. It waits for functions that run, for at most CloseBound; when
// one is still not back then, memory that it may use is leaked, which is the error
// (event.Leaked).
func (d *Device) Release() error {
	if d == nil {
		return errNilDevice
	}
	d.mu.Lock()
	if d.refs == 0 {
		d.mu.Unlock()
		return errDeviceClosed
	}
	d.refs--
	last := d.refs == 0
	d.mu.Unlock()
	if last {
		return d.shutDown()
	}
	return nil
}

// Close implements driver.Device: it drops the open device's reference; see
// Release for the last one. It is idempotent.
func (d *Device) Close() error {
	if d == nil {
		return nil
	}
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
func (d *Device) shutDown() error {
	d.mu.Lock()
	_ = d.err() // what there is of a fault stays readable
	d.dead = true
	queues := d.list()
	d.mu.Unlock()
	d.queries.unblock()
	close(d.gone)
	for _, q := range queues {
		q.abandon()
	}
	d.eng.stop()
	d.bell.close()
	d.wakeSyncs() // nobody changes the queues of a dead device

	out := make(chan struct{})
	go func() {
		d.busy.Wait()
		close(out)
	}()
	t := time.NewTimer(d.closeBound)
	defer t.Stop()
	select {
	case <-out:
	case <-t.C:
		return event.New(event.Leaked, "memory of "+d.name(), "a function has not returned within "+d.closeBound.String())
	}
	for _, b := range *d.blocks.Load() {
		_ = b.m.Close()
	}
	for _, m := range d.kept {
		_ = m.Close()
	}
	d.blocks.Store(&[]*block{})
	d.mem.free()
	return nil
}

// Settle implements driver.Device. It waits for everything queued, stores that are
// late or held included (they land), and for functions that run. A device that
// has failed is settled once the engine has dropped what was queued.
func (d *Device) Settle() error {
	if d == nil {
		return errNilDevice
	}
	d.queries.pass()
	d.mu.Lock()
	if d.dead {
		d.mu.Unlock()
		return errDeviceClosed
	}
	d.busy.Add(1)
	queues := d.list()
	d.mu.Unlock()
	defer d.busy.Done()
	for _, q := range queues {
		if err := q.settle(); err != nil {
			return err
		}
	}
	d.sweep()
	return nil
}

// schedule returns when work of length dur ends that can begin at the given time:
// on the engine that is free then and has been for the shortest time, or else on
// the first to be free.
func (d *Device) schedule(at int64, dur time.Duration) int64 {
	if len(d.engines) > 0 {
		d.planMu.Lock()
		defer d.planMu.Unlock()
		best := 0
		for i, free := range d.engines {
			switch was := d.engines[best]; {
			case free <= at && (was > at || free > was), free > at && free < was:
				best = i
			}
		}
		at = max(at, d.engines[best])
		d.engines[best] = end(at, dur)
	}
	return end(at, dur)
}

// end is at + dur, or the end of time.
func end(at int64, dur time.Duration) int64 {
	if e := at + int64(dur); e >= at && e < forever {
		return e
	}
	return forever - 1
}

// startFront starts the goroutine that answers the engine's bell.
func (d *Device) startFront() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.fronted && !d.dead {
		d.fronted = true
		d.busy.Add(1)
		go d.front()
	}
}

func (d *Device) front() {
	defer d.busy.Done()
	for d.bell.wait() {
		d.mem.ctl.rung.Store(0) // before the look: what comes after it rings again
		d.mu.Lock()
		if d.dead {
			d.mu.Unlock()
			return
		}
		d.notice()
		var queues []*queue
		for g := range int(d.mem.ctl.groups.Load()) {
			for i, set := 64*g, d.mem.called[g].Swap(0); set != 0; i, set = i+1, set>>1 {
				if set&1 != 0 && d.rings[i] != nil {
					queues = append(queues, d.rings[i])
				}
			}
		}
		d.mu.Unlock()
		for _, q := range queues {
			q.called()
		}
	}
}
