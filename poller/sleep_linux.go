package poller

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sleeper is a futex that its owner sleeps on until a stated time and anybody
// may wake. The zero value is ready to use.
type sleeper struct{ epoch atomic.Uint32 }

const (
	futexWaitBitset = 9 | 128 // FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG: absolute CLOCK_MONOTONIC
	futexWake       = 1 | 128 // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
	futexMatchAny   = 0xffffffff
)

// monotonicOffset turns the time of nanotime into CLOCK_MONOTONIC.
var monotonicOffset = sync.OnceValue(func() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano() - nanotime()
})

// sleep sleeps until the given time of nanotime, or until wake. state is what
// the owner published before his last look: when it is not that sleep's any more,
// wake was called and sleep returns at once. A signal (EINTR: the runtime's own
// preemption SIGURG, for one) neither ends nor stretches the sleep, since the
// deadline is absolute.
//
// The thread's timer slack (50 us by default, prctl(2)) would be added to every
// sleep, so it is set to 1 ns first; for that the goroutine is locked to the
// thread until the sleep is over. The slack stays lowered: it matters only to
// timed sleeps, which the Go runtime makes in whole milliseconds.
//
// unix.Syscall6, not RawSyscall6: the P is given up for the length of the sleep.
func (s *sleeper) sleep(until int64, state *atomic.Int64) {
	ts := unix.NsecToTimespec(until + monotonicOffset())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1, 0, 0, 0, 0)
	for {
		e := s.epoch.Load()
		if state.Load() != until {
			return
		}
		// The pointers are converted in the argument list and point to live
		// objects that do not move (the heap does not, and s is on it).
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.epoch)), futexWaitBitset,
			uintptr(e), uintptr(unsafe.Pointer(&ts)), 0, futexMatchAny)
		if errno == unix.ETIMEDOUT || nanotime() >= until {
			return
		}
	}
}

// wake ends a sleep, also one that is about to begin: the epoch that its owner
// read before looking at the state is no longer current.
func (s *sleeper) wake() {
	s.epoch.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.epoch)), futexWake, 1, 0, 0, 0)
}
