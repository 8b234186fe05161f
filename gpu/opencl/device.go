package opencl

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Device is one OpenCL context on one device. It implements driver.Device; its
// methods may be called from many goroutines.
//
// The context lives as long as there is a reference: the open Device, each
// Retain, and each Stream hold one. Calls that need the context return
// event.Closed once the last is gone.
type Device struct {
	a    *api
	info driver.Info
	caps driver.Caps
	svm  uint64
	id   uintptr
	ctx  uintptr

	refs   atomic.Int64
	closed atomic.Bool

	mem spans

	mu      sync.Mutex
	live    map[*Stream]struct{}
	closing []*Stream // closed with work under way
}

var _ driver.Device = (*Device)(nil)

// newDevice takes over one reference on ctx.
func newDevice(a *api, f found, ctx uintptr) *Device {
	d := &Device{a: a, info: f.info, svm: f.svm, id: f.id, ctx: ctx, live: make(map[*Stream]struct{})}
	d.refs.Store(1)
	if !a.svm() {
		d.svm = 0
	}
	d.caps = driver.Caps{
		StreamStore: d.svm&clSVMFineBuffer != 0,
		WhyProves: "OpenCL leaves a context implementation-defined once one of its commands was terminated " +
			"(The OpenCL Specification 3.0, 5.11 Event Objects), and PoCL 3.1 and 6.0 run a store that is queued after the failure as if nothing had happened",
		Events: true,
		Memory: d.svm != 0,
	}
	if !d.caps.StreamStore {
		switch {
		case !a.svm():
			d.caps.NoStore = "the OpenCL library lacks the shared virtual memory calls of OpenCL 2.0 (clSVMAlloc)"
		case d.svm&clSVMCoarse != 0:
			d.caps.NoStore = "the device has coarse-grained shared virtual memory only: the host would not see a store before it maps the memory (CL_DEVICE_SVM_FINE_GRAIN_BUFFER is missing)"
		default:
			d.caps.NoStore = "the device has no shared virtual memory (CL_DEVICE_SVM_CAPABILITIES is 0)"
		}
	}
	return d
}

// DeviceOf returns the OpenCL device behind x: a *Device, a driver.Device that is
// one, or anything with a method Driver() driver.Device, as the gpu package's
// devices have.
func DeviceOf(x any) (*Device, bool) {
	if w, ok := x.(interface{ Driver() driver.Device }); ok {
		x = w.Driver()
	}
	d, ok := x.(*Device)
	return d, ok && d != nil
}

// Info describes the device. Ordinal is -1 for a device that Devices does not
// list, such as a sub-device of a foreign context.
func (d *Device) Info() driver.Info {
	if d == nil {
		return driver.Info{Driver: "opencl", Ordinal: -1}
	}
	return d.info
}

// Caps returns what the device claims.
func (d *Device) Caps() driver.Caps {
	if d == nil {
		return driver.Caps{}
	}
	return d.caps
}

// Context returns the cl_context, for other bindings that make queues in it. It is
// valid until the Device is closed; who keeps it longer retains it.
func (d *Device) Context() uintptr {
	if d == nil {
		return 0
	}
	return d.ctx
}

// ID returns the cl_device_id.
func (d *Device) ID() uintptr {
	if d == nil {
		return 0
	}
	return d.id
}

func (d *Device) name() string { return "opencl:" + strconv.Itoa(d.Info().Ordinal) }

func (d *Device) closedErr() error { return event.New(event.Closed, d.name()) }

