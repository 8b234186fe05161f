package epoll

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// newSignal makes an eventfd (Linux 2.6.27).
func newSignal() (*signal, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	read, err := dup(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s := &signal{public: fd, read: read, write: read}
	binary.NativeEndian.PutUint64(s.one[:], 1)
	s.unit = s.one[:]
	s.count = func(b []byte) uint64 {
		if len(b) < 8 {
			return 0
		}
		return binary.NativeEndian.Uint64(b)
	}
	return s, nil
}
