package fill_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
)

// real runs the test under every executor that there is, on real time.
func real(t *testing.T, f func(*testing.T, fill.Options)) {
	for _, e := range []fill.Executor{fill.GPUReactor, fill.IOUring} {
		for _, spin := range []time.Duration{0, -1} {
			t.Run(e.String()+"/spin="+spin.String(), func(t *testing.T) {
				if c, _ := e.Resolve(fill.ProbeCaps(), false); c.Warning != nil {
					t.Skip(c.Warning)
				}
				f(t, fill.Options{Executor: e, Spin: spin})
			})
		}
	}
}

// Many tasks and a device of goroutines: every wait ends, none before its time.
func TestRealHammer(t *testing.T) {
	const streams, rounds, tasks = 12, 60, 40
	real(t, func(t *testing.T, opt fill.Options) {
		r := newRig(t, streams)
		var device sync.WaitGroup
		for i := range streams {
			device.Go(func() {
				rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
				for seq := range uint64(rounds) {
					if rng.IntN(4) == 0 {
						time.Sleep(time.Duration(rng.IntN(200)) * us)
					} else {
						runtime.Gosched()
					}
					r.lines[i][i%line.Words].Store(seq + 1)
				}
			})
		}
		resumed := 0
		s, err := fill.Run(context.Background(), opt, func(t *fill.Task) error {
			for i := range tasks {
				t.Spawn(func(t *fill.Task) error {
					for seq := range uint64(rounds) {
						n := (i + int(seq)) % streams
						d := r.at(n, n%line.Words, seq+1)
						for !t.AwaitUntil(d, t.Now()+time.Duration(rand.IntN(300))*us) {
							t.Yield()
						}
						if !d.Reached() {
							return errors.New("resumed before the target")
						}
						resumed++
					}
					return nil
				})
			}
			return nil
		})
		device.Wait()
		if err != nil || resumed != tasks*rounds {
			t.Errorf("%v after %d of %d waits; %+v", err, resumed, tasks*rounds, s)
		}
	})
}

// The device needs the only P that there is.
func TestRealOneP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	real(t, func(t *testing.T, opt fill.Options) {
		r := newRig(t, 1)
		go func() {
			for seq := range uint64(20) {
				runtime.Gosched()
				r.lines[0][0].Store(seq + 1)
			}
		}()
		_, err := fill.Run(context.Background(), opt, func(t *fill.Task) error {
			for seq := range uint64(20) {
				t.Await(r.at(0, 0, seq+1))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The end of the context ends a run that sleeps for an hour, and one that parks.
func TestRealCancel(t *testing.T) {
	check := func(t *testing.T, opt fill.Options) {
		r := newRig(t, 1)
		for i, wait := range []func(*fill.Task){
			func(t *fill.Task) { t.Sleep(time.Hour) },
			func(t *fill.Task) { t.Await(r.at(0, 0, 1)) },
			func(t *fill.Task) {
				for {
					t.Yield()
				}
			},
		} {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				stopped := false
				_, err := fill.Run(ctx, opt, func(t *fill.Task) error {
					defer func() { stopped = true }()
					time.AfterFunc(2*ms, cancel) // once it has begun, however long that took
					wait(t)
					return nil
				})
				if !errors.Is(err, context.Canceled) || !stopped {
					t.Errorf("error %v, want the context's; stopped: %v", err, stopped)
				}
			})
		}
	}
	real(t, check)
	t.Run("naive", func(t *testing.T) { check(t, fill.Options{Executor: fill.Naive}) })
}

// A run that parks does not hold up the garbage collector.
func TestRealGC(t *testing.T) {
	real(t, func(t *testing.T, opt fill.Options) {
		r := newRig(t, 2)
		go func() {
			for range 10 {
				runtime.GC()
			}
			r.lines[1][0].Store(1)
		}()
		_, err := fill.Run(context.Background(), opt, func(t *fill.Task) error {
			t.Spawn(func(t *fill.Task) error { t.Await(r.at(0, 0, 1)); return nil })
			t.Await(r.at(1, 0, 1))
			r.lines[0][0].Store(1)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Two runs at once, each on its thread, share nothing.
func TestRealSeveralRuns(t *testing.T) {
	r := newRig(t, 2)
	var wg sync.WaitGroup
	for me := range 2 {
		wg.Go(func() {
			_, err := fill.Run(context.Background(), fill.Options{}, func(t *fill.Task) error {
				for seq := range uint64(200) {
					r.lines[me][0].Store(seq + 1)
					t.Await(r.at(1-me, 0, seq+1))
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
