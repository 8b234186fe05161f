package cuda_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/driver/standin"
)

// The shared suite, over the stand-in library.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) {
		path := standin.Build(t, "cuda")
		ctl := standin.Open(t, path)
		t.Cleanup(func() {
			if n := ctl.Get("violations"); n != 0 {
				t.Errorf("%d violations, the last: %s", n, ctl.Violation())
			}
		})
		return cuda.New(cuda.Config{Library: path}), drivertest.Options{
			Gate: func(s driver.Stream) (func() error, error) {
				open := ctl.Gate(s.Handle())
				return func() error { open(); return nil }, nil
			},
			Poison:        func(s driver.Stream) error { ctl.Fault(s.Handle()); return nil },
			PoisonOrdinal: 1, // the primary context is the process's: a fault ends it for all
			Foreign: func(t testing.TB, d driver.Device) uintptr {
				return foreign(t, ctl, d.(*cuda.Device).Context())
			},
			Alien: func(t testing.TB, _ driver.Device) uintptr {
				runtime.LockOSThread()
				ctx, st := ctl.Out("cuCtxCreate_v2", 0, 0)
				if st != 0 {
					t.Fatal(st)
				}
				ctl.Call("cuCtxPopCurrent_v2", 0)
				runtime.UnlockOSThread()
				t.Cleanup(func() { ctl.Call("cuCtxDestroy_v2", uintptr(ctx)) })
				return foreign(t, ctl, uintptr(ctx))
			},
			Capture: func(s driver.Stream) (func() error, error) {
				d := s.Device().(*cuda.Device)
				// Relaxed, so that any thread may end it.
				if err := d.Call("cuStreamBeginCapture_v2", s.Handle(), 2); err != nil {
					return nil, err
				}
				return func() error {
					var graph uintptr
					var pin runtime.Pinner
					pin.Pin(&graph)
					defer pin.Unpin()
					return d.Call("cuStreamEndCapture", s.Handle(), uintptr(unsafe.Pointer(&graph)))
				}, nil
			},
		}
	})
}

// foreign makes a stream in a context as other code in the process does: through
// its own handle on the library.
func foreign(t testing.TB, ctl *standin.Control, ctx uintptr) uintptr {
	in := func(f func()) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ctl.Call("cuCtxPushCurrent_v2", ctx)
		f()
		ctl.Call("cuCtxPopCurrent_v2", 0)
	}
	var h uint64
	in(func() {
		var st int
		if h, st = ctl.Out("cuStreamCreate", 0); st != 0 {
			t.Errorf("cuStreamCreate: %d", st)
		}
	})
	t.Cleanup(func() { in(func() { ctl.Call("cuStreamDestroy_v2", uintptr(h)) }) })
	return uintptr(h)
}
