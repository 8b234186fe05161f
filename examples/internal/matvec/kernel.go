package matvec

import (
	"fmt"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/opencl"
	"github.com/gpuline/gpuline/gpu/soft"
)

func newKernel(dev *gpu.Device, work time.Duration) (kernel, error) {
	switch d := dev.Driver().(type) {
	case *opencl.Device:
		return newCLKernel(dev, d)
	case *soft.Device:
		return &softKernel{dev: d, matrix: Matrix(), work: work}, nil
	}
	return nil, fmt.Errorf("matvec: no kernel for driver %s: want opencl or soft", dev.Info().Driver)
}
