package line

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/windows"

	"github.com/gpuline/gpuline/event"
)

// Mapping is whole pages of host memory that hold lines and nothing else.
type Mapping struct {
	// Lines are the mapping's lines, all zero when fresh.
	Lines []Line
	once  sync.Once
	addr  uintptr
	err   error
}

// Map returns fresh pages that hold at least n lines (n >= 1). Windows has no
// fork, so shared makes no difference. The mapping lives until Close, which must
// not be called while a device may still store into it.
func Map(n int, shared bool) (*Mapping, error) {
	if n < 1 || n > 1<<30/Size {
		return nil, event.New(event.InvalidArgument, "line mapping of "+strconv.Itoa(n)+" lines", "want 1.."+strconv.Itoa(1<<30/Size))
	}
	page := os.Getpagesize()
	size := (n*Size + page - 1) / page * page
	addr, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, os.NewSyscallError("VirtualAlloc", err)
	}
	lines, err := FromAddr(addr, size)
	if err != nil {
		_ = windows.VirtualFree(addr, 0, windows.MEM_RELEASE)
		return nil, err
	}
	return &Mapping{Lines: lines, addr: addr}, nil
}

// Close frees the pages. It is idempotent; the lines must not be used after.
func (m *Mapping) Close() error {
	m.once.Do(func() {
		m.Lines = nil
		m.err = os.NewSyscallError("VirtualFree", windows.VirtualFree(m.addr, 0, windows.MEM_RELEASE))
	})
	return m.err
}
