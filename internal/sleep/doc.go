// Package sleep lets a goroutine sleep to a stated time, to the microsecond as far as the
// machine can, in a way that any other goroutine may cut short.
//
// All of it works alike: the sleeping goroutine publishes until when it means to sleep in an
// atomic of its own, looks at what may have come, and calls Sleep with it. Whoever
// brings something changes that atomic from the time he saw in it, and then calls Wake.
// All of that is sequentially consistent: either the sleeper's look finds what has come, or
// whoever brings it finds the sleep. Sleep compares the atomic with the time once more,
// so that a Wake just before it is not lost; one that comes after its sleep was over at most
// ends a later sleep too soon, if the times are equal.
package sleep

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
)

// now is the clock of all times here.
func now() int64 { return int64(event.RealClock{}.Now()) }

// goTimer sleeps on a timer of the Go runtime. Those are as precise as the system's own,
// but on Linux, where they are of whole milliseconds.
type goTimer struct {
	once sync.Once
	c    chan struct{}
	t    *time.Timer
}

func (s *goTimer) ready() { s.once.Do(func() { s.c = make(chan struct{}, 1) }) }

func (s *goTimer) sleep(until int64, state *atomic.Int64) {
	s.ready()
	if d := time.Duration(until - now()); s.t == nil {
		s.t = time.NewTimer(d)
	} else {
		s.t.Reset(d)
	}
	defer s.t.Stop()
	for state.Load() == until {
		select {
		case <-s.t.C:
			return
		case <-s.c: // perhaps the token of an earlier sleep: look again
		}
	}
}

func (s *goTimer) wake() {
	s.ready()
	select {
	case s.c <- struct{}{}:
	default:
	}
}
