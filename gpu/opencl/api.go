package opencl

import (
	"bytes"
	"runtime"
	"strconv"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// api is the table of entry points of one library. Entries that only newer
// libraries have are 0 where they are missing.
type api struct {
	getPlatformIDs, getPlatformInfo, getDeviceIDs, getDeviceInfo          uintptr
	createContext, retainContext, releaseContext, getContextInfo          uintptr
	createQueue, createQueueWithProperties, retainQueue                   uintptr
	releaseQueue, getQueueInfo, flush, finish                             uintptr
	marker, getEventInfo, retainEvent, releaseEvent                       uintptr
	createUserEvent, setUserEventStatus                                   uintptr
	createProgram, buildProgram, getBuildInfo, releaseProgram             uintptr
	createKernel, releaseKernel, getKernelInfo, setArg, setArgSVM, launch uintptr
	svmAlloc, svmFree, svmFill, svmCopy                                   uintptr
}

// svm reports whether the library has the entry points of OpenCL 2.0's shared
// virtual memory.
func (a *api) svm() bool {
	return a.svmAlloc != 0 && a.svmFree != 0 && a.svmFill != 0 && a.svmCopy != 0 && a.setArgSVM != 0
}

type entry struct {
	entry    *uintptr
	name     string
	optional bool // not in every library that is of use
}

func (a *api) entries() []entry {
	return []entry{
		{&a.getPlatformIDs, "clGetPlatformIDs", false},
		{&a.getPlatformInfo, "clGetPlatformInfo", false},
		{&a.getDeviceIDs, "clGetDeviceIDs", false},
		{&a.getDeviceInfo, "clGetDeviceInfo", false},
		{&a.createContext, "clCreateContext", false},
		{&a.retainContext, "clRetainContext", false},
		{&a.releaseContext, "clReleaseContext", false},
		{&a.getContextInfo, "clGetContextInfo", false},
		{&a.createQueue, "clCreateCommandQueue", false},
		{&a.createQueueWithProperties, "clCreateCommandQueueWithProperties", true},
		{&a.retainQueue, "clRetainCommandQueue", false},
		{&a.releaseQueue, "clReleaseCommandQueue", false},
		{&a.getQueueInfo, "clGetCommandQueueInfo", false},
		{&a.flush, "clFlush", false},
		{&a.finish, "clFinish", false},
		{&a.marker, "clEnqueueMarkerWithWaitList", false},
		{&a.getEventInfo, "clGetEventInfo", false},
		{&a.retainEvent, "clRetainEvent", false},
		{&a.releaseEvent, "clReleaseEvent", false},
		{&a.createUserEvent, "clCreateUserEvent", false},
		{&a.setUserEventStatus, "clSetUserEventStatus", false},
		{&a.createProgram, "clCreateProgramWithSource", false},
		{&a.buildProgram, "clBuildProgram", false},
		{&a.getBuildInfo, "clGetProgramBuildInfo", false},
		{&a.releaseProgram, "clReleaseProgram", false},
		{&a.createKernel, "clCreateKernel", false},
		{&a.releaseKernel, "clReleaseKernel", false},
		{&a.getKernelInfo, "clGetKernelInfo", false},
		{&a.setArg, "clSetKernelArg", false},
		{&a.setArgSVM, "clSetKernelArgSVMPointer", true},
		{&a.launch, "clEnqueueNDRangeKernel", false},
		{&a.svmAlloc, "clSVMAlloc", true},
		{&a.svmFree, "clSVMFree", true},
		{&a.svmFill, "clEnqueueSVMMemFill", true},
		{&a.svmCopy, "clEnqueueSVMMemcpy", true},
	}
}

func (a *api) resolve(sym func(name string) uintptr) error {
	for _, e := range a.entries() {
		*e.entry = sym(e.name)
		if *e.entry == 0 && !e.optional {
			return missing(e.name, "the OpenCL library does not export it (OpenCL 1.2 is needed)", nil)
		}
	}
	return nil
}

func missing(what, why string, cause error) error {
	e := event.New(event.DriverMissing, what, why).WithStatus(event.StatusMissing)
	if cause != nil {
		e = e.Wrap(cause)
	}
	return e
}

// load opens the library and resolves its entry points.
func load(path string) (*api, error) {
	names := libraryNames()
	if path != "" {
		names = []string{path}
	}
	if !clib.Supported {
		return nil, missing(names[0], "OpenCL is not reached from "+runtime.GOOS+"/"+runtime.GOARCH, nil)
	}
	var lib *clib.Lib
	var err error
	keepSignals(func() { lib, err = clib.Open(names...) })
	if err != nil {
		return nil, missing(names[0], "the OpenCL library can't be loaded", err)
	}
	a := new(api)
	return a, a.resolve(lib.Sym)
}

func libraryNames() []string {
	switch runtime.GOOS {
	case "windows":
		return []string{"OpenCL.dll"}
	case "darwin":
		return []string{"/System/Library/Frameworks/OpenCL.framework/OpenCL"}
	}
	return []string{"libOpenCL.so.1", "libOpenCL.so"}
}

// call calls an entry point that returns a cl_int, with arguments that point into
// Go memory where they are converted in the argument list: go:uintptrescapes moves
// what they point to off the stack and keeps it alive until the call returns. No
// entry point used here keeps them longer, but for the host side of a copy, which
// driver.Stream has its caller pin.
//
// Hot paths use a clib.Frame instead, whose cells are on the heap as it is.
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) int32 { return int32(create(fn, args...)) }

