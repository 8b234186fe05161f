//go:build unix

package epoll

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// signal is a pollable descriptor that is readable while set. Its methods may be
// called from many goroutines, but not beside close.
type signal struct {
	public      int // for others
	read, write int // ours: the same open file, or the other end of it
	one         [8]byte
	unit        []byte // one signal
	count       func([]byte) uint64
}

// newPipe is the form for systems without eventfd: a byte in a pipe is a signal.
func newPipe() (*signal, error) {
	syscall.ForkLock.RLock() // no fork between the pipe and close-on-exec
	defer syscall.ForkLock.RUnlock()
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return nil, err
	}
	s := &signal{public: p[0], read: -1, write: p[1]}
	for _, fd := range p {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			s.close()
			return nil, err
		}
	}
	var err error
	if s.read, err = dup(p[0]); err != nil {
		s.close()
		return nil, err
	}
	s.unit = s.one[:1]
	s.count = func(b []byte) uint64 { return uint64(len(b)) }
	return s, nil
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// set makes the descriptor readable.
func (s *signal) set() error {
	for {
		_, err := unix.Write(s.write, s.unit)
		switch err {
		case unix.EINTR:
		case unix.EAGAIN: // full, so readable
			return nil
		default:
			return err
		}
	}
}

// clear takes what has been set and returns how many times that was, 0 when it was
// not set.
func (s *signal) clear() (uint64, error) {
	var b [64]byte
	for {
		n, err := unix.Read(s.read, b[:])
		switch err {
		case nil:
			return s.count(b[:n]), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil
		default:
			return 0, err
		}
	}
}

// file returns an os.File of its own for the signal, fit for the netpoller: the
// descriptor is non-blocking before os.NewFile looks.
func (s *signal) file() (*os.File, error) {
	fd, err := dup(s.read)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "gpuline completions"), nil
}

// readable reports whether the descriptor is readable now.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err != unix.EINTR {
			return err == nil && n == 1 && p[0].Revents&(unix.POLLIN|unix.POLLNVAL) == unix.POLLIN
		}
	}
}

// ours tells whether the public number still names our open file: it follows what
// our own descriptors do to it. A stranger that took the number over would have to
// become readable and unreadable at the same moments, twice.
func (s *signal) ours() bool {
	for range 2 {
		if _, err := s.clear(); err != nil || readable(s.public) {
			return false
		}
		if err := s.set(); err != nil || !readable(s.public) {
			return false
		}
	}
	return true
}

// close closes our descriptors, and the public number unless somebody else has it.
func (s *signal) close() {
	if s.read < 0 || s.ours() {
		_ = unix.Close(s.public)
	}
	if s.read >= 0 {
		_ = unix.Close(s.read)
	}
	if s.write != s.read {
		_ = unix.Close(s.write)
	}
}
