package soft

import (
	"sync/atomic"
	"unsafe"

	"github.com/gpuline/gpuline/line"
)

// What the store engine and Go share. The engine's assembly takes the offsets and
// sizes below from go_asm.h, which the compiler writes. All of it lies in mappings
// of its own, not in the Go heap.

const (
	maxStreams   = 4096 // rings; a queue has one, and a second for late stores
	ringEntries  = 512  // of one ring; a power of two
	stampsOffset = ringEntries * 32
	ringBytes    = stampsOffset + ringEntries*16
	// copyChunk is how much of a copy the engine does before it looks at the other
	// rings again: about 5 us.
	copyChunk = 64 << 10
)

// control is the engine's control block.
type control struct {
	// Written by Go.
	quit    atomic.Uint32
	keep    atomic.Uint32 // not 0: stores land behind failed work, too
	groups  atomic.Uint64 // words of active that are in use
	slots   uintptr       // [maxStreams]slot
	due     uintptr       // [maxStreams]int64, the engine's own: when a ring's head is due
	active  uintptr       // [maxStreams/64]uint64: rings that hold entries
	called  uintptr       // [maxStreams/64]uint64: rings that came to an opCall
	vdso    uintptr       // clock_gettime without a system call, or 0
	parent  uint64        // process to live and die with, 0 for a thread
	bell    int64         // eventfd that tells Go about opCall and opFault
	near    int64         // no sleep when something is due within so many ns
	longest int64         // the longest sleep in ns
	one     uint64        // what is written to the bell
	name    [16]byte      // of the thread
	_       [16]byte

	// Written by both, seldom.
	fault atomic.Uint64 // number of the failure that stopped the device, or 0
	rung  atomic.Uint32 // the bell was rung and Go has not looked yet
	tid   atomic.Uint32 // cleared by the kernel when the engine is gone
	_     [48]byte

	// One line each for what the engine and those who queue meet on.
	doorbell atomic.Uint32 // counts rings that became active; the engine's futex
	_        [60]byte
	sleeping atomic.Uint32 // the engine is about to wait on the doorbell
	_        [60]byte

	// The engine's own.
	turns  atomic.Uint64 // looks at all rings
	bits   uint64        // rings of the group still to look at
	number uint64        // of the ring
	seen   uint64        // doorbell before the look
	ts     [2]int64      // timespec
	_      [16]byte
}

// slot is a ring's place in the engine's table.
type slot struct {
	head atomic.Uint64 // entries performed; written by the engine
	ring uintptr       // [ringEntries]entry, then [ringEntries]stamp
	done uint64        // bytes of the head entry that are done; the engine's own
	// Words that entries of the ring's queue count on.
	events atomic.Uint64
	syncs  atomic.Uint64
	_      [24]byte

	tail atomic.Uint64 // entries pushed; written by Go
	_    [56]byte
}

// The operations of an entry.
const (
	opNop   = iota
	opStore // word a = b, with a stamp
	opCopy  // n bytes from b to a
	opFill  // n bytes b at a
	opWord  // word a = b, never behind failed work
	opPost  // write 1 to the eventfd a
	opFault // the device fails with failure b
	opCall  // tell Go; also behind failed work
	opWake  // word a = b, then wake who waits on it (futex); also behind failed work
)

// entry is one operation, due at a time of CLOCK_MONOTONIC. It does not change
// between push and performance.
type entry struct {
	at   int64
	op   uint64 // and the number of bytes << 8
	a, b uint64
}

// stamp is when a value was stored.
type stamp struct {
	at    atomic.Int64
	value atomic.Uint64 // plus one; 0 while the stamp changes
}

// memory is Go's view of what it shares with the engine.
type memory struct {
	ctl    *control
	slots  []slot
	due    []atomic.Int64
	active []atomic.Uint64
	called []atomic.Uint64
	maps   []*line.Mapping
	// order carries the order of push and perform to the race detector, which does
	// not look at the mappings, where the engine is a goroutine.
	order atomic.Uint64
}

