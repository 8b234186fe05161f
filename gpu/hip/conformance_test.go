package hip_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/driver/standin"
	"github.com/gpuline/gpuline/gpu/hip"
)

// The shared suite, over the stand-in library.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) {
		path := standin.Build(t, "hip")
		ctl := standin.Open(t, path)
		t.Cleanup(func() {
			if n := ctl.Get("violations"); n != 0 {
				t.Errorf("%d violations, the last: %s", n, ctl.Violation())
			}
		})
		drv := hip.New(hip.Config{Library: path})
		return drv, drivertest.Options{
			Gate: func(s driver.Stream) (func() error, error) {
				open := ctl.Gate(s.Handle())
				return func() error { open(); return nil }, nil
			},
			Poison:        func(s driver.Stream) error { ctl.Fault(s.Handle()); return nil },
			PoisonOrdinal: 1, // the primary context is the process's: a fault ends it for all
			Foreign:       func(t testing.TB, _ driver.Device) uintptr { return foreign(t, ctl, 0) },
			Alien: func(t testing.TB, _ driver.Device) uintptr {
				// Device 1 has to be in use for its streams to live.
				d, err := drv.Open(1)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Close() })
				return foreign(t, ctl, 1)
			},
			Capture: func(s driver.Stream) (func() error, error) {
				d := s.Device().(*hip.Device)
				// Relaxed, so that any thread may end it.
				if err := d.Call("hipStreamBeginCapture", s.Handle(), 2); err != nil {
					return nil, err
				}
				return func() error {
					var graph uintptr
					var pin runtime.Pinner
					pin.Pin(&graph)
					defer pin.Unpin()
					return d.Call("hipStreamEndCapture", s.Handle(), uintptr(unsafe.Pointer(&graph)))
				}, nil
			},
		}
	})
}

// foreign makes a stream on a device as other code in the process does: through
// its own handle on the library.
func foreign(t testing.TB, ctl *standin.Control, device uintptr) uintptr {
	on := func(f func()) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		was, _ := ctl.Out("hipGetDevice")
		ctl.Call("hipSetDevice", device)
		f()
		ctl.Call("hipSetDevice", uintptr(was))
	}
	var h uint64
	on(func() {
		var st int
		if h, st = ctl.Out("hipStreamCreateWithFlags", 0); st != 0 {
			t.Errorf("hipStreamCreateWithFlags: %d", st)
		}
	})
	t.Cleanup(func() { on(func() { ctl.Call("hipStreamDestroy", uintptr(h)) }) })
	return uintptr(h)
}
