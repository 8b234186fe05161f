package soft

import (
	"sync/atomic"
	"unsafe"

	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/line"
)

// The memory that the store engine works on, shared between Go and the engine's
// assembly, which knows these offsets and sizes. All of it lies in mappings, not
// in the Go heap.

const (
	ringEntries = 1024 // of one stream; a power of two
	entryBytes  = 64
	ringBytes   = ringEntries * entryBytes
	stampBytes  = ringEntries * 8
	maxStreams  = 4096
)

// control is the engine's control block.
type control struct {
	quit    atomic.Uint32 // 0
	fault   atomic.Uint32 // 4: set when failing work ran; nothing lands any more
	rings   atomic.Uint64 // 8: number of rings in use
	heads   uintptr       // 16: [maxStreams]uint64, written by the engine
	tails   uintptr       // 24: [maxStreams]uint64, written by Go
	entries uintptr       // 32: ring i at i*ringBytes
	stamps  uintptr       // 40: [maxStreams][ringEntries]int64, times of stores
	parent  uint64        // 48: process to live with, 0 for a thread
	bell    int64         // 56: eventfd that tells Go about functions to run

	doorbell atomic.Uint32 // 64: counts what was queued; the engine's futex
	_        [60]byte
	sleeping atomic.Uint32 // 128: the engine is about to wait on the doorbell
	_        [60]byte
	now      [2]int64 // 192: scratch timespec
	timeout  [2]int64 // 208: scratch timespec
	one      uint64   // 224: what is written to the eventfd
	tid      atomic.Uint32
	_        [4]byte
	mult     uint64   // 240: nanoseconds per tick, times 2^32
	limit    uint64   // 248: ticks for which that is good, 0 where ticks are not constant
	base     [2]int64 // 256: tick and nanosecond of the last system call
	_        [48]byte // to 320
}

// The operations of an entry.
const (
	opNop    = iota
	opStore  // word a = b, and the time of it into the stamps
	opCopy   // n bytes from b to a
	opFill   // n bytes b at a
	opEvent  // word a = b
	opSignal // word a = b, then ring the bell
	opFault  // the device fails here
	opWake   // word a = b, then wake who waits on it (futex); also after a fault
	opPost   // write 1 to the eventfd a
)

// entry is one operation of a ring, due at a time of CLOCK_MONOTONIC.
type entry struct {
	at   int64
	op   uint64
	a, b uint64
	n    uint64
	_    [24]byte
}

// memory is the engine's memory and Go's view of it.
type memory struct {
	ctl     *control
	heads   []atomic.Uint64
	tails   []atomic.Uint64
	entries []entry
	stamps  []atomic.Int64
	maps    []*line.Mapping
	// order carries the order of push and perform to the race detector, which
	// does not look at the mappings. The Go engine reads it.
	order atomic.Uint64
}

func newMemory() (*memory, error) {
	m := &memory{}
	grab := func(bytes int) (unsafe.Pointer, error) {
		p, err := line.Map((bytes+line.Size-1)/line.Size, true)
		if err != nil {
			return nil, err
		}
		m.maps = append(m.maps, p)
		return unsafe.Pointer(&p.Lines[0]), nil
	}
	var at [5]unsafe.Pointer
	for i, n := range []int{
		int(unsafe.Sizeof(control{})), maxStreams * 8, maxStreams * 8, maxStreams * ringBytes, maxStreams * stampBytes,
	} {
		p, err := grab(n)
		if err != nil {
			m.free()
			return nil, err
		}
		at[i] = p
	}
	m.ctl = (*control)(at[0])
	m.heads = unsafe.Slice((*atomic.Uint64)(at[1]), maxStreams)
	m.tails = unsafe.Slice((*atomic.Uint64)(at[2]), maxStreams)
	m.entries = unsafe.Slice((*entry)(at[3]), maxStreams*ringEntries)
	m.stamps = unsafe.Slice((*atomic.Int64)(at[4]), maxStreams*ringEntries)
	m.ctl.heads, m.ctl.tails = uintptr(at[1]), uintptr(at[2])
	m.ctl.entries, m.ctl.stamps = uintptr(at[3]), uintptr(at[4])
	m.ctl.one = 1
	if hz, constant := asm.TickRate(); constant && hz > 0 {
		m.ctl.mult = uint64(float64(1<<32) * 1e9 / float64(hz))
		m.ctl.limit = hz / 1000
	}
	return m, nil
}

func (m *memory) free() {
	for _, p := range m.maps {
		_ = p.Close()
	}
}

// room reports whether ring i takes another entry.
func (m *memory) room(i int) bool {
	return m.tails[i].Load()-m.heads[i].Load() < ringEntries
}

// push appends an entry to ring i, which has room. One goroutine at a time per
// ring. The entry is written before the tail that makes it visible.
func (m *memory) push(i int, e entry) {
	t := m.tails[i].Load()
	m.entries[i*ringEntries+int(t%ringEntries)] = e
	m.order.Add(1)
	m.tails[i].Store(t + 1)
}

func (m *memory) empty(i int) bool { return m.tails[i].Load() == m.heads[i].Load() }
