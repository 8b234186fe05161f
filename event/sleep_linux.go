package event

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleep sleeps in the kernel for about d. It may return early (EINTR: the Go
// runtime's preemption signal); the caller looks at the clock again.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
}
