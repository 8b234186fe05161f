package matvec

import (
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/soft"
)

// softKernel is the product as a function that the soft device runs on its own
// memory, behind work that takes a stated time.
type softKernel struct {
	dev    *soft.Device
	matrix []int32
	work   time.Duration
}

func (k *softKernel) launch(s *gpu.Stream, x, y driver.Mem, n int) error {
	ss, _ := soft.Of(s)
	if k.work > 0 {
		if err := ss.Work(k.work); err != nil {
			return err
		}
	}
	return ss.Run(func() error {
		Multiply(k.matrix, k.dev.Bytes(y, n*VectorBytes), k.dev.Bytes(x, n*VectorBytes))
		return nil
	})
}

func (k *softKernel) close() error { return nil }
