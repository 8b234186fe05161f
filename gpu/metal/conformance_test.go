package metal

import (
	"testing"

	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/driver/standin"
)

// The shared suite, over the stand-in library.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) {
		path := standin.Build(t, "metal")
		ctl := standin.Open(t, path)
		t.Cleanup(func() {
			if n := ctl.Get("violations"); n != 0 {
				t.Errorf("%d violations, the last: %s", n, ctl.Violation())
			}
		})
		queue := func(t testing.TB, d driver.Device) uintptr {
			s, err := d.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s.Handle()
		}
		return at(path), drivertest.Options{
			Gate: func(s driver.Stream) (func() error, error) {
				open := ctl.Gate(s.Handle())
				return func() error { open(); return nil }, nil
			},
			Poison:  func(s driver.Stream) error { ctl.Fault(s.Handle()); return nil },
			Foreign: queue,
			Alien: func(t testing.TB, _ driver.Device) uintptr {
				d, err := at(path).Open(1)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Close() })
				return queue(t, d)
			},
		}
	})
}
