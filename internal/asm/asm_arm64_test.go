package asm

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// The instructions run here whatever the kernel says about them: wfe is in every
// arm64, and as long as somebody stores to the line something ends it.
func TestWFE(t *testing.T) {
	line := block()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for v := uint64(1); ; v++ {
			select {
			case <-stop:
				return
			default:
				line[0].Store(v)
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	for n := range 8 {
		for range 10 {
			seen := load(line)
			for line[0].Load() == seen[0] {
				wfe((*uint64)(unsafe.Pointer(line)), &seen[0], n+1)
			}
		}
	}
	close(stop)
	<-done
}

// A word that changed is seen before the wait, so that wfet returns although the
// processor may not have the instruction, and wfe although nothing happens.
func TestLooksOnceArmed(t *testing.T) {
	var line [8]atomic.Uint64
	for i := range line {
		var seen [8]uint64
		seen[i] = 1
		wfet((*uint64)(unsafe.Pointer(&line)), &seen[0], i+1, 1<<40)
		wfe((*uint64)(unsafe.Pointer(&line)), &seen[0], i+1)
	}
}
