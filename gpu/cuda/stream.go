package cuda

import (
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Stream is a CUstream. Its methods may be called as driver.Stream says.
type Stream struct {
	dev    *Device
	handle uintptr
	owned  bool
	gate   clib.Gate
}

var _ driver.Stream = (*Stream)(nil)

// Of returns the CUDA stream beneath x: x itself, or what x.Driver() returns.
// It is how a stream of package gpu is reached to launch kernels on it.
func Of(x any) (*Stream, bool) {
	if w, ok := x.(interface{ Driver() driver.Stream }); ok {
		x = w.Driver()
	}
	s, ok := x.(*Stream)
	return s, ok && s != nil
}

// NewStream makes a stream that does not synchronise with the legacy default
// stream (CU_STREAM_NON_BLOCKING).
func (d *Device) NewStream() (driver.Stream, error) {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return nil, d.closed()
	}
	f := clib.Get()
	defer f.Put()
	if st := d.do(f, d.api.streamCreate, f.At(0), streamNonBlocking); st != 0 {
		return nil, d.api.fault("cuStreamCreate", st)
	}
	return &Stream{dev: d, handle: uintptr(f.Out[0]), owned: true}, nil
}

// AdoptStream wraps a CUstream (or cudaStream_t, which is the same) that other
// code made, and leaves its destruction to that code. A stream of a context
// other than the device's primary one is event.ForeignStream; where the driver
// is too old to be asked (before CUDA 9.2), the first store finds out.
//
// 0 and 1 (CU_STREAM_LEGACY) adopt the context's legacy default stream, whose
// Handle is then 1. 2 (CU_STREAM_PER_THREAD) is refused: it names another stream
// on each OS thread, and goroutines move between threads.
func (d *Device) AdoptStream(handle uintptr) (driver.Stream, error) {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return nil, d.closed()
	}
	switch handle {
	case 0:
		handle = streamLegacy
	case streamPerThread:
		return nil, event.New(event.InvalidArgument, "cuda stream CU_STREAM_PER_THREAD",
			"it is another stream on each OS thread: adopt a stream made by cuStreamCreate, or the legacy one")
	}
	if d.api.streamGetCtx != 0 {
		f := clib.Get()
		defer f.Put()
		if st := d.do(f, d.api.streamGetCtx, handle, f.At(0)); st != 0 {
			return nil, d.api.fault("cuStreamGetCtx", st)
		}
		if uintptr(f.Out[0]) != d.ctx {
			return nil, event.New(event.ForeignStream, "cuda", "it belongs to another context than the device's primary one").WithStatus(event.StatusForeign)
		}
	}
	return &Stream{dev: d, handle: handle}, nil
}

func (s *Stream) closed() error { return event.New(event.Closed, "cuda stream") }

// Device returns the device that made or adopted the stream.
func (s *Stream) Device() driver.Device { return s.dev }

// Handle returns the CUstream.
func (s *Stream) Handle() uintptr { return s.handle }

// call makes one call on the stream's context, with the stream kept from being
// destroyed under it.
func (s *Stream) call(name string, fn uintptr, args ...uintptr) error {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return s.closed()
	}
	if fn == 0 {
		return missing(name)
	}
	f := clib.Get()
	st := s.dev.do(f, fn, args...)
	f.Put()
	return s.dev.api.fault(name, st)
}

// Store queues a 64-bit write of value to the device address dev
// (cuStreamWriteValue64).
func (s *Stream) Store(_ uintptr, dev uint64, value uint64) error {
	if dev == 0 || dev%8 != 0 { // so that nothing was queued when this is the error
		return event.New(event.InvalidArgument, "cuda word", "want a device address that is a multiple of 8")
	}
	return s.call("cuStreamWriteValue64", s.dev.api.writeValue, s.handle, uintptr(dev), uintptr(value), writeValueDefault)
}

// Query reports whether the stream's work is done (cuStreamQuery).
//
// A capturing stream must not be queried, that would invalidate the capture:
// its query asks the context for a fault instead, and reports pending. Code that
// begins a capture on the stream at the very moment of a query can still lose
// it; only the caller can order the two.
func (s *Stream) Query() (bool, error) {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return false, s.closed()
	}
	d := s.dev
	f := clib.Get()
	defer f.Put()
	st := d.bind(f)
	if st != 0 {
		return false, d.api.fault("cuCtxPushCurrent", st)
	}
	was := d.relax(f)
	handle := s.handle
	capturing, st := s.capturing(f)
	if st == 0 {
		if capturing {
			handle = d.probe
		}
		st = status(f.Call(d.api.streamQuery, handle))
	}
	d.unrelax(f, was)
	d.unbind(f)
	switch st {
	case 0:
		return !capturing, nil
	case statusNotReady:
		return false, nil
	}
	return false, d.api.fault("cuStreamQuery", st)
}

// capturing asks for the capture state, with the context bound.
func (s *Stream) capturing(f *clib.Frame) (bool, int32) {
	if s.dev.api.streamIsCapturing == 0 {
		return false, 0
	}
	st := status(f.Call(s.dev.api.streamIsCapturing, s.handle, f.At(0)))
	if st == statusCaptureImplicit {
		// The legacy stream while a blocking stream captures: it can't be used
		// until that capture ends.
		return true, 0
	}
	return int32(f.Out[0]) != 0, st
}

