//go:build !linux

package soft

import (
	"sync"
	"time"

	"github.com/gpuline/gpuline/event"
)

// monotonic is the clock of the process where there is no CLOCK_MONOTONIC to ask.
func monotonic() int64 { return int64(event.RealClock{}.Now()) }

func futexWake(uint64) {}

// futexWait sleeps for a moment: there is no futex to wait on.
func futexWait(_ uint64, _ uint32, d time.Duration) { time.Sleep(min(d, time.Millisecond)) }

func post(int) {}

const canPost = false

// bell is what the engine rings when Go has to look.
type bell struct {
	c    chan struct{}
	quit chan struct{}
	once sync.Once
	fd   int
}

func newBell() (*bell, error) {
	return &bell{c: make(chan struct{}, 1), quit: make(chan struct{})}, nil
}

// wait blocks until the bell was rung; false once it is closed.
func (b *bell) wait() bool {
	select {
	case <-b.c:
		return true
	case <-b.quit:
		return false
	}
}

func (b *bell) ring() {
	select {
	case b.c <- struct{}{}:
	default:
	}
}

func (b *bell) close() { b.once.Do(func() { close(b.quit) }) }
