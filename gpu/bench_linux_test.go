package gpu_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/poller"
)

// outOfProcess opens a device whose store engine is a process of its own, so that
// neither its CPU time nor its Ps are the program's.
func outOfProcess(t testing.TB, opts ...gpu.Option) *gpu.Device {
	t.Helper()
	d, err := gpu.Open(context.Background(), append([]gpu.Option{gpu.Using(soft.New(soft.Config{Process: true}))}, opts...)...)
	if err != nil {
		t.Skip("needs the store engine in a process of its own: ", err)
	}
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

type sample struct {
	latencies []time.Duration
	cpu       float64 // of the wall time
}

func (s sample) q(q float64) time.Duration {
	return s.latencies[min(int(q*float64(len(s.latencies))), len(s.latencies)-1)]
}

func cpuTime() time.Duration {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// measure launches work n times and waits for it each time; the latency is from
// the engine's store to the waiting goroutine running again.
func measure(t testing.TB, d *gpu.Device, n int, work time.Duration, wait func(s *gpu.Stream, seq uint64)) sample {
	t.Helper()
	s, ss := newStream(t, d)
	defer s.Close()
	var out sample
	round := func() time.Duration {
		must(t, ss.Work(work))
		seq := markOn(t, s)
		wait(s, seq)
		return poller.Now() - ss.StoreTime(seq)
	}
	for range 20 {
		round()
	}
	cpu, start := cpuTime(), time.Now()
	for range n {
		out.latencies = append(out.latencies, round())
	}
	out.cpu = float64(cpuTime()-cpu) / float64(time.Since(start))
	slices.Sort(out.latencies)
	return out
}

// waitSpin is a raw reader that spins on the word and knows of nothing else.
func waitSpin(s *gpu.Stream, seq uint64) {
	d, err := s.Descriptor(seq)
	if err != nil {
		return
	}
	for word := d.Word(); !word.Reached(seq); {
	}
}

func waitWait(s *gpu.Stream, seq uint64) { _ = s.Wait(context.Background(), seq) }
func waitDone(s *gpu.Stream, seq uint64) { <-gpu.Done(s, seq) }

// eventfdWake is the raw wake of a thread that blocks in read(2) on an eventfd,
// written from another thread 300 us later.
func eventfdWake(t testing.TB, n int) sample {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	start, done := make(chan struct{}), make(chan time.Duration)
	go func() {
		runtime.LockOSThread()
		var buf [8]byte
		for range start {
			_, _ = unix.Read(fd, buf[:])
			done <- poller.Now()
		}
	}()
	defer close(start)
	var out sample
	for range n {
		start <- struct{}{}
		ts := unix.NsecToTimespec(300_000)
		_ = unix.Nanosleep(&ts, nil)
		at := poller.Now()
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		out.latencies = append(out.latencies, <-done-at)
	}
	slices.Sort(out.latencies)
	return out
}

// BenchmarkWake prints, for one run, the latency from the store to the goroutine:
// a raw spinning reader and a raw eventfd wake, then Wait and Done.
func BenchmarkWake(b *testing.B) {
	for _, work := range []time.Duration{20 * time.Microsecond, 300 * time.Microsecond, 2 * time.Millisecond} {
		for _, m := range []struct {
			name string
			wait func(s *gpu.Stream, seq uint64)
		}{{"spin", waitSpin}, {"Wait", waitWait}, {"Done", waitDone}} {
			b.Run(fmt.Sprintf("work=%v/%s", work, m.name), func(b *testing.B) {
				d := outOfProcess(b)
				report(b, measure(b, d, max(b.N, 2), work, m.wait))
				if st := d.Stats().Waiter; m.name == "Done" {
					b.ReportMetric(float64(st.Delivery), "ns/delivery")
					b.ReportMetric(float64(st.DeliveryAhead), "ns/delivery-ahead")
				}
			})
		}
	}
	b.Run("eventfd", func(b *testing.B) { report(b, eventfdWake(b, max(b.N, 2))) })
}

func report(b *testing.B, s sample) {
	b.ReportMetric(float64(s.q(0.5)), "p50-ns")
	b.ReportMetric(float64(s.q(0.99)), "p99-ns")
	b.ReportMetric(100*s.cpu, "%cpu")
}

// BenchmarkMark is what a mark costs the program on the soft device.
func BenchmarkMark(b *testing.B) {
	d := openSoft(b, soft.Config{})
	s, _ := newStream(b, d)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		seq := markOn(b, s)
		if i%512 == 511 {
			waitWait(s, seq)
		}
	}
	waitWait(s, s.Marked())
}

// BenchmarkReached is a wait for what has been reached.
func BenchmarkReached(b *testing.B) {
	d := openSoft(b, soft.Config{})
	s, _ := newStream(b, d)
	seq := markOn(b, s)
	waitWait(s, seq)
	b.Run("Wait", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			waitWait(s, seq)
		}
	})
	b.Run("Done", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			waitDone(s, seq)
		}
	})
}

