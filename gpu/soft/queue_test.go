package soft

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// More is queued behind a gate than the ring takes, with functions in between, and
// comes in order.
func TestLongQueue(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		w := openWord(t, d)
		open, err := s.Gate()
		must(t, err)
		const n = 6 * ringEntries
		var seen []uint64
		for i := range uint64(n) {
			must(t, s.Store(w.host, w.dev, i+1))
			if i%1000 == 999 {
				must(t, s.Run(func() error {
					seen = append(seen, w.Load())
					return nil
				}))
			}
		}
		if w.Load() != 0 {
			t.Error("passed a closed gate")
		}
		open()
		must(t, s.Sync())
		if w.Load() != n || !slices.Equal(seen, []uint64{1000, 2000, 3000}) {
			t.Errorf("word %d, functions saw %v", w.Load(), seen)
		}
		if at := s.StoreTime(n); at == 0 || at > Now() {
			t.Errorf("the last store is said to be at %v", at)
		}
		if at := s.StoreTime(n - ringEntries); at != 0 {
			t.Errorf("a store that was forgotten is said to be at %v", at)
		}
		if at := s.StoreTime(n + 1); at != 0 {
			t.Errorf("a store that never was is said to be at %v", at)
		}
	})
}

// Work is planned: nothing drifts, whatever the engine's delays are.
func TestPlan(t *testing.T) {
	d := openDevice(t, Config{Engines: 2})
	const ms = int64(time.Millisecond)
	for i, c := range []struct{ at, dur, want int64 }{
		{0, 10, 10}, // first engine
		{10, 10, 20},
		{20, 10, 30},  // and again: the stream's own chain takes no second engine
		{0, 5, 5},     // the second engine is still free
		{0, 100, 105}, // now both are taken: behind the one that is free first
		{0, 1, 31},
		{200, 1, 201}, // both are free: the one that was for the shortest time
		{0, 1, 32},
	} {
		if got := d.schedule(c.at*ms, time.Duration(c.dur*ms)); got != c.want*ms {
			t.Errorf("%d: work of %d ms from %d on ends at %d, want %d", i, c.dur, c.at, got/ms, c.want)
		}
	}
	if e := d.schedule(1<<62, 1<<63-1); e != forever-1 {
		t.Errorf("a huge duration ends at %d", e)
	}
	s := openStream(t, openDevice(t, Config{}))
	must(t, s.Work(1<<63-1))
	must(t, s.Work(1<<63-1))
	if done, err := s.Query(); done || err != nil {
		t.Error(done, err)
	}
}

func TestFunctions(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		m, err := d.Alloc(8)
		must(t, err)
		var order []int
		for i := range 100 {
			if i%3 == 0 {
				must(t, s.Fill(m, byte(i), 8))
			}
			must(t, s.Run(func() error {
				order = append(order, i, int(d.Bytes(m, 8)[7]))
				return nil
			}))
		}
		must(t, s.HostFunc(func() { order = append(order, -1) }))
		must(t, s.Sync())
		for i := range 100 {
			if order[2*i] != i || order[2*i+1] != i/3*3 {
				t.Fatalf("function %d: %v", i, order[2*i:2*i+2])
			}
		}
		if order[200] != -1 || d.Counters().Functions != 101 {
			t.Error(order[200:], d.Counters().Functions)
		}
		open, err := s.Gate()
		must(t, err)
		must(t, s.Run(func() error { panic("kernel crash") }))
		must(t, s.HostFunc(func() { t.Error("called behind failed work") }))
		open()
		err = s.Sync()
		if !errors.Is(err, event.WorkFailed) || !errors.Is(err, event.Panicked) || event.StatusOf(err) != StatusIllegalAddress {
			t.Errorf("Sync after a panic: %v", err)
		}
		must(t, d.Settle())
	})
}

