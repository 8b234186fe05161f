//go:build !linux

package soft

import (
	"sync"

	"github.com/gpuline/gpuline/event"
)

// bell wakes the front.
type bell struct {
	c    chan struct{}
	quit chan struct{}
	once *sync.Once
}

func (b bell) wait() bool {
	select {
	case <-b.c:
		return true
	case <-b.quit:
		return false
	}
}

func (b bell) ring() {
	select {
	case b.c <- struct{}{}:
	default:
	}
}

func (b bell) close() { b.once.Do(func() { close(b.quit) }) }

// startEngine starts the store engine, a goroutine here.
func (d *Device) startEngine() error {
	if d.cfg.Process {
		return event.New(event.NotSupported, "a soft device in a process of its own", "only on linux/amd64")
	}
	d.bell = bell{make(chan struct{}, 1), make(chan struct{}), new(sync.Once)}
	d.eng = startGoEngine(d.mem, d.bell.ring)
	return nil
}
