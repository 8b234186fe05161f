package fill

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// threadSleeper is a futex that a run's thread sleeps on for a stated time and
// that wake releases for good.
type threadSleeper struct {
	woken atomic.Uint32
	slack uintptr
}

const (
	futexWaitBitset = 9 | 128 // FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG: absolute CLOCK_MONOTONIC
	futexWake       = 1 | 128 // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
	futexMatchAny   = 0xffffffff
)

// enter lowers the thread's timer slack, 50 us by default, which the kernel may
// add to every timed wait (prctl(2), PR_SET_TIMERSLACK). The goroutine is locked
// to the thread. leave restores it.
func (s *threadSleeper) enter() error {
	// prctl touches no memory of ours, so a raw call is sound.
	slack, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_TIMERSLACK, 0, 0, 0, 0, 0)
	if errno == 0 && slack > 1 {
		s.slack = slack
		_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1, 0, 0, 0, 0)
	}
	return nil
}

func (s *threadSleeper) leave() {
	if s.slack > 1 {
		_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, s.slack, 0, 0, 0, 0)
	}
}

// sleep sleeps for d, or until wake. A signal (EINTR: the runtime's own preemption
// SIGURG, for one) neither ends nor stretches it, since the deadline is absolute.
//
// unix.Syscall6, not RawSyscall6: the P can be taken away for the length of the
// sleep. The pointers are converted in the argument list and point to live
// objects: s, which is on the heap since wake is called by another goroutine, and
// ts, which Syscall6 keeps in place.
func (s *threadSleeper) sleep(d time.Duration) {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return
	}
	at := ts.Nano()
	if d > never-time.Duration(at) {
		d = never - time.Duration(at)
	}
	ts = unix.NsecToTimespec(at + int64(d))
	for s.woken.Load() == 0 {
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.woken)), futexWaitBitset,
			0, uintptr(unsafe.Pointer(&ts)), 0, futexMatchAny)
		if errno != unix.EINTR {
			return
		}
	}
}

func (s *threadSleeper) wake() {
	s.woken.Store(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.woken)), futexWake, 1, 0, 0, 0)
}
