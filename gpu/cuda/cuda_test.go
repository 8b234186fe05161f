package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/standin"
	"github.com/gpuline/gpuline/gpu/internal/clib"
	"github.com/gpuline/gpuline/line"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open builds a stand-in of its own for the test, opens device 0 of it, and
// checks at the end that nothing was leaked or misused.
func open(t testing.TB, without ...string) (*Device, *standin.Control) {
	t.Helper()
	path := standin.Build(t, "cuda", without...)
	ctl := standin.Open(t, path)
	d, err := New(Config{Library: path}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		ctl.Set("hold", 0)
		noLeak(t, ctl)
	})
	return d.(*Device), ctl
}

// noLeak waits for the worker threads of destroyed streams and checks what is
// left.
func noLeak(t testing.TB, ctl *standin.Control) {
	t.Helper()
	wait(t, "the stand-in's threads end", func() bool { return ctl.Get("threads") == 0 })
	for _, c := range []string{"streams", "events", "contexts", "modules", "pinned", "device_memory"} {
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

// want checks code and status of an error.
func want(t testing.TB, err error, code event.Code, st int64) {
	t.Helper()
	if !errors.Is(err, code) || event.StatusOf(err) != st {
		t.Errorf("got %v (status %d), want %v with status %d", err, event.StatusOf(err), code, st)
	}
}

// word allocates a page and returns its first word, zeroed, and its addresses.
func word(t testing.TB, d *Device) (w *line.Word, host uintptr, dev uint64) {
	t.Helper()
	host = must[uintptr](t)(d.AllocHost(4096))
	dev = must[uint64](t)(d.DeviceAddr(host))
	w = must[[]line.Line](t)(line.FromAddr(host, 4096))[0].Word(line.Slot{})
	w.Zero()
	t.Cleanup(func() {
		_ = d.Settle() // no store may come late
		check(t, d.FreeHost(host))
	})
	return w, host, dev
}

func stream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s := must[driver.Stream](t)(d.NewStream()).(*Stream)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStoreBehindWork(t *testing.T) {
	d, ctl := open(t)
	w, host, dev := word(t, d)
	s := stream(t, d)
	if uint64(host) == dev {
		t.Fatal("the stand-in's device addresses differ from host addresses")
	}
	ctl.Set("hold", 1)
	// A value that needs all 64 bits, to find a truncated argument.
	const v = 0xfedc_ba98_7654_3210
	check(t, s.Store(host, dev, v))
	if done, err := s.Query(); done || err != nil {
		t.Errorf("Query with work queued: %v, %v", done, err)
	}
	if w.Load() != 0 {
		t.Error("the store was not queued but made at once")
	}
	ctl.Set("hold", 0)
	check(t, s.Sync())
	if got := w.Load(); got != v {
		t.Errorf("the word holds %#x, want %#x", got, uint64(v))
	}
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("Query after Sync: %v, %v", done, err)
	}
	check(t, d.Settle())
	check(t, d.Status())
}

// The host address where the device's belongs must be refused by the driver:
// where the two are equal, nobody would notice the mistake.
func TestHostAddressIsNoDeviceAddress(t *testing.T) {
	d, ctl := open(t)
	_, host, _ := word(t, d)
	s := stream(t, d)
	want(t, s.Store(host, uint64(host), 1), event.Backend, 1)
	if ctl.Get("violations") != 1 {
		t.Error("the stand-in did not notice")
	}
	ctl.Set("violations", 0)
}

// Page-locked memory that does not begin on a page boundary, as small
// allocations may, is asked for again with room for whole pages.
func TestUnalignedHostMemory(t *testing.T) {
	d, ctl := open(t)
	ctl.Set("unaligned", 1)
	page := uintptr(os.Getpagesize())
	for _, n := range []int{1, int(page), int(page) + 1} {
		host := must[uintptr](t)(d.AllocHost(n))
		if host%page != 0 {
			t.Errorf("AllocHost(%d) = %#x", n, host)
		}
		if k := ctl.Get("pinned"); k != 1 {
			t.Errorf("%d allocations, want 1", k)
		}
		dev := must[uint64](t)(d.DeviceAddr(host))
		lines := must[[]line.Line](t)(line.FromAddr(host, (n+line.Size-1)/line.Size*line.Size))
		w := lines[len(lines)-1].Word(line.Slot{})
		s := stream(t, d)
		check(t, s.Store(0, dev+uint64(w.Addr()-host), 77))
		check(t, s.Sync())
		if w.Load() != 77 {
			t.Errorf("the last line's word holds %d", w.Load())
		}
		check(t, d.FreeHost(host))
	}
	ctl.Set("fail:cuMemHostAlloc", 2)
	_, err := d.AllocHost(1)
	want(t, err, event.Backend, 2)
	ctl.Set("fail:cuMemHostAlloc", 0)
}

// The stand-in finds the worst mistake of all, freeing a page that a store is
// still queued for, without being hurt by it.
func TestStandinFindsEarlyFree(t *testing.T) {
	d, ctl := open(t)
	host := must[uintptr](t)(d.AllocHost(64))
	s := stream(t, d)
	ctl.Set("hold", 1)
	check(t, s.Store(host, must[uint64](t)(d.DeviceAddr(host)), 1))
	check(t, d.FreeHost(host))
	if ctl.Get("violations") != 1 {
		t.Error("an early free was not found")
	}
	ctl.Set("violations", 0)
	ctl.Set("hold", 0)
	check(t, d.Settle())
	// A store that lands after its stream is done, too.
	ctl.Set("store_late_us", 20000)
	check(t, s.Store(host, must[uint64](t)(d.DeviceAddr(host)), 2))
	check(t, s.Sync())
	check(t, d.FreeHost(host))
	if ctl.Get("violations") != 1 {
		t.Error("an early free before a late store was not found")
	}
	ctl.Set("violations", 0)
	check(t, d.Settle())
	check(t, d.FreeHost(host))
}

func TestMemory(t *testing.T) {
	d, _ := open(t)
	s := stream(t, d)
	m := must[driver.Mem](t)(d.Alloc(4096))
	check(t, s.Fill(m, 0xab, 4096))
	in := []byte("copied to the device and back")
	check(t, s.CopyToDevice(m+7, unsafe.Pointer(&in[0]), len(in)))
	out := make([]byte, 4096)
	check(t, s.CopyToHost(unsafe.Pointer(&out[0]), m, len(out)))
	check(t, s.Sync())
	if got := string(out[7 : 7+len(in)]); got != string(in) {
		t.Errorf("copied %q", got)
	}
	if out[6] != 0xab || out[7+len(in)] != 0xab || out[4095] != 0xab {
		t.Errorf("fill: % x", out[:8])
	}
	for name, err := range map[string]error{
		"negative copy": s.CopyToDevice(m, unsafe.Pointer(&in[0]), -1),
		"nil source":    s.CopyToDevice(m, nil, 1),
		"nil target":    s.CopyToHost(nil, m, 1),
		"null memory":   s.Fill(0, 0, 1),
	} {
		if !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range []error{s.CopyToDevice(0, nil, 0), s.CopyToHost(nil, 0, 0), s.Fill(0, 1, 0), d.Free(0)} {
		check(t, err) // nothing to do
	}
	if _, err := d.Alloc(0); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("Alloc(0): %v", err)
	}
	check(t, d.Free(m))
}

func TestKernels(t *testing.T) {
	d, ctl := open(t)
	w, host, dev := word(t, d)
	s := stream(t, d)
	// Bytes behind the text must not reach the driver: it has to be terminated.
	buf := append(append([]byte{}, standin.Kernels...), ".entry garbage"...)
	mod := must[*Module](t)(d.LoadModule(buf[:len(standin.Kernels)]))
	fill := must[*Function](t)(mod.Function("fill32"))
	spin := must[*Function](t)(mod.Function("spin"))
	_, err := mod.Function("no_such_kernel")
	want(t, err, event.Backend, 500)

	const n = 1000
	m := must[driver.Mem](t)(d.Alloc(4 * n))
	check(t, s.Fill(m, 0, 4*n))
	ctl.Set("hold", 1)
	check(t, s.Launch(spin, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, uint64(1000)))
	check(t, s.Launch(fill, [3]uint32{8, 1, 1}, [3]uint32{128, 1, 1}, 0, m, uint32(0xdeadbeef), uint32(n)))
	check(t, s.Store(host, dev, 1))
	ctl.Set("hold", 0)
	wait(t, "the word", func() bool { return w.Reached(1) })
	out := make([]uint32, n)
	check(t, s.CopyToHost(unsafe.Pointer(&out[0]), m, 4*n))
	check(t, s.Sync())
	for i, v := range out {
		if v != 0xdeadbeef {
			t.Fatalf("element %d is %#x", i, v)
		}
	}
	// Block dimensions and shared memory in one another's place are out of range.
	want(t, s.Launch(spin, [3]uint32{1, 1, 1}, [3]uint32{2048, 1, 1}, 0, uint64(1)), event.Backend, 1)
	want(t, s.Launch(spin, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 1<<20, uint64(1)), event.Backend, 1)
	for name, err := range map[string]error{
		"untyped width": s.Launch(spin, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, 1),
		"nil function":  s.Launch(nil, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0),
	} {
		if !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.LoadModule(nil); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("empty module: %v", err)
	}
	_, err = d.LoadModule([]byte("not PTX"))
	want(t, err, event.Backend, 218)

	check(t, mod.Close())
	check(t, mod.Close())
	if err := s.Launch(fill, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0); !errors.Is(err, event.Closed) {
		t.Errorf("launch from a closed module: %v", err)
	}
	check(t, d.Free(m))
}

// Every width and kind of argument lands in its own cell, at its start.
func TestLaunchArgumentTypes(t *testing.T) {
	d, _ := open(t)
	s := stream(t, d)
	mod := must[*Module](t)(d.LoadModule(standin.Kernels))
	defer mod.Close()
	spin := must[*Function](t)(mod.Function("spin"))
	one := [3]uint32{1, 1, 1}
	check(t, s.Launch(spin, one, one, 0, uint64(0), int8(1), int16(1), int32(1), int64(1), uint8(1), uint16(1),
		uint32(1), uintptr(1), float32(1), float64(1), driver.Mem(1)))
	check(t, s.Sync())
}

func TestEvents(t *testing.T) {
	d, ctl := open(t)
	s := stream(t, d)
	ctl.Set("hold", 1)
	e1 := must[driver.Event](t)(s.Record())
	if done, err := e1.Query(); done || err != nil {
		t.Errorf("pending event: %v, %v", done, err)
	}
	ctl.Set("hold", 0)
	wait(t, "the event", func() bool {
		done, err := e1.Query()
		check(t, err)
		return done
	})
	e1.Release()
	e1.Release()
	if _, err := e1.Query(); !errors.Is(err, event.Closed) {
		t.Errorf("released event: %v", err)
	}
	// An event may be released before its work is done.
	ctl.Set("hold", 1)
	must[driver.Event](t)(s.Record()).Release()
	ctl.Set("hold", 0)
	check(t, s.Sync())
}

func TestCapture(t *testing.T) {
	d, ctl := open(t)
	s, other := stream(t, d), stream(t, d)
	e := must[driver.Event](t)(other.Record())
	defer e.Release()
	check(t, other.Sync())
	const global = 0
	runtime.LockOSThread() // a capture belongs to its thread
	defer runtime.UnlockOSThread()
	check(t, d.Call("cuStreamBeginCapture_v2", s.Handle(), global))
	if c, err := s.Capturing(); !c || err != nil {
		t.Errorf("Capturing: %v, %v", c, err)
	}
	if c, err := other.Capturing(); c || err != nil {
		t.Errorf("Capturing of another stream: %v, %v", c, err)
	}
	// Nothing that the health tick and the waiter do may invalidate the capture,
	// from whatever thread.
	done := make(chan struct{})
	for range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			if err := d.Status(); err != nil {
				t.Errorf("Status: %v", err)
			}
			if ok, err := s.Query(); ok || err != nil {
				t.Errorf("Query of the capturing stream: %v, %v, want pending", ok, err)
			}
			if ok, err := other.Query(); !ok || err != nil {
				t.Errorf("Query of another stream: %v, %v", ok, err)
			}
			if ok, err := e.Query(); !ok || err != nil {
				t.Errorf("Query of an event: %v, %v", ok, err)
			}
			if m := ctl.Get("capture_mode"); m != global {
				t.Errorf("the thread's capture mode was left at %d", m)
			}
		}()
		<-done
	}
	var graph [1]uintptr
	var pin runtime.Pinner
	pin.Pin(&graph)
	defer pin.Unpin()
	if err := d.Call("cuStreamEndCapture", s.Handle(), uintptr(unsafe.Pointer(&graph))); err != nil {
		t.Errorf("the capture was invalidated: %v", err)
	}
	if c, err := s.Capturing(); c || err != nil {
		t.Errorf("Capturing after the end: %v, %v", c, err)
	}
}

