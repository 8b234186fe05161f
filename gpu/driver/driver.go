// Package driver is the contract between gpuline and one vendor's GPU API.
//
// Users of the library need it only to add a driver of their own or to reach a
// driver's own calls. A Driver opens its vendor library at run time, on first
// use; importing one costs nothing and needs no C toolchain.
//
// Every error a driver returns is a coded *event.Error (or wraps one): a missing
// library or symbol is event.DriverMissing with status event.StatusMissing, "no
// device" is event.NoDevice, a call that the device or driver version does not
// offer is event.NotSupported, a stream of another context is
// event.ForeignStream with status event.StatusForeign, and everything else is
// event.Backend with the driver's own status and name for it.
package driver

import "unsafe"

// Info describes one device.
type Info struct {
	// Driver is the driver's name, Ordinal the device's index in it.
	Driver  string
	Ordinal int
	// Name is the device's own name.
	Name string
	// Version is the driver's version, as the driver states it.
	Version string
}

// Caps is what a device claims. Claims may be false: the self-test at open is
// what decides.
type Caps struct {
	// StreamStore: a stream can store a 64-bit number into host memory behind
	// its work. Why not is in NoStore.
	StreamStore bool
	NoStore     string
	// WordProves: the driver guarantees that a store queued behind failed work
	// never lands, so that a reached word alone is success. Where it is false, a
	// success is confirmed with one status query per stream and wake batch.
	WordProves bool
	// WhyProves is the reason for WordProves' value, with its source.
	WhyProves string
	// Events: Stream.Record works, so that the device can be waited on by status
	// when it can't store words.
	Events bool
	// Capture: streams of this driver can be in capture mode.
	Capture bool
	// Memory: Alloc, Free, and the stream's copies and fills work.
	Memory bool
}

// Driver is one vendor API. Its methods may be called from many goroutines.
type Driver interface {
	// Name is the driver's short name: "cuda", "hip", "opencl", "metal", "soft".
	Name() string
	// Devices lists the devices. No library is event.DriverMissing, a library
	// without a device is event.NoDevice.
	Devices() ([]Info, error)
	// Open opens the device with the given ordinal.
	Open(ordinal int) (Device, error)
}

// Device is one device's domain: the context that its streams, memory and
// host pages belong to. Its methods may be called from many goroutines, on any
// OS thread: an implementation whose API keeps a current context per thread
// binds what it needs for the call and restores what it found.
type Device interface {
	Info() Info
	Caps() Caps

	// Retain takes one more reference on the domain and Release drops it. The
	// domain exists as long as there is a reference; an open Device holds one.
	Retain() error
	Release() error
	// AllocHost allocates n bytes of page-locked, device-mapped, coherent host
	// memory, page-aligned. The content is undefined. FreeHost frees it.
	AllocHost(n int) (host uintptr, err error)
	FreeHost(host uintptr) error
	// DeviceAddr returns the address under which the device reaches host memory
	// that AllocHost returned.
	DeviceAddr(host uintptr) (dev uint64, err error)
	// Settle returns once no work that was queued on the domain before the call
	// can write memory any more. It may block for as long as that work takes.
	// An error means that this could not be established.
	Settle() error
	// Status asks the device for a sticky fault without waiting for its work. A
	// broken driver may block in it: only a watchdog with its own deadline may
	// call it.
	Status() error

	// NewStream makes an in-order stream.
	NewStream() (Stream, error)
	// AdoptStream wraps a stream that other code made. Closing the Stream leaves
	// the handle alone. A stream of another domain is event.ForeignStream.
	AdoptStream(handle uintptr) (Stream, error)

	// Alloc allocates n bytes of device memory; Free frees it. Neither waits for
	// queued work, so the caller keeps memory until the work on it is done.
	Alloc(n int) (Mem, error)
	Free(Mem) error

	// Close drops the open Device's own reference. Streams and memory must have
	// been closed before.
	Close() error
}

// Mem is an address in device memory.
type Mem uint64

// Stream is an in-order queue of device work. The enqueueing calls (Store,
// Record, Copy*, Fill) of one Stream are serialised by the caller; Query,
// Capturing, Sync and Handle may be called beside them, from any goroutine.
type Stream interface {
	// Device returns the device that made or adopted the stream.
	Device() Device
	// Handle is the vendor's handle (CUstream, hipStream_t, cl_command_queue,
	// MTLCommandQueue), 0 where there is none.
	Handle() uintptr
	// Store queues "word at host (device address dev) = value" behind all work
	// queued so far. It must not wait for the device. A store may have been
	// queued even when an error is returned. event.NotSupported means that this
	// device can't do it (CUDA's status 801), which is no fault.
	Store(host uintptr, dev uint64, value uint64) error
	// Record queues an event behind all work queued so far.
	Record() (Event, error)
	// Query reports whether all work queued so far is done, or the work's error.
	// It does not wait for the device.
	Query() (done bool, err error)
	// Sync is the vendor's blocking wait for all work queued so far.
	Sync() error
	// Capturing reports whether the stream is in capture mode. false where the
	// driver has no such mode.
	Capturing() (bool, error)

	// CopyToDevice, CopyToHost and Fill queue memory work. Host memory must stay
	// where it is until the work is done: the caller pins and retains it.
	CopyToDevice(dst Mem, src unsafe.Pointer, n int) error
	CopyToHost(dst unsafe.Pointer, src Mem, n int) error
	Fill(dst Mem, value byte, n int) error

	// Close destroys a stream that NewStream made; queued work is finished by
	// the device or dropped by the driver.
	Close() error
}

// Event is a point in a stream that can be asked for by status.
type Event interface {
	// Query reports whether the work before the event is done, or its error. It
	// does not wait for the device.
	Query() (done bool, err error)
	// Release frees the event. The Event must not be used after.
	Release()
}
