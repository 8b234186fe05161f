package gpu

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

const napPlan = "staged:spin_us=1000,nap_us=50,backstop_us=1000+predict:margin_us=50,min_sleep_us=20,max_sleep_us=1000000000,window=1"

// napRig is a device whose stream s has work under way that is expected to take an hour, and
// the nap that its next Wait takes.
func napRig(t *testing.T) (d *Device, s *Stream, fs *fakeStream, n *nap) {
	t.Helper()
	f := newFake()
	d = openFake(t, f, WithPlan(napPlan))
	s, fs = openStream(t, d)
	f.set(func() { f.manual = true })
	s.points[0].Exact(time.Hour)
	n = d.naps.get()
	d.naps.put(n)
	return d, s, fs, n
}

// asleep waits until somebody sleeps in n.
func asleep(n *nap) {
	for n.state.Load() == awake {
		runtime.Gosched()
	}
}

func waitFor(s *Stream, ctx context.Context, seq uint64) <-chan error {
	c := make(chan error, 1)
	go func() { c <- s.Wait(ctx, seq) }()
	return c
}

func TestNapEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(t *testing.T, d *Device, s *Stream, fs *fakeStream, seq uint64, cancel func())
		want error
	}{
		"context": {func(_ *testing.T, _ *Device, _ *Stream, _ *fakeStream, _ uint64, cancel func()) { cancel() }, context.Canceled},
		"device fails": {func(_ *testing.T, d *Device, _ *Stream, _ *fakeStream, _ uint64, _ func()) {
			d.fail(event.New(event.DeviceLost, d.name, "test"))
		}, event.DeviceLost},
		"stream closes": {func(_ *testing.T, _ *Device, s *Stream, _ *fakeStream, _ uint64, _ func()) { go s.Close() }, event.Closed},
		"device closes": {func(t *testing.T, d *Device, _ *Stream, fs *fakeStream, _ uint64, _ func()) {
			fs.land(-1)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}, event.Closed},
		"another wait looks": {func(t *testing.T, _ *Device, s *Stream, fs *fakeStream, seq uint64, _ func()) {
			wt, c := poller.NewWait()
			if _, err := s.Notify(wt, seq); err != nil {
				t.Error(err)
			}
			fs.land(-1)
			<-c
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, fs, n := napRig(t)
			defer fs.land(-1)
			seq := mark(t, s)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			got := waitFor(s, ctx, seq)
			asleep(n)
			c.end(t, d, s, fs, seq, cancel)
			err := <-got
			if err == nil && name == "device closes" {
				return // the waiter happened to look before that
			}
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if p := s.watch.Pending(); p != 0 {
				t.Errorf("%d registrations are left", p)
			}
		})
	}
}

