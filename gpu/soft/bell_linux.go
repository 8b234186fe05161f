//go:build linux

package soft

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
)

// bell wakes the front: the engine writes to an eventfd, which the netpoller
// watches, so that no thread waits for it.
type bell struct {
	f  *os.File
	fd int
}

func newBell() (bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return bell{}, os.NewSyscallError("eventfd", err)
	}
	return bell{os.NewFile(uintptr(fd), "soft device bell"), fd}, nil
}

// wait blocks until the bell was rung; false once it is closed.
func (b bell) wait() bool {
	var buf [8]byte
	_, err := b.f.Read(buf[:])
	return err == nil
}

func (b bell) ring() {
	_, _ = unix.Write(b.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (b bell) close() { _ = b.f.Close() }

// startEngine starts the store engine that the configuration asks for.
func (d *Device) startEngine() error {
	var err error
	if d.bell, err = newBell(); err != nil {
		return err
	}
	if haveAsmEngine && !d.cfg.GoEngine {
		if d.eng, err = startAsm(d.mem, d.bell.fd, d.cfg.Process); err == nil {
			return nil
		}
	} else if d.cfg.Process {
		err = event.New(event.NotSupported, "a soft device in a process of its own", "there is no store engine in assembly for this processor")
	}
	if d.cfg.Process {
		d.bell.close()
		return err
	}
	d.eng = startGoEngine(d.mem, d.bell.ring)
	return nil
}
