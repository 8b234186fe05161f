package gpu

import "github.com/gpuline/gpuline/gpu/driver"

// builtin makes the built-in drivers. Making one opens no library.
var builtin = map[string]func() (driver.Driver, error){}
