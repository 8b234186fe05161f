package sleep

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/internal/forbid"
	"golang.org/x/sys/unix"
)

func nap(s *Timer, d time.Duration) {
	var state atomic.Int64
	until := now() + int64(d)
	state.Store(until)
	s.Sleep(until, &state)
}

// wokenNap is a sleep of an hour that another goroutine ends.
func wokenNap(s *Timer) {
	var state atomic.Int64
	until := now() + int64(time.Hour)
	state.Store(until)
	go rouse(s, &state)
	s.Sleep(until, &state)
}

func TestTimerWay(t *testing.T) {
	s := new(Timer)
	nap(s, 50*time.Microsecond)
	if s.file == nil || s.way.Load() != onTimer {
		t.Fatal("slept without the timer")
	}
	fd := s.fd

	// While all P are busy, on the thread; then on the timer again.
	s.crowded = now() + int64(time.Hour)
	nap(s, 50*time.Microsecond)
	if s.way.Load() != onThread {
		t.Error("slept on the timer though nobody looks at it")
	}
	wokenNap(s)
	s.crowded = 0
	nap(s, 50*time.Microsecond)
	if s.way.Load() != onTimer {
		t.Error("did not go back to the timer")
	}

	s.Close()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("descriptor after Close: %v", err)
	}
	s.Wake() // nothing
}

// A sleep for a time that is long over is no sign of busy processors.
func TestPastIsNotCrowded(t *testing.T) {
	s := new(Timer)
	defer s.Close()
	nap(s, -time.Minute)
	if s.late > 0 || s.crowded != 0 {
		t.Error("taken for a late sleep")
	}
}

// While the only P computes nobody looks at the timer in time: after two such sleeps the
// thread takes its place.
func TestCrowded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := new(Timer)
	defer s.Close()
	var quit atomic.Bool
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for !quit.Load() {
		}
	}()
	for range 100 {
		if nap(s, time.Millisecond); s.way.Load() == onThread {
			break
		}
	}
	quit.Store(true)
	<-gone
	if s.way.Load() != onThread {
		t.Error("slept on a timer that nobody looked at 100 times")
	}
}

func TestNoDescriptor(t *testing.T) {
	for name, rule := range map[string]forbid.Rule{
		"none left":         {Call: unix.SYS_TIMERFD_CREATE, Any: true, Errno: unix.EMFILE},
		"must not set them": {Call: unix.SYS_TIMERFD_SETTIME, Any: true, Errno: unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			forbid.Syscalls(t, []forbid.Rule{rule}, func(t *testing.T) {
				s := new(Timer)
				defer s.Close()
				for range 3 {
					start := now()
					nap(s, 100*time.Microsecond)
					if d := now() - start; d < int64(100*time.Microsecond) {
						t.Errorf("slept for %v", time.Duration(d))
					}
				}
				if s.way.Load() != noTimer {
					t.Error("found a timer")
				}
				wokenNap(s)
			})
		})
	}
}

// A goroutine that computes after a sleep is preempted, although nobody has made a system call
// since all P were idle.
func TestPreemptedAfterSleep(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := new(Timer)
	defer s.Close()
	var ran atomic.Bool
	for range 5 {
		ran.Store(false)
		// The runtime's monitor falls asleep meanwhile, as it does between waits.
		for range 10 {
			nap(s, 2*time.Millisecond)
		}
		go ran.Store(true)
		for end := now() + int64(10*time.Second); !ran.Load(); {
			if now() > end {
				t.Fatal("another goroutine did not run for 10 s")
			}
		}
	}
}

// The monitor is let go when nobody sleeps, and taken up again.
func TestMonitor(t *testing.T) {
	s := new(Timer)
	defer s.Close()
	nap(s, 100*time.Microsecond)
	for end := now() + int64(10*time.Second); theMonitor.on.Load(); time.Sleep(time.Millisecond) {
		if now() > end {
			t.Fatal("still on after 10 s")
		}
	}

	m := monitor{period: time.Hour}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for range 2 {
		if m.use(); !m.on.Load() {
			t.Error("off after a sleep")
		}
		if m.tick(timer); !m.on.Load() || m.used.Load() {
			t.Error("a period with a sleep in it was not followed by another")
		}
		if m.tick(timer); m.on.Load() {
			t.Error("a period without a sleep was followed by another")
		}
	}
}
