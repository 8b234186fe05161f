package hammer

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Storm sends SIGURG, the runtime's own preemption signal, to every thread
// of the process until quit is closed.
func Storm(quit <-chan struct{}) {
	pid := os.Getpid()
	for {
		tasks, _ := os.ReadDir("/proc/self/task")
		for range 50 {
			for _, e := range tasks {
				if tid, err := strconv.Atoi(e.Name()); err == nil {
					_ = unix.Tgkill(pid, tid, unix.SIGURG)
				}
			}
			select {
			case <-quit:
				return
			case <-time.After(50 * time.Microsecond):
			}
		}
	}
}