// Whatever capture mode the thread had, it has after a query.
func TestCaptureModeRestored(t *testing.T) {
	d, ctl := open(t)
	s := stream(t, d)
	mode := must[uintptr](t)(d.AllocHost(8))
	defer func() { check(t, d.FreeHost(mode)) }()
	word := (*[1]uint32)(*(*unsafe.Pointer)(unsafe.Pointer(&mode)))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, m := range []uint32{1, 2, 0} {
		word[0] = m
		ctl.Call("cuThreadExchangeStreamCaptureMode", mode)
		check(t, d.Status())
		_, err := s.Query()
		check(t, err)
		if got := ctl.Get("capture_mode"); got != int64(m) {
			t.Errorf("mode %d became %d", m, got)
		}
	}
}

// Without cuThreadExchangeStreamCaptureMode the calls still work.
func TestWithoutCaptureModeExchange(t *testing.T) {
	d, _ := open(t, "cuThreadExchangeStreamCaptureMode")
	s := stream(t, d)
	check(t, d.Status())
	if ok, err := s.Query(); !ok || err != nil {
		t.Errorf("Query: %v, %v", ok, err)
	}
}

func TestLegacyStreamBesideCapture(t *testing.T) {
	d, ctl := open(t)
	legacy := must[driver.Stream](t)(d.AdoptStream(0))
	defer legacy.Close()
	if legacy.Handle() != streamLegacy {
		t.Errorf("the legacy stream's handle is %d", legacy.Handle())
	}
	w, host, dev := word(t, d)
	check(t, legacy.Store(host, dev, 3))
	wait(t, "the word", func() bool { return w.Reached(3) })

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctl.Call("cuCtxPushCurrent_v2", d.Context())
	blocking, st := ctl.Out("cuStreamCreate", 0)
	if st != 0 {
		t.Fatal(st)
	}
	ctl.Call("cuStreamBeginCapture_v2", uintptr(blocking), captureRelaxed)
	if c, err := legacy.Capturing(); !c || err != nil {
		t.Errorf("the legacy stream can't be used while a blocking stream captures: %v, %v", c, err)
	}
	if ok, err := legacy.Query(); ok || err != nil {
		t.Errorf("its query: %v, %v, want pending", ok, err)
	}
	graph := must[uintptr](t)(d.AllocHost(8))
	ctl.Call("cuStreamEndCapture", uintptr(blocking), graph)
	check(t, d.FreeHost(graph))
	ctl.Call("cuStreamDestroy_v2", uintptr(blocking))
	ctl.Call("cuCtxPopCurrent_v2", 0)
}

