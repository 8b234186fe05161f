//go:build (linux || darwin || windows) && (amd64 || arm64)

package clib

import "github.com/ebitengine/purego"

// Supported: this system's libraries can be reached, and its registers hold the
// 64-bit values that a stream stores.
const Supported = true

func syscallN(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
