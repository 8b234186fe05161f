package gpu

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done returns a channel that is closed once the device has reached seq on s,
// or once that can't happen any more because the work, the device or the stream
// has failed or was closed. Ask s.Err which of the two: nil means success.
//
//	select {
//	case <-gpu.Done(s, seq):
//		if err := s.Err(); err != nil {
//			return err
//		}
//	case <-ctx.Done():
//		return ctx.Err()
//	}
//
// For a number already reached the channel is closed already and costs nothing.
// For one that was never marked it is closed too, and s.Err reports
// event.NotMarked from then on: a select must not hang on a slip.
//
// Done does not block and may be called from many goroutines. Asking again for
// the same number returns the same channel while it is the newest asked for, so
// that a loop around a select costs one registration, not one per turn.
func Done(s *Stream, seq uint64) <-chan struct{} {
	if err := s.check(seq); err != nil {
		if s != nil {
			s.misuse.CompareAndSwap(nil, &failure{err})
		}
		return closedChan
	}
	if !s.gate.enter() {
		return closedChan
	}
	defer s.gate.leave()
	if s.watch.Err() != nil || s.watch.Reached(seq) {
		return closedChan
	}
	s.doneMu.Lock()
	defer s.doneMu.Unlock()
	if s.doneCh != nil && s.doneSeq == seq {
		return s.doneCh
	}
	ch := make(chan struct{})
	wt := doneWaits.Get().(*poller.Wait)
	wt.Sink, wt.Data = (*doneSink)(s), ch
	p := s.d.pace()
	wt.Look, wt.Again, wt.User = p.look(s), s.points[p.band].Again(), uint64(p.band)
	if ok, _ := s.watch.Add(wt, seq); !ok {
		doneWaits.Put(wt)
		return closedChan
	}
	s.doneSeq, s.doneCh = seq, ch
	return ch
}

var doneWaits = sync.Pool{New: func() any { return new(poller.Wait) }}

// doneSink closes the channel in Data. One per stream, so that a batch flushes
// once per stream and not once per wait.
type doneSink Stream

func (x *doneSink) Complete(wt *poller.Wait, err error) {
	s := (*Stream)(x)
	c := wt.Data.(chan struct{})
	wt.Data = nil
	// Somebody waits for the channel: it is closed first, unless he is to find his
	// buffers let go of.
	held := s.holds.Load() > 0
	if !held {
		close(c)
	}
	if err == nil {
		s.observe(wt, s.points[wt.User])
	}
	if held {
		close(c)
	}
	doneWaits.Put(wt)
}

func (x *doneSink) Flush() {}

// learn feeds the estimator with a wait that began at start and that the waiter
// finished. What a nap found done is known to have taken between the look before the
// nap and the look after it. The earlier counts: the later would make the next wait
// sleep too long, by up to a nap, and a wake that is late costs eight waits.
func learn(point *plan.Point, wt *poller.Wait, start time.Duration) {
	switch {
	case wt.Late:
		point.Missed(wt.DoneAt - start)
	case wt.LateAgain:
		point.MissedAgain(wt.PendingAt-start, wt.DoneAt-start)
	case wt.PendingAt > wt.AddedAt():
		point.Exact(wt.PendingAt - start)
	default: // found done by the first look
		point.Exact(wt.DoneAt - start)
	}
}

func (s *Stream) observe(wt *poller.Wait, point *plan.Point) {
	learn(point, wt, wt.AddedAt())
	s.sweepIfHeld()
}

// handle is a reusable wait with its channel.
type handle struct {
	wt *poller.Wait
	c  <-chan error
}

var handles = sync.Pool{New: func() any {
	wt, c := poller.NewWait()
	return &handle{wt, c}
}}

// wait is Wait for a number that is not reached yet.
func (s *Stream) wait(ctx context.Context, seq uint64) error {
	p := s.d.pace()
	if p.block {
		return s.waitBlocked(ctx, seq)
	}
	waiting.Add(1)
	defer waiting.Add(-1)
	// What a goroutine does after it has seen the word is the wait's latency: it has no
	// handle to give back, and reads the clock only where something is learned from it.
	start := poller.Now()
	point := s.points[p.band]
	slept, spun := false, false
	stillPending := time.Duration(0) // when it was seen pending between two sleeps
	look := p.look(s)
	if look > 0 && p.spin > 0 && maySpin() {
		if s.confirms && s.seen(seq) {
			// Done, if nobody has confirmed it yet: nothing to sleep for, or to learn.
			return s.confirmed(ctx, seq)
		}
		if err := s.napped(ctx, seq, point, start, look); err != poller.ErrLook {
			return err
		}
		if again := point.Again(); again > 0 && !s.seen(seq) {
			stillPending = poller.Now() - start
			if err := s.napped(ctx, seq, point, start, again); err != poller.ErrLook {
				return err
			}
		}
		slept, look = true, 0
	}
	if look == 0 && p.spin > 0 && maySpin() {
		seen, pending, err := s.spin(ctx, seq, p.spin)
		spun = true
		if err != nil {
			return err
		}
		if seen {
			var took time.Duration
			if point != nil {
				took = poller.Now() - start
			}
			if err := s.confirmed(ctx, seq); err != nil {
				return err
			}
			switch {
			case !slept || pending:
				point.Exact(took)
			case stillPending > 0:
				point.MissedAgain(stillPending, took)
			default:
				point.Missed(took)
			}
			return nil
		}
	}
	return s.parked(ctx, seq, point, start, wish{look: look, spun: spun, late: slept && !spun})
}

