package event

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSleepUnderSignals: the Go runtime preempts with SIGURG, which ends a sleep
// in the kernel early. A storm of them must not end SleepUntil early.
func TestSleepUnderSignals(t *testing.T) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGURG) // counts the storm; the runtime keeps its own use
	defer signal.Stop(c)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := unix.Getpid(), unix.Gettid()
	stop := make(chan struct{})
	var storm sync.WaitGroup
	sent := 0
	storm.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Tgkill(pid, tid, unix.SIGURG); err != nil {
				t.Errorf("tgkill: %v", err)
				return
			}
			sent++
			time.Sleep(20 * time.Microsecond)
		}
	})
	var clock RealClock
	interrupted := 0
	for range 20 {
		until := clock.Now() + 5*time.Millisecond
		clock.SleepUntil(until)
		if now := clock.Now(); now < until {
			t.Errorf("slept until %v and woke at %v", until, now)
		}
		// The same sleep in one call shows whether the storm gets through.
		begin := clock.Now()
		if sleep(5 * time.Millisecond); clock.Now()-begin < 5*time.Millisecond {
			interrupted++
		}
	}
	close(stop)
	storm.Wait()
	if sent == 0 || interrupted == 0 {
		t.Errorf("%d signals interrupted %d of 20 sleeps: the storm shows nothing", sent, interrupted)
	}
	select {
	case <-c:
	default:
		t.Error("no signal arrived")
	}
}
