package gpu

import "unsafe"

// bytesAt views the n bytes at addr, memory that a driver allocated outside the
// Go heap and that its caller keeps allocated while the slice is in use. The
// conversion goes through a pointer to the uintptr because vet can only think of
// Go's own heap here (golang/go#58625).
func bytesAt(addr uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
