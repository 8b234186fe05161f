package fill

import (
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
)

// Idle is how a run spends the time in which no task is ready. Its methods are
// called on the run's thread, one at a time. Times are those of the run's clock.
type Idle interface {
	// SleepUntil returns once the time t has come. It may return earlier; the
	// executor then decides again.
	SleepUntil(t time.Duration)
	// Park returns once a word of one of the lines differs from what was seen of
	// it, or once the time until has come. It may return earlier, but never later.
	// since is when the run became idle, or when the last sleep ended: the longer
	// ago that is, the less there is to gain from a busy wait. There is at least
	// one line. The slice and what it points to are valid during the call only.
	Park(lines []*Watch, since, until time.Duration)
}

// Waker is an Idle whose waits can be cut short. Without it the end of the run's
// context is noticed only when the current sleep or park is over.
type Waker interface {
	// Wake ends the current sleep or park, if any, and makes all later ones
	// return at once. It is called at most once, on any goroutine.
	Wake()
}

// Looker is an Idle that tells how long a word that it found changed had been known
// not to be. Without it a completion counts as having come when the park ended, which
// is too late by up to a nap for one that naps.
type Looker interface {
	// Looked returns when, in the last Park, all words were last seen unchanged; what
	// it returns after a Park that saw none so is not used when it is before since.
	Looked() time.Duration
}

// Watch is a line waited for, with its words as the executor last saw them. A
// store that landed since then makes a word differ, so that a park that compares
// before it waits misses none.
type Watch struct {
	Line *line.Line
	Seen [line.Words]uint64
	pos  int
}

// Changed reports whether a word of the line differs from what was seen of it.
func (w *Watch) Changed() bool {
	for i := range w.Seen {
		if w.Line[i].Load() != w.Seen[i] {
			return true
		}
	}
	return false
}

func changed(lines []*Watch) bool {
	for _, w := range lines {
		if w.Changed() {
			return true
		}
	}
	return false
}

// ManualIdle is an Idle on virtual time: to sleep or park it moves the clock,
// which fires the clock's timers on the way, and among them the stores of a device
// made of timers. A park ends at the very time of the first timer that stored into
// one of the lines. It is the default for runs on a manual clock. A run that waits
// for a store that no timer makes goes on parking for ever, as a real one would.
type ManualIdle struct {
	Clock *event.ManualClock
}

// SleepUntil implements Idle.
func (i ManualIdle) SleepUntil(t time.Duration) { i.Clock.AdvanceTo(t) }

// Park implements Idle.
func (i ManualIdle) Park(lines []*Watch, _, until time.Duration) {
	for !changed(lines) && i.Clock.Now() < until {
		t := until
		if next, ok := i.Clock.Next(); ok {
			t = min(t, next)
		}
		i.Clock.AdvanceTo(t)
	}
}
