package metal

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
	"github.com/gpuline/gpuline/line"
)

// Config has nothing to configure yet.
type Config struct{}

// Driver is Metal. Its methods may be called from many goroutines.
type Driver struct {
	runtimeLib, metalLib string

	mu   sync.Mutex
	objc *objc
}

var _ driver.Driver = (*Driver)(nil)

// New returns the driver. It opens nothing: the libraries are loaded, and stay
// loaded, at the first call of Devices or Open. On systems other than macOS those
// return event.NotSupported.
func New(Config) *Driver {
	d := &Driver{}
	d.runtimeLib, d.metalLib = libraries()
	return d
}

// Name returns "metal".
func (d *Driver) Name() string { return "metal" }

func (d *Driver) load() (*objc, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.objc != nil {
		return d.objc, nil
	}
	o, err := loadObjC(d.runtimeLib, d.metalLib)
	if err != nil {
		return nil, err
	}
	d.objc = o
	return o, nil
}

// all returns every device, with a reference of the caller on each.
func (d *Driver) all(f *clib.Frame) (*objc, []id, error) {
	o, err := d.load()
	if err != nil {
		return nil, nil, err
	}
	devs := o.devices(f)
	if len(devs) == 0 {
		return nil, nil, event.New(event.NoDevice, "metal", "MTLCopyAllDevices reports none")
	}
	return o, devs, nil
}

// Devices lists the Metal devices (MTLCopyAllDevices). Without one it is
// event.NoDevice, on other systems than macOS event.NotSupported.
func (d *Driver) Devices() ([]driver.Info, error) {
	f := clib.Get()
	defer f.Put()
	o, devs, err := d.all(f)
	if err != nil {
		return nil, err
	}
	infos := make([]driver.Info, len(devs))
	for i, dev := range devs {
		infos[i] = driver.Info{Driver: "metal", Ordinal: i, Name: o.name(f, dev)}
		o.release(f, dev)
	}
	return infos, nil
}

// Open opens the device with the given ordinal. An ordinal that there is no
// device for is event.InvalidArgument.
func (d *Driver) Open(ordinal int) (driver.Device, error) {
	f := clib.Get()
	defer f.Put()
	o, devs, err := d.all(f)
	if err != nil {
		return nil, err
	}
	for i, dev := range devs {
		if i != ordinal {
			o.release(f, dev)
		}
	}
	if ordinal < 0 || ordinal >= len(devs) {
		return nil, event.New(event.InvalidArgument, "metal device "+strconv.Itoa(ordinal), "want 0.."+strconv.Itoa(len(devs)-1))
	}
	dev := devs[ordinal]
	v := &Device{
		objc:    o,
		id:      dev,
		info:    driver.Info{Driver: "metal", Ordinal: ordinal, Name: o.name(f, dev)},
		pages:   map[uintptr]*line.Mapping{},
		streams: map[*Stream]struct{}{},
	}
	v.refs.Store(1)
	return v, nil
}

// Device is a MTLDevice. Its methods may be called from many goroutines.
type Device struct {
	objc *objc
	id   id
	info driver.Info
	gate clib.Gate
	refs atomic.Int32 // each stands for one Objective-C reference

	fault atomic.Pointer[error]

	mu      sync.Mutex
	pages   map[uintptr]*line.Mapping
	streams map[*Stream]struct{} // those whose goroutine runs
}

var _ driver.Device = (*Device)(nil)

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Caps returns what the device can do.
func (d *Device) Caps() driver.Caps {
	return driver.Caps{
		StreamStore: true,
		WordProves:  false,
		WhyProves: "Metal tells of a failed command buffer only by that buffer's own status, and runs what follows: " +
			"the signal behind failed work fires",
		Events: true,
	}
}

func (d *Device) closed() error { return event.New(event.Closed, "metal device") }

// Retain takes one more reference on the device object.
func (d *Device) Retain() error {
	for {
		n := d.refs.Load()
		if n == 0 {
			return d.closed()
		}
		if d.refs.CompareAndSwap(n, n+1) {
			break
		}
	}
	f := clib.Get()
	defer f.Put()
	d.objc.send(f, d.id, selRetain)
	return nil
}

// Release drops a reference.
func (d *Device) Release() error {
	for {
		n := d.refs.Load()
		if n == 0 {
			return d.closed()
		}
		if d.refs.CompareAndSwap(n, n-1) {
			break
		}
	}
	f := clib.Get()
	defer f.Put()
	d.objc.release(f, d.id)
	return nil
}

// AllocHost maps plain pages: the device does not write them, the stream's
// goroutine does.
func (d *Device) AllocHost(n int) (uintptr, error) {
	if d.refs.Load() == 0 {
		return 0, d.closed()
	}
	m, err := line.Map((n+line.Size-1)/line.Size, false)
	if err != nil {
		return 0, err
	}
	host := m.Lines[0].Word(line.Slot{}).Addr()
	d.mu.Lock()
	d.pages[host] = m
	d.mu.Unlock()
	return host, nil
}

// FreeHost unmaps what AllocHost returned. Other addresses are
// event.InvalidArgument.
func (d *Device) FreeHost(host uintptr) error {
	d.mu.Lock()
	m := d.pages[host]
	delete(d.pages, host)
	d.mu.Unlock()
	if m == nil {
		return event.New(event.InvalidArgument, "metal host memory", "not an address that AllocHost returned")
	}
	return m.Close()
}

// DeviceAddr returns the host's address: the device has none for the page.
func (d *Device) DeviceAddr(host uintptr) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for base, m := range d.pages {
		if host >= base && host < base+uintptr(len(m.Lines)*line.Size) {
			return uint64(host), nil
		}
	}
	return 0, event.New(event.InvalidArgument, "metal host memory", "not an address that AllocHost returned")
}

// Settle waits until every store that was queued on a stream of this Device has
// been made, or will never be because its command buffer failed.
func (d *Device) Settle() error {
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	for _, s := range streams {
		s.settle()
	}
	return nil
}

// Status returns the first failure that a command buffer of this package met.
// Metal has no sticky state of a device to ask for.
func (d *Device) Status() error {
	ok := d.gate.Enter()
	defer d.leave()
	if !ok {
		return d.closed()
	}
	if e := d.fault.Load(); e != nil {
		return *e
	}
	return nil
}

// Alloc returns event.NotSupported.
func (d *Device) Alloc(int) (driver.Mem, error) { return 0, noMemory() }

// Free returns event.NotSupported, but for 0.
func (d *Device) Free(m driver.Mem) error {
	if m == 0 {
		return nil
	}
	return noMemory()
}

func noMemory() error {
	return event.New(event.NotSupported, "metal device memory", "the package watches command queues, it makes no buffers")
}

// Close drops the open Device's own reference; when a call is still inside, as
// that call returns. Closing again does nothing.
func (d *Device) Close() error {
	if _, destroy := d.gate.Close(); destroy {
		return d.Release()
	}
	return nil
}

func (d *Device) leave() {
	if d.gate.Leave() {
		_ = d.Release()
	}
}
