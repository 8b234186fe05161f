package uring

import (
	"sync"
	"time"

	"github.com/gpuline/gpuline/event"
)

// Clock is event.RealClock with its sleep spent in a timeout on an io_uring of its
// own: to the nanosecond, and without the timer slack (50 us by default) that the
// kernel adds to nanosleep. So a predicted sleep ends when it was predicted to.
// Make one with NewClock.
//
// All methods may be called from many goroutines. One sleeper at a time has the
// ring; the others, and those after Close, sleep as with event.RealClock.
type Clock struct {
	event.RealClock
	mu   sync.Mutex
	ring *Ring
}

var _ event.Clock = (*Clock)(nil)

// NewClock makes a Clock with its ring. Where io_uring can't be used the error
// matches errors.ErrUnsupported and says why.
func NewClock() (*Clock, error) {
	r, err := NewRing(RingConfig{Entries: 2})
	if err != nil {
		return nil, err
	}
	return &Clock{ring: r}, nil
}

// SleepUntil implements event.Clock.
func (c *Clock) SleepUntil(t time.Duration) {
	if c.mu.TryLock() {
		c.sleepUntil(t)
		c.mu.Unlock()
	}
	c.RealClock.SleepUntil(t) // returns at once when it is t
}

func (c *Clock) sleepUntil(t time.Duration) {
	for {
		left := t - c.Now()
		if c.ring == nil || left <= 0 {
			return
		}
		if _, err := c.ring.Timeout(0, left); err != nil {
			return
		}
		for done := false; !done; _, done = c.ring.Next() {
			if _, err := c.ring.Wait(-1); err != nil {
				return
			}
		}
	}
}

// Close frees the ring, once nobody sleeps on it. It is idempotent.
func (c *Clock) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return nil
	}
	err := c.ring.Close()
	c.ring = nil
	return err
}
