package opencl

import (
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// This file is as much of OpenCL's compiler and launch as the examples, the
// self-tests and the benchmarks need. It is not an OpenCL binding.

// BuildError carries the compiler's log. It is the cause of the event.Backend
// error that Build returns, reachable through errors.As.
type BuildError struct{ Log string }

// Error returns the log.
func (e *BuildError) Error() string { return "build log:\n" + e.Log }

// Program is built source code. Its methods may be called from many goroutines.
type Program struct {
	mu     sync.Mutex
	d      *Device
	handle uintptr
}

// Build compiles OpenCL C for the device; options are the compiler's, such as
// "-cl-std=CL2.0". It blocks while the compiler runs, milliseconds to seconds.
// Source that does not compile is event.Backend with status -11 and a
// *BuildError. The Program must be closed.
func (d *Device) Build(source, options string) (*Program, error) {
	if !d.enterOpen() {
		return nil, d.closedErr()
	}
	defer func() { _ = d.leave() }()
	src, err := cString("kernel source", source)
	if err != nil {
		return nil, err
	}
	opt, err := cString("build options", options)
	if err != nil {
		return nil, err
	}
	// C reads the source through a pointer to a pointer: pinned for that.
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&src[0])
	strs := [1]unsafe.Pointer{unsafe.Pointer(&src[0])}
	var rc int32
	h := create(d.a.createProgram, d.ctx, 1, uintptr(unsafe.Pointer(&strs[0])), 0, uintptr(unsafe.Pointer(&rc)))
	if rc != 0 {
		return nil, backend("clCreateProgramWithSource", rc)
	}
	keepSignals(func() {
		rc = call(d.a.buildProgram, h, 1, uintptr(unsafe.Pointer(&d.id)), uintptr(unsafe.Pointer(&opt[0])), 0, 0)
	})
	if rc != 0 {
		log := d.buildLog(h)
		call1(d.a.releaseProgram, h)
		return nil, event.New(event.Backend, "clBuildProgram", statusText(rc)).WithStatus(int64(rc)).Wrap(&BuildError{log})
	}
	return &Program{d: d, handle: h}, nil
}

func (d *Device) buildLog(program uintptr) string {
	var n uintptr
	if call(d.a.getBuildInfo, program, d.id, clProgramBuildLog, 0, 0, uintptr(unsafe.Pointer(&n))) != 0 || n == 0 {
		return ""
	}
	buf := make([]byte, n)
	if call(d.a.getBuildInfo, program, d.id, clProgramBuildLog, n, uintptr(unsafe.Pointer(&buf[0])), 0) != 0 {
		return ""
	}
	return strings.TrimSpace(text(buf))
}

func cString(what, s string) ([]byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, event.New(event.InvalidArgument, what, "contains a zero byte")
	}
	return append([]byte(s), 0), nil
}

