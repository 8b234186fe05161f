package wire

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listen makes a listening socket on a free port of the loopback interface. Its
// backlog is as long as the system allows: a thousand clients come at once.
func Listen(flags int) (fd int, url string, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0); err != nil {
		return -1, "", os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	// Accepted sockets inherit it.
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fd, "", os.NewSyscallError("setsockopt", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fd, "", os.NewSyscallError("bind", err)
	}
	if err = unix.Listen(fd, 1<<16-1); err != nil {
		return fd, "", os.NewSyscallError("listen", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fd, "", os.NewSyscallError("getsockname", err)
	}
	return fd, "http://127.0.0.1:" + strconv.Itoa(sa.(*unix.SockaddrInet4).Port) + "/", nil
}

// Quit ends a loop: its descriptor becomes readable. As a File it can be used while
// it is closed.
type Quit struct{ f *os.File }

// NewQuit makes a Quit.
func NewQuit() (*Quit, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &Quit{os.NewFile(uintptr(fd), "quit")}, nil
}

// Fd returns the descriptor.
func (q *Quit) Fd() int { return int(q.f.Fd()) }

// Stop makes the descriptor readable.
func (q *Quit) Stop() { _, _ = q.f.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Close closes the descriptor.
func (q *Quit) Close() { _ = q.f.Close() }
