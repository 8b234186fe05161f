//go:build !amd64 && !arm64

package asm

import (
	"sync/atomic"
	"time"
	"unsafe"
)

var native []Kind

func (f *features) probe() {}

// Ticks returns nanoseconds since a fixed point in time.
func Ticks() uint64 { return uint64(measured().now()) }

// Pause does nothing on this architecture.
func Pause() {}

func (m *machine) tickRate() (uint64, bool) { return uint64(time.Second), true }

// slice is the loop in Go. A fixed number of looks is far shorter than any slice
// that can be asked for; the caller has a clock.
func (m *machine) slice(_ Kind, addr, seen *uint64, n int, _ uint64, _ bool) {
	// addr and seen point to n words each.
	words, values := unsafe.Slice(addr, n), unsafe.Slice(seen, n)
	for range 64 {
		for i := range words {
			if atomic.LoadUint64(&words[i]) != values[i] {
				return
			}
		}
	}
}
