package sleep

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread that has slept has the timer slack that it had, its owner's or the default.
func TestSlackComesBack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	usual := slack()
	defer func() {
		if got := slack(); got != usual {
			t.Errorf("slack of %d ns in the end, want %d", got, usual)
		}
	}()
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the default
	for _, own := range []int{usual, 12_345, 1} {
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		var s Thread
		var state atomic.Int64
		until := now() + int64(time.Millisecond)
		state.Store(until)
		s.Sleep(until, &state)
		if got := slack(); got != own {
			t.Errorf("slack of %d ns after a sleep, want %d", got, own)
		}
	}
}
