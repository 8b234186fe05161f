package matvec

import (
	"encoding/binary"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/opencl"
)

const source = `
#define DIM 64
kernel void matvec(global const int *m, global const int *x, global int *y) {
	int row = get_global_id(0), vec = get_global_id(1), sum = 0;
	for (int c = 0; c < DIM; c++)
		sum += m[row*DIM + c] * x[vec*DIM + c];
	y[vec*DIM + row] = sum;
}`

// clKernel is the product as an OpenCL kernel, built from source.
type clKernel struct {
	dev    *gpu.Device
	prog   *opencl.Program
	k      *opencl.Kernel
	matrix driver.Mem
}

func newCLKernel(dev *gpu.Device, cl *opencl.Device) (_ kernel, err error) {
	c := &clKernel{dev: dev}
	defer func() {
		if err != nil {
			_ = c.close()
		}
	}()
	if c.prog, err = cl.Build(source, ""); err != nil {
		return nil, err
	}
	if c.k, err = c.prog.Kernel("matvec"); err != nil {
		return nil, err
	}
	if c.matrix, err = dev.Alloc(Dim * Dim * 4); err != nil {
		return nil, err
	}
	var b []byte
	for _, v := range Matrix() {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	s, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	seq, err := s.CopyToDevice(c.matrix, b)
	if err != nil {
		return nil, err
	}
	<-gpu.Done(s, seq)
	return c, s.Err()
}

func (c *clKernel) launch(s *gpu.Stream, x, y driver.Mem, n int) error {
	cs, _ := opencl.Of(s)
	return cs.Launch(c.k, []int{Dim, n}, nil, c.matrix, x, y)
}

func (c *clKernel) close() error {
	var err error
	if c.matrix != 0 {
		err = c.dev.Free(c.matrix)
	}
	if c.prog != nil {
		if perr := c.prog.Close(); err == nil {
			err = perr
		}
	}
	return err
}
