package gpu

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/poller"
)

// openFake opens a device on f with a quick health tick.
func openFake(t testing.TB, f *fake, opts ...Option) *Device {
	t.Helper()
	opts = append([]Option{
		Using(f), WithHealth(2*time.Millisecond, 100*time.Millisecond, 20*time.Millisecond),
		WithPlan("staged:spin_us=20,nap_us=50,backstop_us=1000"), WithCloseBound(time.Second),
	}, opts...)
	d, err := Open(context.Background(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.set(func() {
			if f.hang != nil {
				close(f.hang)
				f.hang = nil
			}
		})
		if err := d.Close(); err != nil && d.Err() != nil && errors.Is(d.Err(), event.Closed) {
			t.Error("close:", err)
		}
	})
	return d
}

func openStream(t testing.TB, d *Device) (*Stream, *fakeStream) {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s, s.Driver().(*fakeStream)
}

func mark(t testing.TB, s *Stream) uint64 {
	t.Helper()
	seq, err := s.Mark()
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func TestMarkDoneWait(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	for want := uint64(1); want <= 3; want++ {
		if seq := mark(t, s); seq != want {
			t.Fatalf("mark %d, want %d", seq, want)
		}
	}
	one, three := Done(s, 1), Done(s, 3)
	if Done(s, 3) != three {
		t.Error("asking again for the newest number made another channel")
	}
	fs.land(1)
	<-one
	select {
	case <-three:
		t.Fatal("closed before its number was reached")
	default:
	}
	if !s.Reached(1) || s.Reached(2) {
		t.Error("Reached")
	}
	fs.land(-1)
	if err := s.Wait(context.Background(), 3); err != nil {
		t.Fatal(err)
	}
	<-three
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if c := Done(s, 2); c != (<-chan struct{})(closedChan) {
		t.Error("a number already reached cost a channel")
	}
}

func TestBadInput(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, _ := openStream(t, d)
	mark(t, s)
	ctx := context.Background()
	var none *Stream
	for name, c := range map[string]struct {
		err  error
		want event.Code
	}{
		"wait 0":          {s.Wait(ctx, 0), event.NotMarked},
		"wait unmarked":   {s.Wait(ctx, 2), event.NotMarked},
		"wait huge":       {s.Wait(ctx, 1<<63), event.NotMarked},
		"nil stream":      {none.Wait(ctx, 1), event.InvalidArgument},
		"nil stream err":  {none.Err(), event.InvalidArgument},
		"retain unmarked": {s.Retain(9, 1), event.NotMarked},
		"fill nil stream": {none.Fill(0, 0, 1), event.InvalidArgument},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if err := s.Wait(nil, 1); err != nil { //nolint:staticcheck // a nil context must not crash
		t.Error("nil context:", err)
	}
	if _, err := none.Mark(); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	<-Done(none, 1)
	if i, err := WaitAny(ctx); i != -1 || !errors.Is(err, event.InvalidArgument) {
		t.Error(i, err)
	}
	if _, err := s.CopyToDevice(0, nil); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	if _, err := d.Alloc(0); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	if _, err := d.Adopt(0); !errors.Is(err, event.ForeignStream) || event.StatusOf(err) != -4 {
		t.Error(err)
	}
	// A slip must neither hang a select nor pass for success.
	<-Done(s, 77)
	if err := s.Err(); !errors.Is(err, event.NotMarked) || !strings.Contains(err.Error(), "77") {
		t.Errorf("after Done of a number never marked: %v", err)
	}
	if err := s.Wait(ctx, 1); err != nil {
		t.Errorf("a valid wait suffered from the slip: %v", err)
	}
	for _, o := range []Option{WithDriver("cuba"), WithPlan("nap"), WithSelfTest(-1), WithHealth(0, 1, 1)} {
		if _, err := Open(ctx, o); err == nil {
			t.Error("a bad option was accepted")
		}
	}
}

// A nil receiver, such as what came with an error that was not looked at, is an
// error or a zero value, and never a crash.
func TestNilReceivers(t *testing.T) {
	var (
		d   *Device
		s   *Stream
		p   *PinnedBuffer
		m   *MappedLine
		sd  *soft.Device
		ss  *soft.Stream
		g   *soft.Graph
		ctx = context.Background()
	)
	second := func(_ any, err error) error { return err }
	for name, f := range map[string]func() error{
		"Device.Err":            d.Err,
		"Device.NewStream":      func() error { return second(d.NewStream()) },
		"Device.Adopt":          func() error { return second(d.Adopt(1)) },
		"Device.Alloc":          func() error { return second(d.Alloc(1)) },
		"Device.Free":           func() error { return d.Free(1) },
		"Device.AllocPinned":    func() error { return second(d.AllocPinned(1)) },
		"Stream.Err":            s.Err,
		"Stream.Mark":           func() error { return second(s.Mark()) },
		"Stream.Wait":           func() error { return s.Wait(ctx, 1) },
		"Stream.Notify":         func() error { return second(s.Notify(nil, 1)) },
		"Stream.Descriptor":     func() error { return second(s.Descriptor(1)) },
		"Stream.Retain":         func() error { return s.Retain(1, nil) },
		"Stream.Fill":           func() error { return s.Fill(0, 0, 1) },
		"Stream.CopyToDevice":   func() error { return second(s.CopyToDevice(0, []byte{1})) },
		"Stream.CopyToHost":     func() error { return second(s.CopyToHost([]byte{1}, 0)) },
		"Port.Query":            func() error { return second(s.Port().Query()) },
		"Port.Block":            func() error { return s.Port().Block() },
		"Port.Poll":             func() error { return s.Port().Poll() },
		"Port.Arm":              func() error { return s.Port().Arm() },
		"MappedLine.Store":      func() error { return m.Store(nil, 0, 1) },
		"MapLine":               func() error { return second(MapLine(nil)) },
		"WaitAny":               func() error { return second(WaitAny(ctx, Point{})) },
		"WaitAll":               func() error { return WaitAll(ctx, Point{}) },
		"Using(nil)":            func() error { return second(Open(ctx, Using(nil))) },
		"OpenDevice":            func() error { return second(OpenDevice(ctx, nil)) },
		"soft.Device.Err":       sd.Err,
		"soft.Device.Status":    sd.Status,
		"soft.Device.NewStream": func() error { return second(sd.NewStream()) },
		"soft.Stream.Work":      func() error { return ss.Work(1) },
		"soft.Stream.Run":       func() error { return ss.Run(func() error { return nil }) },
		"soft.Stream.HostFunc":  func() error { return ss.HostFunc(func() {}) },
		"soft.Stream.Gate":      func() error { return second(ss.Gate()) },
		"soft.Stream.Fail":      func() error { return ss.Fail(nil) },
		"soft.Stream.Query":     func() error { return second(ss.Query()) },
		"soft.Stream.Sync":      ss.Sync,
		"soft.Stream.SyncSpin":  ss.SyncSpin,
		"soft.Stream.Begin":     ss.BeginCapture,
		"soft.Stream.End":       func() error { return second(ss.EndCapture()) },
		"soft.Stream.Capturing": func() error { return second(ss.Capturing()) },
		"soft.Graph.Launch":     func() error { return g.Launch(ss) },
	} {
		if err := f(); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%s: %v, want %v", name, err, event.InvalidArgument)
		}
	}
	for name, err := range map[string]error{
		"Device": d.Close(), "Stream": s.Close(), "PinnedBuffer": p.Close(), "MappedLine": m.Close(), "MappedLine.Leak": m.Leak(nil),
		"soft.Device": sd.Close(), "soft.Stream": ss.Close(),
	} {
		if err != nil {
			t.Errorf("%s: close of nil: %v", name, err)
		}
	}
	<-d.Failed()
	<-Done(s, 1)
	sd.Lose("")
	sd.BlockQueries()
	sd.UnblockQueries()
	ss.DropStores(1)
	ss.DelayStores(1)
	ss.HoldStores()
	ss.ReleaseStores()
	if d.Info() != (driver.Info{}) || d.Caps() != (driver.Caps{}) || d.Driver() != nil || d.Warnings() != nil || d.Label() == "" ||
		d.Stats() != (Stats{}) || d.Var().String() == "" {
		t.Error("Device")
	}
	if s.Device() != nil || s.Driver() != nil || s.Handle() != 0 || s.Marked() != 0 || s.Reached(1) || s.Predict() != 0 || s.String() == "" || s.Port().Park(1) {
		t.Error("Stream")
	}
	if p.Bytes() != nil || m.Lines() != nil || m.Words() != 0 {
		t.Error("memory")
	}
	if sd.Engine() != "" || sd.Info() != (driver.Info{}) || sd.Counters() != (soft.Counters{}) || sd.Bytes(0, 0) != nil || ss.Handle() != 0 || ss.StoreTime(1) != 0 {
		t.Error("soft")
	}
	if _, ok := soft.Of(s); ok {
		t.Error("soft.Of(nil)")
	}
	if _, ok := soft.DeviceOf(d); ok {
		t.Error("soft.DeviceOf(nil)")
	}
}

// The names given to Devices count, whatever the environment says about Open.
func TestDevicesListsWhatWasAskedFor(t *testing.T) {
	t.Setenv(EnvDriver, "cuba")
	for _, names := range [][]string{{"soft"}, {"metal", "soft"}, {}} {
		found, err := Devices(names...)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.Driver)
		}
		if len(names) == 0 {
			names = []string{"cuda", "hip", "metal", "opencl", "soft"}
		}
		if !slices.Equal(got, names) {
			t.Errorf("got %v, want %v", got, names)
		}
	}
	if _, err := Devices("cuba"); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	if _, err := Open(context.Background(), WithDriver("soft")); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("Open did not heed the environment: %v", err)
	}
}

