package gpu

import (
	"context"
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
	health    *health
	status    *statusPoller
	confirmer *confirmer

	failure atomic.Pointer[failure]
	failed  chan struct{} // closed with failure

	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
	pages   []*wordPage
	pinned  []*PinnedBuffer
	// retiring counts streams that are being destroyed outside mu.
	retiring sync.WaitGroup

	marks, confirms, blocked atomic.Uint64
}

type failure struct{ err error }

// Info describes the device.
func (d *Device) Info() driver.Info { return d.dev.Info() }

// Caps returns what the device claims.
func (d *Device) Caps() driver.Caps { return d.dev.Caps() }

// Driver returns the device of the driver below, for that driver's own calls.
func (d *Device) Driver() driver.Device { return d.dev }

// Warnings returns what was decided at open and why: drivers passed over,
// a self-test that failed, a plan that fell back. Each is a coded error.
func (d *Device) Warnings() []error { return append([]error(nil), d.warns...) }

// Label says in one line what runs: device, how completion is seen, and the
// wait plan.
func (d *Device) Label() string {
	how := "words"
	if !d.byWord {
		how = "status polling"
	}
	return d.name + " (" + d.dev.Info().Name + "), " + how + ", " + d.bands.String()
}

// Err returns the sticky error that ended the device, or nil.
func (d *Device) Err() error {
	if f := d.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// Failed returns a channel that is closed when the device has failed or was
// closed; Err then says why.
func (d *Device) Failed() <-chan struct{} { return d.failed }

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

// takeWord hands out a zeroed word.
func (d *Device) takeWord() (*wordPage, int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, 0, event.New(event.Closed, d.name)
	}
	for _, p := range d.pages {
		if n := len(p.free); n > 0 {
			i := p.free[n-1]
			p.free = p.free[:n-1]
			return p, i, nil
		}
		if p.next < p.words {
			p.next++
			return p, p.next - 1, nil
		}
	}
	p := &wordPage{}
	if d.byWord {
		m, err := MapLine(d.dev)
		if err != nil {
			return nil, 0, err
		}
		p.mapped, p.words = m, m.Words()
	} else {
		m, err := line.Map(64, false)
		if err != nil {
			return nil, 0, err
		}
		p.plain, p.words = m, len(m.Lines)*line.Words
	}
	d.pages = append(d.pages, p)
	p.next = 1
	return p, 0, nil
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
	if err := d.Err(); err != nil {
		return nil, err
	}
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
	if err := d.Err(); err != nil {
		return nil, err
	}
	ds, err := d.dev.AdoptStream(handle)
	if err != nil {
		return nil, err
	}
	return d.attach(ds)
}

var streamNumber atomic.Uint64

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
// in that order. It takes at most CloseBound; what can't be proved idle by then
// is leaked, counted by Leaks and reported as event.Leaked. It is idempotent.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	clean := d.Err() == nil
	d.fail(event.New(event.Closed, d.name))

	ctx, cancel := context.WithTimeout(context.Background(), d.opt.closeBound)
	defer cancel()
	// Each of these may be stuck in a driver's call: they share the bound.
	closers := []func() error{
		func() error { return d.health.close(ctx) },
		d.waiter.Close,
		func() error { return d.confirmer.close(ctx) },
	}
	if d.status != nil {
		closers = append(closers, func() error { return d.status.close(ctx) })
	}
	errs := make([]error, len(closers))
	var wg sync.WaitGroup
	for i, f := range closers {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	pages, pinned := d.pages, d.pinned
	d.pages, d.pinned, d.streams = nil, nil, nil
	d.mu.Unlock()

	// Driver calls may block for ever on a broken device: they get a goroutine of
	// their own, which is given up with what it holds when the bound is reached.
	freed := make(chan error, 1)
	go func() {
		var errs []error
		for _, s := range streams {
			s.gate.close()
		}
		d.retiring.Wait()
		settled := d.dev.Settle()
		for _, p := range pages {
			switch {
			case p.mapped != nil && settled != nil:
				errs = append(errs, p.mapped.Leak(settled))
			case p.mapped != nil:
				errs = append(errs, p.mapped.Close())
			default:
				errs = append(errs, p.plain.Close())
			}
		}
		for _, s := range streams {
			if err := s.retire(settled == nil); clean {
				errs = append(errs, err)
			}
		}
		for _, b := range pinned {
			errs = append(errs, b.Close())
		}
		if settled == nil {
			// Closing a stream may itself queue something (OpenCL's marker on a queue
			// that others use): the device is closed once that is done, too.
			settled = d.dev.Settle()
		}
		// After a fault the driver's tear-down errors tell nothing new.
		if err := d.dev.Close(); clean {
			errs = append(errs, err)
		}
		freed <- errors.Join(errs...)
	}()
	select {
	case err := <-freed:
		errs = append(errs, err)
	case <-ctx.Done():
		leaks.Add(1)
		errs = append(errs, event.New(event.Leaked, d.name, "a driver call has not returned within "+d.opt.closeBound.String()))
	}
	return errors.Join(errs...)
}

// CloseBound is the longest that Device.Close takes by default; WithCloseBound
// changes it.
const CloseBound = 5 * time.Second

func itoa(i int) string { return strconv.Itoa(i) }

func utoa(u uint64) string { return strconv.FormatUint(u, 10) }
