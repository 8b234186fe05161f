package sleep

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type sleeper interface {
	Sleep(until int64, state *atomic.Int64)
	Wake()
}

// plain is what other systems have, tested here too.
type plain struct{ goTimer }

func (p *plain) Sleep(until int64, state *atomic.Int64) { p.sleep(until, state) }
func (p *plain) Wake()                                  { p.wake() }

func each(t *testing.T, f func(t *testing.T, s sleeper)) {
	t.Run("Thread", func(t *testing.T) { f(t, new(Thread)) })
	t.Run("Timer", func(t *testing.T) {
		s := new(Timer)
		defer s.Close()
		f(t, s)
	})
	t.Run("other systems", func(t *testing.T) { f(t, new(plain)) })
}

const awake = 0

// rouse is what callers of Wake do.
func rouse(s sleeper, state *atomic.Int64) {
	if u := state.Load(); u != awake && state.CompareAndSwap(u, awake) {
		s.Wake()
	}
}

// A sleep that nobody ends is never too short, whatever came before it.
func TestNotShort(t *testing.T) {
	each(t, func(t *testing.T, s sleeper) {
		var state atomic.Int64
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 300 {
			until := now() + r.Int64N(int64(300*time.Microsecond)) - int64(20*time.Microsecond)
			state.Store(until)
			if i%7 == 0 {
				s.Wake() // late, for a sleep that is over
			}
			s.Sleep(until, &state)
			if n := now(); n < until {
				t.Fatalf("sleep %d ended %v too soon", i, time.Duration(until-n))
			}
			state.Store(awake)
		}
	})
}

func TestChangedBefore(t *testing.T) {
	each(t, func(t *testing.T, s sleeper) {
		var state atomic.Int64
		s.Sleep(now()+int64(time.Hour), &state) // the state is another's: returns at once
	})
}

// Whatever is brought is found, at whatever moment of a sleep it comes.
func TestHammerSleep(t *testing.T) {
	each(t, func(t *testing.T, s sleeper) {
		const items = 20000
		var state, mail atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			r := rand.New(rand.NewPCG(3, 4))
			for seen := int64(0); seen < items; {
				// Short sleeps end by themselves, often just as somebody ends them; long
				// ones do only when they are ended.
				until := now() + int64(time.Hour)
				if r.IntN(2) == 0 {
					until = now() + r.Int64N(int64(30*time.Microsecond))
				}
				state.Store(until)
				if mail.Load() == seen {
					s.Sleep(until, &state)
				}
				state.Store(awake)
				seen = mail.Load()
			}
		}()
		r := rand.New(rand.NewPCG(5, 6))
		for range items {
			if r.IntN(4) == 0 {
				for end := now() + r.Int64N(int64(40*time.Microsecond)); now() < end; {
				}
			}
			mail.Add(1)
			rouse(s, &state)
		}
		<-done
	})
}

// raceEnabled is set where the race detector allocates for itself.
var raceEnabled bool

func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates for itself")
	}
	each(t, func(t *testing.T, s sleeper) {
		var state atomic.Int64
		if n := testing.AllocsPerRun(50, func() {
			until := now() + int64(20*time.Microsecond)
			state.Store(until)
			s.Sleep(until, &state)
		}); n != 0 {
			t.Errorf("%v allocations per sleep", n)
		}
	})
}

func BenchmarkSleep(b *testing.B) {
	for name, s := range map[string]sleeper{"Thread": new(Thread), "Timer": new(Timer)} {
		b.Run(name, func(b *testing.B) {
			var state atomic.Int64
			late := int64(0)
			for b.Loop() {
				until := now() + int64(200*time.Microsecond)
				state.Store(until)
				s.Sleep(until, &state)
				late += now() - until
			}
			b.ReportMetric(float64(late)/float64(b.N), "late-ns")
		})
	}
}