// enter takes a reference for the length of a call, unless the last is gone.
func (d *Device) enter() bool {
	if d == nil {
		return false
	}
	for {
		n := d.refs.Load()
		if n <= 0 {
			return false
		}
		if d.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (d *Device) leave() error {
	if d.refs.Add(-1) == 0 {
		return backend("clReleaseContext", call1(d.a.releaseContext, d.ctx))
	}
	return nil
}

// enterOpen is enter for calls that make something new.
func (d *Device) enterOpen() bool {
	return d != nil && !d.closed.Load() && d.enter()
}

// Retain takes one more reference on the context. event.Closed when the last is
// gone already.
func (d *Device) Retain() error {
	if !d.enter() {
		return d.closedErr()
	}
	return nil
}

// Release drops a reference that Retain took; with the last one the context is
// released. One Release too many is event.Closed.
func (d *Device) Release() error {
	if d == nil {
		return d.closedErr()
	}
	for {
		n := d.refs.Load()
		if n <= 0 {
			return d.closedErr()
		}
		if d.refs.CompareAndSwap(n, n-1) {
			if n == 1 {
				return backend("clReleaseContext", call1(d.a.releaseContext, d.ctx))
			}
			return nil
		}
	}
}

// Settle finishes every queue of the context that this package knows of: made,
// adopted, or closed with work still under way. It blocks for as long as that
// work takes, for ever behind a gate that nobody opens. Work that failed counts
// as settled: it writes no more.
func (d *Device) Settle() error {
	if !d.enter() {
		return d.closedErr()
	}
	defer func() { _ = d.leave() }()
	d.mu.Lock()
	var queues []uintptr
	hold := func(s *Stream) {
		// Under mu the queue still has the stream's own reference.
		if call1(d.a.retainQueue, s.queue) == 0 {
			queues = append(queues, s.queue)
		}
	}
	for s := range d.live {
		hold(s)
	}
	for _, s := range d.closing {
		hold(s)
	}
	d.mu.Unlock()
	var errs []error
	for _, q := range queues {
		errs = append(errs, backend("clFinish", call1(d.a.finish, q)), backend("clReleaseCommandQueue", call1(d.a.releaseQueue, q)))
	}
	d.reap()
	return errors.Join(errs...)
}

// Status reports the failure of a stream that is still open, nil when there is
// none. A poisoned queue, whose word never comes although nothing else reports
// a fault, is found here. OpenCL itself has no status for a device.
func (d *Device) Status() error {
	if !d.enter() {
		return d.closedErr()
	}
	defer func() { _ = d.leave() }()
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.live))
	for s := range d.live {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	d.reap()
	for _, s := range streams {
		var err error
		if s.enter() { // else it is being closed
			_, err = s.query(false)
		}
		s.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

// NewStream makes an in-order command queue.
func (d *Device) NewStream() (driver.Stream, error) {
	if !d.enterOpen() {
		return nil, d.closedErr()
	}
	d.reap()
	var rc int32
	var q uintptr
	if d.a.createQueueWithProperties != 0 {
		q = create(d.a.createQueueWithProperties, d.ctx, d.id, 0, uintptr(unsafe.Pointer(&rc)))
	} else {
		q = create(d.a.createQueue, d.ctx, d.id, 0, uintptr(unsafe.Pointer(&rc)))
	}
	if rc != 0 {
		_ = d.leave()
		return nil, backend("clCreateCommandQueue", rc)
	}
	return d.attach(q, false), nil
}

// AdoptStream wraps a cl_command_queue that other code made in this device's
// context (see OpenContext for the other way round). The queue is retained until
// the Stream is closed. Errors: event.InvalidArgument for a null handle;
// event.ForeignStream for a queue of another context or device;
// event.NotSupported for an out-of-order or on-device queue, in which a store
// would not stay behind the work. A handle that is not alive crashes in the
// driver.
func (d *Device) AdoptStream(queue uintptr) (driver.Stream, error) {
	if queue == 0 {
		return nil, event.New(event.InvalidArgument, "OpenCL queue", "null handle")
	}
	if !d.enterOpen() {
		return nil, d.closedErr()
	}
	if err := d.adoptable(queue); err != nil {
		_ = d.leave()
		return nil, err
	}
	if rc := call1(d.a.retainQueue, queue); rc != 0 {
		_ = d.leave()
		return nil, backend("clRetainCommandQueue", rc)
	}
	d.reap()
	return d.attach(queue, true), nil
}

func (d *Device) adoptable(queue uintptr) error {
	var v [3]uint64
	for i, param := range []uintptr{clQueueContext, clQueueDevice, clQueueProperties} {
		var err error
		if v[i], err = infoWord(d.a.getQueueInfo, queue, param, 8); err != nil {
			return err
		}
	}
	switch {
	case uintptr(v[0]) != d.ctx:
		return event.New(event.ForeignStream, "opencl queue", "its cl_context is not the device's; open the device with OpenContext or OpenQueue").WithStatus(event.StatusForeign)
	case uintptr(v[1]) != d.id:
		return event.New(event.ForeignStream, "opencl queue", "it belongs to another device of the context").WithStatus(event.StatusForeign)
	case v[2]&(clQueueOutOfOrder|clQueueOnDevice) != 0:
		return event.New(event.NotSupported, "adopting an out-of-order OpenCL queue", "a store would not stay behind the work queued before it; want a queue without CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE")
	}
	return nil
}

// attach takes over one reference on the queue and the caller's on the device.
func (d *Device) attach(queue uintptr, shared bool) *Stream {
	s := &Stream{d: d, a: d.a, queue: queue}
	s.shared.Store(shared)
	d.mu.Lock()
	d.live[s] = struct{}{}
	d.mu.Unlock()
	return s
}

// reap lets go of the closed streams whose work is done.
func (d *Device) reap() {
	d.mu.Lock()
	var done []*Stream
	keep := d.closing[:0]
	for _, s := range d.closing {
		if s.idle() {
			done = append(done, s)
		} else {
			keep = append(keep, s)
		}
	}
	clear(d.closing[len(keep):])
	d.closing = keep
	d.mu.Unlock()
	for _, s := range done {
		s.free()
	}
}

// Close drops the open Device's reference. A second Close returns nil. Streams
// and memory must have been closed before; where closed streams still have work
// under way, their queues are given up rather than released behind its back, and
// the result is event.Leaked.
func (d *Device) Close() error {
	if d == nil {
		return d.closedErr()
	}
	if d.closed.Swap(true) {
		return nil
	}
	d.reap()
	d.mu.Lock()
	n := len(d.closing)
	d.mu.Unlock()
	var leaked error
	if n > 0 {
		leaked = event.New(event.Leaked, strconv.Itoa(n)+" queues of "+d.name(), "their work is still under way")
	}
	return errors.Join(leaked, d.Release())
}