func TestAdopt(t *testing.T) {
	d, ctl := open(t)
	w, host, dev := word(t, d)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// A stream that other code made in the primary context, through its own
	// handle on the library.
	ctl.Call("cuCtxPushCurrent_v2", d.Context())
	foreign, st := ctl.Out("cuStreamCreate", 0)
	ctl.Call("cuCtxPopCurrent_v2", 0)
	if st != 0 {
		t.Fatal(st)
	}
	s := must[driver.Stream](t)(d.AdoptStream(uintptr(foreign)))
	check(t, s.Store(host, dev, 42))
	wait(t, "the word", func() bool { return w.Reached(42) })
	check(t, s.Close())
	if n := ctl.Get("streams"); n != 2 { // the device's own for Status, and this one
		t.Errorf("%d streams: closing an adopted stream must leave the handle alone", n)
	}
	if err := s.Store(host, dev, 43); !errors.Is(err, event.Closed) {
		t.Errorf("store on a closed stream: %v", err)
	}
	ctl.Call("cuCtxPushCurrent_v2", d.Context())
	ctl.Call("cuStreamDestroy_v2", uintptr(foreign))
	ctl.Call("cuCtxPopCurrent_v2", 0)

	// A stream of another context.
	other, st := ctl.Out("cuCtxCreate_v2", 0, 0)
	if st != 0 {
		t.Fatal(st)
	}
	strange, _ := ctl.Out("cuStreamCreate", 0)
	ctl.Call("cuCtxPopCurrent_v2", 0)
	_, err := d.AdoptStream(uintptr(strange))
	want(t, err, event.ForeignStream, event.StatusForeign)
	ctl.Call("cuCtxDestroy_v2", uintptr(other))

	_, err = d.AdoptStream(streamPerThread)
	if !errors.Is(err, event.InvalidArgument) {
		t.Errorf("the per-thread default stream: %v", err)
	}
}

