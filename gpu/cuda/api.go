package cuda

import (
	"runtime"
	"strconv"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Status numbers and flags of the CUDA Driver API that this package names
// (CUresult and the flag enumerations in the reference's "Data types used by
// CUDA driver").
const (
	statusDeinitialized    = 4   // CUDA_ERROR_DEINITIALIZED
	statusNoDevice         = 100 // CUDA_ERROR_NO_DEVICE
	statusInvalidContext   = 201 // CUDA_ERROR_INVALID_CONTEXT
	statusNotReady         = 600 // CUDA_ERROR_NOT_READY
	statusContextDestroyed = 709 // CUDA_ERROR_CONTEXT_IS_DESTROYED
	statusNotSupported     = 801 // CUDA_ERROR_NOT_SUPPORTED
	statusCaptureImplicit  = 906 // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT

	hostAllocPortable  = 1 // CU_MEMHOSTALLOC_PORTABLE
	hostAllocDeviceMap = 2 // CU_MEMHOSTALLOC_DEVICEMAP

	streamNonBlocking  = 1 // CU_STREAM_NON_BLOCKING
	eventDisableTiming = 2 // CU_EVENT_DISABLE_TIMING
	writeValueDefault  = 0 // CU_STREAM_WRITE_VALUE_DEFAULT: fenced before the write
	captureRelaxed     = 2 // CU_STREAM_CAPTURE_MODE_RELAXED
	procLegacyStream   = 1 // CU_GET_PROC_ADDRESS_LEGACY_STREAM

	attrCan64BitMemOpsV1 = 93  // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
	attrCan64BitMemOps   = 122 // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS

	streamLegacy    = 1 // CU_STREAM_LEGACY
	streamPerThread = 2 // CU_STREAM_PER_THREAD
)

// variant is one ABI of an entry point: the CUDA version that brought it, which
// is what cuGetProcAddress is asked for, and the name that the library exports
// it under. Plain names of entry points that have a _v2 are never used: they are
// still exported, with the 32-bit sizes or the semantics of CUDA 3.
type variant struct {
	version int
	export  string
}

// entry is one line of the table of entry points.
type entry struct {
	name     string
	variants []variant // best first
	optional bool
	at       func(*api) *uintptr
}

// api is the resolved library.
type api struct {
	lib     *clib.Lib
	version int // of the driver: 1000*major + 10*minor

	init, driverGetVersion                                  uintptr
	deviceGetCount, deviceGet, deviceGetName, deviceGetAttr uintptr
	primaryRetain, primaryRelease                           uintptr
	ctxPush, ctxPop, ctxSync                                uintptr
	memHostAlloc, memFreeHost, memHostDevPtr                uintptr
	streamCreate, streamDestroy, streamQuery, streamSync    uintptr
	streamGetCtx, streamIsCapturing, exchangeCapture        uintptr
	writeValue                                              uintptr
	eventCreate, eventRecord, eventQuery, eventDestroy      uintptr
	memAlloc, memFree, copyToDevice, copyToHost, fill8      uintptr
	moduleLoad, moduleUnload, moduleFunction, launchKernel  uintptr
	getErrorName, getErrorString                            uintptr
	writeV2                                                 bool
}

func one(version int, export string) []variant { return []variant{{version, export}} }

// entries is every entry point that the package calls by itself. Versions are
// those of cudaTypedefs.h, which names each ABI PFN_<name>_v<version>.
var entries = []entry{
	{"cuInit", one(2000, "cuInit"), false, func(a *api) *uintptr { return &a.init }},
	{"cuDriverGetVersion", one(2020, "cuDriverGetVersion"), false, func(a *api) *uintptr { return &a.driverGetVersion }},
	{"cuDeviceGetCount", one(2000, "cuDeviceGetCount"), false, func(a *api) *uintptr { return &a.deviceGetCount }},
	{"cuDeviceGet", one(2000, "cuDeviceGet"), false, func(a *api) *uintptr { return &a.deviceGet }},
	{"cuDeviceGetName", one(2000, "cuDeviceGetName"), false, func(a *api) *uintptr { return &a.deviceGetName }},
	{"cuDeviceGetAttribute", one(2000, "cuDeviceGetAttribute"), false, func(a *api) *uintptr { return &a.deviceGetAttr }},
	{"cuDevicePrimaryCtxRetain", one(7000, "cuDevicePrimaryCtxRetain"), false, func(a *api) *uintptr { return &a.primaryRetain }},
	{"cuDevicePrimaryCtxRelease", []variant{{11000, "cuDevicePrimaryCtxRelease_v2"}, {7000, "cuDevicePrimaryCtxRelease"}}, false,
		func(a *api) *uintptr { return &a.primaryRelease }},
	{"cuCtxPushCurrent", one(4000, "cuCtxPushCurrent_v2"), false, func(a *api) *uintptr { return &a.ctxPush }},
	{"cuCtxPopCurrent", one(4000, "cuCtxPopCurrent_v2"), false, func(a *api) *uintptr { return &a.ctxPop }},
	{"cuCtxSynchronize", one(2000, "cuCtxSynchronize"), false, func(a *api) *uintptr { return &a.ctxSync }},
	{"cuMemHostAlloc", one(2020, "cuMemHostAlloc"), false, func(a *api) *uintptr { return &a.memHostAlloc }},
	{"cuMemFreeHost", one(2000, "cuMemFreeHost"), false, func(a *api) *uintptr { return &a.memFreeHost }},
	{"cuMemHostGetDevicePointer", one(3020, "cuMemHostGetDevicePointer_v2"), false, func(a *api) *uintptr { return &a.memHostDevPtr }},
	{"cuStreamCreate", one(2000, "cuStreamCreate"), false, func(a *api) *uintptr { return &a.streamCreate }},
	{"cuStreamDestroy", one(4000, "cuStreamDestroy_v2"), false, func(a *api) *uintptr { return &a.streamDestroy }},
	{"cuStreamQuery", one(2000, "cuStreamQuery"), false, func(a *api) *uintptr { return &a.streamQuery }},
	{"cuStreamSynchronize", one(2000, "cuStreamSynchronize"), false, func(a *api) *uintptr { return &a.streamSync }},

	{"cuStreamWriteValue64", []variant{{11070, "cuStreamWriteValue64_v2"}, {9000, "cuStreamWriteValue64"}}, true,
		func(a *api) *uintptr { return &a.writeValue }},
	{"cuStreamGetCtx", one(9020, "cuStreamGetCtx"), true, func(a *api) *uintptr { return &a.streamGetCtx }},
	{"cuStreamIsCapturing", one(10000, "cuStreamIsCapturing"), true, func(a *api) *uintptr { return &a.streamIsCapturing }},
	{"cuThreadExchangeStreamCaptureMode", one(10010, "cuThreadExchangeStreamCaptureMode"), true,
		func(a *api) *uintptr { return &a.exchangeCapture }},
	{"cuEventCreate", one(2000, "cuEventCreate"), true, func(a *api) *uintptr { return &a.eventCreate }},
	{"cuEventRecord", one(2000, "cuEventRecord"), true, func(a *api) *uintptr { return &a.eventRecord }},
	{"cuEventQuery", one(2000, "cuEventQuery"), true, func(a *api) *uintptr { return &a.eventQuery }},
	{"cuEventDestroy", one(4000, "cuEventDestroy_v2"), true, func(a *api) *uintptr { return &a.eventDestroy }},
	{"cuMemAlloc", one(3020, "cuMemAlloc_v2"), true, func(a *api) *uintptr { return &a.memAlloc }},
	{"cuMemFree", one(3020, "cuMemFree_v2"), true, func(a *api) *uintptr { return &a.memFree }},
	{"cuMemcpyHtoDAsync", one(3020, "cuMemcpyHtoDAsync_v2"), true, func(a *api) *uintptr { return &a.copyToDevice }},
	{"cuMemcpyDtoHAsync", one(3020, "cuMemcpyDtoHAsync_v2"), true, func(a *api) *uintptr { return &a.copyToHost }},
	{"cuMemsetD8Async", one(3020, "cuMemsetD8Async"), true, func(a *api) *uintptr { return &a.fill8 }},
	{"cuModuleLoadData", one(2000, "cuModuleLoadData"), true, func(a *api) *uintptr { return &a.moduleLoad }},
	{"cuModuleUnload", one(2000, "cuModuleUnload"), true, func(a *api) *uintptr { return &a.moduleUnload }},
	{"cuModuleGetFunction", one(2000, "cuModuleGetFunction"), true, func(a *api) *uintptr { return &a.moduleFunction }},
	{"cuLaunchKernel", one(4000, "cuLaunchKernel"), true, func(a *api) *uintptr { return &a.launchKernel }},
	{"cuGetErrorName", one(6000, "cuGetErrorName"), true, func(a *api) *uintptr { return &a.getErrorName }},
	{"cuGetErrorString", one(6000, "cuGetErrorString"), true, func(a *api) *uintptr { return &a.getErrorString }},
}

// candidates are the names to try, the loader's own search first. The others
// are places that some systems keep off the loader's path: WSL's, the two that
// NVIDIA's Jetson releases use, and NixOS's.
func candidates() []string {
	switch runtime.GOOS {
	case "linux":
		return []string{
			"libcuda.so.1",
			"/usr/lib/wsl/lib/libcuda.so.1",
			"/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1",
			"/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1",
			"/run/opengl-driver/lib/libcuda.so.1",
		}
	case "windows":
		return []string{"nvcuda.dll"}
	}
	return nil
}

// load opens the library, resolves the table and initialises the driver.
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
		name := "libcuda.so.1"
		if len(names) > 0 {
			name = names[0]
		}
		return nil, event.New(event.DriverMissing, name, err.Error()).WithStatus(event.StatusMissing)
	}
	a := &api{lib: lib}
	find := a.finder()
	for _, e := range entries {
		for i, v := range e.variants {
			fn := find(e.name, v)
			if fn == 0 {
				continue
			}
			*e.at(a) = fn
			if e.name == "cuStreamWriteValue64" {
				a.writeV2 = i == 0
			}
			break
		}
		if *e.at(a) == 0 && !e.optional {
			return nil, event.New(event.DriverMissing, e.name, "not in "+lib.Path).WithStatus(event.StatusMissing)
		}
	}
	f := clib.Get()
	defer f.Put()
	if st := status(f.Call(a.init, 0)); st != 0 {
		return nil, a.fault("cuInit", st)
	}
	if st := status(f.Call(a.driverGetVersion, f.At(0))); st != 0 {
		return nil, a.fault("cuDriverGetVersion", st)
	}
	a.version = int(int32(f.Out[0]))
	return a, nil
}

