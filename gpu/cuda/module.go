package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// Module is code that was loaded into a device's context. It lives until Close
// or until the context ends.
type Module struct {
	dev    *Device
	handle uintptr
	gate   clib.Gate
}

// Function is a kernel of a Module, usable as long as that.
type Function struct {
	mod    *Module
	name   string
	handle uintptr
}

// LoadModule loads PTX text, or a binary image that cuModuleLoadData takes. The
// driver compiles PTX for the device, which can take from milliseconds to
// seconds. A driver without modules is event.NotSupported.
func (d *Device) LoadModule(ptx []byte) (*Module, error) {
	ok := d.gate.Enter()
	defer d.leave()
	switch {
	case !ok:
		return nil, d.closed()
	case d.api.moduleLoad == 0 || d.api.moduleUnload == 0 || d.api.moduleFunction == 0:
		return nil, missing("cuModuleLoadData")
	case len(ptx) == 0:
		return nil, event.New(event.InvalidArgument, "cuda module", "empty image")
	}
	// The driver finds the end of PTX text by its terminator.
	image := append(append(make([]byte, 0, len(ptx)+1), ptx...), 0)
	f := clib.Get()
	defer f.Put()
	st := d.do(f, d.api.moduleLoad, f.At(0), uintptr(unsafe.Pointer(&image[0])))
	runtime.KeepAlive(image) // a heap object: its address above stays right until here
	if st != 0 {
		return nil, d.api.fault("cuModuleLoadData", st)
	}
	return &Module{dev: d, handle: uintptr(f.Out[0])}, nil
}

// Function returns the kernel of the given name.
func (m *Module) Function(name string) (*Function, error) {
	ok := m.gate.Enter()
	defer m.leave()
	if !ok {
		return nil, event.New(event.Closed, "cuda module")
	}
	text := append([]byte(name), 0)
	d := m.dev
	f := clib.Get()
	defer f.Put()
	st := d.do(f, d.api.moduleFunction, f.At(0), m.handle, uintptr(unsafe.Pointer(&text[0])))
	runtime.KeepAlive(text)
	if st != 0 {
		return nil, d.api.fault("cuModuleGetFunction "+name, st)
	}
	return &Function{mod: m, name: name, handle: uintptr(f.Out[0])}, nil
}

// Close unloads the module. No kernel of it may be queued or running.
func (m *Module) Close() error {
	if _, destroy := m.gate.Close(); !destroy {
		return nil
	}
	return m.destroy()
}

func (m *Module) leave() {
	if m.gate.Leave() {
		_ = m.destroy()
	}
}

func (m *Module) destroy() error {
	f := clib.Get()
	defer f.Put()
	return m.dev.api.teardown("cuModuleUnload", m.dev.do(f, m.dev.api.moduleUnload, m.handle))
}

// Launch queues a kernel (cuLaunchKernel) with grid and block sizes in x, y, z
// and shared bytes of dynamic shared memory per block. The driver copies the
// arguments before it returns.
//
// The arguments must be, in the order and with the widths of the kernel's
// parameters, of the types int8 to int64, uint8 to uint64, uintptr, float32,
// float64 or driver.Mem. Others, and a stream of another device than the
// function's, are event.InvalidArgument.
func (s *Stream) Launch(fn *Function, grid, block [3]uint32, shared uint32, args ...any) error {
	if fn == nil || fn.mod.dev.ctx != s.dev.ctx {
		return event.New(event.InvalidArgument, "cuda launch", "the function is nil or of another device than the stream")
	}
	ok := fn.mod.gate.Enter()
	defer fn.mod.leave()
	if !ok {
		return event.New(event.Closed, "cuda module")
	}
	if s.dev.api.launchKernel == 0 {
		return missing("cuLaunchKernel")
	}
	// Each value in a cell of its own, each parameter the address of one: the
	// driver reads both arrays, so both are pinned for the call.
	cells := make([]uint64, len(args)+1)
	params := make([]uintptr, len(args)+1)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&cells[0])
	pin.Pin(&params[0])
	for i, a := range args {
		p := unsafe.Pointer(&cells[i])
		switch v := a.(type) {
		case int8:
			*(*int8)(p) = v
		case int16:
			*(*int16)(p) = v
		case int32:
			*(*int32)(p) = v
		case int64:
			*(*int64)(p) = v
		case uint8:
			*(*uint8)(p) = v
		case uint16:
			*(*uint16)(p) = v
		case uint32:
			*(*uint32)(p) = v
		case uint64:
			*(*uint64)(p) = v
		case uintptr:
			*(*uintptr)(p) = v
		case float32:
			*(*float32)(p) = v
		case float64:
			*(*float64)(p) = v
		case driver.Mem:
			*(*driver.Mem)(p) = v
		default:
			return event.New(event.InvalidArgument, "cuda launch of "+fn.name,
				fmt.Sprintf("argument %d is a %T: want a number of stated width or a driver.Mem", i, a))
		}
		params[i] = uintptr(p)
	}
	return s.call("cuLaunchKernel", s.dev.api.launchKernel, fn.handle,
		uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]),
		uintptr(block[0]), uintptr(block[1]), uintptr(block[2]),
		uintptr(shared), s.handle, uintptr(unsafe.Pointer(&params[0])), 0)
}
