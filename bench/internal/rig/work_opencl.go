package rig

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/opencl"
)

// clSource is work that can't be shortened: each step needs the one before.
const clSource = `
kernel void spin(uint n, global uint *out) {
	uint x = n;
	for (uint i = 0; i < n; i++)
		x = x * 1664525u + 1013904223u + (x >> 16);
	out[get_global_id(0)] = x;
}`

// clWorker is a kernel of as many steps as were found to take the time asked for
// when nothing else ran.
type clWorker struct {
	dev   *gpu.Device
	prog  *opencl.Program
	out   driver.Mem
	perNs float64 // steps

	mu      sync.Mutex
	kernels map[driver.Stream]*opencl.Kernel
}

func newCLWorker(d *gpu.Device, cl *opencl.Device) (worker, error) {
	w := &clWorker{dev: d, kernels: map[driver.Stream]*opencl.Kernel{}}
	var err error
	if w.prog, err = cl.Build(clSource, ""); err != nil {
		return nil, err
	}
	if w.out, err = d.Alloc(64); err != nil {
		return nil, err
	}
	s, err := d.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	const steps = 1_000_000
	best := time.Hour
	for range 5 {
		start := time.Now()
		if err := w.launch(s.Driver(), steps); err != nil {
			return nil, err
		}
		if err := s.Driver().Sync(); err != nil {
			return nil, err
		}
		best = min(best, time.Since(start))
	}
	w.perNs = steps / float64(best)
	return w, nil
}

func (w *clWorker) work(s driver.Stream, d time.Duration) error {
	return w.launch(s, uint32(max(1, w.perNs*float64(d))))
}

func (w *clWorker) launch(s driver.Stream, steps uint32) error {
	// A kernel object holds its arguments, so each stream has its own.
	w.mu.Lock()
	k := w.kernels[s]
	if k == nil {
		var err error
		if k, err = w.prog.Kernel("spin"); err != nil {
			w.mu.Unlock()
			return err
		}
		w.kernels[s] = k
	}
	w.mu.Unlock()
	cs, ok := opencl.Of(s)
	if !ok {
		return fmt.Errorf("%T is no OpenCL stream", s)
	}
	return cs.Launch(k, []int{1}, nil, steps, w.out)
}

func (w *clWorker) close() error {
	for _, k := range w.kernels {
		_ = k.Close()
	}
	_ = w.prog.Close()
	return w.dev.Free(w.out)
}