func newMemory() (*memory, error) {
	const (
		slotsAt  = (unsafe.Sizeof(control{}) + 63) &^ 63
		dueAt    = slotsAt + maxStreams*unsafe.Sizeof(slot{})
		activeAt = dueAt + maxStreams*8
		calledAt = activeAt + maxStreams/8
		size     = calledAt + maxStreams/8
	)
	p, err := line.Map(int(size/line.Size), false)
	if err != nil {
		return nil, err
	}
	base := unsafe.Pointer(&p.Lines[0])
	m := &memory{
		ctl:    (*control)(base),
		slots:  unsafe.Slice((*slot)(unsafe.Add(base, slotsAt)), maxStreams),
		due:    unsafe.Slice((*atomic.Int64)(unsafe.Add(base, dueAt)), maxStreams),
		active: unsafe.Slice((*atomic.Uint64)(unsafe.Add(base, activeAt)), maxStreams/64),
		called: unsafe.Slice((*atomic.Uint64)(unsafe.Add(base, calledAt)), maxStreams/64),
		maps:   []*line.Mapping{p},
	}
	c := m.ctl
	c.slots, c.due = uintptr(unsafe.Pointer(&m.slots[0])), uintptr(unsafe.Pointer(&m.due[0]))
	c.active, c.called = uintptr(unsafe.Pointer(&m.active[0])), uintptr(unsafe.Pointer(&m.called[0]))
	c.one = 1
	return m, nil
}

func (m *memory) free() {
	for _, p := range m.maps {
		_ = p.Close()
	}
}

// addRing maps ring i. Rings are added in order, one goroutine at a time.
func (m *memory) addRing(i int) error {
	p, err := line.Map(ringBytes/line.Size, false)
	if err != nil {
		return err
	}
	m.maps = append(m.maps, p)
	m.slots[i].ring = uintptr(unsafe.Pointer(&p.Lines[0]))
	m.ctl.groups.Store(uint64(i/64 + 1))
	return nil
}

func (m *memory) entries(i int) *[ringEntries]entry {
	return (*[ringEntries]entry)(at(uint64(m.slots[i].ring)))
}

func (m *memory) stamps(i int) *[ringEntries]stamp {
	return (*[ringEntries]stamp)(at(uint64(m.slots[i].ring) + stampsOffset))
}

// used returns how many entries ring i holds.
func (m *memory) used(i int) int {
	s := &m.slots[i]
	return int(s.tail.Load() - s.head.Load())
}

// push appends an entry to ring i, which has room. One goroutine at a time per
// ring. It reports whether the engine has to be told: it looks at active rings
// anyway, and one that becomes active is news.
//
// The entry is written before the tail that makes it visible, and the tail before
// the look at the active bit. The engine clears that bit before it looks at the
// tail for the last time. So either it sees the entry, or the bit is seen clear
// here and set again. The store of the tail is an Add because that also keeps its
// place before the look in a race build, where Go's atomic stores are only
// releases and its loads acquires (compiler-rt, tsan_interface_atomic.cpp,
// __tsan_go_atomic64_store).
func (m *memory) push(i int, e entry) (news bool) {
	s := &m.slots[i]
	t := s.tail.Load()
	m.entries(i)[t%ringEntries] = e
	m.order.Add(1)
	s.tail.Add(1)
	g, bit := &m.active[i/64], uint64(1)<<(i%64)
	if g.Load()&bit != 0 {
		return false
	}
	g.Or(bit)
	return true
}

// at turns an address outside the Go heap, or one that its owner has pinned, into
// a pointer.
//
// Soundness: the addresses are those of this package's own mappings, of host
// memory whose owner keeps it in place until the work on it is done (the contract
// of driver.Stream), and nothing else; Store, copies and fills check all but the
// host side of copies. The way over a pointer to the number is what line.FromAddr
// does, and for the same reason.
func at(addr uint64) unsafe.Pointer {
	p := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

func wordAt(addr uint64) *line.Word { return (*line.Word)(at(addr)) }

func bytesAt(addr, n uint64) []byte { return unsafe.Slice((*byte)(at(addr)), n) }
