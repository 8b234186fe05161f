//go:build race

package line

import (
	"runtime"
	"unsafe"
)

// The race detector ignores atomics on memory that Go did not allocate, which is
// where words lie, and would report what a store to a word publishes as a race.
// These shadows, in Go's memory, carry the ordering instead. Words that share one
// are ordered more than they are, which can only hide a race.
var shadows [4096]byte

func shadow(w *Word) unsafe.Pointer {
	return unsafe.Pointer(&shadows[uintptr(unsafe.Pointer(w))/8%uintptr(len(shadows))])
}

func raceAcquire(w *Word) { runtime.RaceAcquire(shadow(w)) }

func raceRelease(w *Word) { runtime.RaceReleaseMerge(shadow(w)) }