// Kernel returns the kernel of the given name. It must be closed; it outlives its
// Program.
func (p *Program) Kernel(name string) (*Kernel, error) {
	if p == nil {
		return nil, event.New(event.Closed, "opencl program")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handle == 0 {
		return nil, event.New(event.Closed, "opencl program")
	}
	cname, err := cString("kernel name", name)
	if err != nil {
		return nil, err
	}
	var rc int32
	h := create(p.d.a.createKernel, p.handle, uintptr(unsafe.Pointer(&cname[0])), uintptr(unsafe.Pointer(&rc)))
	if rc != 0 {
		return nil, backend("clCreateKernel "+strconv.Quote(name), rc)
	}
	n, err := infoWord(p.d.a.getKernelInfo, h, clKernelNumArgs, 4)
	if err != nil {
		call1(p.d.a.releaseKernel, h)
		return nil, err
	}
	return &Kernel{d: p.d, name: name, handle: h, nargs: int(n)}, nil
}

// Close releases the program. A second Close returns nil.
func (p *Program) Close() error {
	if p == nil {
		return event.New(event.Closed, "opencl program")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.handle
	p.handle = 0
	if h == 0 {
		return nil
	}
	return backend("clReleaseProgram", call1(p.d.a.releaseProgram, h))
}

// Kernel is one kernel of a Program. It may be launched from many goroutines;
// launches of one Kernel take their turns, since its arguments are its state.
type Kernel struct {
	mu     sync.Mutex
	d      *Device
	name   string
	handle uintptr
	nargs  int
	value  uint64 // the argument being set, under mu
}

// Name returns the kernel's name.
func (k *Kernel) Name() string {
	if k == nil {
		return ""
	}
	return k.name
}

// Close releases the kernel; launches that are queued still run. A second Close
// returns nil.
func (k *Kernel) Close() error {
	if k == nil {
		return event.New(event.Closed, "opencl kernel")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.handle
	k.handle = 0
	if h == 0 {
		return nil
	}
	return backend("clReleaseKernel", call1(k.d.a.releaseKernel, h))
}

// Local is a kernel argument: so many bytes of local memory.
type Local int

// Launch queues the kernel over a range of 1 to 3 dimensions. local is the size of
// a work-group in the same dimensions, or nil for the driver's choice. The
// arguments, in the kernel's order, are driver.Mem for pointers to global memory,
// Local for pointers to local memory, and int8 to int64, uint8 to uint64, float32
// and float64 for scalars of exactly that size. Memory must stay allocated until
// the work is done. The driver may keep the launch to itself until the next Store,
// Record, Query, Sync or Close of the stream flushes the queue.
//
// Errors: event.InvalidArgument for arguments that don't fit, event.ForeignStream
// for a kernel of another Device, the stream's failure, event.Backend.
func (s *Stream) Launch(k *Kernel, global, local []int, args ...any) error {
	if s == nil {
		return errStreamClosed
	}
	var dims [2][3]uintptr
	if err := setDims(&dims, global, local); err != nil {
		return err
	}
	if k == nil {
		return event.New(event.InvalidArgument, "launch", "nil kernel")
	}
	if k.d != s.d {
		return event.New(event.ForeignStream, "launch of "+k.name, "the kernel was built for another Device").WithStatus(event.StatusForeign)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handle == 0 {
		return event.New(event.Closed, "opencl kernel "+k.name)
	}
	if len(args) != k.nargs {
		return event.New(event.InvalidArgument, "launch of "+k.name, strconv.Itoa(len(args))+" arguments, want "+strconv.Itoa(k.nargs))
	}
	for i, arg := range args {
		if err := k.set(i, arg); err != nil {
			return err
		}
	}
	return s.enqueue("clEnqueueNDRangeKernel "+k.name, false, func() (ev uintptr, rc int32) {
		if len(local) == 0 {
			rc = call(s.a.launch, s.queue, k.handle, uintptr(len(global)), 0,
				uintptr(unsafe.Pointer(&dims[0])), 0, 0, 0, uintptr(unsafe.Pointer(&ev)))
		} else {
			rc = call(s.a.launch, s.queue, k.handle, uintptr(len(global)), 0,
				uintptr(unsafe.Pointer(&dims[0])), uintptr(unsafe.Pointer(&dims[1])), 0, 0, uintptr(unsafe.Pointer(&ev)))
		}
		return ev, rc
	})
}

func setDims(dims *[2][3]uintptr, global, local []int) error {
	if n := len(global); n < 1 || n > 3 || len(local) != 0 && len(local) != n {
		return event.New(event.InvalidArgument, "launch", "want 1 to 3 global dimensions, and as many local ones or none")
	}
	for i, list := range [2][]int{global, local} {
		for j, v := range list {
			if v < 1 {
				return event.New(event.InvalidArgument, "launch", "dimension "+strconv.Itoa(v)+", want at least 1")
			}
			dims[i][j] = uintptr(v)
		}
	}
	return nil
}

// set sets one argument. k.mu is held.
func (k *Kernel) set(i int, arg any) error {
	subject := "argument " + strconv.Itoa(i) + " of kernel " + k.name
	var size uintptr
	switch v := arg.(type) {
	case driver.Mem:
		if !k.d.caps.Memory {
			return noMemory(subject)
		}
		if !k.d.mem.contains(uintptr(v), 1) {
			return notOurs(subject+", device address", uintptr(v))
		}
		return backend(subject, call(k.d.a.setArgSVM, k.handle, uintptr(i), uintptr(v)))
	case Local:
		if v < 1 {
			return event.New(event.InvalidArgument, subject, "local memory of "+strconv.Itoa(int(v))+" bytes")
		}
		return backend(subject, call(k.d.a.setArg, k.handle, uintptr(i), uintptr(v), 0))
	case int8:
		k.value, size = uint64(v), 1
	case uint8:
		k.value, size = uint64(v), 1
	case int16:
		k.value, size = uint64(v), 2
	case uint16:
		k.value, size = uint64(v), 2
	case int32:
		k.value, size = uint64(v), 4
	case uint32:
		k.value, size = uint64(v), 4
	case float32:
		k.value, size = uint64(math.Float32bits(v)), 4
	case int64:
		k.value, size = uint64(v), 8
	case uint64:
		k.value, size = v, 8
	case float64:
		k.value, size = math.Float64bits(v), 8
	default:
		return event.New(event.InvalidArgument, subject, "unsupported Go type; want driver.Mem, Local, or a sized number")
	}
	// The value is copied by the call; little-endian, so its low bytes come first.
	return backend(subject, call(k.d.a.setArg, k.handle, uintptr(i), size, uintptr(unsafe.Pointer(&k.value))))
}

// Gate queues a gate: work behind it waits until open is called. Status 0 opens
// it. A negative status makes it fail, and with it the work already queued behind
// it: what a broken device looks like, for tests. Other statuses are
// event.InvalidArgument, and so is a second call.
//
// A gate that is never opened keeps its queue for ever: Sync and Settle do not
// return, and Device.Close gives the queue up.
func (s *Stream) Gate() (open func(status int32) error, err error) {
	ok := s.enter()
	defer s.leave()
	if !ok {
		return nil, errStreamClosed
	}
	var rc int32
	user := create(s.a.createUserEvent, s.d.ctx, uintptr(unsafe.Pointer(&rc)))
	if rc != 0 {
		return nil, backend("clCreateUserEvent", rc)
	}
	err = s.enqueue("clEnqueueMarkerWithWaitList", true, func() (uintptr, int32) { return s.a.mark(s.queue, user) })
	if err != nil {
		// Whatever was queued must not wait for ever.
		call(s.a.setUserEventStatus, user, 0)
		call1(s.a.releaseEvent, user)
		return nil, err
	}
	return (&gate{s: s, user: user}).open, nil
}

type gate struct {
	s    *Stream
	mu   sync.Mutex
	user uintptr // 0 once opened
}

func (g *gate) open(status int32) error {
	if status > 0 {
		return event.New(event.InvalidArgument, "gate status "+strconv.Itoa(int(status)), "want 0 or a negative number")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.user == 0 {
		return event.New(event.InvalidArgument, "gate", "it was opened before")
	}
	if status < 0 {
		// PoCL 3.1 and 6.0 crash when a command is queued, to the same queue, while
		// another one fails. (Opening is safe, and must not wait for an enqueue
		// that waits for the gate.)
		g.s.enq.Lock()
		defer g.s.enq.Unlock()
		g.s.st.Lock()
		defer g.s.st.Unlock()
	}
	rc := call(g.s.a.setUserEventStatus, g.user, uintptr(uint32(status)))
	call1(g.s.a.releaseEvent, g.user)
	g.user = 0
	return backend("clSetUserEventStatus", rc)
}
