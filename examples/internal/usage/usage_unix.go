//go:build unix

package usage

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func now() (u Usage) {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		u.CPU = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	if tasks, err := os.ReadDir("/proc/self/task"); err == nil {
		u.Threads = len(tasks)
	}
	return u
}
