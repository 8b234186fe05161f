package fill

import "golang.org/x/sys/unix"

// timerSlack returns the timer slack of the calling thread in nanoseconds.
func timerSlack() int {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return n
}
