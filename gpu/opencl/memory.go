package opencl

import (
	"math"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// span is one allocation. raw is what clSVMAlloc returned, base what the user got.
type span struct {
	base, size, raw uintptr
	host            bool
}

// spans are a device's allocations, sorted by base. They are what stands between
// a wrong address or length and a driver that writes out of bounds (PoCL 3.1) or
// crashes (PoCL 6.0).
type spans struct {
	mu  sync.RWMutex
	all []span
}

func (s *spans) search(addr uintptr) (int, bool) {
	return slices.BinarySearchFunc(s.all, addr, func(e span, a uintptr) int {
		switch {
		case e.base < a:
			return -1
		case e.base > a:
			return 1
		}
		return 0
	})
}

func (s *spans) add(e span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := s.search(e.base)
	s.all = slices.Insert(s.all, i, e)
}

// remove takes out the allocation that starts at base.
func (s *spans) remove(base uintptr, host bool) (span, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.search(base)
	if !ok || s.all[i].host != host {
		return span{}, false
	}
	e := s.all[i]
	s.all = slices.Delete(s.all, i, i+1)
	return e, true
}

// contains reports whether the n bytes at addr lie inside one allocation.
func (s *spans) contains(addr, n uintptr) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, ok := s.search(addr)
	if !ok {
		i--
	}
	if i < 0 {
		return false
	}
	off := addr - s.all[i].base
	return off < s.all[i].size && n <= s.all[i].size-off
}

func noMemory(what string) error {
	return event.New(event.NotSupported, what, "the device has no shared virtual memory (OpenCL 2.0)")
}

func (d *Device) svmAlloc(what string, n uintptr, flags uintptr) (uintptr, error) {
	// Alignment 0 is that of the widest type. More can't be asked for: the
	// standard allows no more than that, and PoCL 3.1 refuses it.
	p := create(d.a.svmAlloc, d.ctx, flags, n, 0)
	if p == 0 {
		return 0, event.New(event.Backend, what+" of "+strconv.FormatUint(uint64(n), 10)+" bytes", "clSVMAlloc returned NULL").WithStatus(-4)
	}
	return p, nil
}

func (d *Device) svmFlags() uintptr {
	flags := uintptr(clMemReadWrite)
	if d.svm&clSVMFineBuffer != 0 {
		flags |= clMemSVMFineGrainBuffer
		if d.svm&clSVMAtomics != 0 {
			flags |= clMemSVMAtomics
		}
	}
	return flags
}

// maxAlloc keeps the rounding below from overflowing.
const maxAlloc = math.MaxInt - 1<<20

func checkSize(what string, n int) error {
	if n < 1 || n > maxAlloc {
		return event.New(event.InvalidArgument, what+" of "+strconv.Itoa(n)+" bytes", "want 1.."+strconv.Itoa(maxAlloc))
	}
	return nil
}

// AllocHost allocates n bytes, rounded up to whole pages that nothing else
// shares, of fine-grained SVM, which host and device see under the same address.
// The content is undefined: PoCL hands out what was freed before.
// event.NotSupported where the device has no fine-grained SVM.
func (d *Device) AllocHost(n int) (uintptr, error) {
	if !d.enter() {
		return 0, d.closedErr()
	}
	defer func() { _ = d.leave() }()
	if err := checkSize("host page", n); err != nil {
		return 0, err
	}
	if !d.caps.StreamStore {
		return 0, event.New(event.NotSupported, "device-visible host memory", d.caps.NoStore)
	}
	page := uintptr(os.Getpagesize())
	size := (uintptr(n) + page - 1) / page * page
	raw, err := d.svmAlloc("host page", size+page, d.svmFlags())
	if err != nil {
		return 0, err
	}
	base := (raw + page - 1) / page * page
	d.mem.add(span{base: base, size: size, raw: raw, host: true})
	return base, nil
}

// FreeHost frees what AllocHost returned. It does not wait for queued work.
func (d *Device) FreeHost(host uintptr) error { return d.free("host page", host, true) }

// DeviceAddr returns the device's address for host memory, which with SVM is the
// same. event.InvalidArgument for memory that this device did not allocate.
func (d *Device) DeviceAddr(host uintptr) (uint64, error) {
	if !d.enter() {
		return 0, d.closedErr()
	}
	defer func() { _ = d.leave() }()
	if !d.mem.contains(host, 1) {
		return 0, notOurs("host address", host)
	}
	return uint64(host), nil
}

// Alloc allocates n bytes of SVM: fine-grained where the device has it.
// event.NotSupported where it has none at all.
func (d *Device) Alloc(n int) (driver.Mem, error) {
	if !d.enterOpen() {
		return 0, d.closedErr()
	}
	defer func() { _ = d.leave() }()
	if err := checkSize("device memory", n); err != nil {
		return 0, err
	}
	if !d.caps.Memory {
		return 0, noMemory("device memory")
	}
	raw, err := d.svmAlloc("device memory", uintptr(n), d.svmFlags())
	if err != nil {
		return 0, err
	}
	d.mem.add(span{base: raw, size: uintptr(n), raw: raw})
	return driver.Mem(raw), nil
}

// Free frees what Alloc returned. It does not wait for queued work.
func (d *Device) Free(m driver.Mem) error { return d.free("device memory", uintptr(m), false) }

func (d *Device) free(what string, base uintptr, host bool) error {
	if !d.enter() {
		return d.closedErr()
	}
	defer func() { _ = d.leave() }()
	e, ok := d.mem.remove(base, host)
	if !ok {
		return notOurs(what, base)
	}
	call(d.a.svmFree, d.ctx, e.raw) // returns void
	return nil
}

func notOurs(what string, addr uintptr) error {
	return event.New(event.InvalidArgument, what+" 0x"+strconv.FormatUint(uint64(addr), 16), "not allocated by this device, or freed")
}
