package cuda

import (
	"runtime"
	"strconv"
	"sync"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Config says how to reach the driver library. The zero value is right nearly
// everywhere.
type Config struct {
	// Library is the path of the driver library. Empty means libcuda.so.1 by the
	// loader's search and in the places where WSL, Jetson and NixOS keep it, or
	// nvcuda.dll in the system directory on Windows.
	Library string
}

// Driver is the CUDA driver. Its methods may be called from many goroutines.
type Driver struct {
	path string
	mu   sync.Mutex
	api  *api
}

var _ driver.Driver = (*Driver)(nil)

// New returns the driver. It opens nothing: the library is loaded, and stays
// loaded, at the first call of Devices or Open.
func New(cfg Config) *Driver { return &Driver{path: cfg.Library} }

// Name returns "cuda".
func (d *Driver) Name() string { return "cuda" }

// load loads the library once. A failure is not remembered: a driver that was
// installed meanwhile, or a device that was attached, is found by the next call.
func (d *Driver) load() (*api, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.api != nil {
		return d.api, nil
	}
	a, err := load(d.path)
	if err != nil {
		return nil, err
	}
	d.api = a
	return a, nil
}

// Devices lists the CUDA devices that are visible to the process
// (CUDA_VISIBLE_DEVICES hides some). Without the library it is
// event.DriverMissing, without a device event.NoDevice.
func (d *Driver) Devices() ([]driver.Info, error) {
	a, err := d.load()
	if err != nil {
		return nil, err
	}
	n, err := a.count()
	if err != nil {
		return nil, err
	}
	infos := make([]driver.Info, n)
	for i := range infos {
		if infos[i], _, err = a.info(i); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

func (a *api) count() (int, error) {
	f := clib.Get()
	defer f.Put()
	if st := status(f.Call(a.deviceGetCount, f.At(0))); st != 0 {
		return 0, a.fault("cuDeviceGetCount", st)
	}
	n := int(int32(f.Out[0]))
	if n < 1 {
		return 0, event.New(event.NoDevice, "cuda", "cuDeviceGetCount reports none")
	}
	return n, nil
}

// info returns what is known of a device, and its CUdevice.
func (a *api) info(ordinal int) (driver.Info, uintptr, error) {
	f := clib.Get()
	defer f.Put()
	if st := status(f.Call(a.deviceGet, f.At(0), uintptr(ordinal))); st != 0 {
		return driver.Info{}, 0, a.fault("cuDeviceGet", st)
	}
	dev := uintptr(int32(f.Out[0]))
	if st := status(f.Call(a.deviceGetName, f.TextAt(), uintptr(len(f.Text)), dev)); st != 0 {
		return driver.Info{}, 0, a.fault("cuDeviceGetName", st)
	}
	return driver.Info{
		Driver:  "cuda",
		Ordinal: ordinal,
		Name:    f.Str(),
		Version: strconv.Itoa(a.version/1000) + "." + strconv.Itoa(a.version%1000/10),
	}, dev, nil
}

// Open retains the primary context of the device with the given ordinal. An
// ordinal that there is no device for is event.InvalidArgument.
func (d *Driver) Open(ordinal int) (driver.Device, error) {
	a, err := d.load()
	if err != nil {
		return nil, err
	}
	n, err := a.count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, event.New(event.InvalidArgument, "cuda device "+strconv.Itoa(ordinal), "want 0.."+strconv.Itoa(n-1))
	}
	info, dev, err := a.info(ordinal)
	if err != nil {
		return nil, err
	}
	v := &Device{api: a, info: info, dev: dev}
	v.caps = a.caps(dev)
	if err := v.retain(true); err != nil {
		return nil, err
	}
	if err := v.openProbe(); err != nil {
		_ = v.Release()
		return nil, err
	}
	return v, nil
}

// caps is what the library and the device claim.
func (a *api) caps(dev uintptr) driver.Caps {
	c := driver.Caps{
		WordProves: false,
		WhyProves: "the CUDA reference does not say whether a write queued behind failed work still lands, " +
			"and it has not been measured on hardware",
		Events:  a.eventCreate != 0 && a.eventRecord != 0 && a.eventQuery != 0 && a.eventDestroy != 0,
		Capture: a.streamIsCapturing != 0,
		Memory:  a.memAlloc != 0 && a.memFree != 0 && a.copyToDevice != 0 && a.copyToHost != 0 && a.fill8 != 0,
	}
	if a.writeValue == 0 {
		c.NoStore = "the driver library has no cuStreamWriteValue64 (CUDA 9.0)"
		return c
	}
	attr, hint := attrCan64BitMemOps, "a virtual GPU or a Tegra, for instance"
	if !a.writeV2 {
		attr, hint = attrCan64BitMemOpsV1, "drivers before CUDA 11.7 need the kernel module parameter NVreg_EnableStreamMemOPs=1"
	}
	f := clib.Get()
	defer f.Put()
	st := status(f.Call(a.deviceGetAttr, f.At(0), uintptr(attr), dev))
	// An attribute that the driver does not know says nothing: the self-test decides.
	if c.StreamStore = st != 0 || int32(f.Out[0]) != 0; !c.StreamStore {
		c.NoStore = "device attribute " + strconv.Itoa(attr) + " says that the device has no 64-bit stream memory operations (" + hint + ")"
	}
	return c
}

// bind locks the goroutine to its thread and makes the device's context
// current there. Every call that returned 0 must be paired with unbind. Without
// a reference the context may not exist any more, and is not touched.
//
// Push and pop, not get and set: the threads of a Go program have, as a rule, no
// context of their own, and then push and pop are two calls where
// get, set and set again are three (BenchmarkBind: 234 against 344 ns).
func (d *Device) bind(f *clib.Frame) int32 {
	if d.refs.Load() == 0 {
		return statusContextDestroyed
	}
	runtime.LockOSThread()
	st := status(f.Call(d.api.ctxPush, d.ctx))
	if st != 0 {
		runtime.UnlockOSThread()
	}
	return st
}

// unbind gives the thread back what it had. A failing pop is not reported: the
// call in between has its own status, and there is nothing left to undo.
func (d *Device) unbind(f *clib.Frame) {
	f.Call(d.api.ctxPop, f.At(2))
	runtime.UnlockOSThread()
}

// do makes one call with the device's context current.
func (d *Device) do(f *clib.Frame, fn uintptr, args ...uintptr) int32 {
	st := d.bind(f)
	if st != 0 {
		return st
	}
	st = status(f.Call(fn, args...))
	d.unbind(f)
	return st
}

// relax makes the calls that follow on this thread harmless to a stream capture
// that another thread runs in global mode, where a query would otherwise
// invalidate it. It returns what unrelax needs.
func (d *Device) relax(f *clib.Frame) uint64 {
	if d.api.exchangeCapture == 0 {
		return captureRelaxed
	}
	at := f.At(2)
	f.Out[2] = captureRelaxed
	f.Call(d.api.exchangeCapture, at)
	return f.Out[2]
}

func (d *Device) unrelax(f *clib.Frame, was uint64) {
	if was == captureRelaxed {
		return
	}
	at := f.At(2)
	f.Out[2] = was
	f.Call(d.api.exchangeCapture, at)
}
