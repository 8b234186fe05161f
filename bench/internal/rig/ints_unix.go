//go:build unix

package rig

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapInts returns zeroed memory outside the Go heap, shared so that it does not
// count as the process's private memory. It is never freed.
func mapInts(n int) ([]int64, error) {
	b, err := unix.Mmap(-1, 0, 8*n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	// The mapping is page-aligned and holds n integers, and nothing unmaps it.
	return unsafe.Slice((*int64)(unsafe.Pointer(&b[0])), n), nil
}
