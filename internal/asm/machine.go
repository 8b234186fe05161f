package asm

import (
	"math"
	"runtime"
	"sync"
	"time"
)

// features is what the processor says about itself.
type features struct {
	absent  [kinds]string // why a kind can't be used, "" where it can
	usual   string        // what to add to such reasons
	granule int
}

// probed asks the processor, once.
var probed = sync.OnceValue(func() *features {
	f := &features{}
	for k := UMWAIT; k < kinds; k++ {
		f.absent[k] = k.String() + " is not used on " + runtime.GOOS + "/" + runtime.GOARCH
	}
	f.probe()
	return f
})

// machine is what a wait needs to know about time.
type machine struct {
	origin   time.Time
	hz       uint64 // rate of Ticks
	constant bool
}

// measured finds the rate of Ticks, once.
var measured = sync.OnceValue(func() *machine {
	m := &machine{origin: time.Now()}
	m.hz, m.constant = m.tickRate()
	return m
})

func (m *machine) now() time.Duration { return time.Since(m.origin) }

// until returns the time at which bound is over, without
// overflow.
func (m *machine) until(bound time.Duration) time.Duration {
	now := m.now()
	return now + min(max(bound, 0), math.MaxInt64-now)
}

// ticks returns d, which is above 0 and at most MaxSlice, in units of Ticks,
// rounded up: to mwaitx, 0 means no bound at all.
func (m *machine) ticks(d time.Duration) uint64 {
	return uint64(d)*m.hz/uint64(time.Second) + 1
}