func TestWaitContext(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	seq := mark(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Wait(ctx, seq); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	err := s.Wait(ctx, seq)
	var we *WaitError
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &we) || we.Seq != seq || !we.Timeout() {
		t.Errorf("deadline: %v", err)
	}
	if n := d.Stats().Waiter.Pending; n != 0 {
		t.Errorf("%d registrations left by abandoned waits", n)
	}
	fs.land(-1)
	if err := s.Wait(context.Background(), seq); err != nil {
		t.Error(err)
	}
}

func TestWaitAnyAll(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	a, fa := openStream(t, d)
	b, fb := openStream(t, d)
	f.set(func() { f.manual = true })
	pa, pb := Point{a, mark(t, a)}, Point{b, mark(t, b)}
	fb.land(-1)
	if i, err := WaitAny(context.Background(), pa, pb); i != 1 || err != nil {
		t.Fatalf("WaitAny = %d, %v", i, err)
	}
	if n := d.Stats().Waiter.Pending; n != 0 {
		t.Errorf("%d registrations left", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if i, err := WaitAny(ctx, pa); i != -1 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitAny = %d, %v", i, err)
	}
	go fa.land(-1)
	if err := WaitAll(context.Background(), pa, pb); err != nil {
		t.Error(err)
	}
	if err := WaitAll(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestCaptureRefused(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	fs.capturing = true
	if _, err := s.Mark(); !errors.Is(err, event.CaptureRefused) {
		t.Fatal(err)
	}
	fs.capturing = false
	if seq := mark(t, s); seq != 1 {
		t.Errorf("the refused mark used up a number: got %d", seq)
	}
}

func TestFailedMarkBreaksTheStreamNotThePast(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	one := mark(t, s)
	boom := event.New(event.Backend, "write", "2").WithStatus(2)
	f.set(func() { f.fail["store"] = boom })
	if _, err := s.Mark(); !errors.Is(err, event.WorkFailed) || !errors.Is(err, event.Backend) || event.StatusOf(err) != 2 {
		t.Errorf("failing mark: %v", err)
	}
	f.set(func() { delete(f.fail, "store") })
	if _, err := s.Mark(); !errors.Is(err, event.WorkFailed) {
		t.Errorf("the mark after it: %v", err)
	}
	fs.land(1)
	if err := s.Wait(context.Background(), one); err != nil {
		t.Errorf("the mark before it: %v", err)
	}
	fs.land(-1)
}

// Every fault ends every wait with one typed sticky error, and success is never
// reported.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		proves bool
		setup  func(f *fake)
		code   event.Code
	}{
		{"sticky error", true, func(f *fake) {
			f.fault = event.New(event.Backend, "query", "illegal address (700)").WithStatus(700)
			f.drop = true
		}, event.DeviceLost},
		{"sticky error though the word was written", false, func(f *fake) {
			f.fault = event.New(event.Backend, "query", "illegal address (700)").WithStatus(700)
		}, event.DeviceLost},
		{"status query blocks", true, func(f *fake) { f.hang = make(chan struct{}); f.drop = true }, event.DeviceLost},
		{"status query blocks though the word was written", false, func(f *fake) { f.hang = make(chan struct{}) }, event.DeviceLost},
		{"store lost", true, func(f *fake) { f.drop = true }, event.StoreLost},
		{"store lost, unproven words", false, func(f *fake) { f.drop = true }, event.StoreLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, other := newFake(), newFake()
			f.caps.WordProves = c.proves
			d := openFake(t, f)
			neighbour, _ := openStream(t, openFake(t, other))
			a, fa := openStream(t, d)
			b, fb := openStream(t, d)
			f.set(func() { f.manual = true })
			seqA, seqB := mark(t, a), mark(t, b)
			done := Done(a, seqA)
			waited := make(chan error, 1)
			go func() { waited <- b.Wait(context.Background(), seqB) }()
			any := make(chan error, 1)
			go func() {
				_, err := WaitAny(context.Background(), Point{a, seqA}, Point{b, seqB})
				any <- err
			}()
			f.set(func() { c.setup(f) })
			fa.land(-1)
			fb.land(-1)
			// openFake: tick 2 ms, deadline 100 ms, grace 20 ms.
			bound := 2*2*time.Millisecond + 100*time.Millisecond + 20*time.Millisecond
			if c.code != event.StoreLost {
				bound = 2*time.Millisecond + 100*time.Millisecond
			}
			late := time.After(bound + 5*time.Second) // on a busy machine
			get := func(c <-chan error) error {
				select {
				case err := <-c:
					return err
				case <-late:
					t.Fatalf("a wait did not end within %v and a margin", bound)
					return nil
				}
			}
			ended := make(chan error, 1)
			go func() { <-done; ended <- a.Err() }()
			for _, err := range []error{get(ended), get(waited), get(any), d.Err(), b.Err(), b.Wait(context.Background(), seqB)} {
				if !errors.Is(err, c.code) {
					t.Errorf("got %v, want %v", err, c.code)
				}
			}
			<-Done(b, seqB)
			<-d.Failed()
			if _, err := a.Mark(); !errors.Is(err, c.code) {
				t.Errorf("later mark: %v", err)
			}
			if _, err := d.NewStream(); !errors.Is(err, c.code) {
				t.Errorf("later stream: %v", err)
			}
			if a.Reached(seqA) {
				t.Error("Reached reports success on a failed device")
			}
			if err := neighbour.Wait(context.Background(), mark(t, neighbour)); err != nil {
				t.Errorf("the neighbour device: %v", err)
			}
		})
	}
}

