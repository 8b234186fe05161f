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
	if s.Ready(); s.file == nil {
		t.Fatal("not ready")
	}
	file := s.file
	nap(s, 50*time.Microsecond)
	if s.file != file || s.way.Load() != onTimer {
		t.Fatal("slept without the timer")
	}
	fd := s.fd

	// While all P are busy, on the thread; then on the timer again.
	s.crowd.until = now() + int64(time.Hour)
	nap(s, 50*time.Microsecond)
	if s.way.Load() != onThread {
		t.Error("slept on the timer though nobody looks at it")
	}
	wokenNap(s)
	s.crowd.until = 0
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
	if s.crowd != (crowd{}) {
		t.Error("taken for a late sleep")
	}
}

// Two late sleeps among a few make a crowd, for twice as long each time that it is one still.
func TestCrowd(t *testing.T) {
	const late, inTime = crowdedBy + 1, crowdedBy
	var c crowd
	at := int64(time.Hour)
	sleep := func(by int64) { c.ended(at, at+by); at += int64(2 * time.Millisecond) }
	length := func() time.Duration { return time.Duration(c.until - (at - int64(2*time.Millisecond)) - late) }

	sleep(late)
	for range lateCost {
		sleep(inTime)
	}
	if sleep(late); c.until != 0 {
		t.Fatal("two late sleeps far apart make a crowd")
	}
	if sleep(late); length() != time.Duration(crowdedFor) {
		t.Fatalf("two in a row make a crowd for %v, want %v", length(), time.Duration(crowdedFor))
	}
	for level := 1; level < crowdedLevels+3; level++ {
		at = c.until
		sleep(inTime)
		if at < c.until {
			t.Fatal("a crowd after a sleep in time")
		}
		want := time.Duration(crowdedFor) << min(level, crowdedLevels)
		if sleep(late); length() != want {
			t.Fatalf("crowd %d is for %v, want %v", level, length(), want)
		}
	}
	was := c.until
	c.still(was-3, was-2)
	if c.until != was {
		t.Fatal("a sleep in time makes a crowd last longer")
	}
	if c.still(was-late-2, was-2); c.until != was-2+c.lately {
		t.Fatal("a crowd ends though sleeps on the thread end late")
	}
	at = c.until + c.lately
	if sleep(late); length() != time.Duration(crowdedFor) {
		t.Fatalf("a crowd long after the last is for %v, want %v", length(), time.Duration(crowdedFor))
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

// Only what follows a turn that computed is watched, once.
func TestTurn(t *testing.T) {
	// A turn that ended in the future is short whatever the clock does.
	const short, long = time.Hour, -2 * time.Duration(longTurn)
	var turn Turn
	start := theMonitor.roused.Load()
	turn.Watch()
	turn.Next() // the first: nothing is known
	turn.Begin()
	for i, step := range []struct {
		ended time.Duration
		woken uint64
	}{{short, 0}, {long, 1}, {short, 1}, {long, 2}, {long, 3}, {short, 3}} {
		turn.ended = now() + int64(step.ended)
		turn.Next()
		turn.Watch()
		turn.Begin()
		if n := theMonitor.roused.Load() - start; n != step.woken {
			t.Errorf("woken %d times after turn %d, want %d", n, i, step.woken)
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
