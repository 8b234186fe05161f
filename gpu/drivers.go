package gpu

import (
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/hip"
	"github.com/gpuline/gpuline/gpu/metal"
	"github.com/gpuline/gpuline/gpu/opencl"
	"github.com/gpuline/gpuline/gpu/soft"
)

// builtin makes the built-in drivers. Making one opens no library.
var builtin = map[string]func() (driver.Driver, error){
	"cuda":   func() (driver.Driver, error) { return cuda.New(cuda.Config{}), nil },
	"hip":    func() (driver.Driver, error) { return hip.New(hip.Config{}), nil },
	"metal":  func() (driver.Driver, error) { return metal.New(metal.Config{}), nil },
	"opencl": func() (driver.Driver, error) { return opencl.New(opencl.Config{}), nil },
	"soft":   func() (driver.Driver, error) { return soft.New(soft.Config{}), nil },
}
