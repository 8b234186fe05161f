package sleep

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWaitBitset = 9 | 128 // FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG: absolute CLOCK_MONOTONIC
	futexWake       = 1 | 128 // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
	futexMatchAny   = 0xffffffff
)

// monotonicOffset turns a time of now into one of CLOCK_MONOTONIC. Each sample is the offset
// and what passed between two readings of the clock: the least of some is the best, and too
// large if anything, so that at the end of a sleep its time has come.
var monotonicOffset = sync.OnceValue(func() int64 {
	best := int64(1<<63 - 1)
	for range 16 {
		var ts unix.Timespec
		before := now()
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		best = min(best, ts.Nano()-before)
	}
	return best
})

// Thread is a futex that a goroutine sleeps on together with its thread. The zero value is
// ready to use.
type Thread struct{ epoch atomic.Uint32 }

// Sleep sleeps until the given time of event.RealClock, or until Wake. A signal (EINTR:
// the runtime's own preemption SIGURG, for one) neither ends nor stretches the sleep,
// since the deadline is absolute.
//
// The thread's timer slack (50 us by default, prctl(2)) would be added to every
// sleep, so it is set to 1 ns first; for that the goroutine is locked to the
// thread until the sleep is over. Afterwards the thread gets back what it had, its owner's
// or the default: the scheduler's own threads sleep for 3 us now and then
// (runtime.runqgrab), and not having the slack in those changes what the next goroutine's
// wake costs.
//
// unix.Syscall6, not RawSyscall6: the P is given up for the length of the sleep. prctl
// blocks no one and touches no memory of ours.
func (s *Thread) Sleep(until int64, state *atomic.Int64) {
	ts := unix.NsecToTimespec(until + monotonicOffset())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_TIMERSLACK, 0, 0, 0, 0, 0)
	if errno == 0 && slack > 1 {
		_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1, 0, 0, 0, 0)
		defer func() {
			_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, slack, 0, 0, 0, 0)
		}()
	}
	for {
		e := s.epoch.Load()
		if state.Load() != until {
			return
		}
		// The pointers are converted in the argument list and point to live
		// objects that do not move (the heap does not, and s is on it).
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.epoch)), futexWaitBitset,
			uintptr(e), uintptr(unsafe.Pointer(&ts)), 0, futexMatchAny)
		if errno == unix.ETIMEDOUT || now() >= until {
			return
		}
	}
}

// Wake ends a sleep whose state the caller has changed, also one that is about to begin:
// the epoch that its owner read before looking at the state is no longer current.
func (s *Thread) Wake() {
	s.epoch.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.epoch)), futexWake, 1, 0, 0, 0)
}

// Timer is a timerfd that a goroutine sleeps on behind the Go netpoller: it keeps neither a
// thread nor a P, so that the runtime's monitor has no P to take away, and the thread that
// looks at the network when there is nothing else to do runs the goroutine at once. A
// goroutine that goes on by itself after the sleep uses half as much CPU time as with
// a Thread. The netpoller is looked at only by a P without work, though, or every 10 ms:
// when all are busy a Thread takes the place of the timer, and so it does where no
// descriptor is to be had.
//
// The zero value is ready to use. Close it.
type Timer struct {
	thread Thread
	way    atomic.Uint32

	// The sleeping goroutine's own.
	file   *os.File
	conn   syscall.RawConn
	fd     int
	look   func(fd uintptr) bool
	looked bool
	until  int64
	state  *atomic.Int64
	crowd  crowd
}

const (
	onThread uint32 = iota
	onTimer
	noTimer // there is none to be had
)

// crowd decides when all P are taken to be busy.
type crowd struct {
	score  int   // of late sleeps, see ended
	level  uint  // of how often in a row the P were busy again soon after they were taken to be
	until  int64 // until then they are taken to be
	lately int64 // for as long after until a late sleep counts as soon
}

const (
	// crowdedBy is how late a sleep ends that no P had time to look at. One alone is late for
	// other reasons, such as that the processor was another virtual machine's: two in
	// lateCost sleeps count.
	crowdedBy = int64(time.Millisecond)
	lateCost  = 8
	// crowdedFor is how long the P are taken to be busy at first. It is doubled crowdedLevels
	// times at most: each new try is a sleep that may end 20 ms late.
	crowdedFor    = int64(400 * time.Millisecond)
	crowdedLevels = 3
)

