package gpu

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// Device is one open GPU: its streams, the page its streams store sequence
// numbers into, the waiter that watches them, and the health tick that finds
// its faults. All methods may be called from many goroutines.
type Device struct {
	dev    driver.Device
	name   string
	opt    options
	byWord bool // streams store words; else a goroutine polls their events
	bands  plan.ResolvedBands
	paces  []pace
	warns  []error

	waiter    *poller.Waiter
	naps      naps
	health    *health
	status    *statusPoller
	confirmer *confirmer

	failure atomic.Pointer[failure]
	failed  chan struct{} // closed with failure

	calls  gate // around the driver's calls that make or free something
	chores chores

	// mu is never held during a driver's call, which may not return.
	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
	pages   []*wordPage
	growing chan struct{} // closed when the page that is being made is there, or is not to be
	pinned  []*PinnedBuffer

	marks, confirms, blocked atomic.Uint64
}

type failure struct{ err error }

var errNilDevice = event.New(event.InvalidArgument, "nil device", "want one that Open returned")

// Info describes the device.
func (d *Device) Info() driver.Info {
	if d == nil {
		return driver.Info{}
	}
	return d.dev.Info()
}

// Caps returns what the device claims.
func (d *Device) Caps() driver.Caps {
	if d == nil {
		return driver.Caps{}
	}
	return d.dev.Caps()
}

// Driver returns the device of the driver below, for that driver's own calls.
func (d *Device) Driver() driver.Device {
	if d == nil {
		return nil
	}
	return d.dev
}

// Warnings returns what was decided at open and why: drivers passed over,
// a self-test that failed, a plan that fell back. Each is a coded error.
func (d *Device) Warnings() []error {
	if d == nil {
		return nil
	}
	return append([]error(nil), d.warns...)
}

// Label says in one line what runs: device, how completion is seen, and the
// wait plan.
func (d *Device) Label() string {
	if d == nil {
		return "nil device"
	}
	how := "words"
	if !d.byWord {
		how = "status polling"
	}
	return d.name + " (" + d.dev.Info().Name + "), " + how + ", " + d.bands.String()
}

// Err returns the sticky error that ended the device, or nil.
func (d *Device) Err() error {
	if d == nil {
		return errNilDevice
	}
	if f := d.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// Failed returns a channel that is closed when the device has failed or was
// closed; Err then says why.
func (d *Device) Failed() <-chan struct{} {
	if d == nil {
		return closedChan
	}
	return d.failed
}

// enter begins a call of the driver that makes or frees something: d.calls.leave
// ends it. An error means that the device has failed or was closed.
func (d *Device) enter() error {
	if err := d.Err(); err != nil {
		return err
	}
	if !d.calls.enter() {
		return event.New(event.Closed, d.name)
	}
	return nil
}

// fail ends every pending and later wait on the device with err. Only the first
// call counts.
func (d *Device) fail(err error) {
	if !d.failure.CompareAndSwap(nil, &failure{err}) {
		return
	}
	close(d.failed)
	d.mu.Lock()
	all := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		all = append(all, s)
	}
	d.mu.Unlock()
	for _, s := range all {
		s.watch.Fail(err)
	}
}

// lost turns a fault that a status query found into the device's sticky error.
func (d *Device) lost(err error) error {
	var e *event.Error
	if errors.As(err, &e) && (e.Code == event.DeviceLost || e.Code == event.StoreLost || e.Code == event.Closed) {
		d.fail(err)
	} else {
		d.fail(event.New(event.DeviceLost, d.name, "a status query found a fault").WithStatus(event.StatusOf(err)).Wrap(err))
	}
	return d.Err()
}

// wordPage is a page of words: a mapped line that the device writes, or plain
// pages that the status poller writes.
type wordPage struct {
	mapped *MappedLine
	plain  *line.Mapping
	free   []int // words that may be handed out
	next   int   // first word never handed out
	words  int
}

