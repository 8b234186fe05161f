package asm_test

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/internal/asm"
)

// A wait with the best that the processor has. The goroutine stands for a device.
func ExampleProbe() {
	p, why := asm.Probe()
	if !p.Hardware() {
		_ = why // for a log: which instruction is missing, and how that was found
	}
	var word atomic.Uint64
	go word.Store(7)
	fmt.Println(p.Wait(&word, 5, time.Minute))
	// Output: true
}

// Numbers wrap: a word that went on from the greatest number is past it.
func ExampleSpinUntil() {
	var word atomic.Uint64
	word.Store(1)
	fmt.Println(asm.SpinUntil(&word, math.MaxUint64, 0))
	fmt.Println(asm.SpinUntil(&word, 2, time.Microsecond))
	// Output:
	// true
	// false
}

// All words of a line are waited for at once.
func ExamplePark_WaitLine() {
	p, _ := asm.Probe()
	line := new([8]atomic.Uint64)
	var seen [8]uint64
	for i := range line {
		seen[i] = line[i].Load()
	}
	go line[3].Store(1)
	fmt.Println(p.WaitLine(line, &seen, time.Minute), line[3].Load())
	// Output: true 1
}
