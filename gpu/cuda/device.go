package cuda

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Device is one device's primary context. Its methods may be called from many
// goroutines, on any OS thread.
type Device struct {
	api  *api
	info driver.Info
	caps driver.Caps
	dev  uintptr // CUdevice
	ctx  uintptr // CUcontext of the primary context

	mu   sync.Mutex
	refs atomic.Int32 // references on the primary context held here; written with mu held

	bases map[uintptr]uintptr // by page address: the allocation, where the two differ

	gate  clib.Gate // of the open Device; the domain may outlive it
	probe uintptr   // a stream that is never given work, for Status
}

var _ driver.Device = (*Device)(nil)

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Caps returns what the driver claims.
func (d *Device) Caps() driver.Caps { return d.caps }

// Context returns the CUcontext of the device's primary context, for other
// bindings in the process. It is valid until the Device is closed.
func (d *Device) Context() uintptr { return d.ctx }

func (d *Device) closed() error { return event.New(event.Closed, "cuda device") }

// Retain takes one more reference on the primary context
// (cuDevicePrimaryCtxRetain).
func (d *Device) Retain() error { return d.retain(false) }

func (d *Device) retain(first bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs.Load() == 0 && !first {
		return d.closed()
	}
	f := clib.Get()
	defer f.Put()
	if st := status(f.Call(d.api.primaryRetain, f.At(0), d.dev)); st != 0 {
		return d.api.fault("cuDevicePrimaryCtxRetain", st)
	}
	d.refs.Add(1)
	if first {
		d.ctx = uintptr(f.Out[0])
	}
	return nil
}

// Release drops a reference (cuDevicePrimaryCtxRelease). A context that is gone
// already counts as released.
func (d *Device) Release() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs.Load() == 0 {
		return d.closed()
	}
	d.refs.Add(-1)
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("cuDevicePrimaryCtxRelease", status(f.Call(d.api.primaryRelease, d.dev)))
}

// alive is nil while the domain has a reference.
func (d *Device) alive() error {
	if d.refs.Load() == 0 {
		return d.closed()
	}
	return nil
}

// AllocHost allocates page-locked host memory that every context can use and
// that is mapped into the device's address space (cuMemHostAlloc with
// CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP; not write-combined, since
// the host reads it). The memory is whole pages: the reference promises no
// alignment, and nobody else's data may lie in a page that the device writes.
func (d *Device) AllocHost(n int) (uintptr, error) {
	if n < 1 {
		return 0, event.New(event.InvalidArgument, "cuda host memory", "want at least one byte")
	}
	if err := d.alive(); err != nil {
		return 0, err
	}
	f := clib.Get()
	defer f.Put()
	page := uintptr(os.Getpagesize())
	alloc := func(size uintptr) (uintptr, error) {
		st := d.do(f, d.api.memHostAlloc, f.At(0), size, hostAllocPortable|hostAllocDeviceMap)
		return uintptr(f.Out[0]), d.api.fault("cuMemHostAlloc", st)
	}
	size := (uintptr(n) + page - 1) &^ (page - 1)
	host, err := alloc(size)
	if err != nil || host%page == 0 {
		return host, err
	}
	if err := d.api.teardown("cuMemFreeHost", d.do(f, d.api.memFreeHost, host)); err != nil {
		return 0, err
	}
	base, err := alloc(size + page)
	if err != nil {
		return 0, err
	}
	host = (base + page - 1) &^ (page - 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bases == nil {
		d.bases = map[uintptr]uintptr{}
	}
	d.bases[host] = base
	return host, nil
}

// base returns the allocation that begins at or before the page at host.
func (d *Device) base(host uintptr, forget bool) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	base, ok := d.bases[host]
	if !ok {
		return host
	}
	if forget {
		delete(d.bases, host)
	}
	return base
}

// FreeHost frees what AllocHost returned (cuMemFreeHost).
func (d *Device) FreeHost(host uintptr) error {
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("cuMemFreeHost", d.do(f, d.api.memFreeHost, d.base(host, true)))
}