func TestOf(t *testing.T) {
	d, _ := open(t)
	s := stream(t, d)
	if got, ok := Of(driver.Stream(s)); !ok || got != s {
		t.Error("Of the driver's stream")
	}
	if got, ok := Of(wrapped{s}); !ok || got != s {
		t.Error("Of something with a Driver method")
	}
	for _, x := range []any{nil, 1, wrapped{nil}, (*Stream)(nil)} {
		if _, ok := Of(x); ok {
			t.Errorf("Of(%v)", x)
		}
	}
	if s.Device() != driver.Device(d) {
		t.Error("Device")
	}
}

type wrapped struct{ s driver.Stream }

func (w wrapped) Driver() driver.Stream { return w.s }

// Goroutines that move between threads, on two devices at once, beside threads
// that have a context of their own: every call must find its context and leave
// the thread as it was.
func TestContextDiscipline(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	path := standin.Build(t, "cuda")
	ctl := standin.Open(t, path)
	drv := New(Config{Library: path})
	var wg sync.WaitGroup
	var devs []*Device
	for i := range 2 {
		d := must[driver.Device](t)(drv.Open(i)).(*Device)
		devs = append(devs, d)
		for range 4 {
			host := must[uintptr](t)(d.AllocHost(64))
			dev := must[uint64](t)(d.DeviceAddr(host))
			w := must[[]line.Line](t)(line.FromAddr(host, 64))[0].Word(line.Slot{})
			w.Zero()
			s := must[driver.Stream](t)(d.NewStream()).(*Stream)
			wg.Add(1)
			go func() {
				defer wg.Done()
				for seq := uint64(1); seq <= 50; seq++ {
					if err := s.Store(host, dev, seq); err != nil {
						t.Error(err)
						return
					}
					for !w.Reached(seq) {
						if _, err := s.Query(); err != nil {
							t.Error(err)
							return
						}
						if err := d.Status(); err != nil {
							t.Error(err)
							return
						}
						runtime.Gosched()
					}
					if e, err := s.Record(); err != nil {
						t.Error(err)
					} else {
						_, _ = e.Query()
						e.Release()
					}
				}
				check(t, s.Sync())
				check(t, s.Close())
				check(t, d.FreeHost(host))
			}()
		}
	}
	// A thread that works in a context of its own.
	wg.Add(1)
	go func() {
		defer wg.Done()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		mine, st := ctl.Out("cuCtxCreate_v2", 0, 1)
		if st != 0 {
			t.Error(st)
			return
		}
		for range 200 {
			if err := devs[0].Status(); err != nil {
				t.Error(err)
			}
			if got, _ := ctl.Out("cuCtxGetCurrent"); got != mine {
				t.Errorf("the thread's own context became %#x, was %#x", got, mine)
				break
			}
		}
		ctl.Call("cuCtxDestroy_v2", uintptr(mine))
		if n := ctl.Get("depth"); n != 0 {
			t.Errorf("the thread's context stack is %d deep", n)
		}
	}()
	wg.Wait()
	for _, d := range devs {
		check(t, d.Close())
	}
	noLeak(t, ctl)
}

