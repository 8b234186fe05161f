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
