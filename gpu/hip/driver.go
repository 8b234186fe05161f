package hip

import (
	"runtime"
	"strconv"
	"sync"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Config says how to reach the runtime library. The zero value is right nearly
// everywhere.
type Config struct {
	// Library is the path of the runtime library. Empty means libamdhip64.so, of
	// the newest major version there is, by the loader's search and in /opt/rocm,
	// or amdhip64.dll in the system directory on Windows.
	Library string
}

// Driver is the HIP runtime. Its methods may be called from many goroutines.
type Driver struct {
	path string
	mu   sync.Mutex
	api  *api
}

var _ driver.Driver = (*Driver)(nil)

// New returns the driver. It opens nothing: the library is loaded, and stays
// loaded, at the first call of Devices or Open.
func New(cfg Config) *Driver { return &Driver{path: cfg.Library} }

// Name returns "hip".
func (d *Driver) Name() string { return "hip" }

// load loads the library once. A failure is not remembered.
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

// Devices lists the devices that are visible to the process
// (HIP_VISIBLE_DEVICES hides some). Without the library it is
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
		if infos[i], err = a.info(i); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

func (a *api) count() (int, error) {
	f := clib.Get()
	defer f.Put()
	if st := a.call(f, a.getDeviceCount, f.At(0)); st != 0 {
		return 0, a.absent("hipGetDeviceCount", st)
	}
	n := int(int32(f.Out[0]))
	if n < 1 {
		return 0, event.New(event.NoDevice, "hip", "hipGetDeviceCount reports none")
	}
	return n, nil
}

func (a *api) info(ordinal int) (driver.Info, error) {
	f := clib.Get()
	defer f.Put()
	// A hipDevice_t is the ordinal.
	if st := a.call(f, a.deviceGetName, f.TextAt(), uintptr(len(f.Text)), uintptr(ordinal)); st != 0 {
		return driver.Info{}, a.fault("hipDeviceGetName", st)
	}
	info := driver.Info{Driver: "hip", Ordinal: ordinal, Name: f.Str()}
	if v := a.version; v > 0 {
		info.Version = strconv.Itoa(v/10000000) + "." + strconv.Itoa(v%10000000/100000)
	}
	return info, nil
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
		return nil, event.New(event.InvalidArgument, "hip device "+strconv.Itoa(ordinal), "want 0.."+strconv.Itoa(n-1))
	}
	info, err := a.info(ordinal)
	if err != nil {
		return nil, err
	}
	v := &Device{api: a, info: info, ordinal: uintptr(ordinal), caps: a.caps()}
	if err := v.retain(true); err != nil {
		return nil, err
	}
	if err := v.openProbe(); err != nil {
		_ = v.Release()
		return nil, err
	}
	return v, nil
}

// caps is what the library claims. HIP's attribute for stream memory operations
// speaks of waiting only, and its number changed between versions, so nothing is
// asked: the self-test decides.
func (a *api) caps() driver.Caps {
	c := driver.Caps{
		StreamStore: a.writeValue != 0,
		WordProves:  false,
		WhyProves: "the HIP documentation does not say whether a write queued behind failed work still lands, " +
			"and it has not been measured on hardware",
		Events:  a.eventCreate != 0 && a.eventRecord != 0 && a.eventQuery != 0 && a.eventDestroy != 0,
		Capture: a.streamIsCapturing != 0,
		Memory:  a.malloc != 0 && a.free != 0 && a.copyToDevice != 0 && a.copyToHost != 0 && a.fill8 != 0,
	}
	if !c.StreamStore {
		c.NoStore = "the runtime library has no hipStreamWriteValue64 (HIP 4.4)"
	}
	return c
}

// bind locks the goroutine to its thread and makes the device current there;
// was is the device to put back. Every call that returned 0 must be paired with
// unbind. A thread that already has the device current, as every thread has
// device 0 to begin with, costs one call.
func (d *Device) bind(f *clib.Frame) (was uintptr, st int32) {
	if d.refs.Load() == 0 {
		return 0, statusContextDestroyed
	}
	runtime.LockOSThread()
	st = d.api.call(f, d.api.getDevice, f.At(2))
	was = uintptr(int32(f.Out[2]))
	if st == 0 && was != d.ordinal {
		st = d.api.call(f, d.api.setDevice, d.ordinal)
	}
	if st != 0 {
		runtime.UnlockOSThread()
	}
	return was, st
}

// unbind gives the thread back the device it had.
func (d *Device) unbind(f *clib.Frame, was uintptr) {
	if was != d.ordinal {
		d.api.call(f, d.api.setDevice, was)
	}
	runtime.UnlockOSThread()
}

// do makes one call with the device current.
func (d *Device) do(f *clib.Frame, fn uintptr, args ...uintptr) int32 {
	was, st := d.bind(f)
	if st != 0 {
		return st
	}
	st = d.api.call(f, fn, args...)
	d.unbind(f, was)
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
	d.api.call(f, d.api.exchangeCapture, at)
	return f.Out[2]
}

func (d *Device) unrelax(f *clib.Frame, was uint64) {
	if was == captureRelaxed {
		return
	}
	at := f.At(2)
	f.Out[2] = was
	d.api.call(f, d.api.exchangeCapture, at)
}
