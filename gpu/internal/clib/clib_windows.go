//go:build windows && (amd64 || arm64)

package clib

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// A bare name is looked for in the system directory only, where the drivers
// install themselves: never in the working directory.
func open(path string) (uintptr, error) {
	flags := uintptr(windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	if filepath.IsAbs(path) {
		flags = windows.LOAD_WITH_ALTERED_SEARCH_PATH
	}
	h, err := windows.LoadLibraryEx(path, 0, flags)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return uintptr(h), nil
}

func sym(handle uintptr, name string) uintptr {
	p, err := windows.GetProcAddress(windows.Handle(handle), name)
	if err != nil {
		return 0
	}
	return p
}
