package epoll

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/poller"
)

// Completion is one wait that ended.
type Completion struct {
	// Wait is the registration. It belongs to the consumer again, who may register
	// it anew.
	Wait *poller.Wait
	// Err is nil for success, else the reason.
	Err error
}

// Stats counts what a Group did since it was made.
type Stats struct {
	Completed uint64 // completions received
	Signals   uint64 // writes to the descriptor
	Cleared   uint64 // signals that were taken back by Arm
	Busy      uint64 // times that Arm found completions instead of arming
	Queued    int    // completions not drained yet
	MaxQueued int    // the most there were
}

// Group is a queue of completions behind one pollable descriptor. Make one with
// NewGroup. All methods may be called from many goroutines, so several consumers
// may share it: each takes what the others have not, and each must keep to the
// protocol (having been told busy, drain and arm again).
//
// The queue holds at most one entry per Wait, and Waits are registered one
// registration at a time: a slow consumer costs memory in proportion to the Waits
// that it made, and loses nothing.
type Group struct {
	// armed asks the next Flush for a signal. It goes with queued: a consumer sets
	// armed and then reads queued, a producer sets queued and then swaps armed, and
	// Go's atomics are sequentially consistent. So either the producer sees armed and
	// signals, or the consumer sees the completion and is told busy.
	armed  atomic.Bool
	queued atomic.Int64

	// Signals about to be written, and taken back. While they differ there may be
	// something to read.
	written, cleared atomic.Uint64
	busy             atomic.Uint64

	mu        sync.Mutex
	queue     []Completion // from head on
	head      int
	completed uint64
	most      int

	// life guards the descriptors: they are closed when nobody is using them.
	life   sync.RWMutex
	sig    *signal
	closed bool

	// The netpoller has room for one reader; turn is held by the one in Wait.
	turn chan struct{}
	file *os.File
}

var _ poller.Sink = (*Group)(nil)

// NewGroup makes a Group with its descriptor, armed. It starts no goroutine. It
// fails where the process is out of descriptors, and with event.NotSupported where
// the system has none to poll.
func NewGroup() (*Group, error) {
	s, err := newSignal()
	if err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		return nil, os.NewSyscallError("eventfd", err)
	}
	return newGroup(s), nil
}

func newGroup(s *signal) *Group {
	g := &Group{sig: s, turn: make(chan struct{}, 1)}
	g.armed.Store(true)
	return g
}

// perturbation is set by tests that widen the windows between two steps.
var perturbation func()

func perturb() {
	if perturbation != nil {
		perturbation()
	}
}

// Fd returns the descriptor to wait on: readable when there are completions and the
// Group was armed. It is non-blocking and close-on-exec, stays the same for the
// Group's life, and belongs to the Group.
func (g *Group) Fd() int { return g.sig.public }

// Complete implements poller.Sink: it queues and makes no system call.
func (g *Group) Complete(wt *poller.Wait, err error) {
	g.mu.Lock()
	if g.head > 0 && len(g.queue) == cap(g.queue) {
		// Slide down rather than grow when that frees at least half.
		if n := len(g.queue) - g.head; g.head >= n {
			copy(g.queue, g.queue[g.head:])
			clear(g.queue[n:])
			g.queue, g.head = g.queue[:n], 0
		}
	}
	g.queue = append(g.queue, Completion{wt, err})
	g.completed++
	n := len(g.queue) - g.head
	g.most = max(g.most, n)
	g.queued.Store(int64(n))
	g.mu.Unlock()
}

// Flush implements poller.Sink: it signals the descriptor if a consumer armed it
// since the last signal, with one system call, and does nothing otherwise.
func (g *Group) Flush() {
	if !g.armed.Load() || g.queued.Load() == 0 || !g.armed.CompareAndSwap(true, false) {
		return
	}
	perturb()
	g.life.RLock()
	defer g.life.RUnlock()
	if g.closed {
		return
	}
	g.written.Add(1)
	if g.sig.set() != nil {
		// Only a descriptor closed behind our back fails here. The next batch tries
		// again, and Drain has the completions in any case.
		g.written.Add(^uint64(0))
		g.armed.Store(true)
	}
}

