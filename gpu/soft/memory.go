package soft

import (
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// deviceOffset keeps device addresses apart from host addresses, so that one used
// for the other is found.
const deviceOffset = 1 << 48

// garbage is what fresh memory holds: no real driver zeroes it.
const garbage = 0xa5a5a5a5a5a5a5a5

// block is a live allocation: host memory or device memory.
type block struct {
	base, size uint64 // host address
	host       bool
	m          *line.Mapping
}

// find returns the live block of the given kind that the n bytes at host address
// addr lie in, or nil. It takes no lock.
func (d *Device) find(addr, n uint64, host bool) *block {
	blocks := *d.blocks.Load()
	i, ok := slices.BinarySearchFunc(blocks, addr, compareBase)
	if !ok {
		i--
	}
	if i < 0 {
		return nil
	}
	b := blocks[i]
	if b.host != host || addr-b.base > b.size || n > b.size-(addr-b.base) {
		return nil
	}
	return b
}

func compareBase(b *block, addr uint64) int {
	switch {
	case b.base < addr:
		return -1
	case b.base > addr:
		return 1
	}
	return 0
}

func (d *Device) alloc(n int, host bool) (uint64, error) {
	if d == nil {
		return 0, errNilDevice
	}
	what := "device memory of "
	if host {
		what = "host memory of "
	}
	if n < 1 || n > 1<<30 {
		return 0, event.New(event.InvalidArgument, what+strconv.Itoa(n)+" bytes", "want 1..2^30").WithStatus(statusInvalidValue)
	}
	m, err := line.Map((n+line.Size-1)/line.Size, false)
	if err != nil {
		return 0, event.New(event.Backend, what+strconv.Itoa(n)+" bytes", strconv.Itoa(statusOutOfMemory)).WithStatus(statusOutOfMemory).Wrap(err)
	}
	for i := range min(len(m.Lines), os.Getpagesize()/line.Size) {
		for j := range m.Lines[i] {
			m.Lines[i][j].Store(garbage)
		}
	}
	b := &block{base: uint64(m.Lines[0][0].Addr()), size: uint64(n), host: host, m: m}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		_ = m.Close()
		return 0, errDeviceClosed
	}
	blocks := *d.blocks.Load()
	i, _ := slices.BinarySearchFunc(blocks, b.base, compareBase)
	blocks = slices.Insert(slices.Clone(blocks), i, b)
	d.blocks.Store(&blocks)
	return b.base, nil
}

// release frees an allocation. One that queued work still names makes the device
// fail, as a page fault would, and stays mapped until the device is gone, so that
// the fault is an error and not the end of the process.
func (d *Device) release(base uint64, host bool) error {
	if d == nil {
		return errNilDevice
	}
	d.mu.Lock()
	if d.dead {
		d.mu.Unlock()
		return errDeviceClosed
	}
	blocks := *d.blocks.Load()
	i, ok := slices.BinarySearchFunc(blocks, base, compareBase)
	if !ok || blocks[i].host != host {
		d.mu.Unlock()
		return event.New(event.InvalidArgument, "free of 0x"+strconv.FormatUint(base, 16), "nothing of the kind is allocated there").WithStatus(statusInvalidValue)
	}
	b := blocks[i]
	blocks = slices.Delete(slices.Clone(blocks), i, i+1)
	d.blocks.Store(&blocks) // from here on no queue accepts it
	d.busy.Add(1)
	queues := d.list()
	d.mu.Unlock()
	defer d.busy.Done()

	for _, q := range queues {
		if q.names(b) {
			d.mu.Lock()
			d.freedInUse++
			d.kept = append(d.kept, b.m)
			d.mu.Unlock()
			d.fail(event.New(event.WorkFailed, d.name(), "memory was freed under queued work that uses it").WithStatus(StatusIllegalAddress))
			return nil
		}
	}
	return b.m.Close()
}

// names reports whether queued work uses the block. Work that is done but not yet
// ticked off does not count: who waited for it may free.
func (q *queue) names(b *block) bool {
	for settled := false; ; settled = true {
		q.mu.Lock()
		used := q.uses(b)
		q.mu.Unlock()
		if !used || settled {
			return used
		}
		q.d.fence()
	}
}

// uses is names for one moment; q.mu is held.
func (q *queue) uses(b *block) bool {
	if q.gone {
		return false
	}
	m := q.d.mem
	for _, ring := range []int{q.ring, q.late} {
		if ring < 0 {
			continue
		}
		s := &m.slots[ring]
		for i := s.head.Load(); i != s.tail.Load(); i++ {
			if m.entries(ring)[i%ringEntries].uses(b) {
				return true
			}
		}
	}
	for i := range q.todo {
		if q.todo[i].e.uses(b) {
			return true
		}
	}
	return slices.ContainsFunc(q.held, func(e entry) bool { return e.uses(b) })
}

func (e *entry) uses(b *block) bool {
	in := func(addr, n uint64) bool { return addr < b.base+b.size && addr+n > b.base }
	n := e.op >> 8
	switch e.op & 0xff {
	case opStore:
		return in(e.a, 8)
	case opCopy:
		return in(e.a, n) || in(e.b, n)
	case opFill:
		return in(e.a, n)
	}
	return false
}

// AllocHost implements driver.Device. The memory holds garbage.
func (d *Device) AllocHost(n int) (uintptr, error) {
	base, err := d.alloc(n, true)
	return uintptr(base), err
}

// FreeHost implements driver.Device. Memory that queued stores, copies or fills
// still use must not be freed: the device fails then with status 700, the memory
// is kept until the device is gone, and Counters.FreedInUse counts it.
func (d *Device) FreeHost(host uintptr) error { return d.release(uint64(host), true) }

// DeviceAddr implements driver.Device. Device addresses differ from host
// addresses.
func (d *Device) DeviceAddr(host uintptr) (uint64, error) {
	if d == nil {
		return 0, errNilDevice
	}
	if d.find(uint64(host), 1, true) == nil {
		return 0, event.New(event.InvalidArgument, "device address of 0x"+strconv.FormatUint(uint64(host), 16), "no host memory of this device").WithStatus(statusInvalidValue)
	}
	return uint64(host) + deviceOffset, nil
}

// Alloc implements driver.Device. The memory is host memory, full of garbage; see
// Bytes.
func (d *Device) Alloc(n int) (driver.Mem, error) {
	base, err := d.alloc(n, false)
	if err != nil {
		return 0, err
	}
	return driver.Mem(base + deviceOffset), nil
}

// Free implements driver.Device. As with FreeHost, memory that queued copies or
// fills still use makes the device fail. What functions use is not known.
func (d *Device) Free(m driver.Mem) error { return d.release(uint64(m)-deviceOffset, false) }

// Bytes views n bytes of device memory at m, for functions that run on the
// device; nil when they do not lie within one allocation. They must not be used
// after Free.
func (d *Device) Bytes(m driver.Mem, n int) []byte {
	if d == nil {
		return nil
	}
	addr := uint64(m) - deviceOffset
	if n < 0 || d.find(addr, uint64(n), false) == nil {
		return nil
	}
	return bytesAt(addr, uint64(n))
}

// settleNap is how long Settle sleeps between looks at what it can't be woken by.
const settleNap = 50 * time.Microsecond
