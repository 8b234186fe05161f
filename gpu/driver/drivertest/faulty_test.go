package drivertest_test

import (
	"errors"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/line"
)

// Faulty drivers: the soft device behind a wrapper that is wrong in one way.

// wrap returns a maker of soft drivers whose streams pass through f.
func wrap(f func(driver.Stream) driver.Stream) func() driver.Driver {
	return func() driver.Driver { return wrapped{soft.New(soft.Config{}), f} }
}

type wrapped struct {
	driver.Driver
	f func(driver.Stream) driver.Stream
}

func (w wrapped) Open(n int) (driver.Device, error) {
	d, err := w.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &wrappedDevice{d, w.f}, nil
}

type wrappedDevice struct {
	driver.Device
	f func(driver.Stream) driver.Stream
}

// Driver lets soft.DeviceOf see through the wrapper.
func (d *wrappedDevice) Driver() driver.Device { return d.Device }

func (d *wrappedDevice) NewStream() (driver.Stream, error) {
	s, err := d.Device.NewStream()
	if err != nil {
		return nil, err
	}
	return d.f(inner{s, d}), nil
}

// inner belongs to the wrapped device.
type inner struct {
	driver.Stream
	d driver.Device
}

func (s inner) Device() driver.Device { return s.d }
func (s inner) Driver() driver.Stream { return s.Stream }

// unwrap is embedded where soft.Of has to see through one more wrapper.
func unwrap(s driver.Stream) driver.Stream {
	if w, ok := s.(interface{ Driver() driver.Stream }); ok {
		return w.Driver()
	}
	return s
}

func word(host uintptr) *line.Word {
	return (*line.Word)(*(*unsafe.Pointer)(unsafe.Pointer(&host)))
}

type early struct{ driver.Stream }

func (s early) Driver() driver.Stream { return unwrap(s.Stream) }
func (s early) Store(host uintptr, dev uint64, v uint64) error {
	if err := s.Stream.Store(host, dev, v); err != nil {
		return err
	}
	word(host).Store(v)
	return nil
}

type narrow struct{ driver.Stream }

func (s narrow) Driver() driver.Stream { return unwrap(s.Stream) }
func (s narrow) Store(host uintptr, dev uint64, v uint64) error {
	return s.Stream.Store(host, dev, v&0xffffffff)
}

type off struct{ driver.Stream }

func (s off) Driver() driver.Stream { return unwrap(s.Stream) }
func (s off) Store(host uintptr, dev uint64, v uint64) error {
	return s.Stream.Store(host^8, dev^8, v)
}

type back struct {
	driver.Stream
	n uint64
}

func (s *back) Driver() driver.Stream { return unwrap(s.Stream) }
func (s *back) Store(host uintptr, dev uint64, v uint64) error {
	if s.n++; s.n%100 == 0 {
		// The store before last comes again, late.
		if err := s.Stream.Store(host, dev, v); err != nil {
			return err
		}
		v -= 2<<32 | 2
		return s.Stream.Store(host, dev, v)
	}
	return s.Stream.Store(host, dev, v)
}

type short struct{ driver.Stream }

func (s short) Driver() driver.Stream { return unwrap(s.Stream) }
func (s short) CopyToHost(dst unsafe.Pointer, src driver.Mem, n int) error {
	return s.Stream.CopyToHost(dst, src, n-1)
}

type done struct{ driver.Stream }

func (s done) Driver() driver.Stream { return unwrap(s.Stream) }
func (s done) Query() (bool, error) {
	_, err := s.Stream.Query()
	return err == nil, err
}

type hasty struct{ driver.Stream }

func (s hasty) Driver() driver.Stream { return unwrap(s.Stream) }
func (s hasty) Sync() error           { return nil }

type instant struct{ driver.Stream }

func (s instant) Driver() driver.Stream { return unwrap(s.Stream) }
func (s instant) Record() (driver.Event, error) {
	ev, err := s.Stream.Record()
	if err != nil {
		return nil, err
	}
	return instantEvent{ev}, nil
}

type instantEvent struct{ driver.Event }

func (instantEvent) Query() (bool, error) { return true, nil }

type uncoded struct{ driver.Stream }

func (s uncoded) Driver() driver.Stream { return unwrap(s.Stream) }
func (s uncoded) Query() (bool, error) {
	ok, err := s.Stream.Query()
	if err != nil {
		err = errors.New(err.Error())
	}
	return ok, err
}

type lenient struct{ driver.Stream }

func (s lenient) Driver() driver.Stream { return unwrap(s.Stream) }
func (s lenient) Store(host uintptr, dev uint64, v uint64) error {
	if host == 0 {
		return event.New(event.InvalidArgument, "store", "null")
	}
	return s.Stream.Store(host&^7, dev&^7, v)
}

type blind struct{ driver.Stream }

func (s blind) Driver() driver.Stream { return unwrap(s.Stream) }
func (s blind) Query() (bool, error)  { return true, nil }

// proven claims Caps.WordProves, as the soft device does, but its stores land
// when the device settles, whatever became of the work in front.
type proven struct{ driver.Driver }

func (p proven) Open(n int) (driver.Device, error) {
	d, err := p.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &provenDevice{Device: d}, nil
}

type provenDevice struct {
	driver.Device
	host  uintptr
	value uint64
}

func (d *provenDevice) Driver() driver.Device { return d.Device }

func (d *provenDevice) NewStream() (driver.Stream, error) {
	s, err := d.Device.NewStream()
	if err != nil {
		return nil, err
	}
	return landing{inner{s, d}, d}, nil
}

func (d *provenDevice) Settle() error {
	err := d.Device.Settle()
	if d.host != 0 {
		word(d.host).Store(d.value)
	}
	return err
}

type landing struct {
	driver.Stream
	d *provenDevice
}

func (s landing) Driver() driver.Stream { return unwrap(s.Stream) }
func (s landing) Store(host uintptr, dev uint64, v uint64) error {
	s.d.host, s.d.value = host, v
	return s.Stream.Store(host, dev, v)
}

type unsettled struct{ driver.Driver }

func (u unsettled) Open(n int) (driver.Device, error) {
	d, err := u.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &unsettledDevice{d}, nil
}

type unsettledDevice struct{ driver.Device }

func (d *unsettledDevice) Driver() driver.Device { return d.Device }
func (d *unsettledDevice) Settle() error         { return nil }
func (d *unsettledDevice) NewStream() (driver.Stream, error) {
	s, err := d.Device.NewStream()
	if err != nil {
		return nil, err
	}
	return inner{s, d}, nil
}
