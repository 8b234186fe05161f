package poller

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/line"
)

// Of two registrations on one word the first finds its target reached after all, in
// its last look, and is held up before it puts the watch on the waiter's list. The
// second has found the watch as good as listed, and its own wake-up came too early.
func TestRegistrationsThatOverlap(t *testing.T) {
	var word *line.Word
	stuck, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	var step atomic.Int32
	perturbation = func() {
		if !armed.Load() {
			return
		}
		switch step.Add(1) {
		case 2: // the lock is held, the last look is next
			word.Store(1)
		case 3: // the lock is free, the list is next
			armed.Store(false)
			close(stuck)
			<-goOn
		}
	}
	t.Cleanup(func() { perturbation = nil }) // after the waiter's end
	w := testWaiter(t, Config{Spin: -1, Nap: 20 * time.Microsecond})
	first, x := testWatch(t, w, WatchOptions{})
	wt, c := NewWait()
	mustAdd(t, x, wt, 1)
	first.Store(1)
	if err := receive(t, c); err != nil {
		t.Fatal(err)
	}
	for !w.Parked() {
		runtime.Gosched()
	}
	word, x = testWatch(t, w, WatchOptions{})
	armed.Store(true)
	added := make(chan bool)
	go func() {
		wt, _ := NewWait()
		ok, err := x.Add(wt, 1)
		added <- ok || err != nil
	}()
	<-stuck
	wt, c = NewWait()
	mustAdd(t, x, wt, 2)
	for parks := w.Stats().Parks; w.Stats().Parks < parks+1 && !w.Parked(); { // it has looked, and gone back
		runtime.Gosched()
	}
	close(goOn)
	if <-added {
		t.Error("the first: registered, want reached")
	}
	word.Store(2)
	if err := receive(t, c); err != nil {
		t.Error(err)
	}
}

// A wait that is to be looked at soon does not wait for the look time of another on
// the same word, whichever target is the earlier one.
func TestNearerLookOnTheSameWord(t *testing.T) {
	const far = time.Hour
	for _, c := range []struct {
		name        string
		other, mine uint64 // targets
		early       bool
	}{
		{"same target", 1, 1, false}, {"later target", 1, 2, false}, {"earlier target", 2, 1, false}, {"handed back", 1, 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := testWaiter(t, Config{Spin: -1, Nap: 20 * time.Microsecond})
			word, x := testWatch(t, w, WatchOptions{})
			other, otherC := NewWait()
			other.Look = far
			mustAdd(t, x, other, c.other)
			mine, mineC := NewWait()
			if c.early {
				mine.Early, mine.Look = true, time.Microsecond
			}
			mustAdd(t, x, mine, c.mine)
			if c.early {
				if err := receive(t, mineC); err != ErrLook {
					t.Fatal(err)
				}
				if !other.Cancel() {
					t.Fatal("the other has ended")
				}
				return
			}
			word.Store(c.mine)
			if err := receive(t, mineC); err != nil {
				t.Fatal(err)
			}
			if c.other > c.mine {
				if !other.Cancel() {
					t.Fatal("the other has ended")
				}
			} else if err := receive(t, otherC); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The look time of a cancelled wait counts no more.
func TestCancelledLook(t *testing.T) {
	w := testWaiter(t, Config{Spin: -1, Nap: 20 * time.Microsecond})
	word, x := testWatch(t, w, WatchOptions{})
	far, _ := NewWait()
	far.Look = time.Hour
	mustAdd(t, x, far, 1)
	near, c := NewWait()
	mustAdd(t, x, near, 2)
	if !far.Cancel() {
		t.Fatal("not cancelled")
	}
	word.Store(2)
	if err := receive(t, c); err != nil {
		t.Fatal(err)
	}
	// And the other way round nobody looks for a wait that is gone: the next look is
	// the remaining wait's.
	mustAdd(t, x, far, 3)
	mustAdd(t, x, near, 4)
	near.Cancel()
	if got := x.look.Load(); got != far.lookAt {
		t.Errorf("looks at %d, want %d", got, far.lookAt)
	}
	far.Cancel()
	// Also when the one that goes is the last in order and not the first.
	mustAdd(t, x, near, 6)
	mustAdd(t, x, far, 5)
	near.Cancel()
	if got := x.look.Load(); got != far.lookAt {
		t.Errorf("looks at %d, want %d", got, far.lookAt)
	}
	far.Cancel()
}

// However late owners run, waits are not handed back at once for it.
func TestHandoverIsBounded(t *testing.T) {
	w := testWaiter(t, Config{})
	_, x := testWatch(t, w, WatchOptions{})
	wt, _ := NewWait()
	wt.addedAt = nanotime() - int64(time.Second)
	for range 10_000 {
		x.Resumed(wt)
	}
	if got := time.Duration(w.handover.Load()); got != maxHandover {
		t.Errorf("%v, want %v", got, maxHandover)
	}
	wt.addedAt = nanotime() + int64(time.Hour)
	for range 10 {
		x.Resumed(wt)
	}
	if got := w.handover.Load(); got != 0 {
		t.Errorf("%v, want 0", got)
	}
}

// The queue against a plain list: earliest target, earliest look time, earliest time
// to hand back.
func TestQueueModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for round := range 300 {
		var q queue
		var in []*Wait
		base := ^uint64(0) - 50 // targets wrap around
		for range 200 {
			if len(in) > 0 && rnd.IntN(5) < 2 {
				i := rnd.IntN(len(in))
				if rnd.IntN(2) == 0 { // complete rather than cancel
					for j, w := range in {
						if w == q.peek() {
							i = j
						}
					}
				}
				q.remove(in[i])
				in = append(in[:i], in[i+1:]...)
			} else {
				w := &Wait{target: base + rnd.Uint64N(100), lookAt: rnd.Int64N(1000), Early: rnd.IntN(4) == 0}
				if round%3 == 0 { // the usual order
					w.target, w.lookAt = base, int64(base+51)
					base += rnd.Uint64N(2)
				}
				q.push(w)
				in = append(in, w)
			}
			look, early := int64(never), int64(never)
			var first *Wait
			for _, w := range in {
				if first == nil || line.Before(w.target, first.target) {
					first = w
				}
				look = min(look, w.lookAt)
				if w.Early {
					early = min(early, w.lookAt)
				}
			}
			gotLook, gotEarly := q.look()
			if got := q.peek(); (got == nil) != (first == nil) || got != nil && got.target != first.target || gotLook != look || gotEarly != early || q.n != len(in) {
				t.Fatalf("round %d: earliest %v, look %d, early %d, n %d; want %v, %d, %d, %d", round, got, gotLook, gotEarly, q.n, first, look, early, len(in))
			}
		}
	}
}

// A sink is checked each time that it is another.
func TestSinkExchanged(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	wt, c := NewWait()
	mustAdd(t, x, wt, 1)
	word.Store(1)
	if err := receive(t, c); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Sink{sliceSink{}, holder{[]int{1}}, &holder{[]int{1}}} {
		wt.Sink = s
		ok, err := x.Add(wt, 2)
		_, usable := s.(*holder)
		if ok != usable || (err == nil) != usable {
			t.Errorf("%T: %v, %v", s, ok, err)
		}
	}
	wt.Cancel()
}

type sliceSink []int

func (sliceSink) Complete(*Wait, error) {}
func (sliceSink) Flush()                {}

// holder can be compared as a type, but not when what it holds can't.
type holder struct{ what any }

func (holder) Complete(*Wait, error) {}
func (holder) Flush()                {}

// A wait that is pending at its look time is slept for once more when that is asked for.
func TestSleepsAgain(t *testing.T) {
	const ms = int64(time.Millisecond)
	type rig struct {
		*testing.T
		w    *Waiter
		x    *Watch
		word *line.Word
		wt   *Wait
		c    <-chan error
		at   int64 // when it was registered
	}
	start := func(t *testing.T, look, again time.Duration, early bool) *rig {
		r := &rig{T: t, w: NewWaiter(Config{Spin: time.Hour})}
		r.w.started.Store(true) // nobody else scans
		r.word, r.x = testWatch(t, r.w, WatchOptions{})
		r.wt, r.c = NewWait()
		r.wt.Look, r.wt.Again, r.wt.Early = look, again, early
		mustAdd(t, r.x, r.wt, 1)
		r.w.admit()
		r.at = r.wt.addedAt
		return r
	}
	// next scans at the given time after the registration; it returns how long from there
	// on it may sleep, 0 when it is to look without pause.
	next := func(r *rig, at int64) int64 {
		r.Helper()
		s := r.w.scan(r.at+at, true)
		if s.work || s.busy == 0 || s.naps {
			r.Fatalf("at %v: %+v", time.Duration(at), s)
		}
		if s.hots > 0 {
			return 0
		}
		return s.next - r.at - at
	}
	want := func(r *rig, at, sleep int64) {
		r.Helper()
		if got := next(r, at); got != sleep {
			r.Errorf("at %v: sleeps %v, want %v", time.Duration(at), time.Duration(got), time.Duration(sleep))
		}
	}
	done := func(r *rig, at int64, late, again bool, pending int64) {
		r.Helper()
		r.word.Store(1)
		if s := r.w.scan(r.at+at, true); !s.work {
			r.Fatalf("at %v: %+v", time.Duration(at), s)
		}
		r.w.deliver(r.at + at)
		if err := receive(r.T, r.c); err != nil {
			r.Fatal(err)
		}
		if r.wt.Late != late || r.wt.LateAgain != again || int64(r.wt.PendingAt)-r.at != pending {
			r.Errorf("late %v, late again %v, pending at %v; want %v, %v, %v",
				r.wt.Late, r.wt.LateAgain, r.wt.PendingAt-time.Duration(r.at), late, again, time.Duration(pending))
		}
	}
	t.Run("watched after it", func(t *testing.T) {
		r := start(t, 1e6, 3e6, false)
		want(r, 0, ms)
		want(r, ms/2, ms/2)
		want(r, ms+1, 2*ms-1)
		want(r, 2*ms, ms)
		want(r, 3*ms, 0)
		want(r, 4*ms, 0)
		done(r, 5*ms, false, false, 4*ms)
		// The next registration starts anew.
		r.wt.Again = 0
		mustAdd(t, r.x, r.wt, 2)
		r.at = r.wt.addedAt
		want(r, 0, ms)
		want(r, ms+1, 0)
	})
	t.Run("late after it", func(t *testing.T) {
		r := start(t, 1e6, 3e6, false)
		want(r, ms+1, 2*ms-1)
		done(r, 3*ms, false, true, ms+1)
	})
	t.Run("late before it", func(t *testing.T) {
		r := start(t, 1e6, 3e6, false)
		want(r, 0, ms)
		done(r, ms+1, true, false, 0)
	})
	t.Run("not asked for", func(t *testing.T) {
		for _, again := range []time.Duration{0, 1, 1e6} {
			r := start(t, 1e6, again, false)
			want(r, ms+1, 0)
		}
		r := start(t, 0, 3e6, false)
		want(r, 1, 0)
		r = start(t, 1e6, 3e6, true)
		if s := r.w.scan(r.at+ms+1, true); !s.work {
			t.Errorf("a wait that is to be handed back is slept for: %+v", s)
		}
	})
	t.Run("too late for it", func(t *testing.T) {
		r := start(t, 1e6, 3e6, false)
		want(r, 3*ms+1, 0)
	})
	t.Run("shorter than sleeps are late by", func(t *testing.T) {
		r := start(t, 20_000, 50_000, false)
		r.wt.Cancel()
		r.w.oversleep.Store(int64(maxOversleep))
		mustAdd(t, r.x, r.wt, 1)
		r.at = r.wt.addedAt
		want(r, 1, 0)
		r = start(t, 120e3, 150e3, false)
		r.wt.Cancel()
		r.w.oversleep.Store(int64(maxOversleep))
		mustAdd(t, r.x, r.wt, 1)
		r.at = r.wt.addedAt
		want(r, 0, 20e3)
		want(r, 20e3, 30e3)
		want(r, 50e3, 0)
	})
	t.Run("beside others", func(t *testing.T) {
		r := start(t, 1e6, 3e6, false)
		wt, c := NewWait()
		mustAdd(t, r.x, wt, 2)
		if s := r.w.scan(r.at+ms+1, true); s.hots != 1 {
			t.Errorf("the other is not looked for: %+v", s)
		}
		if wt.Cancel(); next(r, ms+2) != 2*ms-2 {
			t.Error("it does not sleep again once it is alone")
		}
		// One that comes later, and is to be looked for earlier.
		wt.Look = 1
		mustAdd(t, r.x, wt, 2)
		if s := r.w.scan(max(r.at+ms+3, wt.lookAt), true); s.hots != 1 {
			t.Errorf("the newcomer is not looked for: %+v", s)
		}
		r.word.Store(2)
		if s := r.w.scan(r.at+ms+4, true); !s.work {
			t.Fatalf("%+v", s)
		}
		r.w.deliver(r.at + ms + 4)
		for _, c := range []<-chan error{r.c, c} {
			if err := receive(t, c); err != nil {
				t.Fatal(err)
			}
		}
	})
}
