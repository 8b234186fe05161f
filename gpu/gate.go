package gpu

import (
	"sync"
	"sync/atomic"
	"time"
)

// gate keeps a stream's word and driver handle, or a device's domain, from being
// freed under a call that uses them: every such call is bracketed by enter and
// leave, an atomic add each. The zero value is open.
type gate struct{ n atomic.Int64 }

const gateClosed = -1 << 62

func (g *gate) enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.n.Add(-1)
	return false
}

func (g *gate) leave() { g.n.Add(-1) }

func (g *gate) shut() {
	for {
		n := g.n.Load()
		if n < 0 || g.n.CompareAndSwap(n, n+gateClosed) {
			return
		}
	}
}

// close shuts the gate and waits until everybody has left. Calls are short
// unless the driver blocks, so the wait is a poll.
func (g *gate) close() {
	g.shut()
	for d := time.Microsecond; g.n.Load() > gateClosed; d = min(2*d, 10*time.Millisecond) {
		time.Sleep(d)
	}
}

// inflight counts the uses of a buffer by queued device work. The zero value is
// ready to use.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle func()
}

func (f *inflight) add() {
	f.mu.Lock()
	f.n++
	f.mu.Unlock()
}

func (f *inflight) done() {
	f.mu.Lock()
	f.n--
	idle := f.idle
	if f.n > 0 {
		idle = nil
	}
	f.mu.Unlock()
	if idle != nil {
		idle()
	}
}

// whenIdle calls fn, once, as soon as nothing uses the buffer. It reports whether
// that was at once.
func (f *inflight) whenIdle(fn func()) bool {
	f.mu.Lock()
	if f.n > 0 {
		f.idle = fn
		f.mu.Unlock()
		return false
	}
	f.mu.Unlock()
	fn()
	return true
}
