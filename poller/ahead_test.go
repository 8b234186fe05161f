package poller

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
)

// wait plays one wait through: looks, with the goroutine having run before the delivery or
// not, and a delivery that takes what takes says of whether it is out. It reports whether it
// was made runnable.
func (a *ahead) wait(x *Watch, target uint64, looks int, now int64, early bool, takes func(out bool) time.Duration) (woken bool) {
	for range looks {
		if a.looking(x, target, now) {
			woken = true
		}
		if early {
			a.settle()
		}
	}
	out := a.out.Load()
	a.delivered(out, now, now+int64(takes(out)))
	a.learn()
	return woken
}

// settle waits until the goroutine has run.
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
	play := func(t *testing.T, a *ahead, n int, early bool, takes func(bool) time.Duration) (woken int) {
		_, x := testWatch(t, testWaiter(t, Config{}), WatchOptions{})
		for range n {
			target++
			now += int64(target % 2 * 1000 * uint64(us)) // every other one after a long sleep
			if a.wait(x, target, 2, now, early, takes) {
				woken++
			}
			a.settle()
		}
		return woken
	}
	every := func(n int, usual, then time.Duration) func(bool) time.Duration {
		i := 0
		return func(bool) time.Duration {
			if i++; i%n == 0 {
				return then
			}
			return usual
		}
	}
	for name, c := range map[string]struct {
		takes       func(bool) time.Duration
		early       bool
		least, most int // of 1000 waits after 100
	}{
		"it pays":                    {takes: pays, least: 900, most: 1000},
		"cheap":                      {takes: fixed(us)},
		"dear either way":            {takes: fixed(8 * us), least: 1, most: 80},
		"it has run by the delivery": {takes: pays, early: true, least: 1, most: 80},
		"once in a while, dear":      {takes: every(50, us/2, 10*us)},
		"an accident among many":     {takes: every(300, us/5, time.Second), most: 80},
	} {
		t.Run(name, func(t *testing.T) {
			a := new(ahead)
			defer a.end()
			play(t, a, 100, c.early, c.takes)
			if got := play(t, a, 1000, c.early, c.takes); got < c.least || got > c.most {
				t.Errorf("a thread was woken for %d waits of 1000, want %d to %d; a delivery took %v, ahead %v",
					got, c.least, c.most, time.Duration(a.without.Load()), time.Duration(a.with.Load()))
			}
		})
	}
	t.Run("what pays changes", func(t *testing.T) {
		a := new(ahead)
		defer a.end()
		play(t, a, 100, false, pays)
		play(t, a, 1000, false, fixed(8*us)) // as another Go would have it
		if got := play(t, a, 320, false, fixed(8*us)); got > 30 {
			t.Errorf("a thread was woken for %d waits of 320 although it no longer pays", got)
		}
		play(t, a, 2000, false, pays)
		if got := play(t, a, 320, false, pays); got < 280 {
			t.Errorf("a thread was woken for %d waits of 320 although it pays again", got)
		}
	})
	// A goroutine that outlasts its wait makes the next one's delivery cheap, too.
	t.Run("one lasts for several waits", func(t *testing.T) {
		a := new(ahead)
		defer a.end()
		_, x := testWatch(t, testWaiter(t, Config{}), WatchOptions{})
		for range 1000 {
			target++
			a.wait(x, target, 1, now, false, pays)
			if target%3 == 0 {
				a.settle()
			}
		}
		if without := time.Duration(a.without.Load()); without < 4*us {
			t.Errorf("a delivery without it took %v, want about 8 us", without)
		}
	})
}

// What a look that comes too late for it costs counts: the wait is delivered that much later.
func TestAheadCountsWhatItHides(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	word, x := testWatch(t, testWaiter(t, Config{}), WatchOptions{})
	word.Store(1) // reached by the time that the goroutine has been made runnable
	a := new(ahead)
	defer a.end()
	a.without.Store(int64(10 * time.Microsecond))
	if !a.looking(x, 1, int64(time.Hour)) {
		t.Fatal("not made runnable")
	}
	if a.blind <= 0 {
		t.Fatal("took no time")
	}
	blind := a.blind
	a.delivered(true, 0, 100)
	a.learn()
	if got := a.with.Load(); got != min(blind+100, int64(2*aheadWorth)) {
		t.Errorf("%d ns, want those of the delivery, 100, and %d", got, blind)
	}
}

func TestAheadIsBounded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	_, x := testWatch(t, testWaiter(t, Config{}), WatchOptions{})
	a := new(ahead)
	a.without.Store(int64(10 * time.Microsecond))
	woken := 0
	for range 100 {
		if a.looking(x, 1, 0) {
			woken++
			a.settle()
		}
	}
	if woken == 0 || woken > aheadStarts {
		t.Errorf("made runnable %d times for one wait, want 1 to %d", woken, aheadStarts)
	}
	a.end()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a = new(ahead)
	a.without.Store(int64(10 * time.Microsecond))
	if a.looking(x, 2, 0) || a.out.Load() {
		t.Error("a goroutine was started with one processor, where it keeps nobody awake")
	}
}

// The waiter keeps the account, and makes use of it.
func TestAheadIsUsed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for _, dear := range []bool{false, true} {
		w := testWaiter(t, Config{Spin: time.Hour})
		if dear {
			w.ahead.without.Store(int64(time.Second))
		}
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
		s := w.Stats()
		if s.Completed != 50 {
			t.Errorf("dear %v: %d completed, want 50: a rehearsal is none", dear, s.Completed)
		}
		if dear && (s.Ahead == 0 || s.DeliveryAhead == 0) || !dear && s.Delivery == 0 {
			t.Errorf("dear %v, after %d deliveries: %d times ahead, %v, ahead %v", dear, s.Completed, s.Ahead, s.Delivery, s.DeliveryAhead)
		}
	}
}

// A rehearsal is a delivery that leaves nothing behind.
func TestRehearsal(t *testing.T) {
	var r rehearsal
	var b batch
	for now := int64(1); now <= 200; now++ {
		r.rehearse(&b, now)
		if r.wait.DoneAt != time.Duration(now) || r.wait.Data != nil {
			t.Fatalf("rehearsal %d: completed at %d, data %v", now, r.wait.DoneAt, r.wait.Data)
		}
		if len(b.waits) != 0 || len(b.sinks) != 0 || r.x.q.n != 0 || len(r.back) != 0 {
			t.Fatalf("rehearsal %d: %d waits, %d sinks, %d queued, %d words from the listener are left", now, len(b.waits), len(b.sinks), r.x.q.n, len(r.back))
		}
		select {
		case <-r.show:
		default:
			t.Fatalf("rehearsal %d: the channel is not closed", now)
		}
	}
}

// A waiter that is closed while another goroutine is at whatever it does leaves neither
// behind (goleak looks at the end).
func TestAheadEnds(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for i := range 300 {
		w := NewWaiter(Config{Spin: time.Hour})
		w.ahead.without.Store(int64(time.Second))
		_, x := testWatch(t, w, WatchOptions{})
		wt, c := NewWait()
		mustAdd(t, x, wt, 1)
		for range i % 50 {
			runtime.Gosched()
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, c); !errors.Is(err, event.Closed) {
			t.Fatal(err)
		}
	}
}
