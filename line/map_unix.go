//go:build unix

package line

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
)

// Mapping is whole pages of host memory that hold lines and nothing else.
type Mapping struct {
	// Lines are the mapping's lines, all zero when fresh.
	Lines []Line
	once  sync.Once
	mem   []byte
	err   error
}

// Map returns fresh pages that hold at least n lines (n >= 1). With shared set,
// the pages stay shared with processes forked later. The mapping lives until
// Close, which must not be called while a device may still store into it.
func Map(n int, shared bool) (*Mapping, error) {
	if n < 1 || n > 1<<30/Size {
		return nil, event.New(event.InvalidArgument, "line mapping of "+strconv.Itoa(n)+" lines", "want 1.."+strconv.Itoa(1<<30/Size))
	}
	page := os.Getpagesize()
	size := (n*Size + page - 1) / page * page
	flags := unix.MAP_ANON | unix.MAP_PRIVATE
	if shared {
		flags = unix.MAP_ANON | unix.MAP_SHARED
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	lines, err := FromBytes(mem)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return &Mapping{Lines: lines, mem: mem}, nil
}

// Close unmaps the pages. It is idempotent; the lines must not be used after.
func (m *Mapping) Close() error {
	m.once.Do(func() {
		m.Lines = nil
		m.err = os.NewSyscallError("munmap", unix.Munmap(m.mem))
	})
	return m.err
}
