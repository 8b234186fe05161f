package uring

import (
	"sync/atomic"
	"unsafe"
)

// The one place where a ring's shared memory becomes Go values.
//
// Soundness: the bytes come from mmap, lie outside the Go heap and hold no Go
// pointers; the kernel lays the fields out at the offsets that it states, each
// aligned to its size; the values are used until the ring is closed, which unmaps
// them.

func word(b []byte, off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[off])) }

func words(b []byte, off, n uint32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(&b[off])), n)
}

func cqesAt(b []byte, off, n uint32) []cqe { return unsafe.Slice((*cqe)(unsafe.Pointer(&b[off])), n) }

func sqesAt(b []byte, n uint32) []sqe { return unsafe.Slice((*sqe)(unsafe.Pointer(&b[0])), n) }

const (
	sqeSize = int(unsafe.Sizeof(sqe{}))
	cqeSize = int(unsafe.Sizeof(cqe{}))
)

// address returns p as the kernel's 64-bit field wants it. What p points to is
// pinned by the request's slot, or lies in a heap object that the Ring holds on to
// until the kernel has read it.
func address(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