// Capturing reports whether the stream is in capture mode
// (cuStreamIsCapturing). An invalidated capture still counts, until it is ended;
// so does, for the legacy stream, the capture of any blocking stream.
func (s *Stream) Capturing() (bool, error) {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return false, s.closed()
	}
	d := s.dev
	if d.api.streamIsCapturing == 0 {
		return false, nil
	}
	f := clib.Get()
	defer f.Put()
	st := d.bind(f)
	if st != 0 {
		return false, d.api.fault("cuCtxPushCurrent", st)
	}
	capturing, st := s.capturing(f)
	d.unbind(f)
	return capturing, d.api.fault("cuStreamIsCapturing", st)
}

// Sync waits for the stream's work (cuStreamSynchronize). Whether it spins or
// blocks is the primary context's scheduling flag, which this package leaves to
// the program.
func (s *Stream) Sync() error {
	return s.call("cuStreamSynchronize", s.dev.api.streamSync, s.handle)
}

func checkRange(what string, null bool, n int) error {
	switch {
	case n < 0:
		return event.New(event.InvalidArgument, what, "negative length")
	case null:
		return event.New(event.InvalidArgument, what, "null address")
	}
	return nil
}

// CopyToDevice queues a copy to device memory (cuMemcpyHtoDAsync). Pageable
// memory has been read when it returns, page-locked memory is read later.
func (s *Stream) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	if n == 0 {
		return nil
	}
	if err := checkRange("cuda copy", dst == 0 || src == nil, n); err != nil {
		return err
	}
	return s.call("cuMemcpyHtoDAsync", s.dev.api.copyToDevice, uintptr(dst), uintptr(src), uintptr(n), s.handle)
}

// CopyToHost queues a copy from device memory (cuMemcpyDtoHAsync). Into pageable
// memory the driver copies before it returns, which waits for the stream; only
// page-locked memory makes it asynchronous.
func (s *Stream) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	if n == 0 {
		return nil
	}
	if err := checkRange("cuda copy", src == 0 || dst == nil, n); err != nil {
		return err
	}
	return s.call("cuMemcpyDtoHAsync", s.dev.api.copyToHost, uintptr(dst), uintptr(src), uintptr(n), s.handle)
}

// Fill queues a fill of n bytes (cuMemsetD8Async).
func (s *Stream) Fill(dst driver.Mem, value byte, n int) error {
	if n == 0 {
		return nil
	}
	if err := checkRange("cuda fill", dst == 0, n); err != nil {
		return err
	}
	return s.call("cuMemsetD8Async", s.dev.api.fill8, uintptr(dst), uintptr(value), uintptr(n), s.handle)
}

// Close destroys a stream that NewStream made (cuStreamDestroy: queued work is
// finished by the device). It does not wait: when a call is still inside the
// driver, the stream is destroyed as that call returns.
func (s *Stream) Close() error {
	if _, destroy := s.gate.Close(); !destroy {
		return nil
	}
	return s.destroy()
}

func (s *Stream) leave() {
	if s.gate.Leave() {
		_ = s.destroy() // nobody is left to tell
	}
}

func (s *Stream) destroy() error {
	if !s.owned {
		return nil
	}
	f := clib.Get()
	defer f.Put()
	return s.dev.api.teardown("cuStreamDestroy", s.dev.do(f, s.dev.api.streamDestroy, s.handle))
}

// Record queues an event without timing behind the stream's work
// (cuEventCreate, cuEventRecord).
func (s *Stream) Record() (driver.Event, error) {
	ok := s.gate.Enter()
	defer s.leave()
	if !ok {
		return nil, s.closed()
	}
	d := s.dev
	if !d.caps.Events {
		return nil, missing("event")
	}
	f := clib.Get()
	defer f.Put()
	if st := d.bind(f); st != 0 {
		return nil, d.api.fault("cuCtxPushCurrent", st)
	}
	defer d.unbind(f)
	if st := status(f.Call(d.api.eventCreate, f.At(0), eventDisableTiming)); st != 0 {
		return nil, d.api.fault("cuEventCreate", st)
	}
	handle := uintptr(f.Out[0])
	if st := status(f.Call(d.api.eventRecord, handle, s.handle)); st != 0 {
		f.Call(d.api.eventDestroy, handle)
		return nil, d.api.fault("cuEventRecord", st)
	}
	return &recorded{dev: d, handle: handle}, nil
}

// recorded is a CUevent.
type recorded struct {
	dev    *Device
	handle uintptr
	gate   clib.Gate
}

// Query reports whether the work before the event is done (cuEventQuery).
func (e *recorded) Query() (bool, error) {
	ok := e.gate.Enter()
	defer e.leave()
	if !ok {
		return false, event.New(event.Closed, "cuda event")
	}
	d := e.dev
	f := clib.Get()
	defer f.Put()
	st := d.bind(f)
	if st != 0 {
		return false, d.api.fault("cuCtxPushCurrent", st)
	}
	was := d.relax(f)
	st = status(f.Call(d.api.eventQuery, e.handle))
	d.unrelax(f, was)
	d.unbind(f)
	if st == statusNotReady {
		return false, nil
	}
	return st == 0, d.api.fault("cuEventQuery", st)
}

// Release destroys the event (cuEventDestroy), which does not disturb the work.
func (e *recorded) Release() {
	if _, destroy := e.gate.Close(); destroy {
		e.destroy()
	}
}

func (e *recorded) leave() {
	if e.gate.Leave() {
		e.destroy()
	}
}

func (e *recorded) destroy() {
	f := clib.Get()
	defer f.Put()
	e.dev.do(f, e.dev.api.eventDestroy, e.handle)
}
