package metal

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/standin"
	"github.com/gpuline/gpuline/line"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func at(path string) *Driver { return &Driver{runtimeLib: path, metalLib: path} }

// open builds a stand-in of its own for the test and opens device 0 of it.
func open(t testing.TB) (*Device, *standin.Control) {
	t.Helper()
	path := standin.Build(t, "metal")
	ctl := standin.Open(t, path)
	d, err := at(path).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		check(t, d.Close())
		ctl.Set("hold", 0)
		noLeak(t, ctl)
	})
	return d.(*Device), ctl
}

func noLeak(t testing.TB, ctl *standin.Control) {
	t.Helper()
	for _, c := range []string{"MTLDevice", "MTLCommandQueue", "MTLCommandBuffer", "MTLSharedEvent", "NSString", "NSArray", "NSError",
		"NSAutoreleasePool", "threads"} {
		end := time.Now().Add(20 * time.Second)
		for ctl.Get(c) != 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if n := ctl.Get(c); n != 0 {
			t.Errorf("%d %s leaked", n, c)
		}
	}
	if n := ctl.Get("violations"); n != 0 {
		t.Errorf("%d violations, the last: %s", n, ctl.Violation())
	}
}

func wait(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, err error, code event.Code, st int64) {
	t.Helper()
	if !errors.Is(err, code) || event.StatusOf(err) != st {
		t.Errorf("got %v (status %d), want %v with status %d", err, event.StatusOf(err), code, st)
	}
}

// page allocates a page and returns its line.
func page(t testing.TB, d *Device) (l *line.Line, host uintptr) {
	t.Helper()
	host = must[uintptr](t)(d.AllocHost(4096))
	l = &must[[]line.Line](t)(line.FromAddr(host, 4096))[0]
	t.Cleanup(func() {
		check(t, d.Settle())
		check(t, d.FreeHost(host))
	})
	return l, host
}

func stream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s := must[driver.Stream](t)(d.NewStream()).(*Stream)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

func slot(t testing.TB, i int) line.Slot { return must[line.Slot](t)(line.NewSlot(i)) }

func TestStoreBehindWork(t *testing.T) {
	d, ctl := open(t)
	l, host := page(t, d)
	s := stream(t, d)
	dev := must[uint64](t)(d.DeviceAddr(host + 24))
	if dev != uint64(host+24) {
		t.Errorf("device address %#x of %#x", dev, host+24)
	}
	w := l.Word(slot(t, 3))
	ctl.Set("hold", 1)
	const v = 0xfedc_ba98_7654_3210
	check(t, s.Store(host+24, dev, v))
	if done, err := s.Query(); done || err != nil {
		t.Errorf("Query with work queued: %v, %v", done, err)
	}
	if w.Load() != 0 {
		t.Error("stored before the work was done")
	}
	ctl.Set("hold", 0)
	wait(t, "the word", func() bool { return w.Load() == v })
	for i := range line.Words {
		if got := l.Word(slot(t, i)).Load(); i != 3 && got != 0 {
			t.Errorf("word %d became %#x", i, got)
		}
	}
	check(t, s.Sync())
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("Query after Sync: %v, %v", done, err)
	}
	check(t, d.Status())
	check(t, d.Settle())
}

