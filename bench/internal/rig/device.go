package rig

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/opencl"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/plan"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/sys"
)

// Drivers names the drivers whose device work can be measured.
const Drivers = "soft, opencl, cuda"

// PlanText returns the text of this machine's default plan, with the prediction
// or without.
func PlanText(predict bool) string {
	text := plan.Default(gpu.PlanCaps(true, "")).String()
	if !predict {
		text, _, _ = strings.Cut(text, "+")
	}
	return text
}

// Steady returns the text of a plan for work that always takes as long: it trusts the
// last two waits and wakes shortly before.
func Steady() string {
	p, err := plan.Parse("park:park_us=100,spin_us=100,nap_us=50,backstop_us=1000+predict:margin_us=30,min_sleep_us=20,max_sleep_us=50000,window=2")
	if err != nil {
		panic(err)
	}
	return p.Resolve(gpu.PlanCaps(true, "")).Running.String()
}

// frugalPlan is for programs that have better things to do with the processor: it
// wakes a thousand times a second, less often in long waits, and never spins.
const frugalPlan = "staged:spin_us=0,nap_us=1000,backstop_us=1000+predict:margin_us=20,min_sleep_us=20,max_sleep_us=50000,window=4"

// openDevice opens the driver's device. The soft device's store engine is
// a process of its own, so that its CPU time is not charged to the program.
func openDevice(name, planText string) (*gpu.Device, error) {
	var opts []gpu.Option
	switch name {
	case "soft", "":
		opts = append(opts, gpu.Using(soft.New(soft.Config{Process: true})))
	case "cuda":
		opts = append(opts, gpu.Using(CUDA()))
	default:
		opts = append(opts, gpu.WithDriver(name))
	}
	if planText != "" {
		opts = append(opts, gpu.WithPlan(planText))
	}
	d, err := gpu.Open(context.Background(), opts...)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return d, nil
}

// hurry gives the soft device's process real-time priority: a device works on processors of its own,
// and its stores do not come late because the kernel has put the thread that waits for them where the device's
// process waits to run.
func hurry(d *gpu.Device) error {
	var pid int
	if _, err := fmt.Sscanf(d.Driver().(*soft.Device).Engine(), "process %d", &pid); err != nil {
		return fmt.Errorf("the soft device has no process of its own: %w", err)
	}
	if err := sys.Realtime(pid); err != nil {
		return fmt.Errorf("real-time priority for the soft device's process: %w", err)
	}
	return nil
}

// Hurries reports whether Job.Realtime means anything in a cell: where the soft device sleeps most of the
// time, and nothing else is to run meanwhile. With more to do it would keep everybody else from one of few processors.
func Hurries(c result.Cell) bool {
	return c.Streams == 1 && c.Load == "idle" && c.Work != "20us"
}

// worker queues device work of a stated length.
type worker interface {
	work(s driver.Stream, d time.Duration) error
	close() error
}

func newWorker(d *gpu.Device) (worker, error) {
	switch dd := d.Driver().(type) {
	case *soft.Device:
		return softWorker{}, nil
	case *opencl.Device:
		return newCLWorker(d, dd)
	case *cuda.Device:
		return newCUDAWorker(dd)
	}
	return nil, skipped("no device work of stated length for driver " + d.Info().Driver)
}

type softWorker struct{}

func (softWorker) work(s driver.Stream, d time.Duration) error { return s.(*soft.Stream).Work(d) }
func (softWorker) close() error                                { return nil }