// Allocation bounds of the hot paths.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops at random under the race detector")
	}
	d := openSoft(t, soft.Config{}, gpu.WithPlan("staged:spin_us=0,nap_us=50,backstop_us=1000"))
	if sd, _ := soft.DeviceOf(d); !sd.Counters().EngineInAsm {
		t.Skip("the store engine in Go allocates, too")
	}
	s, ss := newStream(t, d)
	seq := markOn(t, s)
	waitWait(s, seq)
	ps, pss := newStream(t, openSoft(t, soft.Config{}, gpu.WithHealth(time.Minute, time.Second, time.Second))) // ticks allocate
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]struct {
		f    func()
		most float64
	}{
		"Wait, reached":      {func() { waitWait(s, seq) }, 0},
		"Done, reached":      {func() { waitDone(s, seq) }, 0},
		"Wait, pending":      {func() { must(t, ss.Work(50*time.Microsecond)); waitWait(s, markOn(t, s)) }, 0},
		"Done, pending":      {func() { must(t, ss.Work(50*time.Microsecond)); waitDone(s, markOn(t, s)) }, 1},
		"Reached and Marked": {func() { s.Reached(s.Marked()) }, 0},
		"Wait, predicted": {func() {
			must(t, pss.Work(300*time.Microsecond))
			must(t, ps.Wait(ctx, markOn(t, ps)))
		}, 0},
	} {
		for range 20 {
			c.f()
		}
		if n := testing.AllocsPerRun(200, c.f); n > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, n, c.most)
		}
	}
}

// guard skips a measurement unless measurements were asked for: they need
// a machine that does nothing else.
func guard(t *testing.T) {
	if os.Getenv("GPULINE_GUARDS") == "" {
		t.Skip("a measurement: set GPULINE_GUARDS=1")
	}
}

// The bounds are generous: they catch what has gone wrong, not what has become
// a little slower, also on a machine whose hypervisor gives time to others.
func TestGuardWake(t *testing.T) {
	guard(t)
	d := outOfProcess(t)
	const n = 300
	for range 3 {
		spin, efd := measure(t, d, n, 300*time.Microsecond, waitSpin), eventfdWake(t, n)
		wait, done := measure(t, d, n, 300*time.Microsecond, waitWait), measure(t, d, n, 300*time.Microsecond, waitDone)
		t.Logf("300 us: spin p50 %v p99 %v; Wait p50 %v p99 %v cpu %.1f %%; Done p50 %v p99 %v cpu %.1f %%; eventfd p50 %v p99 %v",
			spin.q(0.5), spin.q(0.99), wait.q(0.5), wait.q(0.99), 100*wait.cpu, done.q(0.5), done.q(0.99), 100*done.cpu, efd.q(0.5), efd.q(0.99))
		if wait.q(0.5) <= 3*spin.q(0.5)+500 && done.q(0.5) <= efd.q(0.5) {
			return
		}
	}
	t.Error("in three tries: want Wait p50 <= 3x the spinning reader (and 0.5 us), Done p50 <= the eventfd wake's")
}

func TestGuardPredictedWait(t *testing.T) {
	guard(t)
	d := outOfProcess(t)
	const n = 300
	for range 3 {
		spin, wait, done := measure(t, d, n, 2*time.Millisecond, waitSpin), measure(t, d, n, 2*time.Millisecond, waitWait), measure(t, d, n, 2*time.Millisecond, waitDone)
		t.Logf("2 ms: spin p50 %v cpu %.1f %%; Wait p50 %v p99 %v cpu %.1f %%; Done p50 %v p99 %v cpu %.1f %%",
			spin.q(0.5), 100*spin.cpu, wait.q(0.5), wait.q(0.99), 100*wait.cpu, done.q(0.5), done.q(0.99), 100*done.cpu)
		if wait.cpu <= 0.2*spin.cpu && wait.q(0.5) <= spin.q(0.5)+60*time.Microsecond {
			return
		}
	}
	t.Error("in three tries: want at most 20 % of the spinning reader's CPU and a p50 at most 60 us above it")
}

