//go:build unix

package sys

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the process's usage.
func Now() (u Usage) {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		u.CPU = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
		u.Memory = int64(ru.Maxrss)
		if runtime.GOOS != "darwin" && runtime.GOOS != "ios" {
			u.Memory <<= 10
		}
	}
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		if m := statusField(string(b), "RssAnon"); m > 0 {
			u.Memory = m
		}
	}
	if tasks, err := os.ReadDir("/proc/self/task"); err == nil {
		u.Threads = len(tasks)
	}
	return u
}

// CPU returns the process's CPU time so far.
func CPU() time.Duration {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