func (p *wordPage) word(i int) *line.Word {
	if p.mapped != nil {
		return p.mapped.Word(i)
	}
	return &p.plain.Lines[i/line.Words][i%line.Words]
}

// takeWord hands out a zeroed word. One goroutine at a time makes a new page, with
// mu unlocked: the driver's call may not return.
func (d *Device) takeWord() (*wordPage, int, error) {
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return nil, 0, event.New(event.Closed, d.name)
		}
		if p, i := d.freeWord(); p != nil {
			d.mu.Unlock()
			return p, i, nil
		}
		growing := d.growing
		if growing == nil {
			d.growing = make(chan struct{})
		}
		d.mu.Unlock()
		if growing == nil {
			return d.grow()
		}
		select {
		case <-growing:
		case <-d.failed:
			return nil, 0, d.Err()
		}
	}
}

// freeWord returns a word of the pages there are, or nil; mu is held.
func (d *Device) freeWord() (*wordPage, int) {
	for _, p := range d.pages {
		if n := len(p.free); n > 0 {
			i := p.free[n-1]
			p.free = p.free[:n-1]
			return p, i
		}
		if p.next < p.words {
			p.next++
			return p, p.next - 1
		}
	}
	return nil, 0
}

// grow makes a new page and hands out its first word.
func (d *Device) grow() (*wordPage, int, error) {
	p, err := d.newPage()
	d.mu.Lock()
	close(d.growing)
	d.growing = nil
	closed := d.closed
	if err == nil && !closed {
		d.pages = append(d.pages, p)
		p.next = 1
	}
	d.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	if closed {
		_ = p.close()
		return nil, 0, event.New(event.Closed, d.name)
	}
	return p, 0, nil
}

func (d *Device) newPage() (*wordPage, error) {
	if d.byWord {
		m, err := MapLine(d.dev)
		if err != nil {
			return nil, err
		}
		return &wordPage{mapped: m, words: m.Words()}, nil
	}
	m, err := line.Map(64, false)
	if err != nil {
		return nil, err
	}
	return &wordPage{plain: m, words: len(m.Lines) * line.Words}, nil
}

func (p *wordPage) close() error {
	if p.mapped != nil {
		return p.mapped.Close()
	}
	return p.plain.Close()
}

// giveWord takes a word back. One that a store may still be on its way to is
// never handed out again: its next user would take that store for its own.
func (d *Device) giveWord(p *wordPage, i int, settled bool) {
	if !settled {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return // the page may be gone
	}
	p.word(i).Zero()
	p.free = append(p.free, i)
}

// NewStream makes an in-order stream on the device.
func (d *Device) NewStream() (*Stream, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.calls.leave()
	ds, err := d.dev.NewStream()
	if err != nil {
		return nil, err
	}
	return d.attach(ds)
}

// Adopt wraps a stream that other code made (a CUstream, hipStream_t,
// cl_command_queue or MTLCommandQueue of this device's context), so that its
// work can be awaited. The other code keeps owning it: it must outlive the
// Stream, and closing the Stream leaves it alone. A handle of another context is
// event.ForeignStream.
func (d *Device) Adopt(handle uintptr) (*Stream, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.calls.leave()
	ds, err := d.dev.AdoptStream(handle)
	if err != nil {
		return nil, err
	}
	return d.attach(ds)
}

var streamNumber atomic.Uint64

// attach makes a Stream of a driver's stream, or closes that. The caller is inside
// calls.
func (d *Device) attach(ds driver.Stream) (*Stream, error) {
	page, i, err := d.takeWord()
	if err != nil {
		_ = ds.Close()
		return nil, err
	}
	s := &Stream{d: d, ds: ds, page: page, slot: i, word: page.word(i)}
	s.name = d.name + "/stream" + strconv.FormatUint(streamNumber.Add(1), 10)
	s.capture = d.dev.Caps().Capture
	s.points = d.points(s.name)
	wo := poller.WatchOptions{Name: s.name}
	if d.byWord && !d.dev.Caps().WordProves {
		wo.Confirm = s.confirm
		s.confirms = true
	}
	if s.watch, err = d.waiter.Watch(s.word, wo); err != nil {
		d.giveWord(page, i, true)
		_ = ds.Close()
		return nil, err
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		_ = s.watch.Close()
		_ = ds.Close()
		return nil, event.New(event.Closed, d.name)
	}
	d.streams[s] = struct{}{}
	d.mu.Unlock()
	if err := d.Err(); err != nil {
		s.watch.Fail(err) // the device failed while the stream was being made
	}
	return s, nil
}

