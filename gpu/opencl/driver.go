package opencl

import (
	"sort"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Config says how to reach the OpenCL library. The zero value is right nearly
// everywhere.
type Config struct {
	// Library is the path of the library. Empty means the system's ICD loader:
	// libOpenCL.so.1 by the loader's search, OpenCL.framework on macOS, OpenCL.dll
	// in the system directory on Windows.
	Library string
}

// Driver is the OpenCL driver. Its methods may be called from many goroutines.
type Driver struct {
	path string
	mu   sync.Mutex
	a    *api
}

var _ driver.Driver = (*Driver)(nil)

// New returns the driver. It opens nothing: the library is loaded, and stays
// loaded, at the first call of Devices or one of the Open methods.
func New(cfg Config) *Driver { return &Driver{path: cfg.Library} }

// Name returns "opencl".
func (*Driver) Name() string { return "opencl" }

// load loads the library once. A failure is not remembered: an OpenCL that was
// installed meanwhile is found by the next call.
func (d *Driver) load() (*api, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.a != nil {
		return d.a, nil
	}
	a, err := load(d.path)
	if err != nil {
		return nil, err
	}
	d.a = a
	return a, nil
}

// found is one device of the enumeration.
type found struct {
	id   uintptr
	kind uint64
	info driver.Info
	svm  uint64 // CL_DEVICE_SVM_CAPABILITIES
}

// Devices lists the devices of all platforms: GPUs first, then accelerators,
// then processors, each in the order in which the ICD loader lists them. Errors:
// event.DriverMissing without a library, event.NoDevice without an ICD or a
// device. The first call loads every installed OpenCL implementation, which takes
// from milliseconds to seconds.
func (d *Driver) Devices() ([]driver.Info, error) {
	a, err := d.load()
	if err != nil {
		return nil, err
	}
	devs, err := a.enumerate()
	if err != nil {
		return nil, err
	}
	infos := make([]driver.Info, len(devs))
	for i := range devs {
		infos[i] = devs[i].info
	}
	return infos, nil
}

// Open makes a context of its own on the device with the given ordinal in
// Devices' list. Errors: those of Devices, event.NoDevice for an ordinal out of
// range, event.Backend when the implementation refuses. The result is a *Device.
func (d *Driver) Open(ordinal int) (driver.Device, error) {
	dev, err := d.open(ordinal)
	if err != nil {
		return nil, err
	}
	return dev, nil
}

func (d *Driver) open(ordinal int) (*Device, error) {
	a, err := d.load()
	if err != nil {
		return nil, err
	}
	devs, err := a.enumerate()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= len(devs) {
		return nil, event.New(event.NoDevice, "opencl", "ordinal "+strconv.Itoa(ordinal)+", want 0.."+strconv.Itoa(len(devs)-1))
	}
	var ctx uintptr
	var rc int32
	keepSignals(func() {
		ctx = create(a.createContext, 0, 1, uintptr(unsafe.Pointer(&devs[ordinal].id)), 0, 0, uintptr(unsafe.Pointer(&rc)))
	})
	if rc != 0 {
		return nil, backend("clCreateContext", rc)
	}
	return newDevice(a, devs[ordinal], ctx), nil
}

// OpenContext opens a device over a cl_context that other code made, so that the
// queues of that context can be adopted. deviceID is the cl_device_id, 0 for the
// context's first. The context is retained until the Device is closed. Errors:
// event.InvalidArgument for a null context or a device that is not in it. A handle
// that is not alive crashes in the driver.
func (d *Driver) OpenContext(context, deviceID uintptr) (*Device, error) {
	a, err := d.load()
	if err != nil {
		return nil, err
	}
	if context == 0 {
		return nil, event.New(event.InvalidArgument, "OpenCL context", "null handle")
	}
	ids, err := a.contextDevices(context)
	if err != nil {
		return nil, err
	}
	if deviceID == 0 {
		deviceID = ids[0]
	}
	in := false
	for _, id := range ids {
		in = in || id == deviceID
	}
	if !in {
		return nil, event.New(event.InvalidArgument, "OpenCL device", "not one of the context's devices")
	}
	// A device that the list lacks, a sub-device for one, has ordinal -1.
	f := a.describe(deviceID, -1)
	if devs, err := a.enumerate(); err == nil {
		for _, e := range devs {
			if e.id == deviceID {
				f = e
			}
		}
	}
	if rc := call1(a.retainContext, context); rc != 0 {
		return nil, backend("clRetainContext", rc)
	}
	return newDevice(a, f, context), nil
}

// OpenQueue is OpenContext for the context and device of a cl_command_queue that
// other code made. The queue itself is adopted with Device.AdoptStream.
func (d *Driver) OpenQueue(queue uintptr) (*Device, error) {
	a, err := d.load()
	if err != nil {
		return nil, err
	}
	if queue == 0 {
		return nil, event.New(event.InvalidArgument, "OpenCL queue", "null handle")
	}
	ctx, err := infoWord(a.getQueueInfo, queue, clQueueContext, 8)
	if err != nil {
		return nil, err
	}
	dev, err := infoWord(a.getQueueInfo, queue, clQueueDevice, 8)
	if err != nil {
		return nil, err
	}
	return d.OpenContext(uintptr(ctx), uintptr(dev))
}

func (a *api) contextDevices(context uintptr) ([]uintptr, error) {
	var n uintptr
	if rc := call(a.getContextInfo, context, clContextDevices, 0, 0, uintptr(unsafe.Pointer(&n))); rc != 0 {
		return nil, backend("clGetContextInfo", rc)
	}
	ids := make([]uintptr, n/8)
	if len(ids) == 0 {
		return nil, event.New(event.InvalidArgument, "OpenCL context", "it has no device")
	}
	if rc := call(a.getContextInfo, context, clContextDevices, n, uintptr(unsafe.Pointer(&ids[0])), 0); rc != 0 {
		return nil, backend("clGetContextInfo", rc)
	}
	return ids, nil
}

// enumerate asks every platform for its devices.
func (a *api) enumerate() (devs []found, err error) {
	keepSignals(func() { devs, err = a.enumerateLoud() })
	return devs, err
}

func (a *api) enumerateLoud() ([]found, error) {
	noDevice := func(why string, rc int32) error {
		return event.New(event.NoDevice, "opencl", why).WithStatus(int64(rc))
	}
	var n uint32
	switch rc := call(a.getPlatformIDs, 0, 0, uintptr(unsafe.Pointer(&n))); {
	case rc == clPlatformNotFoundKHR || rc == 0 && n == 0:
		return nil, noDevice("no OpenCL implementation (ICD) is installed", rc)
	case rc != 0:
		return nil, backend("clGetPlatformIDs", rc)
	}
	platforms := make([]uintptr, n)
	if rc := call(a.getPlatformIDs, uintptr(n), uintptr(unsafe.Pointer(&platforms[0])), 0); rc != 0 {
		return nil, backend("clGetPlatformIDs", rc)
	}
	var devs []found
	var why []string
	var last int32
	for _, p := range platforms {
		var n uint32
		rc := call(a.getDeviceIDs, p, clDeviceTypeAll, 0, 0, uintptr(unsafe.Pointer(&n)))
		ids := make([]uintptr, n)
		if rc == 0 && n > 0 {
			rc = call(a.getDeviceIDs, p, clDeviceTypeAll, uintptr(n), uintptr(unsafe.Pointer(&ids[0])), 0)
		}
		if rc != 0 || n == 0 {
			name, _ := infoString(a.getPlatformInfo, p, clPlatformName)
			if rc == 0 {
				rc = clDeviceNotFound
			}
			why, last = append(why, "platform "+name+": "+statusText(rc)), rc
			continue
		}
		for _, id := range ids {
			devs = append(devs, a.describe(id, 0))
		}
	}
	if len(devs) == 0 {
		return nil, noDevice(strings.Join(why, "; "), last)
	}
	sort.SliceStable(devs, func(i, j int) bool { return rank(devs[i].kind) < rank(devs[j].kind) })
	for i := range devs {
		devs[i].info.Ordinal = i
	}
	return devs, nil
}

func rank(kind uint64) int {
	switch {
	case kind&clDeviceTypeGPU != 0:
		return 0
	case kind&clDeviceTypeAccelerator != 0:
		return 1
	case kind&clDeviceTypeCPU != 0:
		return 2
	}
	return 3
}

// describe reads what a device says of itself. What it refuses to say stays
// empty: a device before OpenCL 2.0 has no SVM capabilities to report.
func (a *api) describe(id uintptr, ordinal int) found {
	name, _ := infoString(a.getDeviceInfo, id, clDeviceName)
	version, _ := infoString(a.getDeviceInfo, id, clDeviceVersion)
	if drv, err := infoString(a.getDeviceInfo, id, clDriverVersion); err == nil {
		version = strings.TrimSpace(version) + ", driver " + strings.TrimSpace(drv)
	}
	kind, _ := infoWord(a.getDeviceInfo, id, clDeviceType, 8)
	svm, _ := infoWord(a.getDeviceInfo, id, clDeviceSVMCapabilities, 8)
	return found{id: id, kind: kind, svm: svm, info: driver.Info{
		Driver: "opencl", Ordinal: ordinal, Name: strings.TrimSpace(name), Version: version,
	}}
}
