package soft

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
)

const (
	futexWait = 0 // shared: the engine may be another process
	futexWake = 1
)

// monotonicOffset is read between two readings of the other clock, several times,
// and the closest pair counts: an interruption between two readings would shift
// every store time of the process.
func monotonicOffset() int64 {
	var ts unix.Timespec
	best, offset := int64(1<<63-1), int64(0)
	for range 16 {
		a := int64(event.RealClock{}.Now())
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		b := int64(event.RealClock{}.Now())
		if b-a < best {
			best, offset = b-a, ts.Nano()-(a+b)/2
		}
	}
	return offset
}

// post writes 1 to an eventfd.
func post(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

const canPost = true

func futexWakeAll(addr uint64) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(addr), futexWake, 1<<31-1, 0, 0, 0)
}

// waitWord blocks the calling thread in the kernel until the low half of the
// word changes from old, for at most d.
func waitWord(addr uint64, old uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(addr), futexWait, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

func (m *memory) doorbellAddr() uint64 { return uint64(uintptr(unsafe.Pointer(&m.ctl.doorbell))) }

func (m *memory) tidAddr() uint64 { return uint64(uintptr(unsafe.Pointer(&m.ctl.tid))) }
