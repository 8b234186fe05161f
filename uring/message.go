package uring

import (
	"syscall"
	"unsafe"
)

// sendRingless posts a completion on a ring without having a ring.
func sendRingless(ringFD int, user uint64, res int32) syscall.Errno {
	s := new(sqe)
	message(s, ringFD, user, res)
	return sysRegister(-1, registerSendMsgRing, unsafe.Pointer(s), 1)
}
