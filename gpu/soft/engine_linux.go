package soft

import (
	"encoding/binary"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Futexes are private to the address space, which the engine shares also where it
// is a process.
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// futexWake wakes all who wait on the low half of the word. The call does not block: hence
// raw, so that the runtime's monitor is not woken for each piece of work.
func futexWake(addr uint64) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(addr), futexWakePrivate, 1<<31-1, 0, 0, 0)
}

// futexWait blocks the calling thread in the kernel until it is woken, the low
// half of the word differs from old, or d has passed.
func futexWait(addr uint64, old uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(addr), futexWaitPrivate, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// post writes 1 to an eventfd.
func post(fd int) { _, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)) }

const canPost = true

// bell is what the engine rings when Go has to look: an eventfd that the
// netpoller watches, so that no thread waits for it.
type bell struct {
	f  *os.File
	fd int
}

func newBell() (*bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &bell{os.NewFile(uintptr(fd), "soft device bell"), fd}, nil
}

// wait blocks until the bell was rung; false once it is closed.
func (b *bell) wait() bool {
	var buf [8]byte
	_, err := b.f.Read(buf[:])
	return err == nil
}

func (b *bell) ring() { post(b.fd) }

func (b *bell) close() { _ = b.f.Close() }
