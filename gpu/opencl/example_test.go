package opencl_test

import (
	"fmt"
	"log"
	"runtime"
	"unsafe"

	"github.com/gpuline/gpuline/gpu/opencl"
)

// A kernel from source, on the first device of the machine. With package gpu,
// opencl.DeviceOf(device) and opencl.Of(stream) give the same access, and
// stream.Mark behind the launch makes it something to wait for.
func Example() {
	dev, err := opencl.New(opencl.Config{}).Open(0)
	if err != nil {
		log.Fatal(err) // says what is missing: the library, an ICD, a device
	}
	defer dev.Close()
	d, _ := opencl.DeviceOf(dev)
	program, err := d.Build(`
		__kernel void square(__global float *x) {
			size_t i = get_global_id(0);
			x[i] = (float)i * (float)i;
		}`, "")
	if err != nil {
		log.Fatal(err) // with the compiler's log
	}
	defer program.Close()
	square, err := program.Kernel("square")
	if err != nil {
		log.Fatal(err)
	}
	defer square.Close()

	const n = 8
	mem, err := d.Alloc(4 * n)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Free(mem)
	ds, err := d.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	defer ds.Close()
	s, _ := opencl.Of(ds)
	if err := s.Launch(square, []int{n}, nil, mem); err != nil {
		log.Fatal(err)
	}
	out := make([]float32, n)
	var pin runtime.Pinner // the device writes to out later than CopyToHost returns
	pin.Pin(&out[0])
	defer pin.Unpin()
	if err := s.CopyToHost(unsafe.Pointer(&out[0]), mem, 4*n); err != nil {
		log.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(out)
}