// A call that fails restores the thread's context too.
func TestContextRestoredAfterFailure(t *testing.T) {
	d, ctl := open(t)
	s := stream(t, d)
	_, host, dev := word(t, d)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, fn := range []string{"cuStreamQuery", "cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuStreamSynchronize",
		"cuMemHostAlloc", "cuStreamCreate", "cuCtxSynchronize", "cuStreamWriteValue64_v2", "cuStreamGetCtx"} {
		ctl.Set("fail:"+fn, 999)
		failed := 0
		count := func(err error) {
			if err != nil {
				failed++
				want(t, err, event.Backend, 999)
			}
		}
		_, err := s.Query()
		count(err)
		count(d.Status())
		_, err = s.Capturing()
		count(err)
		if e, err := s.Record(); err == nil {
			e.Release()
		} else {
			count(err)
		}
		count(s.Sync())
		if h, err := d.AllocHost(64); err == nil {
			check(t, d.FreeHost(h))
		} else {
			count(err)
		}
		if n, err := d.NewStream(); err == nil {
			check(t, n.Close())
		} else {
			count(err)
		}
		count(d.Settle())
		count(s.Store(host, dev, 1))
		_, err = d.AdoptStream(s.Handle())
		count(err)
		if failed == 0 {
			t.Errorf("%s failed and nobody noticed", fn)
		}
		ctl.Set("fail:"+fn, 0)
		if n := ctl.Get("depth"); n != 0 {
			t.Fatalf("%s: the thread's context stack is left %d deep", fn, n)
		}
		if m := ctl.Get("capture_mode"); m != 0 {
			t.Fatalf("%s: the thread's capture mode is left at %d", fn, m)
		}
	}
}

func TestMissingSymbols(t *testing.T) {
	getProc := []string{"cuGetProcAddress_v2", "cuGetProcAddress"}
	for _, e := range entries {
		t.Run(e.name, func(t *testing.T) {
			without := []string{e.name}
			for _, v := range e.variants {
				if v.export != e.name {
					without = append(without, v.export)
				}
			}
			if !e.optional {
				path := standin.Build(t, "cuda", without...)
				_, err := New(Config{Library: path}).Devices()
				want(t, err, event.DriverMissing, event.StatusMissing)
				if err == nil || !strings.Contains(err.Error(), e.name) {
					t.Errorf("the error must name the entry point: %v", err)
				}
				return
			}
			d, _ := open(t, without...)
			s := stream(t, d)
			check(t, d.Status())
			_, host, dev := word(t, d)
			caps := d.Caps()
			if err := s.Store(host, dev, 1); (e.name == "cuStreamWriteValue64") != errors.Is(err, event.NotSupported) {
				t.Errorf("Store: %v", err)
			}
			if caps.StreamStore != (caps.NoStore == "") || caps.StreamStore != (e.name != "cuStreamWriteValue64") {
				t.Errorf("StreamStore %v, NoStore %q", caps.StreamStore, caps.NoStore)
			}
			ev, err := s.Record()
			if caps.Events == errors.Is(err, event.NotSupported) {
				t.Errorf("Events %v, Record: %v", caps.Events, err)
			}
			if err == nil {
				ev.Release()
			}
			m, err := d.Alloc(64)
			if caps.Memory == errors.Is(err, event.NotSupported) {
				t.Errorf("Memory %v, Alloc: %v", caps.Memory, err)
			}
			if err == nil {
				check(t, d.Free(m))
			}
			mod, err := d.LoadModule(standin.Kernels)
			if strings.HasPrefix(e.name, "cuModule") != errors.Is(err, event.NotSupported) {
				t.Errorf("LoadModule: %v", err)
			}
			if err == nil {
				fn := must[*Function](t)(mod.Function("fault"))
				if e.name == "cuLaunchKernel" {
					if err := s.Launch(fn, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0); !errors.Is(err, event.NotSupported) {
						t.Errorf("Launch: %v", err)
					}
				}
				check(t, mod.Close())
			}
			if c, err := s.Capturing(); c || err != nil {
				t.Errorf("Capturing: %v, %v", c, err)
			}
			adopted, err := d.AdoptStream(s.Handle())
			check(t, err)
			check(t, adopted.Close())
			check(t, s.Sync())
		})
	}
	t.Run("cuGetProcAddress", func(t *testing.T) { // everything by its exported name
		d, ctl := open(t, getProc...)
		s := stream(t, d)
		_, host, dev := word(t, d)
		check(t, s.Store(host, dev, 1))
		check(t, s.Sync())
		if n := ctl.Get("calls:cuStreamWriteValue64_v2"); n != 1 {
			t.Errorf("the _v2 write was called %d times", n)
		}
	})
	t.Run("cuGetProcAddress_v2", func(t *testing.T) { // CUDA 11.3 to 11.8
		d, ctl := open(t, getProc[0])
		check(t, d.Status())
		if ctl.Get("calls:cuGetProcAddress") == 0 {
			t.Error("cuGetProcAddress was not asked")
		}
	})
}

