package event

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"
)

// tape records what fires, with the time.
type tape struct {
	c   *ManualClock
	log []string
}

func (p *tape) note(name string) func() {
	return func() { p.log = append(p.log, fmt.Sprintf("%s@%d", name, p.c.Now())) }
}

func (p *tape) check(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(p.log, want) {
		t.Errorf("fired %v, want %v", p.log, want)
	}
	p.log = nil
}

func newTape() *tape { return &tape{c: NewManualClock()} }

func TestManualClockMovesOnlyWhenMoved(t *testing.T) {
	var c ManualClock // the zero value is ready
	if c.Now() != 0 {
		t.Errorf("starts at %v", c.Now())
	}
	c.Advance(5)
	c.Advance(0)
	c.Advance(-3)
	c.AdvanceTo(2)
	c.AdvanceTo(math.MinInt64)
	if c.Now() != 5 {
		t.Errorf("at %v, want 5", c.Now())
	}
	c.SleepUntil(9)
	if c.Now() != 9 {
		t.Errorf("at %v after a sleep until 9", c.Now())
	}
	c.Advance(math.MaxInt64)
	if c.Now() != math.MaxInt64 {
		t.Errorf("a huge step leads to %v", c.Now())
	}
	c.Advance(1)
	if c.Now() != math.MaxInt64 {
		t.Errorf("the end of time is followed by %v", c.Now())
	}
}

func TestManualClockFiresInOrder(t *testing.T) {
	p := newTape()
	p.c.At(30, p.note("a"))
	p.c.At(10, p.note("b"))
	p.c.At(20, p.note("c"))
	p.c.At(10, p.note("d"))
	p.c.At(31, p.note("e"))
	p.c.At(10, p.note("f"))
	if at, ok := p.c.Next(); at != 10 || !ok {
		t.Errorf("next at %v, %v", at, ok)
	}
	p.c.Advance(9)
	p.check(t)
	p.c.Advance(21)
	p.check(t, "b@10", "d@10", "f@10", "c@20", "a@30")
	if at, ok := p.c.Next(); at != 31 || !ok || p.c.Now() != 30 {
		t.Errorf("at %v, next at %v, %v", p.c.Now(), at, ok)
	}
	p.c.SleepUntil(100)
	p.check(t, "e@31")
	if _, ok := p.c.Next(); ok || p.c.Now() != 100 {
		t.Errorf("at %v, with a timer left: %v", p.c.Now(), ok)
	}
	// Overdue timers fire at the next move, also one by 0 or back, and at the
	// clock's time.
	p.c.At(50, p.note("g"))
	p.c.At(40, p.note("h"))
	p.c.At(-1, p.note("i"))
	p.check(t)
	p.c.Advance(0)
	p.check(t, "i@100", "h@100", "g@100")
	p.c.At(50, p.note("j"))
	p.c.AdvanceTo(7)
	p.check(t, "j@100")
}

func TestManualClockReentrant(t *testing.T) {
	p := newTape()
	// A timer registers timers: due at once, within the move, and beyond it.
	p.c.At(10, func() {
		p.note("a")()
		p.c.At(10, p.note("now"))
		p.c.At(5, p.note("past"))
		p.c.At(15, p.note("soon"))
		p.c.At(25, p.note("later"))
	})
	p.c.At(10, p.note("b"))
	p.c.AdvanceTo(20)
	p.check(t, "a@10", "past@10", "b@10", "now@10", "soon@15")
	p.c.AdvanceTo(25)
	p.check(t, "later@25")

	// A timer moves the clock on, past the end of the move that fired it.
	p.c.At(30, func() {
		p.note("c")()
		p.c.SleepUntil(45)
		p.note("woken")()
	})
	p.c.At(40, p.note("d"))
	p.c.At(46, p.note("e"))
	p.c.AdvanceTo(35)
	p.check(t, "c@30", "d@40", "woken@45")
	if p.c.Now() != 45 {
		t.Errorf("at %v: a move to 35 went back", p.c.Now())
	}

	// A chain: each timer registers the next.
	n := 0
	var tick func()
	tick = func() {
		if n++; n < 1000 {
			p.c.At(p.c.Now()+1, tick)
		}
	}
	p.c.At(100, tick)
	p.c.AdvanceTo(10_000)
	if n != 1000 {
		t.Errorf("a chain of 1000 fired %d", n)
	}
}

func TestManualClockCancel(t *testing.T) {
	p := newTape()
	a, b := p.c.At(10, p.note("a")), p.c.At(10, p.note("b"))
	c := p.c.At(20, p.note("c"))
	if !b() {
		t.Error("cancelling in time reports late")
	}
	if b() {
		t.Error("cancelling twice reports in time")
	}
	var d func() bool
	p.c.At(15, func() {
		// From within a timer: one that has fired, one that is due in the same move,
		// and itself.
		if a() || !c() || d() {
			t.Error("cancelling from within a timer reports the wrong thing")
		}
	})
	d = p.c.At(12, p.note("d"))
	p.c.Advance(100)
	p.check(t, "a@10", "d@12")
	if _, ok := p.c.Next(); ok {
		t.Error("a cancelled timer is left")
	}
	var self func() bool
	self = p.c.At(200, func() {
		if self() {
			t.Error("a timer that is firing can be cancelled")
		}
	})
	p.c.Advance(100)
}

