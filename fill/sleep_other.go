//go:build !linux

package fill

import (
	"sync"
	"time"
)

// sleeper sleeps on a Go timer, which is as precise as the system's own, until
// wake releases it for good.
type sleeper struct {
	once  sync.Once
	woken chan struct{}
}

func (s *sleeper) enter() { s.once.Do(func() { s.woken = make(chan struct{}) }) }
func (s *sleeper) leave() {}

func (s *sleeper) sleep(d time.Duration) {
	s.enter()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.woken:
	}
}

func (s *sleeper) wake() {
	s.enter()
	close(s.woken)
}
