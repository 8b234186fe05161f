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

func monotonicOffset() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano() - int64(event.RealClock{}.Now())
}

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