// A waiter that naps or sleeps through 2 ms waits costs under 12 % of a core: 4 to 5 % where nobody else uses the machine.
func TestGuardNapping(t *testing.T) {
	guard(t)
	for text, look := range map[string]time.Duration{
		"staged:spin_us=0,nap_us=1000,backstop_us=1000": 0,
		"staged:spin_us=0,nap_us=100,backstop_us=1000":  2100 * time.Microsecond,
	} {
		d := outOfProcess(t, gpu.WithPlan(text))
		wt, c := poller.NewWait()
		cpu := 1.0
		for range 3 {
			s := measure(t, d, 300, 2*time.Millisecond, func(s *gpu.Stream, seq uint64) {
				wt.Look = look
				if ok, _ := s.Notify(wt, seq); ok {
					<-c
				}
			})
			t.Logf("%s, look %v: p50 %v cpu %.1f %%", text, look, s.q(0.5), 100*s.cpu)
			if cpu = s.cpu; cpu < 0.12 {
				break
			}
		}
		if cpu >= 0.12 {
			t.Errorf("%s, look %v: %.1f %% of a core in three tries, want under 12 %%", text, look, 100*cpu)
		}
	}
}

// 64 open streams with nothing pending cost nothing.
func TestGuardIdle(t *testing.T) {
	guard(t)
	d := outOfProcess(t)
	for range 64 {
		s, _ := newStream(t, d)
		waitWait(s, markOn(t, s))
	}
	time.Sleep(500 * time.Millisecond) // let the health tick fall asleep
	runtime.GC()
	cpu, start := cpuTime(), time.Now()
	time.Sleep(3 * time.Second)
	used := float64(cpuTime()-cpu) / float64(time.Since(start))
	t.Logf("idle: %.4f %% of a core", 100*used)
	if used > 0.001 {
		t.Errorf("%.3f %% of a core, want under 0.1 %%", 100*used)
	}
}

// What a waiter adds to the time that it takes to stop the world, which is the part
// of a garbage collection's pause that others have a hand in: nothing while it naps
// or sleeps, and while it keeps looking about what any running goroutine adds. (The
// buckets of the whole pause are too wide to tell, a sixth of its length.)
func TestGuardGCPause(t *testing.T) {
	guard(t)
	quantile := func() time.Duration {
		before := pauses()
		for range 1000 {
			runtime.GC()
		}
		return p99(before, pauses())
	}
	beside := func(opts ...gpu.Option) time.Duration {
		d := openSoft(t, soft.Config{}, opts...)
		defer d.Close()
		s, ss := newStream(t, d)
		open, err := ss.Gate()
		must(t, err)
		done := gpu.Done(s, markOn(t, s))
		for looks := d.Stats().Waiter.Looks; d.Stats().Waiter.Looks < looks+10; {
			time.Sleep(100 * time.Microsecond)
		}
		q := quantile()
		open()
		<-done
		return q
	}
	for range 3 {
		alone := quantile()
		var stop atomic.Bool
		gone := make(chan int)
		go func() {
			x := 1
			for !stop.Load() {
				for range 1000 {
					x = x*5 + 1
				}
			}
			gone <- x
		}()
		busy := quantile()
		stop.Store(true)
		<-gone
		parked, looking := beside(), beside(gpu.WithPlan("poll"))
		t.Logf("time to stop the world, p99: %v alone, %v beside a waiting waiter (default plan); %v beside a busy goroutine, %v beside a waiter that keeps looking",
			alone, parked, busy, looking)
		if parked <= alone+100*time.Microsecond && looking <= busy+200*time.Microsecond {
			return
		}
	}
	t.Error("in three tries: a waiter adds more than 100 us to the p99 of stopping the world, or one that keeps looking more than 200 us to that of a busy goroutine")
}

func pauses() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
	metrics.Read(s)
	h := s[0].Value.Float64Histogram()
	return &metrics.Float64Histogram{Counts: slices.Clone(h.Counts), Buckets: h.Buckets}
}

func p99(a, b *metrics.Float64Histogram) time.Duration {
	total := uint64(0)
	for i := range b.Counts {
		total += b.Counts[i] - a.Counts[i]
	}
	seen := uint64(0)
	for i := range b.Counts {
		if seen += b.Counts[i] - a.Counts[i]; seen*100 >= total*99 {
			return time.Duration(b.Buckets[i] * 1e9)
		}
	}
	return 0
}
