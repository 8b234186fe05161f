package hip

import (
	"runtime"
	"strconv"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Status numbers and flags that this package names (hipError_t and the flag
// macros of hip_runtime_api.h).
const (
	statusDeinitialized    = 4   // hipErrorDeinitialized
	statusNoDevice         = 100 // hipErrorNoDevice
	statusInvalidDevice    = 101 // hipErrorInvalidDevice
	statusInvalidContext   = 201 // hipErrorInvalidContext
	statusNotReady         = 600 // hipErrorNotReady
	statusContextDestroyed = 709 // hipErrorContextIsDestroyed
	statusNotSupported     = 801 // hipErrorNotSupported
	statusCaptureImplicit  = 906 // hipErrorStreamCaptureImplicit

	hostMallocPortable = 0x1        // hipHostMallocPortable
	hostMallocMapped   = 0x2        // hipHostMallocMapped
	hostMallocCoherent = 0x40000000 // hipHostMallocCoherent

	streamNonBlocking  = 1 // hipStreamNonBlocking
	eventDisableTiming = 2 // hipEventDisableTiming
	captureRelaxed     = 2 // hipStreamCaptureModeRelaxed

	streamLegacy    = 1 // hipStreamLegacy, newer libraries only
	streamPerThread = 2 // hipStreamPerThread
)

// entry is one line of the table of entry points.
type entry struct {
	name     string
	optional bool
	at       func(*api) *uintptr
}

// api is the resolved library.
type api struct {
	lib     *clib.Lib
	version int // HIP version: 10000000*major + 100000*minor + patch

	init, getDeviceCount, deviceGetName, runtimeGetVersion uintptr
	getDevice, setDevice, primaryRetain, primaryRelease    uintptr
	deviceSync                                             uintptr
	hostMalloc, hostFree, hostDevPtr                       uintptr
	streamCreate, streamDestroy, streamQuery, streamSync   uintptr
	streamGetDevice, streamIsCapturing, exchangeCapture    uintptr
	writeValue                                             uintptr
	eventCreate, eventRecord, eventQuery, eventDestroy     uintptr
	malloc, free, copyToDevice, copyToHost, fill8          uintptr
	getLastError, getErrorName, getErrorString             uintptr
}

var entries = []entry{
	{"hipInit", false, func(a *api) *uintptr { return &a.init }},
	{"hipGetDeviceCount", false, func(a *api) *uintptr { return &a.getDeviceCount }},
	{"hipDeviceGetName", false, func(a *api) *uintptr { return &a.deviceGetName }},
	{"hipGetDevice", false, func(a *api) *uintptr { return &a.getDevice }},
	{"hipSetDevice", false, func(a *api) *uintptr { return &a.setDevice }},
	{"hipDevicePrimaryCtxRetain", false, func(a *api) *uintptr { return &a.primaryRetain }},
	{"hipDevicePrimaryCtxRelease", false, func(a *api) *uintptr { return &a.primaryRelease }},
	{"hipDeviceSynchronize", false, func(a *api) *uintptr { return &a.deviceSync }},
	{"hipHostMalloc", false, func(a *api) *uintptr { return &a.hostMalloc }},
	{"hipHostFree", false, func(a *api) *uintptr { return &a.hostFree }},
	{"hipHostGetDevicePointer", false, func(a *api) *uintptr { return &a.hostDevPtr }},
	{"hipStreamCreateWithFlags", false, func(a *api) *uintptr { return &a.streamCreate }},
	{"hipStreamDestroy", false, func(a *api) *uintptr { return &a.streamDestroy }},
	{"hipStreamQuery", false, func(a *api) *uintptr { return &a.streamQuery }},
	{"hipStreamSynchronize", false, func(a *api) *uintptr { return &a.streamSync }},

	{"hipRuntimeGetVersion", true, func(a *api) *uintptr { return &a.runtimeGetVersion }},
	{"hipStreamWriteValue64", true, func(a *api) *uintptr { return &a.writeValue }},
	{"hipStreamGetDevice", true, func(a *api) *uintptr { return &a.streamGetDevice }}, // missing in 5.2
	{"hipStreamIsCapturing", true, func(a *api) *uintptr { return &a.streamIsCapturing }},
	{"hipThreadExchangeStreamCaptureMode", true, func(a *api) *uintptr { return &a.exchangeCapture }},
	{"hipEventCreateWithFlags", true, func(a *api) *uintptr { return &a.eventCreate }},
	{"hipEventRecord", true, func(a *api) *uintptr { return &a.eventRecord }},
	{"hipEventQuery", true, func(a *api) *uintptr { return &a.eventQuery }},
	{"hipEventDestroy", true, func(a *api) *uintptr { return &a.eventDestroy }},
	{"hipMalloc", true, func(a *api) *uintptr { return &a.malloc }},
	{"hipFree", true, func(a *api) *uintptr { return &a.free }},
	{"hipMemcpyHtoDAsync", true, func(a *api) *uintptr { return &a.copyToDevice }},
	{"hipMemcpyDtoHAsync", true, func(a *api) *uintptr { return &a.copyToHost }},
	{"hipMemsetD8Async", true, func(a *api) *uintptr { return &a.fill8 }},
	{"hipGetLastError", true, func(a *api) *uintptr { return &a.getLastError }},
	{"hipGetErrorName", true, func(a *api) *uintptr { return &a.getErrorName }},
	{"hipGetErrorString", true, func(a *api) *uintptr { return &a.getErrorString }},
}

// candidates are the names to try. Each major version of ROCm has a soname of
// its own; the unversioned name comes with the development package.
func candidates() []string {
	switch runtime.GOOS {
	case "linux":
		return []string{
			"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so",
			"/opt/rocm/lib/libamdhip64.so",
		}
	case "windows":
		return []string{"amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"}
	}
	return nil
}

// load opens the library, resolves the table and initialises the runtime.
func load(path string) (*api, error) {
	names := candidates()
	if path != "" {
		names = []string{path}
	}
	if !clib.Supported {
		names = nil
	}
	lib, err := clib.Open(names...)
	if err != nil {
		name := path
		if name == "" {
			name = "libamdhip64.so"
		}
		return nil, event.New(event.DriverMissing, name, err.Error()).WithStatus(event.StatusMissing)
	}
	a := &api{lib: lib}
	for _, e := range entries {
		*e.at(a) = lib.Sym(e.name)
		if *e.at(a) == 0 && !e.optional {
			return nil, event.New(event.DriverMissing, e.name, "not in "+lib.Path).WithStatus(event.StatusMissing)
		}
	}
	f := clib.Get()
	defer f.Put()
	if st := a.call(f, a.init, 0); st != 0 {
		return nil, a.absent("hipInit", st)
	}
	if a.runtimeGetVersion != 0 && a.call(f, a.runtimeGetVersion, f.At(0)) == 0 {
		a.version = int(int32(f.Out[0]))
	}
	return a, nil
}

// status is a hipError_t, a C int: the upper half of the register is undefined.
func status(r uintptr) int32 { return int32(uint32(r)) }

// call makes one call and takes the status, if it is one, out of the thread's
// last error.
func (a *api) call(f *clib.Frame, fn uintptr, args ...uintptr) int32 {
	st := status(f.Call(fn, args...))
	if st != 0 && a.getLastError != 0 {
		f.Call(a.getLastError)
	}
	return st
}

// describe returns "700 hipErrorIllegalAddress (an illegal memory access …)".
func (a *api) describe(st int32) string {
	f := clib.Get()
	defer f.Put()
	text, name := strconv.Itoa(int(st)), ""
	if a.getErrorName != 0 {
		name = clib.String(f.Call(a.getErrorName, uintptr(st)))
		text += " " + name
	}
	if a.getErrorString != 0 {
		// Older libraries return the name here too.
		if s := clib.String(f.Call(a.getErrorString, uintptr(st))); s != "" && s != name {
			text += " (" + s + ")"
		}
	}
	return text
}

// fault is the coded error of a failed call, nil for success.
func (a *api) fault(call string, st int32) error {
	switch st {
	case 0:
		return nil
	case statusNoDevice:
		return event.New(event.NoDevice, "hip", call+": "+a.describe(st)).WithStatus(int64(st))
	case statusNotSupported:
		return event.New(event.NotSupported, call, a.describe(st)).WithStatus(int64(st))
	}
	return event.New(event.Backend, call, a.describe(st)).WithStatus(int64(st))
}

// absent is fault for the calls that find the devices: without one, HIP answers
// "no device" or "invalid device", depending on its version and on which call
// was the process's first (seen with 5.2 and 5.7).
func (a *api) absent(call string, st int32) error {
	if st == statusInvalidDevice {
		return event.New(event.NoDevice, "hip", call+": "+a.describe(st)).WithStatus(int64(st))
	}
	return a.fault(call, st)
}

// gone reports whether a status says that the context, and all that belonged to
// it, no longer exists: at teardown that is what was wanted.
func gone(st int32) bool {
	return st == statusDeinitialized || st == statusContextDestroyed || st == statusInvalidContext
}

// teardown is fault for calls that free something.
func (a *api) teardown(call string, st int32) error {
	if gone(st) {
		return nil
	}
	return a.fault(call, st)
}

// missing is the error of a feature whose entry point the library lacks.
func missing(name string) error {
	return event.New(event.NotSupported, name, "the runtime library has no such entry point").WithStatus(event.StatusMissing)
}
