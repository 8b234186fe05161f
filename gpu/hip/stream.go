package hip

import (
	"strconv"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Stream is a hipStream_t. Its methods may be called as driver.Stream says.
type Stream struct {
	dev    *Device
	handle uintptr
	owned  bool
	gate   clib.Gate
}

var _ driver.Stream = (*Stream)(nil)

// Of returns the HIP stream beneath x: x itself, or what x.Driver() returns.
// It is how a stream of package gpu is reached for its Handle and its Device's
// Call.
func Of(x any) (*Stream, bool) {
	if w, ok := x.(interface{ Driver() driver.Stream }); ok {
		x = w.Driver()
	}
	s, ok := x.(*Stream)
	return s, ok && s != nil
}

// NewStream makes a stream that does not synchronise with the null stream
// (hipStreamNonBlocking).
func (d *Device) NewStream() (driver.Stream, error) {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return nil, d.closed()
	}
	f := clib.Get()
	defer f.Put()
	if st := d.do(f, d.api.streamCreate, f.At(0), streamNonBlocking); st != 0 {
		return nil, d.api.fault("hipStreamCreateWithFlags", st)
	}
	return &Stream{dev: d, handle: uintptr(f.Out[0]), owned: true}, nil
}

// AdoptStream wraps a hipStream_t that other code made, and leaves its
// destruction to that code. A stream of another device is event.ForeignStream;
// a library without hipStreamGetDevice (HIP 5.2) can't be asked.
//
// 0 adopts the device's null stream. 1 (hipStreamLegacy) is refused because older
// libraries take it for an address, 0 means the same; 2 (hipStreamPerThread)
// because it names another stream on each OS thread, and goroutines move between
// threads.
func (d *Device) AdoptStream(handle uintptr) (driver.Stream, error) {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return nil, d.closed()
	}
	switch handle {
	case streamLegacy:
		return nil, event.New(event.InvalidArgument, "hip stream hipStreamLegacy", "adopt 0, the null stream, which is the same")
	case streamPerThread:
		return nil, event.New(event.InvalidArgument, "hip stream hipStreamPerThread",
			"it is another stream on each OS thread: adopt a stream made by hipStreamCreate, or the null stream")
	}
	if d.api.streamGetDevice != 0 {
		f := clib.Get()
		defer f.Put()
		if st := d.do(f, d.api.streamGetDevice, handle, f.At(0)); st != 0 {
			return nil, d.api.fault("hipStreamGetDevice", st)
		}
		if dev := uintptr(int32(f.Out[0])); dev != d.ordinal {
			return nil, event.New(event.ForeignStream, "hip", "it belongs to device "+strconv.Itoa(int(dev))+", not "+strconv.Itoa(int(d.ordinal))).WithStatus(event.StatusForeign)
		}
	}
	return &Stream{dev: d, handle: handle}, nil
}

func (s *Stream) closed() error { return event.New(event.Closed, "hip stream") }

// Device returns the device that made or adopted the stream.
func (s *Stream) Device() driver.Device { return s.dev }

// Handle returns the hipStream_t, 0 for the null stream.
func (s *Stream) Handle() uintptr { return s.handle }

// call makes one call on the stream's device, with the stream kept from being
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
// (hipStreamWriteValue64).
func (s *Stream) Store(_ uintptr, dev uint64, value uint64) error {
	if dev == 0 || dev%8 != 0 { // so that nothing was queued when this is the error
		return event.New(event.InvalidArgument, "hip word", "want a device address that is a multiple of 8")
	}
	return s.call("hipStreamWriteValue64", s.dev.api.writeValue, s.handle, uintptr(dev), uintptr(value), 0)
}

// Query reports whether the stream's work is done (hipStreamQuery).
//
// A capturing stream must not be queried, that would invalidate the capture:
// its query asks the device for a fault instead, and reports pending. Code that
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
	was, st := d.bind(f)
	if st != 0 {
		return false, d.api.fault("hipSetDevice", st)
	}
	mode := d.relax(f)
	handle := s.handle
	capturing, st := s.capturing(f)
	if st == 0 {
		if capturing {
			handle = d.probe
		}
		st = d.api.call(f, d.api.streamQuery, handle)
	}
	d.unrelax(f, mode)
	d.unbind(f, was)
	switch st {
	case 0:
		return !capturing, nil
	case statusNotReady:
		return false, nil
	}
	return false, d.api.fault("hipStreamQuery", st)
}

