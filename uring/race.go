//go:build race

package uring

import (
	"runtime"
	"unsafe"
)

// The race detector does not see an order that passes through the kernel: what
// was written before a message was posted is read after its completion was
// taken. One shadow carries that order for all rings, which can only hide a race.
var passage byte

func raceRelease() { runtime.RaceReleaseMerge(unsafe.Pointer(&passage)) }

func raceAcquire() { runtime.RaceAcquire(unsafe.Pointer(&passage)) }
