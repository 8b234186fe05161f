package poller

import (
	"runtime"
	"testing"
	"time"
)

// wait plays one wait through: looks, and a delivery that takes what takes says of
// whether a goroutine is out. It returns how many threads were woken.
func (a *ahead) wait(x *Watch, target uint64, looks int, now int64, takes func(out bool) time.Duration) (woken int) {
	for range looks {
		if a.looking(x, target, now) {
			woken++
		}
	}
	out := a.out.Load()
	a.delivered(out, now, now+int64(takes(out)))
	return woken
}

// back waits until the goroutine has run.
func (a *ahead) settle() {
	for a.out.Load() {
		runtime.Gosched()
	}
}

func TestAheadFollowsTheCost(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const us = time.Microsecond
	fixed := func(d time.Duration) func(bool) time.Duration { return func(bool) time.Duration { return d } }
	pays := func(out bool) time.Duration {
		if out {
			return us / 2
		}
		return 8 * us
	}
	target, now := uint64(0), int64(0)
	play := func(a *ahead, n int, takes func(bool) time.Duration) (woken int) {
		x := new(Watch)
		for range n {
			target++
			now += int64(target % 2 * 1000 * uint64(us)) // every other one after a long sleep
			woken += a.wait(x, target, 2, now, takes)
			a.settle()
		}
		return woken
	}
	for name, c := range map[string]struct {
		takes       func(bool) time.Duration
		least, most int // of 1000 waits after 100
	}{
		"it pays":         {pays, 900, 1000},
		"cheap":           {fixed(us), 0, 0},
		"dear either way": {fixed(8 * us), 1, 80},
		"once in a while, dear": {func() func(bool) time.Duration {
			n := 0
			return func(bool) time.Duration { n++; return us/2 + time.Duration(n%50/49)*10*us }
		}(), 0, 0},
		"an accident among many": {func() func(bool) time.Duration {
			n := 0
			return func(bool) time.Duration { n++; return us/5 + time.Duration(n/300%2*(n%300/299))*time.Second }
		}(), 0, 80},
	} {
		t.Run(name, func(t *testing.T) {
			a := new(ahead)
			defer a.end()
			play(a, 100, c.takes)
			if got := play(a, 1000, c.takes); got < c.least || got > c.most {
				t.Errorf("%d threads woken for 1000 waits, want %d to %d; a delivery took %v, ahead %v",
					got, c.least, c.most, time.Duration(a.cold.Load()), time.Duration(a.warm.Load()))
			}
		})
	}
	t.Run("what pays changes", func(t *testing.T) {
		a := new(ahead)
		defer a.end()
		play(a, 100, pays)
		play(a, 1000, fixed(8*us)) // as another Go would have it
		if got := play(a, 320, fixed(8*us)); got > 30 {
			t.Errorf("%d threads woken for 320 waits although it no longer pays", got)
		}
		play(a, 2000, pays)
		if got := play(a, 320, pays); got < 280 {
			t.Errorf("%d threads woken for 320 waits although it pays again", got)
		}
	})
}

func TestAheadIsBounded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	x := new(Watch)
	a := new(ahead)
	a.cold.Store(int64(10 * time.Microsecond))
	woken := 0
	for range 100 {
		if a.looking(x, 1, 0) {
			woken++
			a.settle()
		}
	}
	if woken == 0 || woken > aheadStarts {
		t.Errorf("%d threads woken for one wait, want 1 to %d", woken, aheadStarts)
	}
	a.end()
	select {
	case <-a.gone:
	default:
		t.Error("the goroutine is still there after the end")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a = new(ahead)
	a.cold.Store(int64(10 * time.Microsecond))
	if a.looking(x, 2, 0) || a.c != nil {
		t.Error("a goroutine was started with one processor, where it keeps nobody awake")
	}
}

// The waiter keeps the account: a single wait on a word that it looks at counts.
func TestAheadIsFed(t *testing.T) {
	w := testWaiter(t, Config{Spin: time.Hour})
	word, x := testWatch(t, w, WatchOptions{})
	for v := uint64(1); v <= 50; v++ {
		wt, c := NewWait()
		mustAdd(t, x, wt, v)
		for spins := w.Stats().Spins; w.Stats().Spins < spins+2; {
			runtime.Gosched()
		}
		word.Store(v)
		if err := receive(t, c); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.Stats(); s.Delivery == 0 && s.DeliveryAhead == 0 {
		t.Errorf("nothing was learned from %d deliveries", s.Completed)
	}
}
