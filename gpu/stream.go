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

// Stream is an in-order queue of device work whose progress can be awaited:
// Mark queues "store the next number" behind what is queued now, and Done, Wait
// and the helpers wait for a number. Sequence numbers start at 1 and grow by
// one. All methods may be called from many goroutines, but work and marks of
// several goroutines on one stream interleave in an order they don't control.
//
// A Stream must be closed, or its Device.
type Stream struct {
	d        *Device
	ds       driver.Stream
	name     string
	page     *wordPage
	slot     int
	word     *line.Word
	watch    *poller.Watch
	points   []*plan.Point // by band
	capture  bool
	confirms bool // a reached word is success only when a status query agrees
	gate     gate

	marked atomic.Uint64 // the newest mark
	misuse atomic.Pointer[failure]

	// enq serialises what is queued, so that the numbers are in queue order.
	enq    sync.Mutex
	broken error // a mark failed: all later ones do

	retainMu sync.Mutex
	retained []retained
	holds    atomic.Int64 // len(retained)

	doneMu  sync.Mutex
	doneSeq uint64
	doneCh  chan struct{}

	closeOnce sync.Once

	unwatched atomic.Int32 // waits that the waiter does not know of

	asked atomic.Uint64 // the newest number that Descriptor was asked for

	// Of the health tick alone: since when the device has called the work done
	// with the word at lostAt.
	lostSince time.Time
	lostAt    uint64
}

// underWay reports whether somebody depends on the stream's progress.
func (s *Stream) underWay() bool {
	return s.watch.Pending() > 0 || s.holds.Load() > 0 || s.unwatched.Load() > 0 || s.lookedAt()
}

// Device returns the stream's device.
func (s *Stream) Device() *Device {
	if s == nil {
		return nil
	}
	return s.d
}

// Driver returns the driver's own stream, through which work is queued:
// soft.Of, cuda.Of, opencl.Of unwrap it.
func (s *Stream) Driver() driver.Stream {
	if s == nil {
		return nil
	}
	return s.ds
}

// Handle returns the vendor's handle of the stream, 0 where there is none.
func (s *Stream) Handle() uintptr {
	if s == nil {
		return 0
	}
	return s.ds.Handle()
}

// String returns the stream's name in errors and statistics.
func (s *Stream) String() string {
	if s == nil {
		return "nil stream"
	}
	return s.name
}

func (s *Stream) closedErr() error {
	if err := s.d.Err(); err != nil {
		return err
	}
	return event.New(event.Closed, s.name)
}

// Mark queues "store the next sequence number" behind all work queued on the
// stream so far and returns the number. It does not wait for the device.
//
// Errors: the device's sticky error; event.CaptureRefused on a stream that is
// capturing; the driver's error, after which this and every later mark of the
// stream fails at once, because its place in the queue is unknown. Earlier marks
// still complete.
func (s *Stream) Mark() (uint64, error) {
	if s == nil {
		return 0, errNilStream
	}
	if !s.gate.enter() {
		return 0, s.closedErr()
	}
	defer s.gate.leave()
	s.enq.Lock()
	defer s.enq.Unlock()
	return s.mark()
}

// mark is Mark under enq.
func (s *Stream) mark() (uint64, error) {
	if err := s.d.Err(); err != nil {
		return 0, err
	}
	if s.broken != nil {
		return 0, s.broken
	}
	if s.capture {
		capturing, err := s.ds.Capturing()
		if err != nil {
			return 0, err
		}
		if capturing {
			return 0, event.New(event.CaptureRefused, "mark on "+s.name, "every replay of the graph would store this stale number; mark after the launch instead")
		}
	}
	seq := s.marked.Load() + 1
	var err error
	if s.d.byWord {
		err = s.page.mapped.Store(s.ds, s.slot, seq)
	} else {
		var ev driver.Event
		if ev, err = s.ds.Record(); err == nil {
			err = s.d.status.add(s, seq, ev)
		}
	}
	if err != nil {
		if event.CodeOf(err) == event.InvalidArgument || event.CodeOf(err) == event.CaptureRefused {
			return 0, err // refused before anything was queued
		}
		s.broken = event.New(event.WorkFailed, s.name, "mark "+strconv.FormatUint(seq, 10)+" could not be queued").WithStatus(event.StatusOf(err)).Wrap(err)
		return 0, s.broken
	}
	s.marked.Store(seq)
	s.d.marks.Add(1)
	if s.holds.Load() > 0 {
		s.sweep()
	}
	return seq, nil
}

// Marked returns the newest mark, 0 when there is none.
func (s *Stream) Marked() uint64 {
	if s == nil {
		return 0
	}
	return s.marked.Load()
}

// Reached reports whether the device has reached seq and that is known to be
// success. It does not block. False for a number that was never marked and on
// a stream that has failed or was closed.
func (s *Stream) Reached(seq uint64) bool {
	if s.check(seq) != nil || !s.gate.enter() {
		return false
	}
	defer s.gate.leave()
	return s.watch.Err() == nil && s.watch.Reached(seq)
}

// Err returns the sticky error of the stream or its device, nil while all is
// well. It is the authority on failure once a Done channel is closed. It also
// reports that Done was asked for a number that was never marked.
func (s *Stream) Err() error {
	if s == nil {
		return errNilStream
	}
	if err := s.d.Err(); err != nil {
		return err
	}
	if err := s.watch.Err(); err != nil {
		return err
	}
	if f := s.misuse.Load(); f != nil {
		return f.err
	}
	return nil
}

var errNilStream = event.New(event.InvalidArgument, "nil stream", "want one made by Device.NewStream or Device.Adopt")

