package fill_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

// loop is the program under comparison: each sequence launches device work of its
// own length, waits for it, and does hostWork on the CPU, a stated number of times.
type loop struct {
	streams   []*gpu.Stream
	rounds    int
	hostWork  time.Duration
	lengths   []time.Duration
	latencies []time.Duration // from the device's store to the code behind the wait
}

func newLoop(b *testing.B, d *gpu.Device, sequences, rounds int, hostWork time.Duration) *loop {
	l := &loop{rounds: rounds, hostWork: hostWork}
	rng := rand.New(rand.NewPCG(1, 2))
	for range sequences {
		s, err := d.NewStream()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		l.streams = append(l.streams, s)
		for range rounds {
			l.lengths = append(l.lengths, time.Duration(200+rng.IntN(400))*us)
		}
	}
	l.latencies = make([]time.Duration, sequences*rounds)
	return l
}

// sequence is all rounds of sequence i, with the wait as a function.
func (l *loop) sequence(i int, wait func(s *gpu.Stream, seq uint64) error) error {
	s := l.streams[i]
	device, _ := soft.Of(s)
	for round := range l.rounds {
		n := i*l.rounds + round
		if err := device.Work(l.lengths[n]); err != nil {
			return err
		}
		seq, err := s.Mark()
		if err != nil {
			return err
		}
		if err := wait(s, seq); err != nil {
			return err
		}
		now := soft.Now()
		l.latencies[n] = now - device.StoreTime(seq)
		for end := now + l.hostWork; soft.Now() < end; {
		}
	}
	return nil
}

func (l *loop) onTasks(opt fill.Options) func() error {
	return func() error {
		_, err := fill.Run(context.Background(), opt, func(t *fill.Task) error {
			for i := range l.streams {
				t.Spawn(func(t *fill.Task) error {
					return l.sequence(i, func(s *gpu.Stream, seq uint64) error { return t.Wait(s, seq) })
				})
			}
			return nil
		})
		return err
	}
}

func (l *loop) onGoroutines(wait func(*gpu.Stream, uint64) error) func() error {
	return func() error {
		errs := make([]error, len(l.streams))
		var wg sync.WaitGroup
		for i := range l.streams {
			wg.Go(func() { errs[i] = l.sequence(i, wait) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}

func waitOnChannel(s *gpu.Stream, seq uint64) error {
	<-gpu.Done(s, seq)
	return s.Err()
}

func waitOnStream(s *gpu.Stream, seq uint64) error { return s.Wait(context.Background(), seq) }

// BenchmarkAgainstGoroutines runs the same program on tasks and on goroutines,
// with the other processors idle and with a busy goroutine for each of them. The
// device is a process of its own, where that is possible.
func BenchmarkAgainstGoroutines(b *testing.B) {
	d, err := gpu.Open(context.Background(), gpu.Using(soft.New(soft.Config{Process: true})))
	if err != nil {
		b.Log(err)
		if d, err = gpu.Open(context.Background(), gpu.Using(soft.New(soft.Config{}))); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() { _ = d.Close() })
	for _, busy := range []bool{false, true} {
		for _, at := range []struct {
			sequences int
			host      time.Duration
		}{
			{1, 20 * us},
			{8, 20 * us},
			{8, 500 * us}, // more work than one thread can do meanwhile
		} {
			l := newLoop(b, d, at.sequences, 100, at.host)
			for _, c := range []struct {
				name string
				run  func() error
			}{
				{"tasks", l.onTasks(fill.Options{})},
				{"tasks-spin", l.onTasks(fill.Options{Spin: time.Second})}, // a core given to the loop
				{"done-channel", l.onGoroutines(waitOnChannel)},
				{"stream-wait", l.onGoroutines(waitOnStream)},
			} {
				b.Run(fmt.Sprintf("busy=%v/sequences=%d/host=%v/%s", busy, at.sequences, at.host, c.name), func(b *testing.B) {
					if busy {
						defer hog()()
					}
					var all []time.Duration
					for b.Loop() {
						if err := c.run(); err != nil {
							b.Fatal(err)
						}
						all = append(all, l.latencies...)
					}
					slices.Sort(all)
					b.ReportMetric(float64(all[len(all)/2])/1e3, "p50-us")
					b.ReportMetric(float64(all[len(all)*99/100])/1e3, "p99-us")
					b.ReportMetric(float64(b.Elapsed())/float64(b.N)/1e6, "ms/program")
				})
			}
		}
	}
}

// hog keeps every P busy until the returned function is called.
func hog() func() {
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !stop.Load() {
			}
		})
	}
	return func() { stop.Store(true); wg.Wait() }
}
