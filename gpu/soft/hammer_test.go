package soft

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// No store is forgotten, whatever the engine is at when it is queued: going to
// sleep, waking, clearing the ring's bit, or looking elsewhere.
func TestHammer(t *testing.T) {
	const streams, rounds = 16, 300
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		var wg sync.WaitGroup
		var lost atomic.Bool
		for g := range streams {
			s := openStream(t, d)
			w := openWord(t, d)
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(g), 1))
				seq := uint64(0)
				for range rounds {
					for range 1 + rnd.IntN(4) {
						seq++
						if err := s.Store(w.host, w.dev, seq); err != nil {
							t.Error(err)
							return
						}
					}
					for start := time.Now(); !w.Reached(seq); runtime.Gosched() {
						if time.Since(start) > 20*time.Second {
							lost.Store(true)
							return
						}
					}
					if rnd.IntN(8) == 0 { // long enough for the engine to fall asleep, or nearly
						time.Sleep(time.Duration(rnd.IntN(200)) * time.Microsecond)
					}
				}
			})
		}
		wg.Wait()
		if lost.Load() {
			t.Error("a store is lost")
		}
	})
}

// Every stream's stores come in the order in which they were queued, and data
// before them.
func TestHammerOrder(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		w := openWord(t, d)
		m, err := d.Alloc(8)
		must(t, err)
		const n, inFlight = 20_000, 50
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			// The low byte of the word behind each fill is what was filled.
			for prev := uint64(0); ; {
				v := w.Load()
				data := uint64(d.Bytes(m, 1)[0])
				after := w.Load()
				if v < prev {
					t.Errorf("the word went back from %d to %d", prev, v)
					return
				}
				// The fill may be of a later store, never of an earlier one.
				if ahead := uint64(byte(data - v)); v > 0 && after-v < 100 && ahead > after-v+inFlight {
					t.Errorf("word %d, then %d, data %d", v, after, data)
					return
				}
				prev = v
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
		for i := uint64(1); i <= n; i++ {
			must(t, s.Fill(m, byte(i), 8))
			must(t, s.Store(w.host, w.dev, i))
			if i%inFlight == 0 {
				must(t, s.Sync())
			}
		}
		close(stop)
		wg.Wait()
	})
}

func BenchmarkStore(b *testing.B) {
	for _, cfg := range []struct {
		name string
		Config
	}{{"thread", Config{}}, {"process", Config{Process: true}}, {"busy", Config{Busy: true}}} {
		b.Run(cfg.name, func(b *testing.B) {
			d := openDevice(b, cfg.Config)
			s := openStream(b, d)
			w := openWord(b, d)
			b.ReportAllocs()
			seq := uint64(0)
			for b.Loop() {
				seq++
				must(b, s.Store(w.host, w.dev, seq))
			}
			must(b, s.Sync())
		})
	}
}

// BenchmarkStoresBehindGate is the engine's own rate: stores that are all queued.
func BenchmarkStoresBehindGate(b *testing.B) {
	d := openDevice(b, Config{Busy: true})
	s := openStream(b, d)
	w := openWord(b, d)
	const batch = ringEntries / 4
	seq := uint64(0)
	var spent time.Duration
	for b.Loop() {
		must(b, s.Work(200*time.Microsecond))
		for range batch {
			seq++
			must(b, s.Store(w.host, w.dev, seq))
		}
		must(b, s.Sync())
		spent += s.StoreTime(seq) - s.StoreTime(seq-batch+1)
	}
	b.ReportMetric(float64(spent)/float64(b.N)/(batch-1), "ns/store")
}

// BenchmarkTurn is what the engine's look at n streams that all have work pending
// costs, and so how late a store can be because of them.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{0, 1, 64, 1024, maxStreams - 1} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			d := openDevice(b, Config{Busy: true})
			for range n {
				must(b, openStream(b, d).Work(time.Hour))
			}
			before, start := d.mem.ctl.turns.Load(), time.Now()
			for b.Loop() {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64(time.Since(start))/float64(d.mem.ctl.turns.Load()-before), "ns/turn")
		})
	}
}
