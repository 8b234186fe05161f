//go:build !linux

package uring

import (
	"syscall"
	"time"
	"unsafe"
)

// io_uring is Linux's alone; setting a ring up fails with the reason that other
// systems have for everything else here to be out of reach.

// Linux's numbers.
const (
	errTime     = syscall.Errno(62)
	errOverflow = syscall.Errno(75)
	errBadFD    = syscall.Errno(77)
)

func sysSetup(uint32, *params) (int, syscall.Errno) { return -1, syscall.ENOSYS }

func sysEnter(int, uint32, uint32, uint32, *eventsArg) (int, syscall.Errno) {
	return -1, syscall.ENOSYS
}

func sysRegister(int, uint32, unsafe.Pointer, uint32) syscall.Errno { return syscall.ENOSYS }

func sysMmap(int, int64, int) ([]byte, error) { return nil, syscall.ENOSYS }

func sysMunmap([]byte) error { return syscall.ENOSYS }

func sysClose(int) error { return syscall.ENOSYS }

func sysDup(int) (int, error) { return -1, syscall.ENOSYS }

func sysPoll(int, time.Duration) (bool, error) { return false, syscall.ENOSYS }

func kernelRelease() string { return "" }

func seccompMode() int { return -1 }

func memlockLimit() string { return "" }
