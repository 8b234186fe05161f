package gpu_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// quick makes faults visible soon.
var quick = gpu.WithHealth(quickTick, quickDeadline, quickGrace)

const (
	quickTick     = 2 * time.Millisecond
	quickDeadline = 200 * time.Millisecond
	quickGrace    = 30 * time.Millisecond
	// faultBound and lostBound are what WithHealth documents for quick.
	faultBound = quickTick + quickDeadline
	lostBound  = 2*quickTick + quickDeadline + quickGrace
	// margin is what a busy machine may add to a bound.
	margin = 5 * time.Second
)

// inTime returns what comes from c, which must come within the bound and a margin.
func inTime[T any](t testing.TB, what string, bound time.Duration, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(bound + margin):
		t.Fatalf("%s did not end within %v and a margin of %v", what, bound, margin)
	}
	return v
}

// closeInTime closes d and makes sure that it takes no longer than the bound.
func closeInTime(t testing.TB, d *gpu.Device, bound time.Duration) error {
	t.Helper()
	c := make(chan error, 1)
	go func() { c <- d.Close() }()
	return inTime(t, "Close", bound, c)
}

func openSoft(t testing.TB, cfg soft.Config, opts ...gpu.Option) *gpu.Device {
	t.Helper()
	d, err := gpu.Open(context.Background(), append([]gpu.Option{gpu.Using(soft.New(cfg)), quick, gpu.WithCloseBound(time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	before := gpu.Leaks()
	t.Cleanup(func() {
		_ = d.Close()
		// A call that hung has returned by now, and what it held up is being freed: not
		// during the next test, which may count.
		for end := time.Now().Add(time.Second); gpu.Leaks() > before && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	})
	return d
}

func newStream(t testing.TB, d *gpu.Device) (*gpu.Stream, *soft.Stream) {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	ss, ok := soft.Of(s)
	if !ok {
		t.Fatal("not a soft stream")
	}
	return s, ss
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func markOn(t testing.TB, s *gpu.Stream) uint64 {
	t.Helper()
	seq, err := s.Mark()
	must(t, err)
	return seq
}

// Every fault of the soft device: every pending and later wait on it ends with
// the typed sticky error, the neighbour is untouched, success is never reported.
func TestSoftFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		cfg   soft.Config
		fault func(t *testing.T, d *gpu.Device, ss *soft.Stream) // before the marks
		after func(t *testing.T, d *gpu.Device, ss *soft.Stream) // with waits pending
		code  event.Code
		bound time.Duration // faultBound by default
	}{
		{name: "failing work", after: func(t *testing.T, d *gpu.Device, ss *soft.Stream) {},
			fault: func(t *testing.T, d *gpu.Device, ss *soft.Stream) {
				must(t, ss.Work(2*time.Millisecond))
				must(t, ss.Fail(errors.New("bad pointer")))
			}, code: event.DeviceLost},
		{name: "failing work whose store lands", cfg: soft.Config{Unproven: true, StoreAfterFault: true},
			fault: func(t *testing.T, d *gpu.Device, ss *soft.Stream) {
				must(t, ss.Work(2*time.Millisecond))
				must(t, ss.Fail(errors.New("bad pointer")))
			}, code: event.DeviceLost},
		{name: "device lost", fault: func(t *testing.T, d *gpu.Device, ss *soft.Stream) { must(t, ss.Work(time.Hour)) },
			after: func(t *testing.T, d *gpu.Device, ss *soft.Stream) {
				sd, _ := soft.DeviceOf(d)
				sd.Lose("fell off the bus")
			}, code: event.DeviceLost},
		{name: "store never lands", fault: func(t *testing.T, d *gpu.Device, ss *soft.Stream) { ss.DropStores(-1) }, code: event.StoreLost, bound: lostBound},
		{name: "status query blocks", fault: func(t *testing.T, d *gpu.Device, ss *soft.Stream) { must(t, ss.Work(time.Hour)) },
			after: func(t *testing.T, d *gpu.Device, ss *soft.Stream) {
				sd, _ := soft.DeviceOf(d)
				sd.BlockQueries()
				t.Cleanup(func() { sd.UnblockQueries(); sd.Lose("the test is over") })
			}, code: event.DeviceLost},
		{name: "status query blocks, words prove nothing", cfg: soft.Config{Unproven: true},
			fault: func(t *testing.T, d *gpu.Device, ss *soft.Stream) {
				must(t, ss.Work(5*time.Millisecond))
				sd, _ := soft.DeviceOf(d)
				sd.BlockQueries()
				t.Cleanup(func() { sd.UnblockQueries(); sd.Lose("the test is over") })
			}, code: event.DeviceLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			neighbour, _ := newStream(t, openSoft(t, soft.Config{}))
			d := openSoft(t, c.cfg)
			s, ss := newStream(t, d)
			idle, _ := newStream(t, d)
			open, err := ss.Gate() // so that the fault comes after the mark
			must(t, err)
			c.fault(t, d, ss)
			seq := markOn(t, s)
			open()
			errs := make(chan error, 3)
			go func() { errs <- s.Wait(context.Background(), seq) }()
			go func() {
				_, err := gpu.WaitAny(context.Background(), gpu.Point{Stream: s, Seq: seq})
				errs <- err
			}()
			go func() {
				<-gpu.Done(s, seq)
				errs <- s.Err()
			}()
			if c.after != nil {
				for d.Stats().Waiter.Pending == 0 && d.Err() == nil {
					time.Sleep(100 * time.Microsecond)
				}
				c.after(t, d, ss)
			}
			for range cap(errs) {
				if err := inTime(t, "a wait", max(c.bound, faultBound), errs); !errors.Is(err, c.code) {
					t.Errorf("pending wait: %v, want %v", err, c.code)
				}
			}
			go func() { errs <- s.Wait(context.Background(), seq) }()
			if err := inTime(t, "a later wait", 0, errs); !errors.Is(err, c.code) {
				t.Errorf("later wait: %v", err)
			}
			if _, err := idle.Mark(); !errors.Is(err, c.code) {
				t.Errorf("later mark on another stream: %v", err)
			}
			if err := neighbour.Wait(context.Background(), markOn(t, neighbour)); err != nil {
				t.Errorf("the neighbour: %v", err)
			}
			if err := closeInTime(t, d, time.Second); err != nil && !errors.Is(err, event.Leaked) {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// Under plans whose waits do not pass through the waiter, a hung or failed device
// ends them all the same.
func TestFaultsUnderOtherPlans(t *testing.T) {
	for _, text := range []string{"block", "poll", "flag:park_us=100,backstop_us=1000", "staged:spin_us=10000,nap_us=100,backstop_us=1000"} {
		t.Run(text, func(t *testing.T) {
			d := openSoft(t, soft.Config{}, gpu.WithPlan(text))
			s, ss := newStream(t, d)
			must(t, s.Wait(context.Background(), markOn(t, s)))
			sd, _ := soft.DeviceOf(d)
			must(t, ss.Work(time.Hour))
			seq := markOn(t, s)
			errs := make(chan error, 1)
			go func() { errs <- s.Wait(context.Background(), seq) }()
			time.AfterFunc(5*time.Millisecond, sd.BlockQueries)
			defer sd.Lose("the test is over")
			defer sd.UnblockQueries()
			if err := inTime(t, "the wait", faultBound, errs); !errors.Is(err, event.DeviceLost) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Stores that are late or out of order between streams are no fault.
func TestLateAndOutOfOrderStores(t *testing.T) {
	d := openSoft(t, soft.Config{}, gpu.WithHealth(2*time.Millisecond, time.Second, 10*time.Second))
	a, sa := newStream(t, d)
	b, _ := newStream(t, d)
	sa.DelayStores(10 * time.Millisecond) // the status says done meanwhile
	must(t, a.Wait(context.Background(), markOn(t, a)))
	sa.DelayStores(0)
	sa.HoldStores()
	first := markOn(t, a)
	must(t, b.Wait(context.Background(), markOn(t, b)))
	if a.Reached(first) {
		t.Error("a held store was reached")
	}
	sa.ReleaseStores()
	must(t, a.Wait(context.Background(), first))
}

// A driver that lies about its stores is found out at open and waited on by
// status; with Strict the coded refusal.
func TestLyingDrivers(t *testing.T) {
	for _, lie := range []soft.Lie{soft.LieNever, soft.LieSync, soft.LieUnsupported, soft.NoStores} {
		d := openSoft(t, soft.Config{Lie: lie}, gpu.WithSelfTest(20*time.Millisecond))
		if w := d.Warnings(); len(w) == 0 || !errors.Is(w[0], event.SelfTestFailed) {
			t.Errorf("lie %d: warnings %v", lie, w)
		}
		s, ss := newStream(t, d)
		must(t, ss.Work(time.Millisecond))
		must(t, s.Wait(context.Background(), markOn(t, s)))
		if _, err := gpu.Open(context.Background(), gpu.Using(soft.New(soft.Config{Lie: lie})), gpu.Strict(), gpu.WithSelfTest(20*time.Millisecond)); !errors.Is(err, event.SelfTestFailed) {
			t.Errorf("lie %d, strict: %v", lie, err)
		}
	}
}

// Close in every state is bounded and leaves nothing.
func TestCloseInEveryState(t *testing.T) {
	for name, state := range map[string]func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream){
		"idle": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {},
		"used": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) { must(t, s.Wait(nil, markOn(t, s))) },
		"pending": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {
			pend(t, s, ss, 50*time.Millisecond, 0)
		},
		"sleeping": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {
			pend(t, s, ss, 50*time.Millisecond, time.Hour)
			for d.Stats().Waiter.Sleeps == 0 {
				time.Sleep(time.Millisecond)
			}
		},
		"napping": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {
			pend(t, s, ss, 50*time.Millisecond, 0)
			for d.Stats().Waiter.Naps == 0 {
				time.Sleep(time.Millisecond)
			}
		},
		"parked": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {
			must(t, s.Wait(nil, markOn(t, s)))
			<-gpu.Done(s, markOn(t, s))
		},
		"faulted": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {
			must(t, ss.Fail(nil))
			seq, err := s.Mark() // the fault may be seen here already
			if err == nil {
				err = s.Wait(nil, seq)
			}
			if err == nil {
				t.Error("success behind failed work")
			}
		},
		"stream closed with work under way": func(t *testing.T, d *gpu.Device, s *gpu.Stream, ss *soft.Stream) {
			pend(t, s, ss, 20*time.Millisecond, 0)
			must(t, s.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := gpu.Leaks()
			fds := count("fd")
			drv := soft.New(soft.Config{})
			d, err := gpu.Open(context.Background(), gpu.Using(drv), quick)
			must(t, err)
			sd, _ := soft.DeviceOf(d)
			s, ss := newStream(t, d)
			state(t, d, s, ss)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			closed := make(chan struct{})
			go func() { wg.Wait(); close(closed) }()
			inTime(t, "Close", gpu.CloseBound, closed)
			must(t, d.Close())
			if c := sd.Counters(); c.Retained != 0 || c.HostPages != 0 {
				t.Errorf("left: %+v", c)
			}
			if gpu.Leaks() != before {
				t.Error("something was leaked")
			}
			if n := count("fd"); n > fds+1 { // the netpoller's own, at first use
				t.Errorf("%d descriptors, %d before", n, fds)
			}
		})
	}
}

// testedDriver tells when a stream is made, as the self-test does, and can hang then.
type testedDriver struct {
	driver.Driver
	made chan struct{}
	hang chan struct{}
}

type testedDevice struct {
	driver.Device
	drv *testedDriver
}

type testedStream struct {
	driver.Stream
	d *testedDevice
}

func (x *testedDriver) Open(ordinal int) (driver.Device, error) {
	d, err := x.Driver.Open(ordinal)
	return &testedDevice{d, x}, err
}

func (x *testedDevice) NewStream() (driver.Stream, error) {
	close(x.drv.made)
	if x.drv.hang != nil {
		<-x.drv.hang
	}
	s, err := x.Device.NewStream()
	return &testedStream{s, x}, err
}

func (x *testedStream) Device() driver.Device { return x.d }

// Close in the state in which there is no Device yet: the context ends an Open in its
// self-test, and a device that is open closes meanwhile.
func TestCloseWhileASelfTestRuns(t *testing.T) {
	for name, hang := range map[string]chan struct{}{"no store comes": nil, "the driver hangs": make(chan struct{})} {
		t.Run(name, func(t *testing.T) {
			const bound = 50 * time.Millisecond
			before := gpu.Leaks()
			d := openSoft(t, soft.Config{})
			s, ss := newStream(t, d)
			pend(t, s, ss, 20*time.Millisecond, 0)
			drv := &testedDriver{Driver: soft.New(soft.Config{Lie: soft.LieNever}), made: make(chan struct{}), hang: hang}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			opened := make(chan error, 1)
			go func() {
				_, err := gpu.Open(ctx, gpu.Using(drv), gpu.WithSelfTest(time.Hour), gpu.WithCloseBound(bound))
				opened <- err
			}()
			inTime(t, "the start of the self-test", 0, drv.made)
			must(t, closeInTime(t, d, time.Second))
			select {
			case err := <-opened:
				t.Fatalf("Open has ended: %v", err)
			default:
			}
			cancel()
			err := inTime(t, "Open", bound, opened)
			if !errors.Is(err, event.SelfTestFailed) || !errors.Is(err, context.Canceled) || errors.Is(err, event.Leaked) != (hang != nil) {
				t.Errorf("open: %v", err)
			}
			if hang != nil {
				close(hang)
			}
			for end := time.Now().Add(margin); gpu.Leaks() != before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d leaks, %d before", gpu.Leaks(), before)
				}
			}
		})
	}
}

func pend(t *testing.T, s *gpu.Stream, ss *soft.Stream, work, look time.Duration) {
	t.Helper()
	must(t, ss.Work(work))
	wt, _ := poller.NewWait()
	wt.Look = look
	if ok, err := s.Notify(wt, markOn(t, s)); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// count counts the entries of a folder of /proc/self, 0 where there is none.
func count(what string) int {
	e, _ := os.ReadDir("/proc/self/" + what)
	return len(e)
}

// TestSoftHammer is the lost wake-up hammer over the real store engine, which is
// no goroutine: every kind of wait, on 64 streams.
func TestSoftHammer(t *testing.T) {
	n := 20_000
	if s := os.Getenv("GPULINE_HAMMER"); s != "" {
		total, err := strconv.Atoi(s)
		must(t, err)
		n = total / 20
	}
	for _, procs := range []int{1, 2, 8} {
		t.Run("procs="+strconv.Itoa(procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			d := openSoft(t, soft.Config{})
			var total atomic.Int64
			var wg sync.WaitGroup
			const streams = 64
			for g := range streams {
				s, ss := newStream(t, d)
				wg.Go(func() {
					for i := 0; i < n/3/streams; {
						batch := 1 + (i*7+g)%16
						if i%5 == 0 {
							must(t, ss.Work(time.Duration(i%3)*10*time.Microsecond))
						}
						first := markOn(t, s)
						last := first
						for range batch - 1 {
							last = markOn(t, s)
						}
						switch (i + g) % 4 {
						case 0:
							must(t, s.Wait(context.Background(), last))
						case 1:
							<-gpu.Done(s, last)
							must(t, s.Err())
						case 2:
							<-gpu.Done(s, first)
							<-gpu.Done(s, last)
						case 3:
							if _, err := gpu.WaitAny(context.Background(), gpu.Point{Stream: s, Seq: last}); err != nil {
								t.Error(err)
							}
						}
						if !s.Reached(last) {
							t.Errorf("early: %d", last)
							return
						}
						i += batch
						total.Add(int64(batch))
					}
				})
			}
			wg.Wait()
			st := d.Stats()
			t.Logf("%d completions: %+v", total.Load(), st.Waiter)
			if st.Waiter.Pending != 0 {
				t.Errorf("%d registrations left", st.Waiter.Pending)
			}
		})
	}
}

// Bands: the step's size decides how a wait is spent, read by one atomic.
func TestBands(t *testing.T) {
	steps := new(plan.Steps)
	d := openSoft(t, soft.Config{}, gpu.WithSteps(steps), gpu.WithPlan("block;rows>=32:staged:spin_us=20,nap_us=50,backstop_us=1000+predict:margin_us=80,min_sleep_us=20,max_sleep_us=50000,window=8"))
	s, ss := newStream(t, d)
	for i, rows := range []uint64{0, 31, 32, 4096} {
		steps.Publish(rows)
		must(t, ss.Work(30*time.Millisecond)) // not done before Wait is called
		before := d.Stats().Blocked
		must(t, s.Wait(context.Background(), markOn(t, s)))
		if blocked := d.Stats().Blocked > before; blocked != (i < 2) {
			t.Errorf("%d rows: blocked %v", rows, blocked)
		}
	}
	if p := d.Predictions(); len(p) != 1 || p[0].Samples != 2 || !strings.HasPrefix(p[0].Plan, "staged:") {
		t.Errorf("predictions %+v", p)
	}
}