// The end of an earlier wait's context does not end a later wait.
func TestNapOfAnotherContext(t *testing.T) {
	_, s, fs, n := napRig(t)
	seq := mark(t, s)
	old, cancelOld := context.WithCancel(context.Background())
	n.follow(old)
	stale := n.rouse
	ctx, cancel := context.WithCancel(context.Background())
	got := waitFor(s, ctx, seq)
	asleep(n)
	cancelOld()
	for range 100 {
		stale() // as when the function of the old context is just running
		asleep(n)
	}
	select {
	case err := <-got:
		t.Fatalf("ended: %v", err)
	default:
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	fs.land(-1)
}

// cancelNap has a Wait for seq end with its context, in its nap.
func cancelNap(t *testing.T, s *Stream, n *nap, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got := waitFor(s, ctx, seq)
	asleep(n)
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// A context that ended is not taken for that of the next wait.
func TestNapAfterCancel(t *testing.T) {
	_, s, fs, n := napRig(t)
	seq := mark(t, s)
	for range 3 {
		cancelNap(t, s, n, seq)
	}
	fs.land(-1)
	s.points[0].Exact(time.Millisecond)
	if err := s.Wait(context.Background(), seq); err != nil {
		t.Error(err)
	}
}

// Work that is done, but not known to have succeeded, is nothing to sleep for, also while
// the waiter sleeps for the sake of an earlier nap.
func TestNapOfUnconfirmedWork(t *testing.T) {
	f := newFake()
	f.caps.WordProves = false
	d := openFake(t, f, WithPlan(napPlan))
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	for range 3 {
		s.points[0].Exact(time.Hour)
		n := d.naps.get()
		d.naps.put(n)
		seq := mark(t, s)
		cancelNap(t, s, n, seq)
		fs.land(-1)
		if err := s.Wait(context.Background(), seq); err != nil {
			t.Fatal(err)
		}
		// The same through the waiter.
		seq = mark(t, s)
		fs.land(-1)
		wt, c := poller.NewWait()
		wt.Look = time.Hour
		if ok, err := s.Notify(wt, seq); err != nil {
			t.Fatal(err)
		} else if ok {
			if err := <-c; err != nil {
				t.Fatal(err)
			}
		}
		if e := s.points[0].Estimate(); e.Late+e.Forgiven > 0 {
			t.Errorf("taken for a late wake: %+v", e)
		}
	}
}

// A nap does not make the waiter look in vain, however long it is.
func TestNapLeavesTheWaiterAsleep(t *testing.T) {
	d, s, fs, n := napRig(t)
	seq := mark(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	got := waitFor(s, ctx, seq)
	asleep(n)
	if s.watch.Pending() != 1 {
		t.Error("not registered")
	}
	if look := n.wt.Look; look <= s.points[0].Sleep() {
		t.Errorf("the waiter would look after %v", look)
	}
	cancel()
	<-got
	if st := d.Stats().Waiter; st.Naps+st.Spins > 0 {
		t.Errorf("it looked: %+v", st)
	}
	fs.land(-1)
}

// What a nap finds done at its end took at most as long.
func TestNapLearns(t *testing.T) {
	_, s, fs, n := napRig(t)
	s.points[0].Exact(300 * time.Millisecond)
	seq := mark(t, s)
	got := waitFor(s, context.Background(), seq)
	asleep(n)
	fs.land(-1)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if e := s.points[0].Estimate(); e.Late != 1 || e.Prediction > 150*time.Millisecond {
		t.Errorf("%+v", e)
	}
}

// No more goroutines nap for themselves than may look for themselves.
func TestNapLimit(t *testing.T) {
	var p naps
	most := max(1, runtime.GOMAXPROCS(0)/2)
	var out []*nap
	for range most {
		n := p.get()
		if n == nil {
			t.Fatal("none to be had")
		}
		out = append(out, n)
	}
	if p.get() != nil {
		t.Errorf("more than %d", most)
	}
	p.put(out[0])
	if p.get() != out[0] {
		t.Error("not used again")
	}
	closed := make(chan struct{})
	go func() { p.close(); close(closed) }()
	for ; ; runtime.Gosched() {
		p.mu.Lock()
		c := p.closed
		p.mu.Unlock()
		if c {
			break
		}
	}
	if p.get() != nil {
		t.Error("one after close")
	}
	for _, n := range out {
		p.put(n)
	}
	<-closed
}

// Device.Close leaves no timer.
func TestNapCloses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("counts descriptors in /proc")
	}
	timers := func() (n int) {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if l, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(l, "timerfd") {
				n++
			}
		}
		return n
	}
	before := timers()
	d, s, fs, _ := napRig(t)
	s.points[0].Exact(time.Millisecond)
	seq := mark(t, s)
	got := waitFor(s, context.Background(), seq)
	for timers() == before {
		runtime.Gosched()
	}
	fs.land(-1)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if n := timers(); n != before {
		t.Errorf("%d timers, %d before", n, before)
	}
}

// A wait after a late wake is looked at early, and sleeps again when it is pending then.
func TestNapAgain(t *testing.T) {
	_, s, fs, n := napRig(t) // a window of 1: the late wake would be forgotten at once
	s.points[0] = pointOf(t, "staged:spin_us=1000,nap_us=50,backstop_us=1000+predict:margin_us=50,min_sleep_us=20,max_sleep_us=1000000000,window=8")
	p := s.points[0]
	p.Exact(time.Hour)
	p.Late(2 * time.Millisecond)
	p.Exact(time.Hour)
	if p.Sleep() > time.Millisecond || p.Again() < 10*time.Minute {
		t.Fatalf("sleeps %v, then until %v", p.Sleep(), p.Again())
	}
	seq := mark(t, s)
	got := waitFor(s, context.Background(), seq)
	for n.state.Load() < int64(5*time.Minute) {
		runtime.Gosched() // until it sleeps for the second time
	}
	wt, c := poller.NewWait()
	if _, err := s.Notify(wt, seq); err != nil {
		t.Error(err)
	}
	fs.land(-1)
	<-c
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func pointOf(t *testing.T, text string) *plan.Point {
	t.Helper()
	pl, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	pred, _ := pl.Prediction()
	return plan.NewEstimator[int](pred).Point(0)
}
