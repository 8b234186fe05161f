//go:build !linux

package fill

import (
	"sync"
	"time"
)

// threadSleeper sleeps on a Go timer, which is as precise as the system's own, until
// wake releases it for good.
type threadSleeper struct {
	once  sync.Once
	woken chan struct{}
}

func (s *threadSleeper) init() { s.once.Do(func() { s.woken = make(chan struct{}) }) }

func (s *threadSleeper) enter() error { return nil }
func (s *threadSleeper) leave()       {}

func (s *threadSleeper) sleep(d time.Duration) {
	s.init()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.woken:
	}
}

func (s *threadSleeper) wake() {
	s.init()
	close(s.woken)
}
