package gpu

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/internal/sleep"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// nap is a goroutine's own sleep to shortly before a predicted completion. The waiter could
// sleep for it, but to be told by the waiter costs two hand-overs between goroutines,
// each of which wakes a processor. While it naps, the goroutine is registered with the
// waiter for what may come in between: a failure, a close, somebody else's look.
type nap struct {
	wt    poller.Wait
	c     chan error   // how the registration ended
	over  atomic.Bool  // it has ended
	state atomic.Int64 // until when it sleeps, or awake
	sleep sleep.Timer
	turn  sleep.Turn

	// What ends it early, kept from one wait to the next until that has another context:
	// waits in a loop have the same, and to follow one anew allocates. Meanwhile the
	// context is kept alive, and so is the goroutine that the context package starts to
	// follow one of a kind that it does not know.
	done    <-chan struct{}
	stop    func() bool
	onEnded func() // rouse
}

const (
	awake = 0
	// farOff is how long after the nap's end the waiter would look for such a registration:
	// it is not to wake for it. That it wakes once in a while costs nothing, and ends the
	// health tick that much after the last wait.
	farOff = time.Second
	// maxNapLate bounds what a nap is shortened by.
	maxNapLate = 100 * time.Microsecond
)

// Complete implements poller.Sink.
func (n *nap) Complete(_ *poller.Wait, err error) {
	n.over.Store(true)
	n.c <- err // one place, and one registration at a time
	n.rouse()
}

// Flush implements poller.Sink.
func (n *nap) Flush() {}

// rouse ends the sleep, if there is one.
func (n *nap) rouse() {
	if s := n.state.Load(); s != awake && n.state.CompareAndSwap(s, awake) {
		n.sleep.Wake()
	}
}

// follow has the end of ctx end the nap.
func (n *nap) follow(ctx context.Context) {
	if done := ctx.Done(); done != n.done {
		n.unfollow()
		if done != nil {
			n.done, n.stop = done, context.AfterFunc(ctx, n.onEnded)
		}
	}
}

func (n *nap) unfollow() {
	if n.stop != nil {
		n.stop()
		n.done, n.stop = nil, nil
	}
}

// until sleeps until t, or until the registration or ctx has ended. It returns by how much
// it overslept, negative when it was ended or did not sleep.
//
// The state is published, then it is looked whether one of them has ended; whoever ends it
// reads the state afterwards: one of the two sees the other.
func (n *nap) until(t time.Duration) time.Duration {
	late := time.Duration(-1)
	n.state.Store(int64(t))
	if !n.over.Load() && !n.ended() && poller.Now() < t {
		n.sleep.Sleep(int64(t), &n.state)
		if n.state.Load() != awake {
			late = poller.Now() - t
		}
	}
	n.state.Store(awake)
	return late
}

func (n *nap) ended() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

func (n *nap) close() {
	n.unfollow()
	n.sleep.Close()
}

// naps are a device's: half as many as there are processors, since no more waits look
// for themselves (maySpin).
type naps struct {
	// late is how much later than asked a nap ended of late, on average: they are made
	// that much shorter.
	late atomic.Int64

	mu      sync.Mutex
	free    []*nap
	out     int
	closed  bool
	drained chan struct{}
}

// get returns a nap, or nil when there is none to spare.
func (p *naps) get() *nap {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.out >= max(1, runtime.GOMAXPROCS(0)/2) {
		return nil
	}
	p.out++
	if k := len(p.free) - 1; k >= 0 {
		n := p.free[k]
		p.free = p.free[:k]
		return n
	}
	n := &nap{c: make(chan error, 1)}
	n.wt.Sink, n.onEnded = n, n.rouse
	return n
}

func (p *naps) put(n *nap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	if !p.closed {
		p.free = append(p.free, n)
		return
	}
	n.close()
	if p.out == 0 {
		close(p.drained)
	}
}

// close frees all naps. Those in use have been ended by now: it waits for them.
func (p *naps) close() {
	p.mu.Lock()
	p.closed = true
	for _, n := range p.free {
		n.close()
	}
	p.free = nil
	out := p.out
	p.drained = make(chan struct{})
	p.mu.Unlock()
	if out > 0 {
		<-p.drained
	}
}

// overslept notes how late a nap ended.
func (p *naps) overslept(by time.Duration) {
	old := p.late.Load()
	p.late.Store(old + (int64(min(by, maxNapLate))-old)/8)
}

// nap sleeps on the calling goroutine until look after start, less what naps are late by.
// poller.ErrLook is its answer when that time has come and the wait has not ended.
func (s *Stream) nap(ctx context.Context, n *nap, seq uint64, start, look time.Duration) error {
	if !s.gate.enter() {
		return s.closedErr()
	}
	n.wt.DoneAt, n.wt.Look = 0, look+farOff // look is a length that was once measured: no overflow
	n.over.Store(false)
	ok, err := s.watch.Add(&n.wt, seq)
	s.gate.leave()
	if !ok {
		return err
	}
	n.follow(ctx)
	n.turn.Next()
	defer n.turn.Begin()
	p := &s.d.naps
	end := start + look - time.Duration(p.late.Load())
	for {
		late := n.until(end)
		switch {
		case n.over.Load():
			return <-n.c
		case n.ended():
			err = s.abandoned(seq, ctx.Err())
		case poller.Now() >= end:
			if late >= 0 {
				p.overslept(late)
			}
			err = poller.ErrLook
		default:
			continue // roused by the end of an earlier wait's context
		}
		if n.wt.Cancel() {
			return err
		}
		// Completed, or being completed, at the same time: that stands.
		return <-n.c
	}
}

// napped is the first part of a predicted wait: it returns poller.ErrLook when the goroutine
// is to look at the word.
func (s *Stream) napped(ctx context.Context, seq uint64, point *plan.Point, start, look time.Duration) error {
	n := s.d.naps.get()
	if n == nil {
		return s.parked(ctx, seq, point, start, wish{look: look, early: true})
	}
	defer s.d.naps.put(n)
	err := s.nap(ctx, n, seq, start, look)
	if err == nil && n.wt.DoneAt > 0 {
		learn(point, &n.wt, start)
		s.sweepIfHeld()
	}
	return err
}
