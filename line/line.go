// Package line holds the memory a device reports its progress in: words, the
// lines they lie in, and descriptors that name what to wait for.
//
// A word is 64 bits of host-visible memory into which a device stores growing
// sequence numbers behind its work. Eight words make a line: 64 bytes, 64-byte
// aligned, so that where the processor's monitor granule is the line, one park
// watches all eight words.
//
// Every host read of a word is an atomic load, and Go's atomic loads are
// acquires (The Go Memory Model, "Atomic values"): once a load has returned the
// stored number, everything that the device wrote before its store is visible
// to the loading goroutine. The host never writes a word that a device writes,
// except to zero it before first use.
//
// A device must be the only writer of its page: lines come from whole pages of
// their own (Map, or a driver's page-locked allocation), never from the Go heap.
package line

import (
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

const (
	// Words is the number of words in a line.
	Words = 8
	// Size is the size of a line in bytes, and its alignment.
	Size = 64
)

// Word is one 64-bit word that a device stores sequence numbers into. Load may
// be called from many goroutines.
type Word struct{ v atomic.Uint64 }

// Load returns the word's value with acquire ordering.
func (w *Word) Load() uint64 {
	v := w.v.Load()
	raceAcquire(w)
	return v
}

// Reached reports whether the word has reached target, with acquire ordering.
func (w *Word) Reached(target uint64) bool { return Reached(w.Load(), target) }

// Zero sets the word to 0. Only its owner may call it, before any store to it
// has been queued.
func (w *Word) Zero() { w.v.Store(0) }

// Store stores v with release ordering. It is for devices made of software: the
// host never stores into a word that hardware writes.
func (w *Word) Store(v uint64) {
	raceRelease(w)
	w.v.Store(v)
}

// Atomic returns the word as an atomic, for a processor's park. The pointer
// must not be used to write a word that a device writes. Whoever sees the target
// through it looks again with Load: the race detector sees no atomics outside
// Go's memory, and Load makes up for that.
func (w *Word) Atomic() *atomic.Uint64 { return &w.v }

// Publish tells the race detector, in race builds, that what the calling
// goroutine has written so far is published by a later store to the word that
// Go does not see, such as one made by a device. It does nothing else.
func (w *Word) Publish() { raceRelease(w) }

// Addr returns the word's address, for parks and drivers. The word must lie
// outside the Go heap, as words made by this package do.
func (w *Word) Addr() uintptr { return uintptr(unsafe.Pointer(w)) }

// Line is eight words. The zero value, all words 0, is a fresh line.
type Line [Words]Word

// Word returns the word at slot.
func (l *Line) Word(s Slot) *Word { return &l[s.i] }

// Slot is an index 0..7 of a word in its line, checked where it is made. The
// zero value is slot 0.
type Slot struct{ i uint8 }

// NewSlot returns slot i, or an InvalidArgument error when i is not in 0..7.
func NewSlot(i int) (Slot, error) {
	if i < 0 || i >= Words {
		return Slot{}, event.New(event.InvalidArgument, "line slot "+strconv.Itoa(i), "out of range, want 0..7")
	}
	return Slot{uint8(i)}, nil
}

// Index returns the slot's index, 0..7.
func (s Slot) Index() int { return int(s.i) }

// String returns the index in decimal.
func (s Slot) String() string { return strconv.Itoa(int(s.i)) }

// Reached reports whether a word that holds value has reached target, in
// wrapping order: the signed difference value - target is >= 0. A later number
// that landed first completes an earlier target too, and the counter may wrap.
// The order is meaningful for numbers less than 2^63 apart.
func Reached(value, target uint64) bool { return int64(value-target) >= 0 }

// Before reports whether a comes before b in the same wrapping order.
func Before(a, b uint64) bool { return int64(a-b) < 0 }

// Descriptor names what a wait is for: the word at Slot of Line reaching
// Target. The zero value names nothing; Valid reports that.
type Descriptor struct {
	Line   *Line
	Slot   Slot
	Target uint64
}

// Valid reports whether the descriptor names a line.
func (d Descriptor) Valid() bool { return d.Line != nil }

// Word returns the descriptor's word, nil for the zero descriptor.
func (d Descriptor) Word() *Word {
	if d.Line == nil {
		return nil
	}
	return d.Line.Word(d.Slot)
}

// Reached reports whether the word has reached the target, with acquire
// ordering. The zero descriptor is never reached.
func (d Descriptor) Reached() bool { return d.Line != nil && d.Word().Reached(d.Target) }