// A driver before CUDA 11.7 has the old stream write only, which works when the
// kernel module says so.
func TestOldStreamWrite(t *testing.T) {
	for _, on := range []int64{0, 1} {
		path := standin.Build(t, "cuda", "cuStreamWriteValue64_v2")
		ctl := standin.Open(t, path)
		ctl.Set("version", 11040)
		ctl.Set("v1_memops", on)
		d := must[driver.Device](t)(New(Config{Library: path}).Open(0)).(*Device)
		if v := d.Info().Version; v != "11.4" {
			t.Errorf("version %q", v)
		}
		c := d.Caps()
		s := must[driver.Stream](t)(d.NewStream())
		host := must[uintptr](t)(d.AllocHost(64))
		dev := must[uint64](t)(d.DeviceAddr(host))
		err := s.Store(host, dev, 1)
		if on == 1 {
			check(t, err)
			check(t, s.Sync())
		} else {
			want(t, err, event.NotSupported, 801)
		}
		if c.StreamStore != (on == 1) || (on == 0 && !strings.Contains(c.NoStore, "NVreg_EnableStreamMemOPs")) {
			t.Errorf("memops %d: %+v", on, c)
		}
		if ctl.Get("calls:cuStreamWriteValue64") != 1 {
			t.Error("the old write was not used")
		}
		check(t, s.Close())
		check(t, d.FreeHost(host))
		check(t, d.Close())
		noLeak(t, ctl)
	}
}

func TestCapabilityBitsLie(t *testing.T) {
	path := standin.Build(t, "cuda")
	ctl := standin.Open(t, path)
	ctl.Set("attr64", 0)
	d := must[driver.Device](t)(New(Config{Library: path}).Open(0))
	if c := d.Caps(); c.StreamStore || !strings.Contains(c.NoStore, "122") {
		t.Errorf("%+v", c)
	}
	check(t, d.Close())
	ctl.Set("attr64", 1)
	ctl.Set("write_status", 801)
	d = must[driver.Device](t)(New(Config{Library: path}).Open(0))
	if !d.Caps().StreamStore {
		t.Error("the claim is passed on as it is")
	}
	s := must[driver.Stream](t)(d.NewStream())
	host := must[uintptr](t)(d.AllocHost(64))
	err := s.Store(host, must[uint64](t)(d.DeviceAddr(host)), 1)
	want(t, err, event.NotSupported, 801)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_SUPPORTED") {
		t.Errorf("%v", err)
	}
	check(t, s.Close())
	check(t, d.FreeHost(host))
	check(t, d.Close())
}

// The sticky fault: whatever is asked afterwards says so, and nothing that was
// queued behind it is taken for done.
func TestStickyFault(t *testing.T) {
	for _, lands := range []int64{0, 1} {
		t.Run(fmt.Sprintf("store_after_fault=%d", lands), func(t *testing.T) {
			path := standin.Build(t, "cuda")
			ctl := standin.Open(t, path)
			ctl.Set("store_after_fault", lands)
			d := must[driver.Device](t)(New(Config{Library: path}).Open(0)).(*Device)
			host := must[uintptr](t)(d.AllocHost(64))
			dev := must[uint64](t)(d.DeviceAddr(host))
			w := must[[]line.Line](t)(line.FromAddr(host, 64))[0].Word(line.Slot{})
			w.Zero()
			s := must[driver.Stream](t)(d.NewStream()).(*Stream)
			mod := must[*Module](t)(d.LoadModule(standin.Kernels))
			fault := must[*Function](t)(mod.Function("fault"))
			ctl.Set("hold", 1)
			e := must[driver.Event](t)(s.Record())
			check(t, s.Launch(fault, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0))
			check(t, s.Store(host, dev, 1))
			check(t, d.Status())
			ctl.Set("hold", 0)
			wait(t, "the fault", func() bool { return d.Status() != nil })
			want(t, s.Sync(), event.Backend, 700)
			if lands == 1 {
				wait(t, "the store behind failed work", func() bool { return w.Reached(1) })
			} else if w.Load() != 0 {
				t.Error("the store behind failed work landed")
			}
			if done, err := s.Query(); done {
				t.Error("the query says done")
			} else {
				want(t, err, event.Backend, 700)
				if !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)") {
					t.Errorf("the driver's own words are missing: %v", err)
				}
			}
			_, err := e.Query()
			want(t, err, event.Backend, 700)
			want(t, d.Status(), event.Backend, 700)
			want(t, d.Settle(), event.Backend, 700)
			want(t, s.Store(host, dev, 2), event.Backend, 700)
			_, err = d.NewStream()
			want(t, err, event.Backend, 700)
			// The page can't be freed: the caller has to know.
			want(t, d.FreeHost(host), event.Backend, 700)
			e.Release()
			_ = mod.Close()
			_ = s.Close()
			_ = d.Close()
			if n := ctl.Get("depth"); n != 0 {
				t.Errorf("context stack %d deep", n)
			}
		})
	}
}