// What is behind failed work never happens, whenever it was due, and with
// StoreAfterFault stores do.
func TestBehindFailedWork(t *testing.T) {
	for _, keep := range []bool{false, true} {
		eachMode(t, func(t *testing.T, cfg Config) {
			cfg.StoreAfterFault = keep
			d := openDevice(t, cfg)
			if d.Caps().WordProves == keep {
				t.Errorf("WordProves is %v", d.Caps().WordProves)
			}
			a, b := openStream(t, d), openStream(t, d)
			w, v := openWord(t, d), openWord(t, d)
			cause := event.New(event.WorkFailed, "test", "asked for").WithStatus(StatusLaunchFailed)
			begin, err := a.Gate()
			must(t, err)
			must(t, a.Work(time.Millisecond))
			must(t, a.Fail(cause))
			must(t, a.Store(w.host, w.dev, 1))
			ev, err := a.Record()
			must(t, err)
			must(t, a.Run(func() error { t.Error("ran behind failed work"); return nil }))
			must(t, a.Store(w.host, w.dev, 2))
			if !keep {
				must(t, b.Work(time.Hour)) // due long after the fault
			}
			must(t, b.Store(v.host, v.dev, 1))
			begin()
			if err := a.Sync(); !errors.Is(err, event.WorkFailed) || event.StatusOf(err) != StatusLaunchFailed {
				t.Errorf("Sync: %v", err)
			}
			if done, err := a.Query(); done || !errors.Is(err, event.WorkFailed) {
				t.Errorf("Query: %v, %v", done, err)
			}
			must(t, d.Settle())
			want := uint64(0)
			if keep {
				want = 1
			}
			if w.Load() != 2*want || v.Load() != want {
				t.Errorf("words %d and %d, want %d and %d", w.Load(), v.Load(), 2*want, want)
			}
			if done, err := ev.Query(); done || !errors.Is(err, event.WorkFailed) {
				t.Errorf("event behind failed work: %v, %v", done, err)
			}
			d.Lose("too late") // the first fault stays
			if !errors.Is(d.Status(), event.WorkFailed) {
				t.Error(d.Status())
			}
			must(t, a.Close())
			must(t, b.Close())
			if n := d.Counters().Streams; n != 0 {
				t.Errorf("%d streams left", n)
			}
		})
	}
}

func TestLateAndHeldStores(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		a, b := openStream(t, d), openStream(t, d)
		w, v := openWord(t, d), openWord(t, d)
		const n = 2 * ringEntries // more than the ring for late stores takes
		a.DelayStores(20 * time.Millisecond)
		b.HoldStores()
		start := Now()
		for i := range uint64(n) {
			must(t, a.Store(w.host, w.dev, i+1))
			must(t, b.Store(v.host, v.dev, i+1))
		}
		must(t, b.Sync())
		if v.Load() != 0 {
			t.Errorf("held stores have reached %d", v.Load())
		}
		must(t, d.Settle()) // they land, all of them
		if w.Load() != n || v.Load() != n {
			t.Errorf("words %d and %d after Settle, want %d", w.Load(), v.Load(), n)
		}
		if at := a.StoreTime(n); at < start+20*time.Millisecond {
			t.Errorf("a store delayed by 20 ms landed after %v", at-start)
		}
		// A store is not let go before its turn.
		b.HoldStores()
		open, err := b.Gate()
		must(t, err)
		must(t, b.Store(v.host, v.dev, n+1))
		b.ReleaseStores()
		must(t, a.Sync())
		if v.Load() != n {
			t.Error("a released store landed before its turn")
		}
		open()
		await(v, n+1)
	})
}

func TestCapture(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s, o := openStream(t, d), openStream(t, d)
		w := openWord(t, d)
		if _, err := s.EndCapture(); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("end of nothing: %v", err)
		}
		must(t, s.BeginCapture())
		if err := s.BeginCapture(); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("begin in a capture: %v", err)
		}
		if on, err := s.Capturing(); !on || err != nil {
			t.Error(on, err)
		}
		ran := 0
		must(t, s.Store(w.host, w.dev, 7))
		must(t, s.Run(func() error { ran++; return nil }))
		ev, err := s.Record()
		must(t, err)
		if _, err := ev.Query(); event.StatusOf(err) != statusCapturedEvent {
			t.Errorf("query of a captured event: %v", err)
		}
		g, err := s.EndCapture()
		must(t, err)
		must(t, s.Sync())
		if w.Load() != 0 || ran != 0 {
			t.Error("what was captured happened")
		}
		for range 3 {
			must(t, g.Launch(o))
			must(t, o.Store(w.host, w.dev, 9))
			must(t, g.Launch(o)) // and stores the stale number again
			must(t, o.Sync())
			if w.Load() != 7 {
				t.Errorf("word %d, want 7", w.Load())
			}
		}
		if ran != 6 {
			t.Errorf("ran %d times, want 6", ran)
		}
		for what, spoil := range map[string]func() error{
			"query": func() error { _, err := s.Query(); return err },
			"sync":  s.Sync,
		} {
			must(t, s.BeginCapture())
			if err := spoil(); event.StatusOf(err) != statusCaptureUnsupported {
				t.Errorf("%s in a capture: %v", what, err)
			}
			if on, _ := s.Capturing(); !on {
				t.Error("a spoiled capture does not count")
			}
			if _, err := s.EndCapture(); event.StatusOf(err) != statusCaptureInvalidated {
				t.Errorf("end after a %s: %v", what, err)
			}
		}
		must(t, s.Sync())
	})
}

