package soft

import (
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// engine runs the operations in the rings at their times.
type engine interface {
	// wake ends a sleep on the doorbell.
	wake()
	// stop ends the engine and returns once it touches nothing any more.
	stop()
}

// ring tells the engine that something was pushed.
func (m *memory) ring(e engine) {
	m.ctl.doorbell.Add(1)
	if m.ctl.sleeping.Load() != 0 {
		e.wake()
	}
}

// clock is CLOCK_MONOTONIC, on which entries are due.
func clock() int64 { return int64(event.RealClock{}.Now()) + clockOffset() }

var clockOffset = sync.OnceValue(monotonicOffset)

// goEngine is the engine in Go, where there is none in assembly: the same loop
// over the same rings.
type goEngine struct {
	m    *memory
	bell func()
	c    chan struct{}
	done chan struct{}
}

func startGoEngine(m *memory, bell func()) *goEngine {
	g := &goEngine{m: m, bell: bell, c: make(chan struct{}, 1), done: make(chan struct{})}
	go g.run()
	return g
}

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

func (g *goEngine) run() {
	defer close(g.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := g.m
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for m.ctl.quit.Load() == 0 {
		m.order.Load()
		bell := m.ctl.doorbell.Load()
		now := clock()
		next := now + int64(time.Second)
		for i := range int(m.ctl.rings.Load()) {
			for !m.empty(i) {
				m.order.Load()
				h := m.heads[i].Load()
				e := &m.entries[i*ringEntries+int(h%ringEntries)]
				if e.at > now {
					next = min(next, e.at)
					break
				}
				if e.op == opWake {
					// The head moves on first: whoever is woken finds the queue as it
					// is after the wait.
					a, b := e.a, e.b
					m.heads[i].Store(h + 1)
					wordAt(a).Store(b)
					futexWakeAll(a)
					continue
				}
				g.perform(i, e)
				m.heads[i].Store(h + 1)
			}
		}
		if wait := time.Duration(next - now); wait > 100*time.Microsecond {
			m.ctl.sleeping.Store(1)
			if m.ctl.doorbell.Load() == bell {
				t.Reset(wait - 60*time.Microsecond)
				select {
				case <-g.c:
				case <-t.C:
				}
			}
			m.ctl.sleeping.Store(0)
		} else {
			runtime.Gosched()
		}
	}
}

func (g *goEngine) perform(i int, e *entry) {
	m := g.m
	if m.ctl.fault.Load() != 0 {
		return
	}
	switch e.op {
	case opStore:
		m.stamps[i*ringEntries+int(e.b%ringEntries)].Store(clock())
		wordAt(e.a).Store(e.b)
	case opEvent:
		wordAt(e.a).Store(e.b)
	case opCopy:
		copy(bytesAt(e.a, e.n), bytesAt(e.b, e.n))
	case opFill:
		b := bytesAt(e.a, e.n)
		for i := range b {
			b[i] = byte(e.b)
		}
	case opSignal:
		wordAt(e.a).Store(e.b)
		g.bell()
	case opPost:
		post(int(e.a))
	case opFault:
		m.ctl.fault.Store(1)
		g.bell()
	}
}

// bytesAt views memory that a stream's owner handed over with a copy or fill,
// pinned until it is done, or that the device allocated.
func bytesAt(addr, n uint64) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

func pageRound(n int) int {
	p := os.Getpagesize()
	return (n + p - 1) / p * p
}
