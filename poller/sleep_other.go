//go:build !linux

package poller

import (
	"sync"
	"sync/atomic"
	"time"
)

// sleeper lets its owner sleep until a stated time and anybody wake it. Off
// Linux it sleeps on a Go timer, which is as precise as the system's own.
type sleeper struct {
	once sync.Once
	c    chan struct{}
}

func (s *sleeper) ready() { s.once.Do(func() { s.c = make(chan struct{}, 1) }) }

func (s *sleeper) sleep(until int64, state *atomic.Int64) {
	s.ready()
	t := time.NewTimer(time.Duration(until - nanotime()))
	defer t.Stop()
	for state.Load() == until {
		select {
		case <-t.C:
			return
		case <-s.c: // perhaps the token of an earlier sleep: look again
		}
	}
}

func (s *sleeper) wake() {
	s.ready()
	select {
	case s.c <- struct{}{}:
	default:
	}
}
