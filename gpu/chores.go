package gpu

import (
	"sync"
	"time"

	"github.com/gpuline/gpuline/event"
)

// chores makes the driver's calls that free something, one after the other, on
// a goroutine of their own, which ends when there is nothing left to do. Such a call
// may wait for the device, for ever on a broken one: it must hold up neither
// the waiter nor the health tick, and its caller for no longer than the close bound.
// The zero value is ready to use.
type chores struct {
	mu   sync.Mutex
	todo []func()
	idle chan struct{} // closed when the goroutine ends, nil while there is none
}

// add queues f. It does not block, so it may be called with other locks held.
func (c *chores) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.todo = append(c.todo, f)
	if c.idle == nil {
		c.idle = make(chan struct{})
		go c.run()
	}
}

func (c *chores) run() {
	for {
		c.mu.Lock()
		todo := c.todo
		c.todo = nil
		if len(todo) == 0 {
			close(c.idle)
			c.idle = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for _, f := range todo {
			f()
		}
	}
}

// wait waits until there is nothing left to do.
func (c *chores) wait() {
	for {
		c.mu.Lock()
		idle := c.idle
		c.mu.Unlock()
		if idle == nil {
			return
		}
		<-idle
	}
}

// within returns what comes from c, or event.Leaked after the bound. Then held
// says how much is held up, and so much is counted by Leaks until c is heard of.
func within(bound time.Duration, c <-chan error, what string, held func() uint64) error {
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case err := <-c:
		return err
	case <-t.C:
	}
	select {
	case err := <-c: // at the same time
		return err
	default:
	}
	leakUntil(c, held())
	return event.New(event.Leaked, what, "a driver call has not returned within "+bound.String()+", and until it does nothing more is freed")
}

// leakUntil counts n as leaked until something comes from c.
func leakUntil(c <-chan error, n uint64) {
	leaks.Add(n)
	go func() {
		<-c
		leaks.Add(-n)
	}()
}

func one() uint64 { return 1 }