// seen reports whether the word has reached seq, confirmed or not.
func (s *Stream) seen(seq uint64) bool {
	if !s.gate.enter() {
		return false
	}
	defer s.gate.leave()
	return s.watch.Err() == nil && s.watch.Seen(seq)
}

// wish is what a goroutine asks of the waiter.
type wish struct {
	look        time.Duration
	early, spun bool
	late        bool // a target reached by now was reached while nobody looked
}

// parked has the waiter wait, and learns from what it says.
func (s *Stream) parked(ctx context.Context, seq uint64, point *plan.Point, start time.Duration, w wish) error {
	h := handles.Get().(*handle)
	defer handles.Put(h)
	h.wt.Look, h.wt.Early, h.wt.Spun = w.look, w.early, w.spun
	h.wt.Again = point.Again() // for waits with a Look that is not early
	err := s.park(ctx, h, seq)
	switch {
	case err == poller.ErrLook:
		s.watch.Resumed(h.wt)
	case err != nil:
	case h.wt.DoneAt > 0:
		learn(point, h.wt, start)
		s.sweepIfHeld()
	case w.late: // reached by the time it was to be registered
		point.Missed(poller.Now() - start)
	case w.spun: // likewise, and pending just before
		point.Exact(poller.Now() - start)
	}
	return err
}

// park registers the handle and blocks until it completes or ctx ends. The
// handle is free again when park returns.
func (s *Stream) park(ctx context.Context, h *handle, seq uint64) error {
	if !s.gate.enter() {
		return s.closedErr()
	}
	h.wt.DoneAt = 0
	ok, err := s.watch.Add(h.wt, seq)
	s.gate.leave()
	if !ok {
		return err
	}
	select {
	case err := <-h.c:
		return err
	case <-ctx.Done():
		if h.wt.Cancel() {
			return s.abandoned(seq, ctx.Err())
		}
		// Completed, or being completed, at the same time: the completion stands.
		if err := <-h.c; err != poller.ErrLook {
			return err
		}
		return s.abandoned(seq, ctx.Err())
	}
}

// spinSlice bounds each stretch in which the spinning goroutine can't be
// preempted.
const spinSlice = 5 * time.Microsecond

// spinYield is how often it lets others run where there is but one processor.
const spinYield = 50 * time.Microsecond

// spin looks at the word for at most d. pending reports that it was once seen
// not reached.
func (s *Stream) spin(ctx context.Context, seq uint64, d time.Duration) (seen, pending bool, err error) {
	if d > time.Millisecond {
		// Longer than the health tick should look away.
		s.unwatched.Add(1)
		defer s.unwatched.Add(-1)
		s.d.health.wake()
	}
	done := ctx.Done()
	end := time.Duration(math.MaxInt64)
	if d < time.Hour {
		end = poller.Now() + d
	}
	yielded := poller.Now()
	for {
		if !s.gate.enter() {
			return false, pending, s.closedErr()
		}
		if err = s.watch.Err(); err == nil {
			if !pending && !s.watch.Seen(seq) {
				pending = true
			}
			seen = s.watch.Spin(seq, spinSlice)
		}
		s.gate.leave()
		if seen || err != nil {
			return seen, pending, err
		}
		now := poller.Now()
		if now >= end {
			return seen, pending, err
		}
		if now-yielded > spinYield {
			yielded = now
			poller.Yield()
		}
		select {
		case <-done:
			return false, pending, s.abandoned(seq, ctx.Err())
		default:
		}
	}
}

// waiting is how many goroutines are in Stream.Wait.
var waiting atomic.Int32

// maySpin reports whether a waiting goroutine may look at the word itself: while
// no more wait than leave half of the processors to everybody else. With more, a
// processor that looks is one that the others' completions are waiting for.
func maySpin() bool { return waiting.Load() <= int32(max(1, runtime.GOMAXPROCS(0)/2)) }

