package rig

import (
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Kernels is PTX text of the kernels fill32(p u64, value, n u32), spin(ns u64),
// fault() and gate(p u64).
//
//go:embed kernels.ptx
var Kernels []byte

// EnvCUDA is the variable that names another CUDA driver library than the
// system's.
const EnvCUDA = "GPULINE_BENCH_CUDA"

// CUDA returns the CUDA driver.
func CUDA() *cuda.Driver { return cuda.New(cuda.Config{Library: os.Getenv(EnvCUDA)}) }

// How a thread waits in cuStreamSynchronize (CUctx_flags).
const (
	schedSpin     = 1
	schedBlocking = 4
)

// schedule makes the primary context's blocking calls spin or block. Which call can
// change that after the context was made depends on the driver's version.
func schedule(d *cuda.Device, flags uintptr) error {
	err := d.Call("cuDevicePrimaryCtxSetFlags_v2", 0, flags)
	if err != nil {
		if err2 := d.Call("cuCtxSetFlags", flags); err2 == nil {
			return nil
		}
	}
	return err
}

type cudaWorker struct {
	mod  *cuda.Module
	spin *cuda.Function
}

func newCUDAWorker(d *cuda.Device) (worker, error) {
	mod, err := d.LoadModule(Kernels)
	if err != nil {
		return nil, err
	}
	spin, err := mod.Function("spin")
	if err != nil {
		return nil, err
	}
	return &cudaWorker{mod, spin}, nil
}

func (w *cudaWorker) work(s driver.Stream, d time.Duration) error {
	cs, ok := cuda.Of(s)
	if !ok {
		return fmt.Errorf("%T is no CUDA stream", s)
	}
	return cs.Launch(w.spin, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, uint64(d))
}

func (w *cudaWorker) close() error { return w.mod.Close() }

// callbacks are the channels that host callbacks send on, by lane.
var callbacks []chan struct{}

// hostFunc queues the callback of the lane's channel.
func hostFunc(l *lane) error {
	d, ok := l.ds.Device().(*cuda.Device)
	if !ok {
		return fmt.Errorf("no host callbacks for %s", l.r.job.Driver)
	}
	fn, err := callback()
	if err != nil {
		return err
	}
	return d.Call("cuLaunchHostFunc", l.ds.Handle(), fn, uintptr(l.i))
}

// eventSync waits for what is queued with an event that blocks its thread
// (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING).
func eventSync(l *lane) error {
	d, ok := l.ds.Device().(*cuda.Device)
	if !ok {
		return fmt.Errorf("no such events for %s", l.r.job.Driver)
	}
	e := new(uintptr)
	var pin runtime.Pinner
	pin.Pin(e)
	defer pin.Unpin()
	if err := d.Call("cuEventCreate", uintptr(unsafe.Pointer(e)), 1|2); err != nil {
		return err
	}
	defer func() { _ = d.Call("cuEventDestroy_v2", *e) }()
	if err := d.Call("cuEventRecord", *e, l.ds.Handle()); err != nil {
		return err
	}
	return d.Call("cuEventSynchronize", *e)
}

// ContextFlags returns the flags of the device's primary context, -1 when the
// driver does not tell.
func ContextFlags(d *gpu.Device) int {
	cd, ok := d.Driver().(*cuda.Device)
	if !ok {
		return -1
	}
	flags := new(uint32)
	var pin runtime.Pinner
	pin.Pin(flags)
	defer pin.Unpin()
	if cd.Call("cuCtxGetFlags", uintptr(unsafe.Pointer(flags))) != nil {
		return -1
	}
	return int(*flags)
}
