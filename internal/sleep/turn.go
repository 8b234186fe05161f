package sleep

import "time"

// Turn tells whether what runs between two sleeps computes, so that the runtime's
// monitor thread must be awake for it: it may keep others from their P, and the thread
// sleeps while Timers do. The guess is that it goes on as it did last time. The zero value is
// ready to use, by one goroutine at a time.
type Turn struct {
	ended int64
	long  bool
}

// longTurn is how long a turn is that the monitor is to see: a tenth of what it lets
// a goroutine compute, and thirty times what it costs to wake it.
const longTurn = int64(time.Millisecond)

// Next says that the next sleep, or the wait for its reason, begins: the turn is over.
func (t *Turn) Next() { t.long = t.ended != 0 && now()-t.ended > longTurn }

// Watch is called before the next turn begins, at a moment at which some microseconds do not
// matter. After a turn that was long it wakes the monitor, once.
func (t *Turn) Watch() {
	if t.long {
		t.long = false
		theMonitor.rouse()
	}
}

// Begin says that the turn begins.
func (t *Turn) Begin() {
	t.Watch()
	t.ended = now()
}
