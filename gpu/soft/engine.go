package soft

import (
	"math/bits"
	"runtime"
	"sync"
	"time"

	"github.com/gpuline/gpuline/event"
)

// engine performs the entries of the rings at their times.
type engine interface {
	// wake ends a sleep on the doorbell.
	wake()
	// stop ends the engine and returns once it touches nothing any more.
	stop()
	// alive reports whether the engine is still there.
	alive() bool
	// String says what runs.
	String() string
}

// tell makes the engine look, after a push that was news.
func (d *Device) tell() {
	d.mem.ctl.doorbell.Add(1)
	if d.mem.ctl.sleeping.Load() != 0 {
		d.eng.wake()
	}
}

// fence returns when everything that the engine was at is finished: with the end
// of its turn.
func (d *Device) fence() {
	c := d.mem.ctl
	t := c.turns.Load()
	d.tell()
	for n := 0; c.turns.Load() == t && d.eng.alive(); n++ {
		if n < 1000 {
			runtime.Gosched()
		} else {
			time.Sleep(settleNap)
		}
	}
}

// How the engine waits: it looks again at once when something is due within near,
// else it sleeps until early before that, at most longest (so that an engine in
// a process of its own notices that the program has died).
const (
	near    = 100 * time.Microsecond
	early   = 60 * time.Microsecond
	longest = 500 * time.Millisecond
	forever = 1<<63 - 1
)

// clock is CLOCK_MONOTONIC in ns, on which entries are due.
func clock() int64 { return int64(event.RealClock{}.Now()) + clockOffset() }

// clockOffset is CLOCK_MONOTONIC at the zero of event.RealClock, which counts on
// the same clock. The tightest of some readings decides.
var clockOffset = sync.OnceValue(func() int64 {
	var offset int64
	tightest := int64(forever)
	for range 32 {
		before := int64(event.RealClock{}.Now())
		m := monotonic()
		after := int64(event.RealClock{}.Now())
		if after-before < tightest {
			tightest, offset = after-before, m-(before+after)/2
		}
	}
	return offset
})

// goEngine is the engine in Go, for systems that there is no assembly for: the
// same rules over the same rings, on a goroutine locked to its thread. It needs
// a P for every store, and a Go timer's precision is what its times have.
type goEngine struct {
	m    *memory
	ring func()
	c    chan struct{}
	done chan struct{}
	why  string
}

func startGoEngine(m *memory, ring func(), why string) *goEngine {
	g := &goEngine{m: m, ring: ring, c: make(chan struct{}, 1), done: make(chan struct{}), why: why}
	go g.run()
	return g
}

func (g *goEngine) String() string { return "goroutine (" + g.why + ")" }

func (g *goEngine) wake() {
	select {
	case g.c <- struct{}{}:
	default:
	}
}

func (g *goEngine) stop() {
	g.m.ctl.quit.Store(1)
	g.wake()
	<-g.done
}

func (g *goEngine) alive() bool {
	select {
	case <-g.done:
		return false
	default:
		return true
	}
}

func (g *goEngine) run() {
	defer close(g.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := g.m.ctl
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for c.quit.Load() == 0 {
		c.turns.Add(1)
		bell, now := c.doorbell.Load(), clock()
		if c.fault.Load() != 0 && c.keep.Load() == 0 {
			now = forever // all that is queued is dropped, whenever it was due
		}
		next := g.look(now)
		if now == forever {
			now = 0
		}
		if next-now <= c.near {
			runtime.Gosched()
			continue
		}
		c.sleeping.Swap(1) // and not Store: see push
		if c.doorbell.Load() == bell && c.quit.Load() == 0 {
			t.Reset(min(time.Duration(next-now)-early, longest))
			select {
			case <-g.c:
			case <-t.C:
			}
		}
		c.sleeping.Store(0)
	}
}

// look performs what is due and returns when the next entry is.
func (g *goEngine) look(now int64) int64 {
	m, next := g.m, int64(forever)
	for group := range int(m.ctl.groups.Load()) {
		for set := m.active[group].Load(); set != 0; set &= set - 1 {
			i := group*64 + bits.TrailingZeros64(set)
			if due := m.due[i].Load(); due > now {
				next = min(next, due)
				continue
			}
			s := &m.slots[i]
			for {
				head := s.head.Load()
				if head == s.tail.Load() {
					m.active[group].And(^(uint64(1) << (i % 64)))
					if head == s.tail.Load() {
						break
					}
					m.active[group].Or(uint64(1) << (i % 64))
				}
				e := &m.entries(i)[head%ringEntries]
				if e.at > now {
					m.due[i].Store(e.at)
					next = min(next, e.at)
					break
				}
				if !g.perform(i, s, e) {
					next = now
					break
				}
			}
		}
	}
	return next
}

// perform performs the head entry of ring i and moves the head on. false asks for
// another look at once: part of a copy is left, or after a fault the rest is to be
// dropped.
func (g *goEngine) perform(i int, s *slot, e *entry) bool {
	m := g.m
	m.order.Load()
	op, n := e.op&0xff, e.op>>8
	switch {
	case op == opCall:
		s.head.Add(1)
		m.called[i/64].Or(uint64(1) << (i % 64))
		g.bell()
		return true
	case op == opWake:
		// The head moves on first: whoever is woken finds the queue as it is after
		// the wait. The entry may be overwritten from then on.
		a, b := e.a, e.b
		s.head.Add(1)
		wordAt(a).Store(b)
		futexWake(a)
		return true
	case m.ctl.fault.Load() != 0 && (m.ctl.keep.Load() == 0 || op == opWord):
		s.done = 0
	case op == opStore:
		st := &m.stamps(i)[e.b%ringEntries]
		st.value.Store(0)
		st.at.Store(clock())
		st.value.Store(e.b + 1)
		wordAt(e.a).Store(e.b)
	case op == opWord:
		wordAt(e.a).Store(e.b)
	case op == opCopy || op == opFill:
		part := min(n-s.done, copyChunk)
		if op == opCopy {
			move(e.a+s.done, e.b+s.done, part)
		} else {
			fill(e.a+s.done, byte(e.b), part)
		}
		if s.done += part; s.done < n {
			return false
		}
		s.done = 0
	case op == opPost:
		post(int(e.a))
	case op == opFault:
		m.ctl.fault.CompareAndSwap(0, e.b)
		s.head.Add(1)
		g.bell()
		return false
	}
	s.head.Add(1)
	return true
}

func (g *goEngine) bell() {
	if g.m.ctl.rung.Swap(1) == 0 {
		g.ring()
	}
}

// Copies look to the race detector as a device's do, which it does not see. The
// word behind them is what orders them for their users.

//go:norace
func move(dst, src, n uint64) {
	d, s := bytesAt(dst, n), bytesAt(src, n)
	for i := range d {
		d[i] = s[i]
	}
}

//go:norace
func fill(dst uint64, v byte, n uint64) {
	d := bytesAt(dst, n)
	for i := range d {
		d[i] = v
	}
}