// Drain moves completions into buf, oldest first, and returns how many: 0 when there
// are none. It makes no system call and does not block. It may also be called
// without the descriptor having been readable, and after Close.
func (g *Group) Drain(buf []Completion) int {
	if g.queued.Load() == 0 {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := copy(buf, g.queue[g.head:])
	clear(g.queue[g.head : g.head+n]) // don't keep the waits alive
	g.head += n
	if g.head == len(g.queue) {
		g.queue, g.head = g.queue[:0], 0
	}
	g.queued.Store(int64(len(g.queue) - g.head))
	return n
}

// Arm takes the signal back, so that the descriptor is not readable any more, and
// asks for a new one with the next completion. Busy (true) means that completions
// are there already and nothing will be signalled for them: drain and arm again. It
// makes a system call only when there was a signal.
func (g *Group) Arm() (busy bool) {
	if g.queued.Load() > 0 {
		// Leave the signal: other consumers may be about to come for the rest.
		g.busy.Add(1)
		return true
	}
	perturb()
	// A producer counts its signal before it writes it, so that one which is not
	// written yet is not forgotten: it makes the descriptor readable once more, for
	// nothing, and the Arm after that takes it back.
	if g.written.Load() != g.cleared.Load() {
		g.life.RLock()
		if !g.closed {
			if n, err := g.sig.clear(); err == nil {
				g.cleared.Add(n)
			}
		}
		g.life.RUnlock()
	}
	perturb()
	g.armed.Store(true)
	perturb()
	if g.queued.Load() == 0 {
		return false
	}
	// If a producer took the arming first, its signal comes on top of this busy.
	g.armed.CompareAndSwap(true, false)
	g.busy.Add(1)
	return true
}

// Queued returns the number of completions that were not drained yet.
func (g *Group) Queued() int { return int(g.queued.Load()) }

// Stats returns the counters.
func (g *Group) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{
		Completed: g.completed, Signals: g.written.Load(), Cleared: g.cleared.Load(), Busy: g.busy.Load(),
		Queued: len(g.queue) - g.head, MaxQueued: g.most,
	}
}

// Wait drains into buf, blocking in Go's netpoller until there is at least one
// completion. It returns how many there were; ctx's error when that ended first;
// event.Closed when the Group is closed and empty. Goroutines that wait at the same
// time take turns.
func (g *Group) Wait(ctx context.Context, buf []Completion) (int, error) {
	if len(buf) == 0 {
		return 0, event.New(event.InvalidArgument, "wait for completions", "empty buffer")
	}
	if n := g.Drain(buf); n > 0 {
		return n, nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { <-g.turn }()
	f, err := g.netpoll()
	if err != nil {
		return 0, err
	}
	if f != nil && ctx.Done() != nil {
		woken := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = f.SetReadDeadline(time.Unix(1, 0))
			close(woken)
		})
		defer func() {
			if !stop() {
				// The deadline is set or about to be: take it away for the next one.
				<-woken
				_ = f.SetReadDeadline(time.Time{})
			}
		}()
	}
	for {
		if n := g.Drain(buf); n > 0 {
			return n, nil
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if f == nil {
			return 0, event.New(event.Closed, "group")
		}
		if g.Arm() {
			continue
		}
		if err := g.await(f); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			if f, _ = g.netpoll(); f != nil {
				return 0, err
			}
		}
	}
}

// await blocks until the descriptor has been signalled since Arm. The netpoller is
// edge-triggered and forgets earlier readiness before it calls back for the first
// time, so what it forgot has to be seen there: a signal goes with a taken arming.
// After that any readiness ends the wait, also when others were faster and there is
// nothing to drain, since somebody has to arm again.
func (g *Group) await(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	perturb()
	woken := false
	return c.Read(func(uintptr) bool {
		ready := woken || !g.armed.Load()
		woken = true
		perturb()
		return ready
	})
}

// netpoll returns the file that the netpoller watches, nil after Close. It is made
// at first use: a descriptor in the netpoller costs a wake-up of it per signal.
func (g *Group) netpoll() (*os.File, error) {
	g.life.Lock()
	defer g.life.Unlock()
	if g.closed {
		return nil, nil
	}
	if g.file == nil {
		f, err := g.sig.file()
		if err != nil {
			return nil, os.NewSyscallError("dup", err)
		}
		g.file = f
	}
	return g.file, nil
}

// File returns a duplicate of the descriptor as an os.File that the netpoller can
// wait for (SyscallConn, SetReadDeadline). It belongs to the caller, who closes it;
// the Group neither needs it nor is needed by it. Wait for readiness with it, but
// don't read it: Arm does.
func (g *Group) File() (*os.File, error) {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.closed {
		return nil, event.New(event.Closed, "group")
	}
	f, err := g.sig.file()
	return f, os.NewSyscallError("dup", err)
}

// Close closes the descriptor. Take it out of your loops before. Completions that
// are queued, or still come, can be drained, but nothing is signalled for them;
// goroutines in Wait return. Close is idempotent.
func (g *Group) Close() error {
	g.life.Lock()
	defer g.life.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.sig.close()
	if g.file != nil {
		return g.file.Close()
	}
	return nil
}