func TestAdopted(t *testing.T) {
	d := openDevice(t, Config{})
	s := openStream(t, d)
	w := openWord(t, d)
	x, err := d.AdoptStream(s.Handle())
	must(t, err)
	if x.Handle() != s.Handle() || x.Device() != driver.Device(d) {
		t.Error("another handle or device")
	}
	open, err := s.Gate()
	must(t, err)
	must(t, x.Store(w.host, w.dev, 1)) // behind the owner's work
	if done, err := x.Query(); done || err != nil {
		t.Error(done, err)
	}
	open()
	must(t, x.Sync())
	must(t, x.Close())
	if _, err := x.Query(); !errors.Is(err, event.Closed) {
		t.Error(err)
	}
	must(t, s.Store(w.host, w.dev, 2))
	y, err := d.AdoptStream(s.Handle())
	must(t, err)
	must(t, s.Close())
	if err := y.Store(w.host, w.dev, 3); !errors.Is(err, event.Closed) {
		t.Errorf("adopted, and closed by its owner: %v", err)
	}
	must(t, d.Settle())
	if _, err := d.AdoptStream(s.Handle()); !errors.Is(err, event.ForeignStream) || event.StatusOf(err) != event.StatusForeign {
		t.Errorf("adopted after its end: %v", err)
	}
	other := openStream(t, openDevice(t, Config{}))
	if _, err := d.AdoptStream(other.Handle()); !errors.Is(err, event.ForeignStream) {
		t.Errorf("of another device: %v", err)
	}
}

// A closed stream's ring is used again, once its work is done, and what is still
// to be asked about its events is known.
func TestRingsAreUsedAgain(t *testing.T) {
	d := openDevice(t, Config{})
	w := openWord(t, d)
	for i := range 300 {
		s := openStream(t, d)
		must(t, s.Store(w.host, w.dev, uint64(i+1)))
		ev, err := s.Record()
		must(t, err)
		must(t, s.Close())
		must(t, d.Settle())
		if done, err := ev.Query(); !done || err != nil {
			t.Fatalf("event of a closed stream: %v, %v", done, err)
		}
	}
	if n := len(d.rings); n > 2 {
		t.Errorf("%d rings for one stream at a time", n)
	}
}

func TestMostStreams(t *testing.T) {
	d := openDevice(t, Config{})
	var all []driver.Stream
	for range maxStreams {
		s, err := d.NewStream()
		if err != nil {
			t.Fatalf("after %d: %v", len(all), err)
		}
		all = append(all, s)
	}
	if _, err := d.NewStream(); !errors.Is(err, event.NotSupported) {
		t.Errorf("one too many: %v", err)
	}
	w := openWord(t, d)
	must(t, all[maxStreams-1].Store(w.host, w.dev, 1))
	must(t, all[maxStreams-1].Sync())
	must(t, all[7].Close())
	s := openStream(t, d)
	must(t, s.Store(w.host, w.dev, 2))
	must(t, s.Sync())
	if w.Load() != 2 {
		t.Errorf("word %d", w.Load())
	}
}

// Close comes while everything is under way, in every state, from anywhere.
func TestCloseUnderLoad(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		for round := range 20 {
			d := openDevice(t, cfg)
			w := openWord(t, d)
			m, err := d.Alloc(1 << 20)
			must(t, err)
			var wg sync.WaitGroup
			for i := range 4 {
				s := openStream(t, d)
				buf := make([]byte, 1<<10)
				wg.Go(func() {
					for n := uint64(1); ; n++ {
						err := errors.Join(
							s.Store(w.host, w.dev, n),
							s.Run(func() error { return nil }),
							s.Fill(m, 1, 1<<20),
							s.CopyToDevice(m, unsafe.Pointer(&buf[0]), len(buf)))
						if err == nil && i == 1 {
							err = s.Sync()
						}
						if err == nil && i == 2 {
							_, err = s.Query()
							s.StoreTime(n)
						}
						if err == nil && i == 3 {
							err = d.Settle()
						}
						if err != nil {
							if !errors.Is(err, event.Closed) {
								t.Error(err)
							}
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			for range 2 {
				wg.Go(func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	})
}

// A function that does not return holds the end up for the stated time, and then
// leaves memory behind rather than pull it away under it.
func TestCloseIsBounded(t *testing.T) {
	d := openDevice(t, Config{})
	d.closeBound = 20 * time.Millisecond
	s := openStream(t, d)
	stay := make(chan struct{})
	started := make(chan struct{})
	must(t, s.Run(func() error { close(started); <-stay; return nil }))
	<-started
	if err := d.Close(); !errors.Is(err, event.Leaked) {
		t.Errorf("Close: %v", err)
	}
	close(stay)
	d.busy.Wait()
}
