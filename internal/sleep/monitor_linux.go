package sleep

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// monitor keeps the runtime's monitor thread in reach while goroutines sleep on Timers.
//
// That thread preempts goroutines that compute, and looks at the network when no P does. It
// sleeps when all P are idle, to the next timer of the runtime at most, and is woken by
// whoever enters a system call or comes back from one without a P (runtime/proc.go, sysmon,
// entersyscall, exitsyscall). A goroutine that the netpoller makes runnable usually
// goes on to read what has come, which is such a call; one that sleeps on a Timer does not, and
// if it computes from there on nobody might preempt it for a minute. To wake the thread after
// every sleep costs 30 us of CPU time each, a fifth of a wait of 2 ms: that is done where
// the program computed after the last one (Turn). Besides, a timer of
// the runtime is kept pending from the first sleep on until there was none for a period: the
// thread wakes with it, and stays awake if it finds a P that is not idle.
type monitor struct {
	on, used atomic.Bool
	// period is how long the thread sleeps at most.
	period time.Duration
	roused atomic.Uint64 // how often it was woken, for tests
}

// With 20 ms the thread took 6 us more of CPU time per wait of 2 ms (RATIONALE.md).
var theMonitor = monitor{period: 100 * time.Millisecond}

// rouse wakes the thread: an ordinary system call does.
func (m *monitor) rouse() {
	m.roused.Add(1)
	_, _, _ = unix.Syscall(unix.SYS_GETPID, 0, 0, 0)
}

// use notes a sleep that is about to begin.
func (m *monitor) use() {
	if !m.used.Load() {
		m.used.Store(true)
	}
	if m.on.Load() || !m.on.CompareAndSwap(false, true) {
		return
	}
	// A timer of its own each time: one that was made in a bubble of testing/synctest
	// can't be used outside.
	var t *time.Timer
	made := make(chan struct{})
	t = time.AfterFunc(m.period, func() {
		<-made
		m.tick(t)
	})
	close(made)
	m.rouse() // it may sleep already, to a later time
}

// tick ends a period: with sleeps in it there is another one. A sleep that begins while it
// is being decided that there was none is either seen here or finds the monitor off.
func (m *monitor) tick(t *time.Timer) {
	if !m.used.Swap(false) {
		m.on.Store(false)
		if !m.used.Load() || !m.on.CompareAndSwap(false, true) {
			return
		}
	}
	t.Reset(m.period)
}