// Close ends every pending wait with event.Closed, waits for the device to
// settle, frees the pages, destroys the streams and drops the device's context,
// in that order. Pinned memory that another device's copies still use is freed when
// they are done.
//
// It takes at most CloseBound (WithCloseBound changes that). When a driver's call
// has not returned by then, or what it waits for can't be proved idle, nothing is
// freed that the device may still write or read: that is counted by Leaks and
// reported as event.Leaked. Should the call return after all, the rest is freed then
// and counted no more. Close is idempotent: calls after the first return nil at once.
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
	clean := d.Err() == nil
	d.calls.shut()
	d.fail(event.New(event.Closed, d.name))
	d.health.stop()
	d.confirmer.stop()
	if d.status != nil {
		d.status.stop()
	}
	t := tearDown{d: d, clean: clean}
	t.count()
	freed := make(chan error, 1)
	go func() { freed <- t.run() }()
	return within(d.opt.closeBound, freed, d.name, t.held)
}

// tearDown frees what a device holds. Each step may be stuck in a driver's call for
// ever, or find another goroutine stuck in one: what comes after it is not freed then.
type tearDown struct {
	d     *Device
	clean bool
	left  atomic.Int64 // pages and buffers that are not freed yet
}

// count counts what the device holds.
func (t *tearDown) count() {
	d := t.d
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.pages) + len(d.pinned)
	for s := range d.streams {
		n += int(s.holds.Load())
	}
	t.left.Store(int64(n))
}

// held returns how much is not freed yet, at least 1, which stands for the device
// itself.
func (t *tearDown) held() uint64 { return uint64(max(1, t.left.Load())) }

func (t *tearDown) run() error {
	d := t.d
	// First, nobody looks at a word or is inside the driver any more.
	for d.waiter.Close() != nil {
		// A status query has not returned.
	}
	d.naps.close()
	d.health.wait()
	d.confirmer.wait()
	d.calls.close()
	t.count()
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	pages, pinned := d.pages, d.pinned
	d.pages, d.pinned, d.streams = nil, nil, nil
	d.mu.Unlock()
	for _, s := range streams {
		s.gate.close()
	}
	if d.status != nil {
		d.status.wait()
	}
	d.chores.wait()

	var errs []error
	settled := d.dev.Settle()
	for _, p := range pages {
		if p.mapped != nil && settled != nil {
			errs = append(errs, p.mapped.Leak(settled))
		} else {
			errs = append(errs, p.close())
		}
		t.left.Add(-1)
	}
	for _, s := range streams {
		n := s.holds.Load()
		if err := s.retire(settled == nil); t.clean {
			errs = append(errs, err)
		}
		t.left.Add(-n)
	}
	for _, b := range pinned {
		b.once.Do(func() {
			if settled != nil {
				errs = append(errs, b.leak(settled))
			} else if freed := b.close(); freed != nil {
				errs = append(errs, <-freed)
			}
		})
		t.left.Add(-1)
	}
	d.chores.wait()
	if settled == nil {
		// Closing a stream may itself queue something (OpenCL's marker on a queue
		// that others use): the device is closed once that is done, too.
		_ = d.dev.Settle()
	}
	// After a fault the driver's tear-down errors tell nothing new.
	if err := d.dev.Close(); t.clean {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// CloseBound is the longest that Device.Close takes by default.
const CloseBound = 5 * time.Second

func itoa(i int) string { return strconv.Itoa(i) }

func utoa(u uint64) string { return strconv.FormatUint(u, 10) }
