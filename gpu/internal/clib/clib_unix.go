//go:build (linux || darwin) && (amd64 || arm64)

package clib

import "github.com/ebitengine/purego"

// RTLD_LOCAL keeps one driver's symbols (LLVM's, for some) away from another's.
func open(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func sym(handle uintptr, name string) uintptr {
	p, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return p
}
