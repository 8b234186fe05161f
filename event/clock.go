package event

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// Clock is monotonic time in nanoseconds since the clock's own origin. All
// methods may be called from many goroutines.
type Clock interface {
	// Now returns the time since the clock's origin. It never goes back.
	Now() time.Duration
	// SleepUntil returns once Now() >= t. It blocks the calling goroutine.
	SleepUntil(t time.Duration)
	// At calls f, on a goroutine of the clock's choice, once Now() >= t. The
	// returned function cancels the call and reports whether it was in time.
	At(t time.Duration, f func()) (cancel func() bool)
}

// RealClock is the machine's monotonic clock. The zero value's origin is the
// first use of any RealClock in the process.
type RealClock struct{}

var realOrigin = sync.OnceValue(time.Now)

// Now implements Clock.
func (RealClock) Now() time.Duration { return time.Since(realOrigin()) }

// SleepUntil implements Clock. On Linux it sleeps in the kernel, exactly to the
// nanosecond asked for plus the thread's timer slack (50 us unless lowered,
// prctl(2) PR_SET_TIMERSLACK), where time.Sleep would round up to a whole
// millisecond (golang/go#44343).
func (c RealClock) SleepUntil(t time.Duration) {
	for now := c.Now(); now < t; now = c.Now() {
		sleep(t - now)
	}
}

// At implements Clock with time.AfterFunc.
func (c RealClock) At(t time.Duration, f func()) func() bool {
	return time.AfterFunc(max(t, 0)-c.Now(), f).Stop
}

// ManualClock starts at 0 and moves only when its owner moves it, so that
// a wait, an executor's run or a simulation is reproducible to the nanosecond.
// The zero value is ready to use. A ManualClock must not be copied.
//
// Timers fire in (deadline, registration) order on the goroutine that moves
// the clock, each with Now() equal to its deadline, and with no lock held: a
// timer may register timers, also due ones, and may move the clock on.
type ManualClock struct {
	mu     sync.Mutex
	now    time.Duration
	seq    uint64
	timers timerHeap
}

// NewManualClock returns a clock that stands at 0.
func NewManualClock() *ManualClock { return &ManualClock{} }

// Now implements Clock.
func (c *ManualClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward by d and fires what falls due. A negative d
// is ignored: a monotonic clock does not go back.
func (c *ManualClock) Advance(d time.Duration) {
	if d < 0 {
		return
	}
	now := c.Now()
	c.AdvanceTo(now + min(d, math.MaxInt64-now))
}

// AdvanceTo moves the clock forward to t and fires what falls due, in order. A
// t in the past fires what is due now and leaves the time as it is.
func (c *ManualClock) AdvanceTo(t time.Duration) {
	for {
		c.mu.Lock()
		if len(c.timers) == 0 || c.timers[0].at > max(t, c.now) {
			if t > c.now {
				c.now = t
			}
			c.mu.Unlock()
			return
		}
		tm := heap.Pop(&c.timers).(*manualTimer)
		if tm.at > c.now {
			c.now = tm.at
		}
		c.mu.Unlock()
		tm.f()
	}
}

// Next returns the deadline of the earliest timer, and whether there is one.
func (c *ManualClock) Next() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.timers) == 0 {
		return 0, false
	}
	return c.timers[0].at, true
}

// SleepUntil implements Clock for the single-threaded use that the clock is
// made for: the sleeper is the owner, and its sleep moves the clock to t,
// firing on the way what falls due.
func (c *ManualClock) SleepUntil(t time.Duration) { c.AdvanceTo(t) }

// At implements Clock. A timer whose time has already come fires at the next
// move of the clock, also a move by 0.
func (c *ManualClock) At(t time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	tm := &manualTimer{at: t, seq: c.seq, f: f}
	c.seq++
	heap.Push(&c.timers, tm)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if tm.index < 0 {
			return false
		}
		heap.Remove(&c.timers, tm.index)
		return true
	}
}

type manualTimer struct {
	at    time.Duration
	seq   uint64
	f     func()
	index int
}

type timerHeap []*manualTimer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*manualTimer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
