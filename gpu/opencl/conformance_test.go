//go:build linux && (amd64 || arm64)

package opencl_test

import (
	"sync"
	"testing"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/opencl"
)

func TestConformance(t *testing.T) { conformance(t, opencl.New(opencl.Config{})) }

// What most OpenCL devices without fine-grained memory, and OpenCL before 2.0,
// can do: no words, events instead.
func TestConformanceWithoutWords(t *testing.T) {
	t.Run("coarse-grained", func(t *testing.T) {
		conformance(t, opencl.Limited{Driver: opencl.New(opencl.Config{}), SVM: 1})
	})
	t.Run("OpenCL 1.2", func(t *testing.T) {
		conformance(t, opencl.Limited{Driver: opencl.New(opencl.Config{}), SVM: ^uint64(0), Lack: "SVM"})
	})
	t.Run("no atomics", func(t *testing.T) {
		conformance(t, opencl.Limited{Driver: opencl.New(opencl.Config{}), SVM: 3, Lack: "WithProperties"})
	})
}

func conformance(t *testing.T, drv driver.Driver) {
	drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) {
		device(t)
		f := newForeign(t)
		var mu sync.Mutex
		kernels := make(map[*opencl.Device]*opencl.Kernel)
		bytesKernel := func(d *opencl.Device) (*opencl.Kernel, error) {
			mu.Lock()
			defer mu.Unlock()
			if k := kernels[d]; k != nil {
				return k, nil
			}
			p, err := d.Build(source, "")
			if err != nil {
				return nil, err
			}
			defer p.Close()
			k, err := p.Kernel("bytes")
			if err == nil {
				kernels[d] = k
				t.Cleanup(func() { must(t, k.Close()) })
			}
			return k, err
		}
		return drv, drivertest.Options{
			Work: func(s driver.Stream, dst driver.Mem, n int, value byte) error {
				cl, _ := opencl.Of(s)
				d, _ := opencl.DeviceOf(s.Device())
				k, err := bytesKernel(d)
				if err != nil {
					return err
				}
				return cl.Launch(k, []int{n}, nil, dst, value, uint32(min(1000, 1<<18/n)))
			},
			Gate: func(s driver.Stream) (func() error, error) {
				cl, ok := opencl.Of(s)
				if !ok {
					return nil, event.InvalidArgument
				}
				open, err := cl.Gate()
				return func() error { return open(0) }, err
			},
			Poison: func(s driver.Stream) error {
				cl, _ := opencl.Of(s)
				open, err := cl.Gate()
				if err != nil {
					return err
				}
				return open(-5)
			},
			Foreign: func(t testing.TB, d driver.Device) uintptr {
				cl, _ := opencl.DeviceOf(d)
				q := f.queue(t, cl.Context(), cl.ID(), 0)
				t.Cleanup(func() { f.releaseQueue(q) })
				return q
			},
			Alien: func(t testing.TB, d driver.Device) uintptr {
				cl, _ := opencl.DeviceOf(d)
				var rc int32
				dev := cl.ID()
				ctx := f.createContext(0, 1, &dev, 0, 0, &rc)
				q := f.queue(t, ctx, dev, 0)
				t.Cleanup(func() { f.releaseQueue(q); f.releaseCtx(ctx) })
				return q
			},
		}
	})
}
