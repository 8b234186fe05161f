package gpu

import (
	"cmp"
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
	if r == nil || base == 0 || n <= 0 {
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
	if r == nil {
		return false
	}
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
	if r == nil || len(b) == 0 {
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
	if r == nil {
		return 0
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.ranges)
}

// search returns the index of the first range with base >= p.
func (r *PinnedRegistry) search(p uintptr) int {
	return sort.Search(len(r.ranges), func(i int) bool { return r.ranges[i].base >= p })
}

// PinnedBuffer is page-locked host memory of one device's domain. Copies of other
// devices may use it, too.
type PinnedBuffer struct {
	d    *Device
	host uintptr
	b    []byte
	once sync.Once
	busy inflight
}

// bufferTable holds the PinnedBuffers that are not closed, of all devices, by address:
// a copy on one device may use the memory of another.
type bufferTable struct {
	mu  sync.RWMutex
	all []*PinnedBuffer
}

var buffers bufferTable

func (t *bufferTable) search(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(t.all, at, func(p *PinnedBuffer, at uintptr) int { return cmp.Compare(p.host, at) })
}

func (t *bufferTable) add(p *PinnedBuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := t.search(p.host)
	t.all = slices.Insert(t.all, i, p)
}

func (t *bufferTable) remove(p *PinnedBuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.search(p.host); ok {
		t.all = slices.Delete(t.all, i, i+1)
	}
}

// use returns the buffer that b lies in, marked as in use once more, or nil.
func (t *bufferTable) use(b []byte) *PinnedBuffer {
	at := uintptr(unsafe.Pointer(&b[0]))
	t.mu.RLock()
	defer t.mu.RUnlock()
	i, ok := t.search(at)
	if !ok {
		i--
	}
	if i < 0 || at-t.all[i].host >= uintptr(len(t.all[i].b)) {
		return nil
	}
	t.all[i].busy.add() // under mu: the buffer can't be freed in between
	return t.all[i]
}

// AllocPinned allocates n bytes (1 <= n <= 2^40) of page-locked, device-mapped host
// memory, zeroed, and registers it with Pinned. Close frees it.
func (d *Device) AllocPinned(n int) (*PinnedBuffer, error) {
	if n < 1 || int64(n) > 1<<40 {
		return nil, event.New(event.InvalidArgument, "pinned buffer of "+strconv.Itoa(n)+" bytes", "want 1..2^40")
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.calls.leave()
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
	closed := d.closed
	if !closed {
		Pinned.Register(host, n)
		buffers.add(p)
		d.pinned = append(d.pinned, p)
	}
	d.mu.Unlock()
	if closed {
		_ = p.free()
		return nil, event.New(event.Closed, d.name)
	}
	return p, nil
}

// Bytes returns the memory. It must not be used after Close.
func (p *PinnedBuffer) Bytes() []byte {
	if p == nil {
		return nil
	}
	return p.b
}

// Close frees the memory. A copy that still reads or writes it, on whatever device, or
// a Stream.Retain of the buffer or of a part of it, keeps it alive: then Close does not wait, the memory is freed when that copy's
// sequence number is reached, and leaked and counted when that can't be proved.
// Otherwise Close waits for the driver's call that frees it, for at most the
// device's close bound, after which the error is event.Leaked. It is idempotent.
func (p *PinnedBuffer) Close() error {
	if p == nil {
		return nil
	}
	var err error
	p.once.Do(func() {
		d := p.d
		d.mu.Lock()
		d.pinned = slices.DeleteFunc(d.pinned, func(q *PinnedBuffer) bool { return q == p })
		freed := p.close() // under mu: Device.Close waits for what is a chore by then
		d.mu.Unlock()
		if freed != nil {
			err = within(d.opt.closeBound, freed, "pinned buffer of "+d.name, one)
		}
	})
	return err
}

// close forgets the buffer and has it freed once nothing uses it. The channel gets
// the driver's answer; it is nil when something does.
func (p *PinnedBuffer) close() <-chan error {
	Pinned.Unregister(p.host)
	buffers.remove(p)
	freed := make(chan error, 1)
	if !p.busy.whenIdle(func() { p.d.chores.add(func() { freed <- p.free() }) }) {
		return nil
	}
	return freed
}

// leak gives the buffer up, with its reference on the domain: the device may still
// use it.
func (p *PinnedBuffer) leak(why error) error {
	Pinned.Unregister(p.host)
	buffers.remove(p)
	leaks.Add(1)
	return event.New(event.Leaked, "pinned buffer of "+p.d.name, "the device did not settle: "+why.Error()).WithStatus(event.StatusOf(why)).Wrap(why)
}

// free makes the driver's calls. What can't be freed keeps its reference on the domain.
func (p *PinnedBuffer) free() error {
	if err := p.d.dev.FreeHost(p.host); err != nil {
		leaks.Add(1)
		return event.New(event.Leaked, "pinned buffer of "+p.d.name, "the driver did not free it").WithStatus(event.StatusOf(err)).Wrap(err)
	}
	return p.d.dev.Release()
}