// create is call for entry points that return a handle.
//
//go:uintptrescapes
func create(fn uintptr, args ...uintptr) uintptr {
	f := clib.Get()
	defer f.Put()
	return f.Call(fn, args...)
}

// call1 calls an entry point whose only argument is a handle.
func call1(fn, handle uintptr) int32 {
	f := clib.Get()
	defer f.Put()
	return int32(f.Call(fn, handle))
}

// eventStatus returns an event's execution status: 3 queued, 2 submitted,
// 1 running, 0 complete, negative failed.
func (a *api) eventStatus(ev uintptr) (status, rc int32) {
	f := clib.Get()
	defer f.Put()
	rc = int32(f.Call(a.getEventInfo, ev, clEventCommandExecutionStatus, 4, f.At(0), 0))
	return int32(f.Out[0]), rc
}

// mark queues a marker behind all earlier work of an in-order queue and, when
// user is not 0, behind that event. It returns the marker's own event.
func (a *api) mark(queue, user uintptr) (ev uintptr, rc int32) {
	f := clib.Get()
	defer f.Put()
	n, list := uintptr(0), uintptr(0)
	if user != 0 {
		n, list = 1, f.At(1)
		f.Out[1] = uint64(user)
	}
	rc = int32(f.Call(a.marker, queue, n, list, f.At(0)))
	return uintptr(f.Out[0]), rc
}

// Constants of CL/cl.h.
const (
	clPlatformName = 0x0902

	clDeviceTypeCPU         = 1 << 1
	clDeviceTypeGPU         = 1 << 2
	clDeviceTypeAccelerator = 1 << 3
	clDeviceTypeAll         = 0xFFFFFFFF

	clDeviceType            = 0x1000
	clDeviceName            = 0x102B
	clDriverVersion         = 0x102D
	clDeviceVersion         = 0x102F
	clDeviceSVMCapabilities = 0x1053

	clSVMCoarse     = 1 << 0
	clSVMFineBuffer = 1 << 1
	clSVMAtomics    = 1 << 3

	clMemReadWrite          = 1 << 0
	clMemSVMFineGrainBuffer = 1 << 10
	clMemSVMAtomics         = 1 << 11

	clContextDevices = 0x1081

	clQueueContext    = 0x1090
	clQueueDevice     = 0x1091
	clQueueProperties = 0x1093

	clQueueOutOfOrder = 1 << 0
	clQueueOnDevice   = 1 << 2

	clEventCommandExecutionStatus = 0x11D3

	clProgramBuildLog = 0x1183
	clKernelNumArgs   = 0x1191

	clDeviceNotFound      = -1
	clPlatformNotFoundKHR = -1001
)

