package asm

import (
	"math"
	"testing"
)

// Where the TSC is no clock, the number of looks bounds a slice.
func TestSpinSliceEndsWithoutClock(t *testing.T) {
	m := &machine{hz: 1e9}
	var w, seen uint64
	for range 100 {
		m.slice(Spin, &w, &seen, 1, math.MaxUint64, false)
	}
}
