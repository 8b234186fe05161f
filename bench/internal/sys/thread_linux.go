package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadCPU returns the calling thread's CPU time so far.
func ThreadCPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// Pin ties the calling thread to the n-th processor that it may use, counted from
// the end for negative n.
func Pin(n int) error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	if n < 0 {
		n += may.Count()
	}
	for cpu := range 8 * len(may) * 8 {
		if may.IsSet(cpu) {
			if n == 0 {
				one.Set(cpu)
				return unix.SchedSetaffinity(0, &one)
			}
			n--
		}
	}
	return unix.EINVAL
}

// Realtime gives a process the lowest real-time priority (sched(7), SCHED_FIFO): the system runs
// its threads before all others of no such priority.
func Realtime(pid int) error {
	return unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
}

// TimerSlack returns the calling thread's timer slack.
func TimerSlack() time.Duration {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return time.Duration(n)
}

// SetTimerSlack sets the calling thread's timer slack.
func SetTimerSlack(d time.Duration) { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0) }
