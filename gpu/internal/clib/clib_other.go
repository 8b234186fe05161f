//go:build !((linux || darwin || windows) && (amd64 || arm64))

package clib

import (
	"errors"
	"runtime"
)

// Supported: see clib_purego.go.
const Supported = false

func open(path string) (uintptr, error) {
	return 0, errors.New(path + ": libraries are not opened on " + runtime.GOOS + "/" + runtime.GOARCH)
}

func sym(uintptr, string) uintptr { return 0 }

func syscallN(uintptr, []uintptr) uintptr { panic("clib: no library can be open here") }