// statusNames are the error codes of CL/cl.h and cl_ext.h.
var statusNames = map[int32]string{
	-1: "CL_DEVICE_NOT_FOUND", -2: "CL_DEVICE_NOT_AVAILABLE", -3: "CL_COMPILER_NOT_AVAILABLE",
	-4: "CL_MEM_OBJECT_ALLOCATION_FAILURE", -5: "CL_OUT_OF_RESOURCES", -6: "CL_OUT_OF_HOST_MEMORY",
	-7: "CL_PROFILING_INFO_NOT_AVAILABLE", -8: "CL_MEM_COPY_OVERLAP", -11: "CL_BUILD_PROGRAM_FAILURE",
	-12: "CL_MAP_FAILURE", -14: "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", -15: "CL_COMPILE_PROGRAM_FAILURE",
	-30: "CL_INVALID_VALUE", -31: "CL_INVALID_DEVICE_TYPE", -32: "CL_INVALID_PLATFORM", -33: "CL_INVALID_DEVICE",
	-34: "CL_INVALID_CONTEXT", -35: "CL_INVALID_QUEUE_PROPERTIES", -36: "CL_INVALID_COMMAND_QUEUE",
	-37: "CL_INVALID_HOST_PTR", -38: "CL_INVALID_MEM_OBJECT", -42: "CL_INVALID_BINARY",
	-43: "CL_INVALID_BUILD_OPTIONS", -44: "CL_INVALID_PROGRAM", -45: "CL_INVALID_PROGRAM_EXECUTABLE",
	-46: "CL_INVALID_KERNEL_NAME", -48: "CL_INVALID_KERNEL", -49: "CL_INVALID_ARG_INDEX",
	-50: "CL_INVALID_ARG_VALUE", -51: "CL_INVALID_ARG_SIZE", -52: "CL_INVALID_KERNEL_ARGS",
	-53: "CL_INVALID_WORK_DIMENSION", -54: "CL_INVALID_WORK_GROUP_SIZE", -55: "CL_INVALID_WORK_ITEM_SIZE",
	-56: "CL_INVALID_GLOBAL_OFFSET", -57: "CL_INVALID_EVENT_WAIT_LIST", -58: "CL_INVALID_EVENT",
	-59: "CL_INVALID_OPERATION", -61: "CL_INVALID_BUFFER_SIZE", -63: "CL_INVALID_GLOBAL_WORK_SIZE",
	-64: "CL_INVALID_PROPERTY", -1001: "CL_PLATFORM_NOT_FOUND_KHR",
}

func statusText(rc int32) string {
	s := strconv.Itoa(int(rc))
	if name := statusNames[rc]; name != "" {
		s += " (" + name + ")"
	}
	return s
}

// backend is the coded error for a call that returned rc, nil for CL_SUCCESS.
func backend(subject string, rc int32) error {
	if rc == 0 {
		return nil
	}
	return event.New(event.Backend, subject, statusText(rc)).WithStatus(int64(rc))
}

// infoString reads a string through one of the clGet*Info functions, which share
// their signature.
func infoString(fn, object uintptr, param uintptr) (string, error) {
	var n uintptr
	if rc := call(fn, object, param, 0, 0, uintptr(unsafe.Pointer(&n))); rc != 0 {
		return "", backend("OpenCL info 0x"+strconv.FormatUint(uint64(param), 16), rc)
	}
	if n == 0 {
		return "", nil
	}
	buf := make([]byte, n)
	if rc := call(fn, object, param, n, uintptr(unsafe.Pointer(&buf[0])), 0); rc != 0 {
		return "", backend("OpenCL info 0x"+strconv.FormatUint(uint64(param), 16), rc)
	}
	return text(buf), nil
}

// infoWord reads a value of at most 8 bytes. A shorter one fills the low bytes:
// all targets of this package are little-endian.
func infoWord(fn, object uintptr, param, size uintptr) (uint64, error) {
	var v uint64
	if rc := call(fn, object, param, size, uintptr(unsafe.Pointer(&v)), 0); rc != 0 {
		return 0, backend("OpenCL info 0x"+strconv.FormatUint(uint64(param), 16), rc)
	}
	return v, nil
}

// text is a C string without its terminator.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
