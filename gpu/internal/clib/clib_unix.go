//go:build (linux || darwin) && (amd64 || arm64)

package clib

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// RTLD_LOCAL keeps one driver's symbols (LLVM's, for some) away from another's.
//
// dlerror's text belongs to the thread that called dlopen, and purego asks for it
// with a second call: without the lock the goroutine may have moved in between,
// and the reason would be lost.
func open(path string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil && err.Error() == "" {
		err = fmt.Errorf("%s: dlopen failed without a reason", path)
	}
	return h, err
}

func sym(handle uintptr, name string) uintptr {
	p, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return p
}
