package fill

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/line"
)

const (
	// slice bounds a stretch during which the run's context is not looked at, and
	// one in assembly, which a stop-the-world waits for (golang/go#10958).
	slice = 5 * time.Microsecond
	// noSleep is what a kernel sleep costs at least: less is spent in a loop.
	noSleep = 3 * time.Microsecond
	// maxOversleep is the longest oversleep that counts: more is an accident.
	maxOversleep = 100 * time.Microsecond
)

// threadIdle sleeps in the kernel and parks in stages: the processor's park
// instruction or a loop for spin, then naps in the kernel between looks. It works
// on event.RealClock.
type threadIdle struct {
	clock     event.RealClock
	park      asm.Park
	spin, nap time.Duration
	turn      int
	rotate    bool // the park watches one line
	lone      bool // only one P: let other goroutines have it before a nap
	looked    time.Duration
	hit       bool // the last park ended right after clock was read at: a word had changed
	at        time.Duration
	// oversleep is how much later than asked a sleep ended of late, on average: a few
	// microseconds on bare metal, tens of them where a virtual processor has to be
	// woken. Sleeps are made that much shorter and the rest is spent in a loop.
	oversleep time.Duration
	woken     atomic.Bool
	sleeper   sleeper
}

// sleeper sleeps in the kernel. Its methods but wake are called on the run's
// thread: enter first and leave last.
type sleeper interface {
	enter() error
	leave()
	// sleep returns after d, or soon after wake, or early for no reason.
	sleep(d time.Duration)
	// wake ends the current sleep and all later ones. It is called on any goroutine.
	wake()
}

func newThreadIdle(s sleeper, spin, nap time.Duration) *threadIdle {
	if spin == 0 {
		spin = defaultSpin
	}
	if nap == 0 {
		nap = defaultNap
	}
	p, _ := asm.Probe()
	return &threadIdle{sleeper: s, park: p, rotate: p.Hardware(), spin: max(spin, 0), nap: max(nap, time.Microsecond), lone: runtime.GOMAXPROCS(0) == 1}
}

func (i *threadIdle) enter() error { return i.sleeper.enter() }
func (i *threadIdle) leave()       { i.sleeper.leave() }

// Wake implements Waker.
func (i *threadIdle) Wake() {
	i.woken.Store(true)
	i.sleeper.wake()
}

// SleepUntil implements Idle.
func (i *threadIdle) SleepUntil(t time.Duration) {
	for short := false; !i.woken.Load(); {
		left := t - i.clock.Now()
		switch {
		case left <= 0:
			return
		case left < noSleep+i.oversleep:
			if !short && left > noSleep {
				// Not slept for its sake: what is not measured must not last.
				i.oversleep -= i.oversleep / 16
				if i.lone {
					runtime.Gosched()
				}
			}
			short = true
			asm.Pause()
		default:
			short = true // the rest of a sleep is no reason to forget
			left -= i.oversleep
			if over := i.kernel(left); over >= 0 && !i.woken.Load() {
				i.oversleep += (min(over, maxOversleep) - i.oversleep) / 8
			}
		}
	}
}

// kernel sleeps for left, or until Wake, and returns by how much it overslept.
func (i *threadIdle) kernel(left time.Duration) time.Duration {
	if i.lone {
		// The P stays with a thread in a system call until the runtime's monitor
		// takes it away, which may need 10 ms: with only one P nothing else would
		// run, perhaps not even the goroutine that the wait is for.
		runtime.Gosched()
	}
	start := i.clock.Now()
	i.sleeper.sleep(left)
	return i.clock.Now() - start - left
}

// Park implements Idle.
func (i *threadIdle) Park(lines []*Watch, since, until time.Duration) {
	i.hit = false
	now := i.clock.Now()
	for end := min(after(since, i.spin), until); now < end; now = i.clock.Now() {
		if i.woken.Load() || i.hold(lines, now, min(end, now+slice)) {
			return
		}
	}
	for ; now < until; now = i.clock.Now() {
		if i.woken.Load() || changed(lines) {
			return
		}
		i.looked = now
		i.doze(min(i.napAfter(now-since), until-now))
	}
}

// doze is a nap: unlike a sleep it may as well end late.
func (i *threadIdle) doze(d time.Duration) {
	if d < noSleep {
		asm.Pause()
		return
	}
	i.kernel(d)
}

// Looked implements Looker.
func (i *threadIdle) Looked() time.Duration { return i.looked }

// napAfter returns how long to nap when the wait has lasted for waited.
func (i *threadIdle) napAfter(waited time.Duration) time.Duration {
	return max(min(waited/8, i.nap), waited/64, i.nap/8, time.Microsecond)
}

// hold keeps the processor from now to end at most, and reports whether a word changed.
func (i *threadIdle) hold(lines []*Watch, now, end time.Duration) bool {
	if i.rotate {
		i.turn++
		w := lines[i.turn%len(lines)]
		d := end - now
		if i.park.WithSlice(d).WaitLine(words(w.Line), &w.Seen, d) || changed(lines) {
			return true
		}
		i.looked = now
		return false
	}
	// What is done after a store was seen is the wake's latency: the clock has been read by
	// then. A look takes less time than a pause or a reading of the clock.
	for !changed(lines) {
		i.looked = now
		asm.Pause()
		if changed(lines) {
			break
		}
		if now = i.clock.Now(); now >= end {
			return false
		}
	}
	i.hit, i.at = true, now
	return true
}

// words is the line as package asm takes it. Sound because line.Line is an array
// of eight line.Word, each a struct of one atomic.Uint64 and nothing else; the
// test of this file fails when that changes.
func words(l *line.Line) *[line.Words]atomic.Uint64 {
	return (*[line.Words]atomic.Uint64)(unsafe.Pointer(l))
}
