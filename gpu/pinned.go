package gpu

import (
	"slices"
	"sort"
	"strconv"
	"sync"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// PinnedRegistry records which ranges of host memory are page-locked. An async
// host-to-device copy from pageable memory has read its source by the time it
// returns; from page-locked memory the device reads it later, and nothing in the
// call says which (CUDA Driver API, "API synchronization behavior"). The
// registry is what tells the two apart.
//
// The zero value is ready to use. All methods may be called from many goroutines.
type PinnedRegistry struct {
	mu     sync.RWMutex
	ranges []pinnedRange // by base; they do not overlap when callers play fair
}

type pinnedRange struct{ base, size uintptr }

// Pinned is the process-wide registry. Memory that this library page-locks is
// in it by itself; add what other code locks.
var Pinned PinnedRegistry

// Register records the n bytes at base as page-locked. A null base or n <= 0 is
// ignored; registering the same base again updates the length.
func (r *PinnedRegistry) Register(base uintptr, n int) {
	if base == 0 || n <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.search(base)
	if i < len(r.ranges) && r.ranges[i].base == base {
		r.ranges[i].size = uintptr(n)
		return
	}
	r.ranges = append(r.ranges, pinnedRange{})
	copy(r.ranges[i+1:], r.ranges[i:])
	r.ranges[i] = pinnedRange{base, uintptr(n)}
}

// Unregister forgets the range at base, so that memory that gets the same
// address later is not taken for page-locked. It reports whether there was one.
func (r *PinnedRegistry) Unregister(base uintptr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.search(base)
	if i == len(r.ranges) || r.ranges[i].base != base {
		return false
	}
	r.ranges = append(r.ranges[:i], r.ranges[i+1:]...)
	return true
}

// Contains reports whether b lies inside one registered range as a whole. An
// empty slice does not; a slice that sticks out on either side does not.
func (r *PinnedRegistry) Contains(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	p := uintptr(unsafe.Pointer(&b[0]))
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := r.search(p)
	if i == len(r.ranges) || r.ranges[i].base != p {
		i--
	}
	// Ranges of careless callers may overlap: any one that holds b will do, and
	// it starts at or before p.
	for ; i >= 0; i-- {
		if off := p - r.ranges[i].base; off < r.ranges[i].size && uintptr(len(b)) <= r.ranges[i].size-off {
			return true
		}
	}
	return false
}

// Live returns the number of registered ranges.
func (r *PinnedRegistry) Live() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.ranges)
}

// search returns the index of the first range with base >= p.
func (r *PinnedRegistry) search(p uintptr) int {
	return sort.Search(len(r.ranges), func(i int) bool { return r.ranges[i].base >= p })
}

// PinnedBuffer is page-locked host memory of one device's domain.
type PinnedBuffer struct {
	d    *Device
	host uintptr
	b    []byte
	once sync.Once
	err  error
	busy inflight
}

// AllocPinned allocates n bytes (n >= 1) of page-locked, device-mapped host memory, zeroed,
// and registers it with Pinned. Close frees it.
func (d *Device) AllocPinned(n int) (*PinnedBuffer, error) {
	if n < 1 || n > 1<<40 {
		return nil, event.New(event.InvalidArgument, "pinned buffer of "+strconv.Itoa(n)+" bytes", "want 1..2^40")
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	if err := d.dev.Retain(); err != nil {
		return nil, err
	}
	host, err := d.dev.AllocHost(n)
	if err != nil {
		_ = d.dev.Release()
		return nil, err
	}
	b := bytesAt(host, n)
	clear(b)
	p := &PinnedBuffer{d: d, host: host, b: b}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = d.dev.FreeHost(host)
		_ = d.dev.Release()
		return nil, event.New(event.Closed, d.name)
	}
	Pinned.Register(host, n)
	d.pinned = append(d.pinned, p)
	return p, nil
}

// Bytes returns the memory. It must not be used after Close.
func (p *PinnedBuffer) Bytes() []byte { return p.b }

// Close frees the memory. A copy that still reads or writes it keeps it alive:
// then the memory is freed when that copy's sequence number is reached, and
// leaked and counted when that can't be proved. Close never waits. It is
// idempotent.
func (p *PinnedBuffer) Close() error {
	p.once.Do(func() {
		Pinned.Unregister(p.host)
		p.d.mu.Lock()
		p.d.pinned = slices.DeleteFunc(p.d.pinned, func(q *PinnedBuffer) bool { return q == p })
		p.d.mu.Unlock()
		p.busy.whenIdle(func() {
			p.err = p.d.dev.FreeHost(p.host)
			if err := p.d.dev.Release(); p.err == nil {
				p.err = err
			}
		})
	})
	return p.err
}
