package rig

import (
	"os"

	"golang.org/x/sys/unix"
)

// eventFile makes an eventfd that the netpoller waits on.
func eventFile() (*os.File, int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, 0, os.NewSyscallError("eventfd", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), fd, nil
}