// capturing asks for the capture state, with the device bound.
func (s *Stream) capturing(f *clib.Frame) (bool, int32) {
	if s.dev.api.streamIsCapturing == 0 {
		return false, 0
	}
	st := s.dev.api.call(f, s.dev.api.streamIsCapturing, s.handle, f.At(0))
	if st == statusCaptureImplicit {
		// The null stream while a blocking stream captures: it can't be used
		// until that capture ends.
		return true, 0
	}
	return int32(f.Out[0]) != 0, st
}

// Capturing reports whether the stream is in capture mode
// (hipStreamIsCapturing). An invalidated capture still counts, until it is ended;
// so does, for the null stream, the capture of any blocking stream.
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
	was, st := d.bind(f)
	if st != 0 {
		return false, d.api.fault("hipSetDevice", st)
	}
	capturing, st := s.capturing(f)
	d.unbind(f, was)
	return capturing, d.api.fault("hipStreamIsCapturing", st)
}

// Sync waits for the stream's work (hipStreamSynchronize). Whether it spins or
// blocks is the device's scheduling flag, which this package leaves to the
// program.
func (s *Stream) Sync() error {
	return s.call("hipStreamSynchronize", s.dev.api.streamSync, s.handle)
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

// CopyToDevice queues a copy to device memory (hipMemcpyHtoDAsync). Whether
// pageable memory has been read when it returns differs between versions of the
// runtime, so the caller keeps it until the copy is done.
func (s *Stream) CopyToDevice(dst driver.Mem, src unsafe.Pointer, n int) error {
	if n == 0 {
		return nil
	}
	if err := checkRange("hip copy", dst == 0 || src == nil, n); err != nil {
		return err
	}
	return s.call("hipMemcpyHtoDAsync", s.dev.api.copyToDevice, uintptr(dst), uintptr(src), uintptr(n), s.handle)
}

// CopyToHost queues a copy from device memory (hipMemcpyDtoHAsync). Into pageable
// memory the runtime may copy before it returns, which waits for the stream;
// only page-locked memory makes it surely asynchronous.
func (s *Stream) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	if n == 0 {
		return nil
	}
	if err := checkRange("hip copy", src == 0 || dst == nil, n); err != nil {
		return err
	}
	return s.call("hipMemcpyDtoHAsync", s.dev.api.copyToHost, uintptr(dst), uintptr(src), uintptr(n), s.handle)
}

// Fill queues a fill of n bytes (hipMemsetD8Async).
func (s *Stream) Fill(dst driver.Mem, value byte, n int) error {
	if n == 0 {
		return nil
	}
	if err := checkRange("hip fill", dst == 0, n); err != nil {
		return err
	}
	return s.call("hipMemsetD8Async", s.dev.api.fill8, uintptr(dst), uintptr(value), uintptr(n), s.handle)
}

// Close destroys a stream that NewStream made (hipStreamDestroy: queued work is
// finished by the device). It does not wait: when a call is still inside the
// runtime, the stream is destroyed as that call returns.
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
	return s.dev.api.teardown("hipStreamDestroy", s.dev.do(f, s.dev.api.streamDestroy, s.handle))
}

// Record queues an event without timing behind the stream's work
// (hipEventCreateWithFlags, hipEventRecord).
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
	was, st := d.bind(f)
	if st != 0 {
		return nil, d.api.fault("hipSetDevice", st)
	}
	defer d.unbind(f, was)
	if st := d.api.call(f, d.api.eventCreate, f.At(0), eventDisableTiming); st != 0 {
		return nil, d.api.fault("hipEventCreateWithFlags", st)
	}
	handle := uintptr(f.Out[0])
	if st := d.api.call(f, d.api.eventRecord, handle, s.handle); st != 0 {
		d.api.call(f, d.api.eventDestroy, handle)
		return nil, d.api.fault("hipEventRecord", st)
	}
	return &recorded{dev: d, handle: handle}, nil
}

// recorded is a hipEvent_t.
type recorded struct {
	dev    *Device
	handle uintptr
	gate   clib.Gate
}

// Query reports whether the work before the event is done (hipEventQuery).
func (e *recorded) Query() (bool, error) {
	ok := e.gate.Enter()
	defer e.leave()
	if !ok {
		return false, event.New(event.Closed, "hip event")
	}
	d := e.dev
	f := clib.Get()
	defer f.Put()
	was, st := d.bind(f)
	if st != 0 {
		return false, d.api.fault("hipSetDevice", st)
	}
	mode := d.relax(f)
	st = d.api.call(f, d.api.eventQuery, e.handle)
	d.unrelax(f, mode)
	d.unbind(f, was)
	if st == statusNotReady {
		return false, nil
	}
	return st == 0, d.api.fault("hipEventQuery", st)
}

// Release destroys the event (hipEventDestroy), which does not disturb the work.
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
