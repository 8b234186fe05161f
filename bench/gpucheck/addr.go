package main

import "unsafe"

// addr is the address of a pinned variable that the driver writes.
func addr(p *uintptr) uintptr { return uintptr(unsafe.Pointer(p)) }