// DeviceAddr asks for the device's address of page-locked memory
// (cuMemHostGetDevicePointer): the two differ where there is no unified
// addressing.
func (d *Device) DeviceAddr(host uintptr) (uint64, error) {
	if err := d.alive(); err != nil {
		return 0, err
	}
	base := d.base(host, false)
	f := clib.Get()
	defer f.Put()
	if st := d.do(f, d.api.memHostDevPtr, f.At(0), base, 0); st != 0 {
		return 0, d.api.fault("cuMemHostGetDevicePointer", st)
	}
	return f.Out[0] + uint64(host-base), nil
}

// Settle waits for everything that is queued on the context
// (cuCtxSynchronize). A context that no longer exists is settled.
func (d *Device) Settle() error {
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("cuCtxSynchronize", d.do(f, d.api.ctxSync))
}

// openProbe makes the stream that Status queries.
func (d *Device) openProbe() error {
	f := clib.Get()
	defer f.Put()
	st := d.do(f, d.api.streamCreate, f.At(0), streamNonBlocking)
	d.probe = uintptr(f.Out[0])
	return d.api.fault("cuStreamCreate", st)
}

// Status returns the context's sticky fault. It queries a stream of its own that
// never has work: the reference lets every call "also return error codes from
// previous, asynchronous launches", and a fault such as an illegal address stays
// with the context. The user's streams are left alone, so that a capture on one
// of them, on whatever thread, is not disturbed.
func (d *Device) Status() error {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return d.closed()
	}
	f := clib.Get()
	defer f.Put()
	st := d.bind(f)
	if st != 0 {
		return d.api.fault("cuCtxPushCurrent", st)
	}
	was := d.relax(f)
	st = status(f.Call(d.api.streamQuery, d.probe))
	d.unrelax(f, was)
	d.unbind(f)
	if st == statusNotReady {
		return nil
	}
	return d.api.fault("cuStreamQuery", st)
}

// Alloc allocates device memory (cuMemAlloc).
func (d *Device) Alloc(n int) (driver.Mem, error) {
	ok := d.gate.Enter()
	defer d.leave()
	switch {
	case !ok:
		return 0, d.closed()
	case !d.caps.Memory:
		return 0, missing("device memory")
	case n < 1:
		return 0, event.New(event.InvalidArgument, "cuda device memory", "want at least one byte")
	}
	f := clib.Get()
	defer f.Put()
	st := d.do(f, d.api.memAlloc, f.At(0), uintptr(n))
	return driver.Mem(f.Out[0]), d.api.fault("cuMemAlloc", st)
}

// Free frees device memory (cuMemFree). The driver may wait for work that uses
// the device, and does not keep the memory for work that is queued.
func (d *Device) Free(m driver.Mem) error {
	if m == 0 {
		return nil
	}
	if d.api.memFree == 0 {
		return missing("device memory")
	}
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("cuMemFree", d.do(f, d.api.memFree, uintptr(m)))
}

// Call calls any entry point of the driver library by its exported name, with
// the device's context current: the way to what this package does not wrap
// (cuLaunchHostFunc, cuStreamBeginCapture_v2, …). Arguments are passed as they
// are, so memory that the driver reads or writes must be pinned or outside the
// Go heap. A name that the library lacks is event.NotSupported.
func (d *Device) Call(name string, args ...uintptr) error {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return d.closed()
	}
	fn := d.api.lib.Sym(name)
	if fn == 0 {
		return missing(name)
	}
	if len(args) > 16 {
		return event.New(event.InvalidArgument, name, "more than 16 arguments")
	}
	f := clib.Get()
	defer f.Put()
	return d.api.fault(name, d.do(f, fn, args...))
}

// Close drops the open Device's own reference. It does not wait: when a call is
// still inside the driver, the reference is dropped as that call returns.
// Closing again does nothing.
func (d *Device) Close() error {
	first, destroy := d.gate.Close()
	if !first || !destroy {
		return nil
	}
	return d.destroy()
}

func (d *Device) leave() {
	if d.gate.Leave() {
		_ = d.destroy() // nobody is left to tell
	}
}

func (d *Device) destroy() error {
	f := clib.Get()
	defer f.Put()
	err := d.api.teardown("cuStreamDestroy", d.do(f, d.api.streamDestroy, d.probe))
	if e := d.Release(); err == nil {
		err = e
	}
	return err
}