// Teardown after the context went away by itself (process exit, a device reset
// by other code): not an error, whichever way the driver says it.
func TestTeardownTolerance(t *testing.T) {
	for _, st := range []int64{4, 201, 709} {
		t.Run(fmt.Sprint(st), func(t *testing.T) {
			path := standin.Build(t, "cuda")
			ctl := standin.Open(t, path)
			d := must[driver.Device](t)(New(Config{Library: path}).Open(0)).(*Device)
			host := must[uintptr](t)(d.AllocHost(64))
			mem := must[driver.Mem](t)(d.Alloc(64))
			s := must[driver.Stream](t)(d.NewStream()).(*Stream)
			e := must[driver.Event](t)(s.Record())
			mod := must[*Module](t)(d.LoadModule(standin.Kernels))
			check(t, d.Retain())
			ctl.Set("destroyed", st)
			want(t, d.Status(), event.Backend, st)
			_, err := s.Query()
			want(t, err, event.Backend, st)
			e.Release()
			check(t, mod.Close())
			check(t, s.Close())
			check(t, d.Free(mem))
			check(t, d.Settle())
			check(t, d.FreeHost(host))
			check(t, d.Release())
			check(t, d.Close())
		})
	}
}

// What is used after the last reference does not reach the driver.
func TestUseAfterClose(t *testing.T) {
	path := standin.Build(t, "cuda")
	ctl := standin.Open(t, path)
	d := must[driver.Device](t)(New(Config{Library: path}).Open(0)).(*Device)
	s := must[driver.Stream](t)(d.NewStream()).(*Stream)
	host := must[uintptr](t)(d.AllocHost(64))
	check(t, d.Retain())
	check(t, s.Close())
	check(t, s.Close())
	check(t, d.Close())
	check(t, d.Close())
	// The domain outlives the device for as long as it is retained.
	must[uint64](t)(d.DeviceAddr(host))
	check(t, d.Settle())
	check(t, d.FreeHost(host))
	check(t, d.Release())
	for name, err := range map[string]error{
		"Retain":      d.Retain(),
		"Release":     d.Release(),
		"Status":      d.Status(),
		"Store":       s.Store(0, 8, 1),
		"Sync":        s.Sync(),
		"Call":        d.Call("cuCtxSynchronize"),
		"Query":       second(s.Query()),
		"Capturing":   second(s.Capturing()),
		"Record":      second(s.Record()),
		"AllocHost":   second(d.AllocHost(64)),
		"DeviceAddr":  second(d.DeviceAddr(host)),
		"Alloc":       second(d.Alloc(64)),
		"NewStream":   second(d.NewStream()),
		"AdoptStream": second(d.AdoptStream(1)),
		"LoadModule":  second(d.LoadModule(standin.Kernels)),
	} {
		if !errors.Is(err, event.Closed) {
			t.Errorf("%s after the last reference: %v", name, err)
		}
	}
	check(t, d.FreeHost(host)) // gone with the context
	noLeak(t, ctl)
}

func second[T any](_ T, err error) error { return err }

// A query that the driver never returns from must not hold up Close; the handle
// is destroyed once the query does return.
func TestCloseUnderBlockedQuery(t *testing.T) {
	path := standin.Build(t, "cuda")
	ctl := standin.Open(t, path)
	d := must[driver.Device](t)(New(Config{Library: path}).Open(0)).(*Device)
	s := must[driver.Stream](t)(d.NewStream()).(*Stream)
	ctl.Set("query_block", 1)
	var wg sync.WaitGroup
	wg.Add(2)
	go func() { defer wg.Done(); _, _ = s.Query() }()
	go func() { defer wg.Done(); _ = d.Status() }()
	wait(t, "both queries are inside", func() bool { return ctl.Get("calls:cuStreamQuery") == 2 })
	check(t, s.Close())
	check(t, d.Retain()) // what a page does
	check(t, d.Close())
	if ctl.Get("streams") != 2 {
		t.Error("a stream was destroyed under a query")
	}
	ctl.Set("query_block", 0)
	wg.Wait()
	if n := ctl.Get("streams"); n != 0 {
		t.Errorf("%d streams left after the last call returned", n)
	}
	check(t, d.Release())
	noLeak(t, ctl)
}