// TestManualClockAgainstModel runs random registrations, cancellations and moves
// against a sorted list.
func TestManualClockAgainstModel(t *testing.T) {
	type timer struct {
		at     time.Duration
		id     int
		cancel func() bool
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c := NewManualClock()
		var pending []timer
		var fired, want []string
		for id := range 100 {
			switch r.IntN(4) {
			case 0, 1:
				at := c.Now() + time.Duration(r.IntN(20)) - 3
				cancel := c.At(at, func() { fired = append(fired, fmt.Sprint(id, c.Now())) })
				pending = append(pending, timer{at, id, cancel})
			case 2:
				if len(pending) > 0 {
					i := r.IntN(len(pending))
					if !pending[i].cancel() {
						t.Fatal("a pending timer can't be cancelled")
					}
					pending = slices.Delete(pending, i, i+1)
				}
			case 3:
				now, to := c.Now(), c.Now()+time.Duration(r.IntN(10))
				sort.SliceStable(pending, func(i, j int) bool { return pending[i].at < pending[j].at })
				for len(pending) > 0 && pending[0].at <= to {
					now = max(now, pending[0].at)
					want = append(want, fmt.Sprint(pending[0].id, now))
					pending = pending[1:]
				}
				c.AdvanceTo(to)
				if c.Now() != to {
					t.Fatalf("at %v, want %v", c.Now(), to)
				}
				// SliceStable keeps the registration order only among those present.
				slices.SortFunc(pending, func(a, b timer) int { return a.id - b.id })
			}
		}
		if !slices.Equal(fired, want) {
			t.Fatalf("fired\n %v, want\n %v", fired, want)
		}
	}
}

// TestHammerManualClock: registrations and cancellations beside a moving clock;
// each timer fires or is cancelled, never both or neither.
func TestHammerManualClock(t *testing.T) {
	const goroutines, loops = 8, 500
	c := NewManualClock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	fired, cancelled := 0, 0
	for range goroutines {
		wg.Go(func() {
			for i := range loops {
				cancel := c.At(c.Now()+time.Duration(i%7), func() {
					mu.Lock()
					fired++
					mu.Unlock()
				})
				if i%3 == 0 && cancel() {
					mu.Lock()
					cancelled++
					mu.Unlock()
				}
				c.Advance(1)
			}
		})
	}
	wg.Wait()
	c.Advance(math.MaxInt64)
	if fired+cancelled != goroutines*loops {
		t.Errorf("%d fired and %d cancelled of %d", fired, cancelled, goroutines*loops)
	}
}

func TestRealClock(t *testing.T) {
	var c Clock = RealClock{}
	last := c.Now()
	if last < 0 {
		t.Fatalf("starts at %v", last)
	}
	for range 10_000 {
		now := RealClock{}.Now() // every RealClock has the same origin
		if now < last {
			t.Fatalf("went back from %v to %v", last, now)
		}
		last = now
	}
	for _, d := range []time.Duration{1, 50 * time.Microsecond, 2 * time.Millisecond} {
		for range 20 {
			until := c.Now() + d
			c.SleepUntil(until)
			if now := c.Now(); now < until {
				t.Fatalf("slept until %v and woke at %v", until, now)
			}
		}
	}
	// The past, however far, is no sleep at all.
	for _, until := range []time.Duration{c.Now(), 0, -1, math.MinInt64} {
		done := make(chan struct{})
		go func() { c.SleepUntil(until); close(done) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("a sleep until %v, in the past, does not end", until)
		}
	}
}

func TestRealClockAt(t *testing.T) {
	var c RealClock
	for _, d := range []time.Duration{math.MinInt64, -time.Second, 0, 3 * time.Millisecond} {
		at, fired := d, make(chan time.Duration)
		if d > -time.Second {
			at = c.Now() + d
		}
		cancel := c.At(at, func() { fired <- c.Now() })
		select {
		case now := <-fired:
			if now < at {
				t.Errorf("a timer for %v fired at %v", at, now)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("a timer for %v does not fire", at)
		}
		if cancel() {
			t.Error("cancelling after the timer fired reports in time")
		}
	}
	cancel := c.At(c.Now()+time.Hour, func() { t.Error("a cancelled timer fired") })
	if !cancel() || cancel() {
		t.Error("cancelling reports the wrong thing")
	}
	if cancel = c.At(math.MaxInt64, func() { t.Error("the end of time is here") }); !cancel() {
		t.Error("a timer for the end of time has fired")
	}
}