// Stores of many streams and goroutines, moving between threads: each arrives,
// in order, and pools and references come out even.
func TestManyStreams(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	d, _ := open(t)
	l, host := page(t, d)
	var wg sync.WaitGroup
	for i := range line.Words {
		s := stream(t, d)
		w := l.Word(slot(t, i))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for seq := uint64(1); seq <= 100; seq++ {
				if err := s.Store(host+uintptr(8*i), 0, seq); err != nil {
					t.Error(err)
					return
				}
				if seq%3 == 0 {
					if err := s.Sync(); err != nil {
						t.Error(err)
					}
					if got := w.Load(); got != seq {
						t.Errorf("after Sync the word holds %d, want %d", got, seq)
					}
				}
				if e, err := s.Record(); err != nil {
					t.Error(err)
				} else {
					_, _ = e.Query()
					e.Release()
				}
				if _, err := s.Query(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

// The number that is signalled needs all 64 bits sooner or later.
func TestWideSignal(t *testing.T) {
	d, ctl := open(t)
	l, host := page(t, d)
	s := stream(t, d)
	s.next = 1<<40 - 1
	ctl.Set("hold", 1)
	check(t, s.Store(host, 0, 1))
	s.next = 1<<41 - 1
	check(t, s.Store(host, 0, 2))
	ctl.Set("hold", 0)
	wait(t, "the word", func() bool { return l.Word(line.Slot{}).Reached(2) })
	check(t, s.Sync())
	check(t, d.Status())
}

func TestEvents(t *testing.T) {
	d, ctl := open(t)
	s := stream(t, d)
	ctl.Set("hold", 1)
	e := must[driver.Event](t)(s.Record())
	if done, err := e.Query(); done || err != nil {
		t.Errorf("pending: %v, %v", done, err)
	}
	ctl.Set("hold", 0)
	wait(t, "the event", func() bool {
		done, err := e.Query()
		check(t, err)
		return done
	})
	e.Release()
	e.Release()
	if _, err := e.Query(); !errors.Is(err, event.Closed) {
		t.Errorf("released: %v", err)
	}
}

// Without a mark of its own a query makes one, behind the work that other code
// committed.
func TestQueryOfForeignWork(t *testing.T) {
	d, ctl := open(t)
	s := stream(t, d)
	ctl.Set("hold", 1)
	ctl.Spin(s.Handle(), 1000)
	for range 3 {
		if done, err := s.Query(); done || err != nil {
			t.Errorf("Query: %v, %v", done, err)
		}
	}
	ctl.Set("hold", 0)
	wait(t, "the query", func() bool {
		done, err := s.Query()
		check(t, err)
		return done
	})
}

func TestAdopt(t *testing.T) {
	path := standin.Build(t, "metal")
	ctl := standin.Open(t, path)
	drv := at(path)
	d := must[driver.Device](t)(drv.Open(0)).(*Device)
	d1 := must[driver.Device](t)(drv.Open(1)).(*Device)
	// The queue that other code works with: here another stream's.
	other := must[driver.Stream](t)(d.NewStream())
	s := must[driver.Stream](t)(d.AdoptStream(other.Handle()))
	if s.Handle() != other.Handle() || s.Device() != driver.Device(d) {
		t.Error("handle or device")
	}
	_, err := d1.AdoptStream(other.Handle())
	want(t, err, event.ForeignStream, event.StatusForeign)
	if _, err := d.AdoptStream(0); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("nil queue: %v", err)
	}
	check(t, other.Close()) // the adopted stream keeps the queue alive
	host := must[uintptr](t)(d.AllocHost(64))
	w := must[[]line.Line](t)(line.FromAddr(host, 64))[0].Word(line.Slot{})
	check(t, s.Store(host, 0, 5))
	wait(t, "the word", func() bool { return w.Reached(5) })
	check(t, s.Close())
	check(t, d.Settle())
	check(t, d.FreeHost(host))
	check(t, d.Close())
	check(t, d1.Close())
	noLeak(t, ctl)
}

// A mark whose command buffer fails is never stored, whether its signal fired or
// not, and the device's status says so.
func TestFailedCommandBuffer(t *testing.T) {
	for _, fires := range []int64{0, 1} {
		t.Run(fmt.Sprintf("signal_failed=%d", fires), func(t *testing.T) {
			d, ctl := open(t)
			l, host := page(t, d)
			w := l.Word(line.Slot{})
			s := stream(t, d)
			check(t, d.Status())
			ctl.Set("signal_failed", fires)
			ctl.Set("hold", 1)
			check(t, s.Store(host, 0, 1))
			e := must[driver.Event](t)(s.Record())
			ctl.Set("fail_code", 3)
			ctl.Set("hold", 0)
			wait(t, "the failure", func() bool { return d.Status() != nil })
			want(t, d.Status(), event.Backend, 3)
			if !strings.Contains(d.Status().Error(), "3 (the stand-in was told to fail)") {
				t.Errorf("Metal's own words are missing: %v", d.Status())
			}
			wait(t, "the event's failure", func() bool { _, err := e.Query(); return err != nil })
			_, err := e.Query()
			want(t, err, event.Backend, 3)
			e.Release()
			want(t, s.Sync(), event.Backend, 3)
			_, err = s.Query()
			want(t, err, event.Backend, 3)
			check(t, d.Settle()) // what failed can't write any more
			if w.Load() != 0 {
				t.Error("a failed mark was stored")
			}
		})
	}
}

// A signal that never comes although its command buffer completed.
func TestLostSignal(t *testing.T) {
	d, ctl := open(t)
	l, host := page(t, d)
	s := stream(t, d)
	ctl.Set("lost", 1)
	check(t, s.Store(host, 0, 1))
	wait(t, "the loss", func() bool { return d.Status() != nil })
	if !errors.Is(d.Status(), event.StoreLost) {
		t.Errorf("%v", d.Status())
	}
	check(t, d.Settle())
	if l.Word(line.Slot{}).Load() != 0 {
		t.Error("stored all the same")
	}
}

// Close does not wait; the stores that are queued are made, and then everything
// goes.
func TestCloseWithStoresQueued(t *testing.T) {
	d, ctl := open(t)
	l, host := page(t, d)
	s := stream(t, d)
	ctl.Set("hold", 1)
	for seq := range uint64(10) {
		check(t, s.Store(host, 0, seq+1))
	}
	check(t, s.Close())
	check(t, s.Close())
	for name, err := range map[string]error{
		"Store": s.Store(host, 0, 11), "Sync": s.Sync(), "Query": second(s.Query()), "Record": second(s.Record()),
	} {
		if !errors.Is(err, event.Closed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if l.Word(line.Slot{}).Load() != 0 {
		t.Error("stored before the device got there")
	}
	settled := make(chan struct{})
	go func() {
		check(t, d.Settle())
		if got := l.Word(line.Slot{}).Load(); got != 10 {
			t.Errorf("settled with the word at %d", got)
		}
		close(settled)
	}()
	ctl.Set("hold", 0)
	<-settled
}

func second[T any](_ T, err error) error { return err }

func TestRefusals(t *testing.T) {
	d, ctl := open(t)
	s := stream(t, d)
	for name, err := range map[string]error{
		"unaligned word": s.Store(4, 0, 1),
		"null word":      s.Store(0, 0, 1),
		"no page":        second(d.DeviceAddr(64)),
		"free no page":   d.FreeHost(64),
		"empty page":     second(d.AllocHost(0)),
	} {
		if !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"Alloc": second(d.Alloc(1)), "Free": d.Free(1), "CopyToDevice": s.CopyToDevice(1, nil, 1),
		"CopyToHost": s.CopyToHost(nil, 1, 1), "Fill": s.Fill(1, 0, 1),
	} {
		if !errors.Is(err, event.NotSupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	check(t, d.Free(0))
	if c, err := s.Capturing(); c || err != nil {
		t.Error("Capturing")
	}
	if c := d.Caps(); !c.StreamStore || c.WordProves || c.WhyProves == "" || !c.Events || c.Memory || c.Capture {
		t.Errorf("%+v", c)
	}
	ctl.Set("nil_buffer", 1)
	for name, err := range map[string]error{"Sync": s.Sync(), "Query": second(s.Query()), "Record": second(s.Record())} {
		if !errors.Is(err, event.Backend) || !strings.Contains(err.Error(), "commandBuffer") {
			t.Errorf("%s without command buffers: %v", name, err)
		}
	}
	ctl.Set("nil_event", 1)
	if _, err := d.NewStream(); !errors.Is(err, event.Backend) || !strings.Contains(err.Error(), "newSharedEvent") {
		t.Errorf("without events: %v", err)
	}
	ctl.Set("nil_queue", 1)
	if _, err := d.NewStream(); !errors.Is(err, event.Backend) || !strings.Contains(err.Error(), "newCommandQueue") {
		t.Errorf("without queues: %v", err)
	}
}

func TestDevices(t *testing.T) {
	path := standin.Build(t, "metal")
	ctl := standin.Open(t, path)
	drv := at(path)
	if drv.Name() != "metal" {
		t.Error(drv.Name())
	}
	infos := must[[]driver.Info](t)(drv.Devices())
	if len(infos) != 2 || infos[1] != (driver.Info{Driver: "metal", Ordinal: 1, Name: "Stand-in Metal device 1"}) {
		t.Errorf("%+v", infos)
	}
	for _, o := range []int{-1, 2} {
		if _, err := drv.Open(o); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("Open(%d): %v", o, err)
		}
	}
	for _, s := range []string{"devices", "nil_array"} {
		ctl.Set("devices", 2)
		ctl.Set(s, map[string]int64{"devices": 0, "nil_array": 1}[s])
		if _, err := drv.Devices(); !errors.Is(err, event.NoDevice) {
			t.Errorf("%s: %v", s, err)
		}
		if _, err := drv.Open(0); !errors.Is(err, event.NoDevice) {
			t.Errorf("%s: %v", s, err)
		}
	}
	noLeak(t, ctl)
}

func TestReferences(t *testing.T) {
	path := standin.Build(t, "metal")
	ctl := standin.Open(t, path)
	d := must[driver.Device](t)(at(path).Open(0)).(*Device)
	check(t, d.Retain())
	if n := ctl.Get("MTLDevice"); n != 2 {
		t.Errorf("%d references, want 2", n)
	}
	check(t, d.Close())
	check(t, d.Close())
	host := must[uintptr](t)(d.AllocHost(64)) // the domain is still retained
	check(t, d.FreeHost(host))
	check(t, d.Release())
	for name, err := range map[string]error{
		"Release": d.Release(), "Retain": d.Retain(), "Status": d.Status(), "AllocHost": second(d.AllocHost(64)),
		"NewStream": second(d.NewStream()), "AdoptStream": second(d.AdoptStream(8)),
	} {
		if !errors.Is(err, event.Closed) {
			t.Errorf("%s after the last reference: %v", name, err)
		}
	}
	noLeak(t, ctl)
}

func TestMissing(t *testing.T) {
	for _, fn := range []string{"objc_msgSend", "sel_registerName", "objc_getClass", "MTLCopyAllDevices", "NSAutoreleasePool"} {
		_, err := at(standin.Build(t, "metal", fn)).Devices()
		want(t, err, event.DriverMissing, event.StatusMissing)
		if err == nil || !strings.Contains(err.Error(), fn) {
			t.Errorf("the error must name %s: %v", fn, err)
		}
	}
	_, err := at("/nonexistent/libobjc").Devices()
	want(t, err, event.DriverMissing, event.StatusMissing)
	path := standin.Build(t, "metal")
	_, err = (&Driver{runtimeLib: path, metalLib: "/nonexistent/Metal"}).Open(0)
	want(t, err, event.DriverMissing, event.StatusMissing)
}

func TestElsewhere(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Skip("this is about other systems")
	}
	d := New(Config{})
	for _, err := range []error{second(d.Devices()), second(d.Open(0))} {
		if !errors.Is(err, event.NotSupported) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v", err)
		}
	}
}

func TestOf(t *testing.T) {
	d, _ := open(t)
	s := stream(t, d)
	if got, ok := Of(driver.Stream(s)); !ok || got != s {
		t.Error("Of the driver's stream")
	}
	for _, x := range []any{nil, 1, (*Stream)(nil)} {
		if _, ok := Of(x); ok {
			t.Errorf("Of(%v)", x)
		}
	}
}

// On a Mac the real thing is asked, where GPULINE_REQUIRE says that it must be
// there, or it is.
func TestRealMetal(t *testing.T) {
	if runtime.GOOS != "darwin" {
		t.Skip("run the tests on macOS to try Metal itself")
	}
	d, err := New(Config{}).Open(0)
	if errors.Is(err, event.NoDevice) && !standin.Required("metal") {
		t.Skipf("run on a Mac with a GPU: %v", err)
	}
	check(t, err)
	l, host := page(t, d.(*Device))
	s := stream(t, d.(*Device))
	check(t, s.Store(host, uint64(host), 1))
	wait(t, "the word", func() bool { return l.Word(line.Slot{}).Reached(1) })
	check(t, s.Sync())
}