// check refuses numbers that no mark will ever reach.
func (s *Stream) check(seq uint64) error {
	if s == nil {
		return errNilStream
	}
	if newest := s.marked.Load(); seq == 0 || line.Before(newest, seq) {
		return event.New(event.NotMarked, s.name, strconv.FormatUint(seq, 10), strconv.FormatUint(newest, 10))
	}
	return nil
}

// Notify registers wt, with whatever Sink it has, for the device reaching seq;
// it is how the epoll and io_uring hosts and other sinks are attached. The
// result is that of poller.Watch.Add: true when registered, false without an
// error when seq was already reached. wt.Cancel removes the registration.
func (s *Stream) Notify(wt *poller.Wait, seq uint64) (bool, error) {
	if err := s.check(seq); err != nil {
		return false, err
	}
	if !s.gate.enter() {
		return false, s.closedErr()
	}
	defer s.gate.leave()
	return s.watch.Add(wt, seq)
}

// Predict returns how long a wait that starts now is expected to need at least,
// 0 when that is not known: the value for poller.Wait.Look.
func (s *Stream) Predict() time.Duration {
	if s == nil {
		return 0
	}
	return s.d.pace().look(s)
}

// confirm is the status query between a reached word and success, on the
// waiter's goroutine. Pending is fine: later work may be queued.
func (s *Stream) confirm() error {
	if !s.gate.enter() {
		return s.closedErr()
	}
	defer s.gate.leave()
	s.d.confirms.Add(1)
	if _, err := s.ds.Query(); err != nil {
		return s.d.lost(err)
	}
	return nil
}

// Close ends the stream's pending waits with event.Closed. It does not wait for
// the device: a stream with work under way is destroyed, and what it retains let
// go, once that work is done. With none under way it waits for the driver's call that
// destroys the stream, for at most the device's close bound, after which the error is
// event.Leaked. It is idempotent.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	var err error
	s.closeOnce.Do(func() {
		_ = s.watch.Close()
		s.gate.shut()
		d := s.d
		for _, p := range d.paces {
			if p.est != nil {
				p.est.Forget(s.name)
			}
		}
		switch mine, gone := s.retireIfIdle(); {
		case gone != nil:
			err = within(d.opt.closeBound, gone, s.name, one)
		case mine:
			d.health.adopt(s)
		}
	})
	return err
}

// retireIfIdle has a closed stream that is the device's, and with nothing under way,
// destroyed; gone gets the driver's answer.
func (s *Stream) retireIfIdle() (mine bool, gone chan error) {
	// Under mu, and only while the stream is on the device's list, the page still
	// exists: Device.Close empties the list first.
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, mine = d.streams[s]; !mine || !s.idle() {
		return mine, nil
	}
	delete(d.streams, s)
	gone = make(chan error, 1)
	d.chores.add(func() { gone <- s.retire(true) })
	return true, gone
}

// idle reports whether everything that was queued is known to be done. The caller
// makes sure that the page still exists.
func (s *Stream) idle() bool { return s.reached() && s.provable() }

// reached reports whether everything marked has been reached, on a closed stream that
// nobody is inside.
func (s *Stream) reached() bool {
	return s.gate.n.Load() == gateClosed && s.word.Reached(s.marked.Load())
}

// provable reports whether the last mark tells of all that was queued. It does not
// when a store or a copy failed that may have been queued all the same: its store
// may yet come, and its memory may yet be used, until the device has settled.
func (s *Stream) provable() bool {
	s.retainMu.Lock()
	defer s.retainMu.Unlock()
	for _, r := range s.retained {
		if line.Before(s.marked.Load(), r.seq) {
			return false
		}
	}
	return s.broken == nil
}

// hopeless reports whether a closed stream will never be idle: it stays on the
// device's list until that is closed.
func (s *Stream) hopeless() bool {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	_, mine := d.streams[s]
	return mine && s.reached() && !s.provable()
}

// retire destroys a closed stream that nobody uses any more. settled says that
// its work is known to be done.
func (s *Stream) retire(settled bool) error {
	s.release(settled)
	err := s.ds.Close()
	s.d.giveWord(s.page, s.slot, settled)
	return err
}

// Wait waits until the device has reached seq. It returns nil then, the sticky
// error of the stream or device when the work failed, event.NotMarked for
// a number that was never marked, and an error that wraps ctx.Err() when ctx
// ends first; the work itself goes on. A nil ctx counts as context.Background.
//
// A number already reached costs an atomic load. Otherwise the wait is spent as
// the device's plan says: with a prediction the goroutine sleeps until shortly
// before the expected completion; then, where a processor can be spared for it,
// it looks at the word itself for a short stated time; then the waiter wakes it.
func (s *Stream) Wait(ctx context.Context, seq uint64) error {
	if err := s.check(seq); err != nil {
		return err
	}
	if !s.gate.enter() {
		return s.closedErr()
	}
	if err := s.watch.Err(); err != nil {
		s.gate.leave()
		return err
	}
	if s.watch.Reached(seq) {
		s.gate.leave()
		return nil
	}
	s.gate.leave()
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return s.abandoned(seq, err)
	}
	return s.wait(ctx, seq)
}

func (s *Stream) abandoned(seq uint64, cause error) error {
	return &WaitError{Stream: s.name, Seq: seq, Err: cause}
}

// WaitError is what a wait ends with when its context ends first. The device
// work goes on. It wraps the context's error.
type WaitError struct {
	Stream string
	Seq    uint64
	Err    error
}

// Error implements error.
func (e *WaitError) Error() string {
	return "gpuline: wait for " + e.Stream + " to reach " + strconv.FormatUint(e.Seq, 10) + ": " + e.Err.Error()
}

// Unwrap returns the context's error.
func (e *WaitError) Unwrap() error { return e.Err }

// Timeout reports whether the context's deadline ended the wait.
func (e *WaitError) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }
