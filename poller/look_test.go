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