func TestDevices(t *testing.T) {
	path := standin.Build(t, "cuda")
	ctl := standin.Open(t, path)
	drv := New(Config{Library: path})
	if drv.Name() != "cuda" {
		t.Error(drv.Name())
	}
	infos := must[[]driver.Info](t)(drv.Devices())
	if len(infos) != 2 || infos[1] != (driver.Info{Driver: "cuda", Ordinal: 1, Name: "Stand-in CUDA device 1", Version: "12.4"}) {
		t.Errorf("%+v", infos)
	}
	for _, o := range []int{-1, 2} {
		if _, err := drv.Open(o); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("Open(%d): %v", o, err)
		}
	}
	ctl.Set("fail:cuStreamCreate", 2)
	_, err := drv.Open(0)
	want(t, err, event.Backend, 2)
	ctl.Set("fail:cuStreamCreate", 0)
	ctl.Set("fail:cuDevicePrimaryCtxRetain", 101)
	_, err = drv.Open(0)
	want(t, err, event.Backend, 101)
	ctl.Set("fail:cuDevicePrimaryCtxRetain", 0)
	noLeak(t, ctl)

	ctl.Set("count_status", 100)
	_, err = drv.Devices()
	want(t, err, event.NoDevice, 100)
	ctl.Set("count_status", 0)
	ctl.Set("devices", 0)
	_, err = drv.Devices()
	if !errors.Is(err, event.NoDevice) {
		t.Errorf("no devices: %v", err)
	}
	_, err = drv.Open(0)
	if !errors.Is(err, event.NoDevice) {
		t.Errorf("open without devices: %v", err)
	}
}

// A failed start is not remembered.
func TestInitFailures(t *testing.T) {
	path := standin.Build(t, "cuda")
	ctl := standin.Open(t, path)
	drv := New(Config{Library: path})
	ctl.Set("init_status", 100)
	_, err := drv.Devices()
	want(t, err, event.NoDevice, 100)
	ctl.Set("init_status", 999)
	_, err = drv.Devices()
	want(t, err, event.Backend, 999)
	ctl.Set("init_status", 0)
	must[[]driver.Info](t)(drv.Devices())
}

func TestNoLibrary(t *testing.T) {
	if !clib.Supported {
		t.Skip("no library is opened here")
	}
	_, err := New(Config{Library: "/nonexistent/libcuda.so.1"}).Devices()
	want(t, err, event.DriverMissing, event.StatusMissing)
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/libcuda.so.1") {
		t.Errorf("%v", err)
	}
	if _, err := New(Config{Library: "/nonexistent/libcuda.so.1"}).Open(0); !errors.Is(err, event.DriverMissing) {
		t.Errorf("%v", err)
	}
	// A file that is there and is no library.
	p := t.TempDir() + "/libcuda.so.1"
	check(t, os.WriteFile(p, []byte("not a library"), 0o600))
	_, err = New(Config{Library: p}).Devices()
	want(t, err, event.DriverMissing, event.StatusMissing)
}

func TestCall(t *testing.T) {
	d, _ := open(t)
	check(t, d.Call("cuCtxSynchronize"))
	want(t, d.Call("cuNoSuchCall"), event.NotSupported, event.StatusMissing)
	if err := d.Call("cuCtxSynchronize", make([]uintptr, 17)...); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("%v", err)
	}
}

// The paths that run for every wait do not allocate.
func TestHotPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop objects, and it allocates itself")
	}
	d, _ := open(t)
	_, host, dev := word(t, d)
	s := stream(t, d)
	seq := uint64(0)
	for name, f := range map[string]func(){
		"Store":         func() { seq++; check(t, s.Store(host, dev, seq)) },
		"Query pending": func() { _, _ = s.Query() },
		"Status":        func() { check(t, d.Status()) },
		"Capturing":     func() { _, _ = s.Capturing() },
	} {
		if n := testing.AllocsPerRun(200, f); n > 0.1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	check(t, s.Sync())
}

func benchmark(b *testing.B, f func(s *Stream, host uintptr, dev uint64)) {
	d, _ := open(b)
	_, host, dev := word(b, d)
	s := stream(b, d)
	b.ReportAllocs()
	for b.Loop() {
		f(s, host, dev)
	}
	check(b, s.Sync())
}

// The stand-in's own cost, a mutex per call, is included.
func BenchmarkStore(b *testing.B) {
	benchmark(b, func(s *Stream, host uintptr, dev uint64) { _ = s.Store(host, dev, 1) })
}

func BenchmarkQuery(b *testing.B) {
	benchmark(b, func(s *Stream, _ uintptr, _ uint64) { _, _ = s.Query() })
}

func BenchmarkStatus(b *testing.B) {
	benchmark(b, func(s *Stream, _ uintptr, _ uint64) { _ = s.dev.Status() })
}

// The two ways to make a context current and put the old one back, on a thread
// that has none: bind uses the first.
func BenchmarkBind(b *testing.B) {
	d, _ := open(b)
	get, set := d.api.lib.Sym("cuCtxGetCurrent"), d.api.lib.Sym("cuCtxSetCurrent")
	f := clib.Get()
	defer f.Put()
	b.Run("push, pop", func(b *testing.B) {
		for b.Loop() {
			d.bind(f)
			d.unbind(f)
		}
	})
	b.Run("get, set, set", func(b *testing.B) {
		for b.Loop() {
			runtime.LockOSThread()
			f.Call(get, f.At(0))
			f.Call(set, d.ctx)
			f.Call(set, uintptr(f.Out[0]))
			runtime.UnlockOSThread()
		}
	})
}