func TestUnprovenWordsAreConfirmedOncePerBatch(t *testing.T) {
	f := newFake()
	f.caps.WordProves = false
	f.pending = true // later work is queued: that is fine
	d := openFake(t, f, WithHealth(time.Hour, time.Hour, time.Hour))
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	var waits []<-chan error
	for range 50 {
		wt, c := poller.NewWait()
		if ok, err := s.Notify(wt, mark(t, s)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		waits = append(waits, c)
	}
	before := d.Stats()
	fs.land(-1)
	for _, c := range waits {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
	after := d.Stats()
	if n, b := after.Confirms-before.Confirms, after.Waiter.Batches-before.Waiter.Batches; n == 0 || n > b {
		t.Errorf("%d status queries for %d batches of 50 waits", n, b)
	}
	if !s.Reached(50) {
		t.Error("confirmed work is not reached")
	}
}

func TestStatusPollingFallback(t *testing.T) {
	for name, setup := range map[string]func(f *fake){
		"store refused with 801": func(f *fake) {
			f.fail["store"] = event.New(event.NotSupported, "cuStreamWriteValue64", "status 801").WithStatus(801)
		},
		"no stores claimed":              func(f *fake) { f.caps.StreamStore = false; f.caps.NoStore = "64-bit stream memory operations: no" },
		"stores claimed, but none lands": func(f *fake) { f.drop = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			setup(f)
			d := openFake(t, f, WithSelfTest(10*time.Millisecond))
			if len(d.Warnings()) == 0 || !errors.Is(d.Warnings()[0], event.SelfTestFailed) {
				t.Fatalf("warnings %v", d.Warnings())
			}
			if !strings.Contains(d.Label(), "status polling") {
				t.Errorf("label %q", d.Label())
			}
			s, fs := openStream(t, d)
			f.set(func() { f.manual = true })
			one, two := mark(t, s), mark(t, s)
			c := Done(s, one)
			fs.land(1)
			<-c
			if s.Reached(two) {
				t.Error("too early")
			}
			fs.land(-1)
			if err := s.Wait(context.Background(), two); err != nil {
				t.Error(err)
			}
			// A fault is found by the event's status.
			f.set(func() { f.fault = errors.New("719") })
			seq, err := s.Mark()
			if err == nil {
				err = s.Wait(context.Background(), seq)
			}
			if !errors.Is(err, event.DeviceLost) {
				t.Errorf("fault: %v", err)
			}
			f.set(func() { f.fault = nil })
			// Strict refuses instead, and cleans up.
			if _, err := Open(context.Background(), Using(f), Strict(), WithSelfTest(10*time.Millisecond)); !errors.Is(err, event.SelfTestFailed) {
				t.Errorf("strict: %v", err)
			}
		})
	}
}

func TestOpenWithContextEnded(t *testing.T) {
	f := newFake()
	f.drop = true
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, Using(f), WithSelfTest(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("self-test with a context that ended: %v", err)
	}
	if len(f.live) != 0 || f.refs != 0 {
		t.Errorf("%d pages, %d references left", len(f.live), f.refs)
	}
}

func TestOpenSaysWhyDriversWerePassedOver(t *testing.T) {
	bad, good := newFake(), newFake()
	bad.fail["open"] = event.New(event.DriverMissing, "libfake.so.1", "not found").WithStatus(event.StatusMissing)
	d := openFake(t, good, Using(bad, good))
	if w := d.Warnings(); len(w) == 0 || !errors.Is(w[0], event.DriverPassedOver) || !strings.Contains(w[0].Error(), "libfake.so.1") {
		t.Errorf("warnings %v", w)
	}
	_, err := Open(context.Background(), Using(bad, bad))
	if !errors.Is(err, event.DriverPassedOver) || !errors.Is(err, event.DriverMissing) || event.StatusOf(err) != event.StatusMissing {
		t.Errorf("nothing to open: %v", err)
	}
}

func TestCloseOrder(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, _ := openStream(t, d)
	if err := s.Wait(context.Background(), mark(t, s)); err != nil {
		t.Fatal(err)
	}
	f.forget()
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got := slices.DeleteFunc(f.steps(), func(s string) bool { return s == "query" })
	want := []string{"settle", "settle", "free", "release", "stream close", "settle", "close"}
	if !slices.Equal(got, want) {
		t.Errorf("close: %v, want %v", got, want)
	}
	if f.refs != 0 || len(f.live) != 0 {
		t.Errorf("%d references, %d pages left", f.refs, len(f.live))
	}
	if _, err := s.Mark(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("mark after close: %v", err)
	}
	if err := s.Wait(context.Background(), 1); !errors.Is(err, event.Closed) {
		t.Errorf("wait after close: %v", err)
	}
	<-Done(s, 1)
	if err := s.Err(); !errors.Is(err, event.Closed) {
		t.Errorf("err after close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseWithWaitsPending(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, _ := openStream(t, d)
	f.set(func() { f.manual = true })
	seq := mark(t, s)
	c := Done(s, seq)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() { errs <- s.Wait(context.Background(), seq) }()
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	<-c
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, event.Closed) {
			t.Errorf("pending wait: %v", err)
		}
	}
}

// A device that blocks in every call can be closed within the bound; what it may
// still write is leaked, not freed.
func TestCloseOfAHungDevice(t *testing.T) {
	f := newFake()
	d := openFake(t, f, WithCloseBound(50*time.Millisecond))
	s, _ := openStream(t, d)
	f.set(func() { f.manual = true; f.hang = make(chan struct{}) })
	seq := mark(t, s)
	if err := s.Wait(context.Background(), seq); !errors.Is(err, event.DeviceLost) {
		t.Fatal(err)
	}
	before := Leaks()
	if err := d.Close(); !errors.Is(err, event.Leaked) {
		t.Errorf("close: %v", err)
	}
	if Leaks() == before {
		t.Error("nothing counted")
	}
	if len(f.live) == 0 {
		t.Error("the page was freed under a hung device")
	}
	// Let the stuck goroutines go, so that the next test starts clean.
	f.set(func() { close(f.hang); f.hang = nil })
	for range 1000 {
		if len(f.steps()) > 0 && slices.Contains(f.steps(), "close") {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

func TestStreamCloseWithWorkUnderWay(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	mem, err := d.Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	buf := []byte("data")
	seq, err := s.CopyToDevice(mem, buf)
	if err != nil {
		t.Fatal(err)
	}
	c := Done(s, seq)
	f.forget()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	<-c
	if err := s.Err(); !errors.Is(err, event.Closed) {
		t.Errorf("the wait of a closed stream: %v", err)
	}
	if d.Stats().Streams != 1 || d.Stats().Retained != 1 || slices.Contains(f.steps(), "stream close") {
		t.Error("destroyed with work under way")
	}
	fs.land(-1)
	for !slices.Contains(f.steps(), "stream close") { // the tick buries it
		time.Sleep(time.Millisecond)
	}
	if st := d.Stats(); st.Streams != 0 || st.Retained != 0 {
		t.Errorf("not let go: %+v", st)
	}
	// Its word is handed out again, zeroed.
	for {
		n, _ := openStream(t, d)
		if n.word == s.word {
			if v := n.word.Load(); v != 0 {
				t.Errorf("the word holds %d", v)
			}
			return
		}
		time.Sleep(time.Millisecond) // between the handle's close and the word's return
	}
}

func TestRetainUntilReached(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	const size = 1 << 16 // its own span: cleanups of tiny objects may never run
	mem, err := d.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	collected := make(chan struct{})
	func() {
		buf := make([]byte, size)
		copy(buf, "abcdefgh")
		runtime.AddCleanup(&buf[0], func(c chan struct{}) { close(c) }, collected)
		if _, err := s.CopyToDevice(mem, buf); err != nil {
			t.Fatal(err)
		}
		// Nobody waits; buf is out of sight from here on.
	}()
	for range 3 {
		runtime.GC()
	}
	select {
	case <-collected:
		t.Fatal("the source of a queued copy was collected")
	default:
	}
	fs.land(-1)
	if got := string(f.mem[mem][:8]); got != "abcdefgh" {
		t.Errorf("copied %q", got)
	}
	for d.Stats().Retained > 0 {
		time.Sleep(time.Millisecond)
	}
	for {
		runtime.GC()
		select {
		case <-collected:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestCopiesMoveData(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, _ := openStream(t, d)
	mem, err := d.Alloc(16)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(mem, 'x', 16); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CopyToDevice(mem, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 8)
	seq, err := s.CopyToHost(out, mem)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(context.Background(), seq); err != nil {
		t.Fatal(err)
	}
	if string(out) != "helloxxx" {
		t.Errorf("got %q", out)
	}
	if err := d.Free(mem); err != nil {
		t.Error(err)
	}
}

func TestPinnedBufferOutlivesItsCopies(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	mem, err := d.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.AllocPinned(4096)
	if err != nil {
		t.Fatal(err)
	}
	if !Pinned.Contains(p.Bytes()) || slices.ContainsFunc(p.Bytes(), func(b byte) bool { return b != 0 }) {
		t.Error("not registered, or not zeroed")
	}
	copy(p.Bytes(), "12345678")
	f.set(func() { f.manual = true })
	seq, err := s.CopyToDevice(mem, p.Bytes()[:8])
	if err != nil {
		t.Fatal(err)
	}
	host := p.host
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	alive := f.live[host] != nil
	f.mu.Unlock()
	if !alive {
		t.Fatal("freed under a copy that still reads it")
	}
	fs.land(-1)
	if err := s.Wait(context.Background(), seq); err != nil {
		t.Fatal(err)
	}
	soon(t, "the buffer is freed", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.live[host] == nil
	})
	if string(f.mem[mem]) != "12345678" {
		t.Errorf("copied %q", f.mem[mem])
	}
	if _, err := d.AllocPinned(0); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
}

func TestAdoptLeavesTheHandle(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, err := d.Adopt(42)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(context.Background(), mark(t, s)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestManyStreamsShareAPage(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	seen := map[uintptr]bool{}
	n := pageWords() + 1
	for range n {
		s, _ := openStream(t, d)
		seen[s.word.Addr()] = true
	}
	if len(seen) != n || len(d.pages) != 2 {
		t.Errorf("%d streams on %d words and %d pages", n, len(seen), len(d.pages))
	}
}

var _ driver.Stream = (*fakeStream)(nil)