// finder looks one ABI of an entry point up: by cuGetProcAddress where there is
// one, since it alone answers for a version, and by the exported name else.
func (a *api) finder() func(name string, v variant) uintptr {
	getV2, get := a.lib.Sym("cuGetProcAddress_v2"), a.lib.Sym("cuGetProcAddress")
	return func(name string, v variant) uintptr {
		f := clib.Get()
		defer f.Put()
		text := f.TextAt()
		copy(f.Text[:], name)
		st := int32(-1)
		switch {
		case getV2 != 0:
			st = status(f.Call(getV2, text, f.At(0), uintptr(v.version), procLegacyStream, f.At(1)))
		case get != 0:
			st = status(f.Call(get, text, f.At(0), uintptr(v.version), procLegacyStream))
		}
		if st == 0 && f.Out[0] != 0 {
			return uintptr(f.Out[0])
		}
		return a.lib.Sym(v.export)
	}
}

// status is a CUresult, a C int: the upper half of the register is undefined.
func status(r uintptr) int32 { return int32(uint32(r)) }

// describe returns "700 CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access …)".
func (a *api) describe(st int32) string {
	text := strconv.Itoa(int(st))
	f := clib.Get()
	defer f.Put()
	if a.getErrorName != 0 && status(f.Call(a.getErrorName, uintptr(st), f.At(0))) == 0 && f.Out[0] != 0 {
		text += " " + clib.String(uintptr(f.Out[0]))
	}
	if a.getErrorString != 0 && status(f.Call(a.getErrorString, uintptr(st), f.At(0))) == 0 && f.Out[0] != 0 {
		text += " (" + clib.String(uintptr(f.Out[0])) + ")"
	}
	return text
}

// fault is the coded error of a failed call, nil for success.
func (a *api) fault(call string, st int32) error {
	switch st {
	case 0:
		return nil
	case statusNoDevice:
		return event.New(event.NoDevice, "cuda", call+": "+a.describe(st)).WithStatus(int64(st))
	case statusNotSupported:
		return event.New(event.NotSupported, call, a.describe(st)).WithStatus(int64(st))
	}
	return event.New(event.Backend, call, a.describe(st)).WithStatus(int64(st))
}

// gone reports whether a status says that the context, and all that belonged to
// it, no longer exists: at teardown that is what was wanted. Seen when a process
// exits, or when other code reset the device.
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
	return event.New(event.NotSupported, name, "the driver library has no such entry point").WithStatus(event.StatusMissing)
}
