package uring

import (
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The raw system calls. Every pointer handed over is an argument of the call
// itself, or points to memory that a Ring keeps alive and in place.

const (
	pageProt = unix.PROT_READ | unix.PROT_WRITE

	errTime     = unix.ETIME
	errOverflow = unix.EOVERFLOW
	errBadFD    = unix.EBADFD
)

func sysSetup(entries uint32, p *params) (int, syscall.Errno) {
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(fd), e
}

// sysEnter is io_uring_enter(2). It repeats nothing: EINTR, which the Go runtime's
// preemption signal causes (golang/go#20400), is the caller's to handle, as he
// knows how much time is left.
func sysEnter(fd int, submit, wait, flags uint32, arg *eventsArg) (int, syscall.Errno) {
	size := uintptr(0)
	if arg != nil {
		size = unsafe.Sizeof(*arg)
	}
	n, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait), uintptr(flags),
		uintptr(unsafe.Pointer(arg)), size)
	return int(n), e
}

func sysRegister(fd int, op uint32, arg unsafe.Pointer, n uint32) syscall.Errno {
	for {
		_, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), uintptr(op), uintptr(arg), uintptr(n), 0, 0)
		if e != unix.EINTR {
			return e
		}
	}
}

func sysMmap(fd int, off int64, n int) ([]byte, error) {
	return unix.Mmap(fd, off, n, pageProt, unix.MAP_SHARED|unix.MAP_POPULATE)
}

func sysMunmap(b []byte) error { return unix.Munmap(b) }

func sysClose(fd int) error { return unix.Close(fd) }

// sysDup gives a further number to an open file, so that nobody else's close can
// take it away.
func sysDup(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// sysPoll waits until fd is readable, for at most d, forever when d is negative.
func sysPoll(fd int, d time.Duration) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	var ts *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	n, err := unix.Ppoll(fds, ts, nil)
	if err == unix.EINTR {
		return false, nil
	}
	return n > 0, err
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// seccompMode is the first field of prctl(2) PR_GET_SECCOMP, or -1.
func seccompMode() int {
	m, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if err != nil {
		return -1
	}
	return m
}

func memlockLimit() string {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil {
		return "an unknown number of bytes"
	}
	return strconv.FormatUint(l.Cur, 10) + " bytes"
}
