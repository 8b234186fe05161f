package fill

import (
	"context"
	"os"
	"testing"
	"time"
)

// A run on a ring leaves no descriptor behind.
func TestRingIsClosed(t *testing.T) {
	if why := ProbeCaps().NoRing; why != "" {
		t.Skip("io_uring does not work here: ", why)
	}
	fds := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc: ", err)
		}
		return len(list)
	}
	before := 0
	for i := range 20 {
		if i == 1 { // the first timer of the process opens the netpoller's descriptors
			before = fds()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		_, err := Run(ctx, Options{Executor: IOUring}, func(t *Task) error {
			t.Sleep(20 * time.Microsecond)
			return nil
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	if after := fds(); after != before {
		t.Errorf("%d descriptors, were %d", after, before)
	}
}
