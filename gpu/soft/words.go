package soft

import (
	"unsafe"

	"github.com/gpuline/gpuline/line"
)

// wordAt views a word in memory that this package mapped.
func wordAt(addr uint64) *line.Word {
	p := uintptr(addr)
	return (*line.Word)(*(*unsafe.Pointer)(unsafe.Pointer(&p)))
}
