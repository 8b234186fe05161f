// Package sys reads what a process has used, and what the machine is like.
package sys

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Usage is what the process has used so far.
type Usage struct {
	// CPU is user and system time of all threads.
	CPU time.Duration
	// Threads is the number of OS threads now. Go never ends idle ones, so it is
	// also the most there were.
	Threads int
	// Memory is the resident private memory in bytes now: heap, stacks, and what
	// the threads need; mappings shared with a device are not in it.
	Memory int64
}

// LoadAverage is the number of runnable tasks averaged over a minute, and
// whether the system tells.
func LoadAverage() (float64, bool) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	return v, err == nil
}

// Stolen is the share of the machine's CPU time so far that the hypervisor gave
// to others, as ticks: take the difference of two readings.
func Stolen() (stolen, total float64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(first)[1:] {
		v, _ := strconv.ParseFloat(f, 64)
		if i < 8 { // guest time is in user time already
			total += v
		}
		if i == 7 {
			stolen = v
		}
	}
	return stolen, total
}

// Kernel is the kernel's release.
func Kernel() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}

// CPUModel names the processor.
func CPUModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for _, l := range strings.Split(string(b), "\n") {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
				return strings.TrimSpace(v)
			}
		}
	}
	return runtime.GOARCH
}

// statusField returns a field of /proc/self/status that is in kB, in bytes.
func statusField(status, name string) int64 {
	for _, l := range strings.Split(status, "\n") {
		if rest, ok := strings.CutPrefix(l, name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}