// confirmed makes sure that a reached word is success, on drivers where the
// word alone does not prove it. The query runs on the confirmer's goroutine: one
// that blocks must not hold the caller beyond the health tick's bound.
func (s *Stream) confirmed(ctx context.Context, seq uint64) error {
	if !s.confirms {
		return nil // nor may the word be looked at: the page may be gone by now
	}
	if s.watch.Reached(seq) {
		return nil
	}
	return s.d.confirmer.confirm(ctx, s, seq)
}

// waitBlocked is the wait of the block plan: the vendor's blocking wait, on
// a goroutine of its own so that ctx can still end the wait.
func (s *Stream) waitBlocked(ctx context.Context, seq uint64) error {
	s.d.blocked.Add(1)
	s.unwatched.Add(1)
	defer s.unwatched.Add(-1)
	s.d.health.wake()
	c := make(chan error, 1)
	go func() {
		if !s.gate.enter() {
			c <- s.closedErr()
			return
		}
		defer s.gate.leave()
		c <- s.ds.Sync()
	}()
	select {
	case err := <-c:
		if err != nil {
			return s.d.lost(err)
		}
	case <-s.d.failed:
		return s.d.Err()
	case <-ctx.Done():
		return s.abandoned(seq, ctx.Err())
	}
	// The word may trail the driver's own status by a moment.
	h := handles.Get().(*handle)
	defer handles.Put(h)
	h.wt.Look, h.wt.Early, h.wt.Spun = 0, false, false
	return s.park(ctx, h, seq)
}

// Point names what to wait for: the device reaching Seq on Stream.
type Point struct {
	Stream *Stream
	Seq    uint64
}

// WaitAll waits until every point is reached. It returns the first error met, at
// once when a device fails, whichever of the points it was for; see Stream.Wait for
// the errors. No points is no wait.
func WaitAll(ctx context.Context, points ...Point) error {
	for _, p := range points {
		if err := p.Stream.check(p.Seq); err != nil {
			return err
		}
	}
	for _, p := range points {
		if p.Stream.d != points[0].Stream.d {
			return waitEach(ctx, points)
		}
	}
	// On one device the wait for any point ends when the device fails.
	for _, p := range points {
		if err := p.Stream.Wait(ctx, p.Seq); err != nil {
			return err
		}
	}
	return nil
}

// waitEach is WaitAll for points of several devices: all are registered at once, so
// that every device is looked after.
func waitEach(ctx context.Context, points []Point) error {
	if ctx == nil {
		ctx = context.Background()
	}
	c := make(anySink, len(points))
	waits := make([]poller.Wait, len(points))
	defer func() {
		for i := range waits {
			waits[i].Cancel()
		}
	}()
	left := 0
	for i, p := range points {
		wt := &waits[i]
		wt.Sink, wt.User = c, uint64(i)
		wt.Look = p.Stream.d.pace().look(p.Stream)
		ok, err := p.Stream.Notify(wt, p.Seq)
		if err != nil {
			return err
		}
		if ok {
			left++
		}
	}
	for ; left > 0; left-- {
		select {
		case d := <-c:
			if d.err != nil {
				return d.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// anySink sends the index in User of each wait that ends. The channel has room
// for all of them.
type anySink chan anyDone

type anyDone struct {
	i   int
	err error
}

func (a anySink) Complete(wt *poller.Wait, err error) { a <- anyDone{int(wt.User), err} }
func (a anySink) Flush()                              {}

// WaitAny waits until one of the points is reached or fails, and returns its
// index in points, with its error if it failed. When ctx ends first, the index
// is -1; so it is, with event.InvalidArgument, when there are no points. The
// waits for the other points leave nothing behind.
func WaitAny(ctx context.Context, points ...Point) (int, error) {
	if len(points) == 0 {
		return -1, event.New(event.InvalidArgument, "WaitAny", "no points to wait for")
	}
	if ctx == nil {
		ctx = context.Background()
	}
	for i, p := range points {
		if err := p.Stream.check(p.Seq); err != nil {
			return i, err
		}
	}
	c := make(anySink, len(points))
	waits := make([]poller.Wait, len(points))
	defer func() {
		for i := range waits {
			waits[i].Cancel()
		}
	}()
	for i, p := range points {
		wt := &waits[i]
		wt.Sink, wt.User = c, uint64(i)
		wt.Look = p.Stream.d.pace().look(p.Stream)
		if ok, err := p.Stream.Notify(wt, p.Seq); !ok {
			return i, err
		}
	}
	select {
	case d := <-c:
		return d.i, d.err
	case <-ctx.Done():
		return -1, ctx.Err()
	}
}
