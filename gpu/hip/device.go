package hip

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Device is one device and its primary context. Its methods may be called from many
// goroutines, on any OS thread.
type Device struct {
	api  *api
	info driver.Info
	caps driver.Caps
	// ordinal is the hipDevice_t.
	ordinal uintptr

	mu   sync.Mutex
	refs atomic.Int32 // references on the primary context held here; written with mu held

	gate  clib.Gate // of the open Device; the domain may outlive it
	probe uintptr   // a stream that is never given work, for Status
}

var _ driver.Device = (*Device)(nil)

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Caps returns what the runtime claims.
func (d *Device) Caps() driver.Caps { return d.caps }

func (d *Device) closed() error { return event.New(event.Closed, "hip device") }

// Retain takes one more reference on the primary context
// (hipDevicePrimaryCtxRetain).
func (d *Device) Retain() error { return d.retain(false) }

func (d *Device) retain(first bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs.Load() == 0 && !first {
		return d.closed()
	}
	f := clib.Get()
	defer f.Put()
	if st := d.api.call(f, d.api.primaryRetain, f.At(0), d.ordinal); st != 0 {
		return d.api.fault("hipDevicePrimaryCtxRetain", st)
	}
	d.refs.Add(1)
	return nil
}

// Release drops a reference (hipDevicePrimaryCtxRelease). A context that is gone
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
	return d.api.teardown("hipDevicePrimaryCtxRelease", d.api.call(f, d.api.primaryRelease, d.ordinal))
}

// alive is nil while the domain has a reference.
func (d *Device) alive() error {
	if d.refs.Load() == 0 {
		return d.closed()
	}
	return nil
}

// AllocHost allocates page-locked host memory that every device can use, mapped
// into the device's address space and fine-grained (hipHostMalloc with
// hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent). Whole
// pages, for nobody else's data may lie in a page that the device writes; HIP
// documents a granularity of 4 KB.
func (d *Device) AllocHost(n int) (uintptr, error) {
	if n < 1 {
		return 0, event.New(event.InvalidArgument, "hip host memory", "want at least one byte")
	}
	if err := d.alive(); err != nil {
		return 0, err
	}
	f := clib.Get()
	defer f.Put()
	page := uintptr(os.Getpagesize())
	size := (uintptr(n) + page - 1) &^ (page - 1)
	st := d.do(f, d.api.hostMalloc, f.At(0), size, hostMallocPortable|hostMallocMapped|hostMallocCoherent)
	if st != 0 {
		return 0, d.api.fault("hipHostMalloc", st)
	}
	return uintptr(f.Out[0]), nil
}

// FreeHost frees what AllocHost returned (hipHostFree).
func (d *Device) FreeHost(host uintptr) error {
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("hipHostFree", d.do(f, d.api.hostFree, host))
}

// DeviceAddr asks for the device's address of page-locked memory
// (hipHostGetDevicePointer), which need not equal the host's.
func (d *Device) DeviceAddr(host uintptr) (uint64, error) {
	if err := d.alive(); err != nil {
		return 0, err
	}
	f := clib.Get()
	defer f.Put()
	if st := d.do(f, d.api.hostDevPtr, f.At(0), host, 0); st != 0 {
		return 0, d.api.fault("hipHostGetDevicePointer", st)
	}
	return f.Out[0], nil
}

// Settle waits for everything that is queued on the device
// (hipDeviceSynchronize). A context that no longer exists is settled.
func (d *Device) Settle() error {
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("hipDeviceSynchronize", d.do(f, d.api.deviceSync))
}

// openProbe makes the stream that Status queries.
func (d *Device) openProbe() error {
	f := clib.Get()
	defer f.Put()
	st := d.do(f, d.api.streamCreate, f.At(0), streamNonBlocking)
	d.probe = uintptr(f.Out[0])
	return d.api.fault("hipStreamCreateWithFlags", st)
}

// Status returns the device's sticky fault. It queries a stream of its own that
// never has work, which is where HIP is expected to report a fault of the
// device; many faults end the process instead (the ROCm runtime aborts on a
// memory fault), and then there is nothing to report. The user's streams are
// left alone, so that a capture on one of them is not disturbed.
func (d *Device) Status() error {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return d.closed()
	}
	f := clib.Get()
	defer f.Put()
	was, st := d.bind(f)
	if st != 0 {
		return d.api.fault("hipSetDevice", st)
	}
	mode := d.relax(f)
	st = d.api.call(f, d.api.streamQuery, d.probe)
	d.unrelax(f, mode)
	d.unbind(f, was)
	if st == statusNotReady {
		return nil
	}
	return d.api.fault("hipStreamQuery", st)
}

// Alloc allocates device memory (hipMalloc).
func (d *Device) Alloc(n int) (driver.Mem, error) {
	ok := d.gate.Enter()
	defer d.leave()
	switch {
	case !ok:
		return 0, d.closed()
	case !d.caps.Memory:
		return 0, missing("device memory")
	case n < 1:
		return 0, event.New(event.InvalidArgument, "hip device memory", "want at least one byte")
	}
	f := clib.Get()
	defer f.Put()
	st := d.do(f, d.api.malloc, f.At(0), uintptr(n))
	return driver.Mem(f.Out[0]), d.api.fault("hipMalloc", st)
}

// Free frees device memory (hipFree). The runtime waits for work that uses the
// device.
func (d *Device) Free(m driver.Mem) error {
	if m == 0 {
		return nil
	}
	if d.api.free == 0 {
		return missing("device memory")
	}
	f := clib.Get()
	defer f.Put()
	return d.api.teardown("hipFree", d.do(f, d.api.free, uintptr(m)))
}

// Call calls any entry point of the runtime library by its exported name, with
// the device current: the way to what this package does not wrap
// (hipModuleLoadData, hipModuleLaunchKernel, hipStreamBeginCapture, …). Arguments are passed as they
// are, so memory that the runtime reads or writes must be pinned or outside the
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
// still inside the runtime, the reference is dropped as that call returns.
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
	err := d.api.teardown("hipStreamDestroy", d.do(f, d.api.streamDestroy, d.probe))
	if e := d.Release(); err == nil {
		err = e
	}
	return err
}
