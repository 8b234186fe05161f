package cuda_test

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
)

// A program that was built once says on every host what it found there.
func ExampleNew() {
	infos, err := cuda.New(cuda.Config{}).Devices()
	switch {
	case errors.Is(err, event.DriverMissing):
		fmt.Println("no NVIDIA driver here:", err)
	case errors.Is(err, event.NoDevice):
		fmt.Println("a driver without a GPU:", err)
	case err != nil:
		fmt.Println(err)
	}
	for _, d := range infos {
		fmt.Println(d.Ordinal, d.Name, "CUDA", d.Version)
	}
}

// A kernel between two copies, by the driver's own calls.
func ExampleStream_Launch() {
	run := func(ptx []byte) error {
		opened, err := cuda.New(cuda.Config{}).Open(0)
		if err != nil {
			return err
		}
		defer opened.Close()
		dev := opened.(*cuda.Device)

		mod, err := dev.LoadModule(ptx)
		if err != nil {
			return err
		}
		defer mod.Close()
		scale, err := mod.Function("scale") // scale(float *p, float factor, unsigned n)
		if err != nil {
			return err
		}
		made, err := dev.NewStream()
		if err != nil {
			return err
		}
		defer made.Close()
		stream := made.(*cuda.Stream)

		data := make([]float32, 1024)
		mem, err := dev.Alloc(4 * len(data))
		if err != nil {
			return err
		}
		defer dev.Free(mem)
		return errors.Join(
			stream.CopyToDevice(mem, unsafe.Pointer(&data[0]), 4*len(data)),
			stream.Launch(scale, [3]uint32{4, 1, 1}, [3]uint32{256, 1, 1}, 0, mem, float32(2), uint32(len(data))),
			stream.CopyToHost(unsafe.Pointer(&data[0]), mem, 4*len(data)),
			stream.Sync(),
		)
	}
	if err := run([]byte("PTX text")); err != nil {
		fmt.Println(err)
	}
}

// A stream that another binding in the process works on: closing what AdoptStream
// returned leaves it alone.
func ExampleDevice_AdoptStream() {
	adopt := func(dev driver.Device, custream uintptr) error {
		s, err := dev.AdoptStream(custream)
		if errors.Is(err, event.ForeignStream) {
			return fmt.Errorf("made in another context than the primary one: %w", err)
		}
		if err != nil {
			return err
		}
		defer s.Close()
		done, err := s.Query()
		fmt.Println("idle:", done)
		return err
	}
	_ = adopt
}