// ended notes a sleep on the timer that was to end at until and ended at t.
func (c *crowd) ended(until, t int64) {
	if t-until <= crowdedBy {
		c.score = max(0, c.score-1)
		return
	}
	if c.score += lateCost; c.score < 2*lateCost-1 {
		return
	}
	c.score = lateCost // afterwards one more such will do
	if t-c.until <= c.lately {
		c.level = min(c.level+1, crowdedLevels)
	} else {
		c.level = 0
	}
	c.lately = crowdedFor << c.level
	c.until = t + c.lately
}

// still notes a sleep on the thread in a crowd: one that ends late had to wait for a P.
func (c *crowd) still(until, t int64) {
	if t-until > crowdedBy {
		c.until = max(c.until, t+c.lately)
	}
}

// past is a deadline that ends a read at once.
var past = time.Unix(1, 0)

// Sleep sleeps until the given time of event.RealClock, or until Wake.
//
// The way is published before the state is looked at; Wake looks at the way after its
// caller has changed the state: a Wake that saw the way of an earlier sleep has changed the
// state before this sleep looks at it.
func (s *Timer) Sleep(until int64, state *atomic.Int64) {
	start := now()
	switch {
	case start < s.crowd.until:
		s.way.Store(onThread)
		s.thread.Sleep(until, state)
		s.crowd.still(max(start, until), now())
	case !s.open() || !s.sleep(until, state):
		s.thread.Sleep(until, state)
	case state.Load() == until: // one that was woken says nothing
		s.crowd.ended(max(start, until), now())
	}
}

// Ready makes the descriptor that Sleep needs, which it otherwise makes when it is first called.
// The sleeping goroutine calls it.
func (s *Timer) Ready() { s.open() }

// open makes the timer.
func (s *Timer) open() bool {
	if s.file != nil || s.way.Load() == noTimer {
		return s.way.Load() != noTimer
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err == nil {
		s.fd, s.file = fd, os.NewFile(uintptr(fd), "timerfd")
		// A file that the netpoller did not take has no deadlines.
		if err = s.file.SetReadDeadline(time.Time{}); err == nil {
			s.conn, err = s.file.SyscallConn()
		}
		if err != nil {
			_ = s.file.Close()
		}
	}
	if err != nil {
		s.file = nil
		s.way.Store(noTimer)
		return false
	}
	s.look = func(uintptr) bool {
		ready := s.looked
		s.looked = true
		return ready || s.over()
	}
	return true
}

func (s *Timer) over() bool { return s.state.Load() != s.until || now() >= s.until }

// sleep reports whether the timer could be set.
func (s *Timer) sleep(until int64, state *atomic.Int64) bool {
	theMonitor.use()
	s.until, s.state = until, state
	s.way.Store(onTimer)
	// A time of 0 would disarm the timer.
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, until+monotonicOffset()))}
	for !s.over() {
		// The pointer is converted in the argument list and points to a variable that
		// stays where it is for the length of the call, which does not block: hence raw.
		_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(s.fd), unix.TFD_TIMER_ABSTIME,
			uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
		if errno != 0 { // forbidden
			s.way.Store(noTimer)
			return false
		}
		// What makes it ready may be an earlier sleep's end, and so may be the deadline
		// of a Wake that came when its sleep was over: that is taken back. Then the
		// state is looked at again.
		s.looked = false
		if s.conn.Read(s.look) != nil {
			_ = s.file.SetReadDeadline(time.Time{})
		}
	}
	// The timer need not be read: the next setting clears it.
	return true
}

// Wake ends a sleep whose state the caller has changed.
func (s *Timer) Wake() {
	if s.way.Load() == onTimer {
		// No system call: the scheduler is told, and the caller's own P can run the sleeper.
		_ = s.file.SetReadDeadline(past)
		return
	}
	s.thread.Wake()
}

// Close frees the timer. The sleeping goroutine calls it when it has slept its last; a Wake
// that comes later does nothing.
func (s *Timer) Close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}
