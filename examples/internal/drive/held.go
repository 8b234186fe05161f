package drive

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/gpuline/gpuline/gpu"
)

// holdings is what the process holds; 0 where the system does not tell.
type holdings struct {
	files      int // open descriptors
	goroutines int
	mappings   int // of shared memory: the Go heap's own are private
	leaks      uint64
}

func (h holdings) String() string {
	return fmt.Sprintf("%d descriptors, %d goroutines, %d shared mappings, %d leaks", h.files, h.goroutines, h.mappings, h.leaks)
}

func hold() holdings {
	h := holdings{goroutines: runtime.NumGoroutine(), leaks: gpu.Leaks()}
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if files, err := os.ReadDir(dir); err == nil {
			h.files = len(files)
			break
		}
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		for line := range strings.Lines(string(maps)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1], "s") {
				h.mappings++
			}
		}
	}
	return h
}

const between = 10 * time.Millisecond // readings

// steady returns the holdings once several readings are the same, or the last one.
func steady(patience time.Duration) holdings {
	h := hold()
	for same, end := 0, time.Now().Add(patience); same < 5 && time.Now().Before(end); {
		time.Sleep(between)
		if now := hold(); now == h {
			same++
		} else {
			h, same = now, 0
		}
	}
	return h
}

// settled waits until the process holds what it held before, and fails when it
// never does.
func settled(w io.Writer, what string, before holdings, patience time.Duration) error {
	now := hold()
	for end := time.Now().Add(patience); now != before; now = hold() {
		if time.Now().After(end) {
			return fmt.Errorf("left behind: before the %s %v, after it %v", what, before, now)
		}
		time.Sleep(between)
	}
	fmt.Fprintf(w, "held       %v, as before the %s\n", now, what)
	return nil
}

// idle waits until no connection is open and the device owes nothing.
func idle(dev *gpu.Device, n *Count, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(between) {
		st := dev.Stats()
		if n.conns.Load() == 0 && n.waits.Load() == 0 && st.Waiter.Pending == 0 && st.Retained == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("left behind: %d connections, %d handlers, %d registrations, %d retained buffers",
				n.conns.Load(), n.waits.Load(), st.Waiter.Pending, st.Retained)
		}
	}
}
