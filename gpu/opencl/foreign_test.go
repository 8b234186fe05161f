//go:build linux && (amd64 || arm64)

package opencl_test

import (
	"errors"
	"os"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/opencl"
	"github.com/gpuline/gpuline/line"
)

// foreign is another OpenCL binding in the same process: it opens the library by
// itself and shares nothing with package opencl but the handles. Its functions are
// called the slow way.
type foreign struct {
	createContext func(props, n uintptr, devs *uintptr, notify, user uintptr, rc *int32) uintptr
	createQueue   func(ctx, dev uintptr, props uint64, rc *int32) uintptr
	queueInfo     func(q uintptr, what uint32, n uintptr, v *uint64, ret uintptr) int32
	contextInfo   func(c uintptr, what uint32, n uintptr, v *uint64, ret uintptr) int32
	releaseQueue  func(q uintptr) int32
	releaseCtx    func(c uintptr) int32
	userEvent     func(ctx uintptr, rc *int32) uintptr
	setUser       func(ev uintptr, status int32) int32
	marker        func(q uintptr, n uint32, wait *uintptr, ev *uintptr) int32
	fill          func(q, dst uintptr, pattern *uint64, size, n uintptr, nwait uint32, wait uintptr, ev *uintptr) int32
	releaseEvent  func(ev uintptr) int32
	finish        func(q uintptr) int32
}

func newForeign(t testing.TB) *foreign {
	t.Helper()
	lib, err := purego.Dlopen("libOpenCL.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	f := new(foreign)
	for name, fn := range map[string]any{
		"clCreateContext": &f.createContext, "clCreateCommandQueue": &f.createQueue,
		"clGetCommandQueueInfo": &f.queueInfo, "clGetContextInfo": &f.contextInfo,
		"clReleaseCommandQueue": &f.releaseQueue,
		"clReleaseContext":      &f.releaseCtx,
		"clCreateUserEvent":     &f.userEvent, "clSetUserEventStatus": &f.setUser,
		"clEnqueueMarkerWithWaitList": &f.marker, "clEnqueueSVMMemFill": &f.fill,
		"clReleaseEvent": &f.releaseEvent, "clFinish": &f.finish,
	} {
		purego.RegisterLibFunc(fn, lib, name)
	}
	return f
}

const (
	queueReferenceCount   = 0x1092
	contextReferenceCount = 0x1080
)

func (f *foreign) queue(t testing.TB, ctx, dev uintptr, props uint64) uintptr {
	t.Helper()
	var rc int32
	q := f.createQueue(ctx, dev, props, &rc)
	if rc != 0 {
		t.Fatalf("clCreateCommandQueue: %d", rc)
	}
	return q
}

func (f *foreign) refs(t testing.TB, q uintptr) uint64 {
	t.Helper()
	var n uint64
	if rc := f.queueInfo(q, queueReferenceCount, 4, &n, 0); rc != 0 {
		t.Fatalf("clGetCommandQueueInfo: %d", rc)
	}
	return n
}

func (f *foreign) contextRefs(t testing.TB, c uintptr) uint64 {
	t.Helper()
	var n uint64
	if rc := f.contextInfo(c, contextReferenceCount, 4, &n, 0); rc != 0 {
		t.Fatalf("clGetContextInfo: %d", rc)
	}
	return n
}

// gate holds the queue until open is called. The events are released at the end
// of the test: see Stream.queued for why not earlier.
func (f *foreign) gate(t testing.TB, ctx, q uintptr) (open func(status int32)) {
	t.Helper()
	var rc int32
	user := f.userEvent(ctx, &rc)
	var ev uintptr
	if rc != 0 || f.marker(q, 1, &user, &ev) != 0 {
		t.Fatal("foreign gate")
	}
	t.Cleanup(func() { f.releaseEvent(user); f.releaseEvent(ev) })
	return func(status int32) {
		if rc := f.setUser(user, status); rc != 0 {
			t.Errorf("clSetUserEventStatus: %d", rc)
		}
	}
}

func TestAdopt(t *testing.T) {
	d := ownDevice(t)
	f := newForeign(t)
	q := f.queue(t, d.Context(), d.ID(), 0)
	page, lines := words(t, d)
	mem := alloc(t, d, 8*1024)
	data := view[uint64](mem, 1024)
	var refs uint64
	for round := range 20 {
		ds, err := d.AdoptStream(q)
		must(t, err)
		s, ok := opencl.Of(ds)
		if !ok || s.Handle() != q || s.Device() != d {
			t.Fatalf("adopted stream: %v, handle %#x, want %#x", ok, s.Handle(), q)
		}
		for i := range uint64(10) {
			v := uint64(round)*10 + i + 1
			if rc := f.fill(q, uintptr(mem), &v, 8, 8*1024, 0, 0, nil); rc != 0 {
				t.Fatalf("foreign fill: %d", rc)
			}
			must(t, s.Store(page, uint64(page), v))
			await(t, &lines[0][0], v)
			for i, got := range data {
				if got != v {
					t.Fatalf("item %d is %d when the word is %d", i, got, v)
				}
			}
		}
		must(t, s.Sync())
		must(t, until(t, s))
		must(t, s.Close())
		if s.Handle() != 0 {
			t.Error("a closed stream still has a handle")
		}
		must(t, d.Settle())
		if open, closing := d.Streams(); open+closing != 0 {
			t.Errorf("%d streams open and %d closing after Close and Settle", open, closing)
		}
		// Streams and events have a reference on the queue each. PoCL 6.0 itself
		// keeps the last event, so what matters is that nothing adds up.
		switch n := f.refs(t, q); round {
		case 4:
			refs = n
		case 19:
			if n > refs+2 {
				t.Errorf("%d references on the queue after 20 rounds, %d after 5", n, refs)
			}
		}
	}
	// The queue is its owner's again.
	five := uint64(5)
	if rc := f.fill(q, uintptr(mem), &five, 8, 8, 0, 0, nil); rc != 0 || f.finish(q) != 0 || data[0] != 5 {
		t.Errorf("the queue does not work after Close: %d, %d", rc, data[0])
	}
	f.releaseQueue(q)
}

// A foreign owner may give up its own reference while the stream is adopted.
func TestAdoptOutlivesOwner(t *testing.T) {
	d := device(t)
	f := newForeign(t)
	q := f.queue(t, d.Context(), d.ID(), 0)
	s, err := d.AdoptStream(q)
	must(t, err)
	f.releaseQueue(q)
	page, lines := words(t, d)
	must(t, s.Store(page, uint64(page), 3))
	await(t, &lines[0][0], 3)
	must(t, s.Sync())
	must(t, s.Close())
}

func TestAdoptRefusals(t *testing.T) {
	d := device(t)
	f := newForeign(t)
	_, err := d.AdoptStream(0)
	wantCode(t, "null handle", err, event.InvalidArgument)

	ooo := f.queue(t, d.Context(), d.ID(), 1)
	defer f.releaseQueue(ooo)
	_, err = d.AdoptStream(ooo)
	wantCode(t, "out-of-order queue", err, event.NotSupported)
	if n := f.refs(t, ooo); n != 1 {
		t.Errorf("a refused queue has %d references", n)
	}

	var rc int32
	dev := d.ID()
	ctx := f.createContext(0, 1, &dev, 0, 0, &rc)
	if rc != 0 {
		t.Fatalf("clCreateContext: %d", rc)
	}
	defer f.releaseCtx(ctx)
	alien := f.queue(t, ctx, dev, 0)
	defer f.releaseQueue(alien)
	_, err = d.AdoptStream(alien)
	wantCode(t, "queue of another context", err, event.ForeignStream)
	if event.StatusOf(err) != event.StatusForeign {
		t.Errorf("status %d, want %d", event.StatusOf(err), event.StatusForeign)
	}
}

// A binding that has a context of its own: the device is opened over it.
func TestOpenQueue(t *testing.T) {
	d := device(t)
	f := newForeign(t)
	var rc int32
	dev := d.ID()
	ctx := f.createContext(0, 1, &dev, 0, 0, &rc)
	if rc != 0 {
		t.Fatalf("clCreateContext: %d", rc)
	}
	t.Cleanup(func() { f.releaseCtx(ctx) })
	q := f.queue(t, ctx, dev, 0)
	t.Cleanup(func() { f.releaseQueue(q) })
	before := f.contextRefs(t, ctx)

	drv := opencl.New(opencl.Config{})
	od, err := drv.OpenQueue(q)
	must(t, err)
	t.Cleanup(func() { must(t, od.Close()) }) // after the page was freed
	if od.Context() != ctx || od.ID() != dev || od.Info() != d.Info() {
		t.Errorf("opened %+v over context %#x, want %+v over %#x", od.Info(), od.Context(), d.Info(), ctx)
	}
	s, err := od.AdoptStream(q)
	must(t, err)
	page, lines := words(t, od)
	must(t, s.Store(page, uint64(page), 9))
	await(t, &lines[0][0], 9)
	must(t, s.Sync())
	must(t, s.Close())

	_, err = drv.OpenContext(0, 0)
	wantCode(t, "null context", err, event.InvalidArgument)
	_, err = drv.OpenQueue(0)
	wantCode(t, "null queue", err, event.InvalidArgument)
	_, err = drv.OpenContext(ctx, ctx)
	wantCode(t, "device that is not in the context", err, event.InvalidArgument)
	od2, err := drv.OpenContext(ctx, 0)
	must(t, err)
	if od2.ID() != dev {
		t.Error("device 0 is the context's first")
	}
	must(t, od2.Retain())
	must(t, od2.Close())
	must(t, od2.Close())
	if n := f.contextRefs(t, ctx); n <= before {
		t.Errorf("%d references on the context: Retain must keep it", n)
	}
	must(t, od2.Release())
	wantCode(t, "one Release too many", od2.Release(), event.Closed)
	wantCode(t, "Retain of a released context", od2.Retain(), event.Closed)
}

// Query on a shared queue counts work that only its owner knows of, however old
// the marker before it.
func TestQuerySeesForeignWork(t *testing.T) {
	d := device(t)
	f := newForeign(t)
	for _, adopted := range []bool{true, false} {
		var q uintptr
		var s *opencl.Stream
		if adopted {
			q = f.queue(t, d.Context(), d.ID(), 0)
			defer f.releaseQueue(q)
			ds, err := d.AdoptStream(q)
			must(t, err)
			s, _ = opencl.Of(ds)
		} else {
			s = stream(t, d)
			q = s.Handle()
		}
		for range 20 {
			// Leave a marker of an earlier round behind, complete or not.
			if _, err := s.Query(); err != nil {
				t.Fatal(err)
			}
			open := f.gate(t, d.Context(), q)
			for range 5 {
				if done, err := s.Query(); done || err != nil {
					t.Fatalf("adopted %v: Query behind a foreign gate: %v, %v", adopted, done, err)
				}
			}
			must(t, d.Status())
			open(0)
			must(t, until(t, s))
		}
		must(t, s.Close())
	}
}

func TestForeignPoison(t *testing.T) {
	d := ownDevice(t)
	f := newForeign(t)
	q := f.queue(t, d.Context(), d.ID(), 0)
	defer f.releaseQueue(q)
	s, err := d.AdoptStream(q)
	must(t, err)
	open := f.gate(t, d.Context(), q)
	if done, err := s.Query(); done || err != nil {
		t.Fatalf("Query: %v, %v", done, err)
	}
	open(-7)
	wantCode(t, "Status", d.Status(), event.WorkFailed)
	_, err = s.Query()
	wantCode(t, "Query", err, event.WorkFailed)
	wantCode(t, "Sync", s.Sync(), event.WorkFailed)
	must(t, s.Close())
	must(t, d.Settle())
}

// Close does not wait, and does not lose sight of the work either.
func TestCloseUnderWork(t *testing.T) {
	dd, err := opencl.New(opencl.Config{}).Open(0)
	device(t)
	must(t, err)
	d, _ := opencl.DeviceOf(dd)
	host, err := d.AllocHost(1)
	must(t, err)
	lines, err := line.FromAddr(host, os.Getpagesize())
	must(t, err)
	lines[0][0].Zero()

	s := stream(t, d)
	open, err := s.Gate()
	must(t, err)
	must(t, s.Store(host, uint64(host), 4))
	must(t, s.Close())
	must(t, s.Close())
	if lines[0][0].Load() != 0 {
		t.Fatal("the store passed the gate")
	}
	settled := make(chan error, 1)
	go func() { settled <- d.Settle() }()
	select {
	case err := <-settled:
		t.Fatalf("Settle returned (%v) with a store behind a closed gate", err)
	default:
	}
	must(t, open(0))
	must(t, <-settled)
	if v := lines[0][0].Load(); v != 4 {
		t.Errorf("after Settle the word is %d", v)
	}
	if open, closing := d.Streams(); open+closing != 0 {
		t.Errorf("%d streams open and %d closing after Settle", open, closing)
	}
	must(t, d.FreeHost(host))
	must(t, d.Close())
}

// A device that is closed over unfinished work says that it gives a queue up.
func TestCloseLeaksBehindGate(t *testing.T) {
	device(t)
	dd, err := opencl.New(opencl.Config{}).Open(0)
	must(t, err)
	d, _ := opencl.DeviceOf(dd)
	s := stream(t, d)
	open, err := s.Gate()
	must(t, err)
	must(t, s.Close())
	wantCode(t, "Close over a closed gate", d.Close(), event.Leaked)
	must(t, open(0))
	_, err = d.NewStream()
	wantCode(t, "NewStream after Close", err, event.Closed)
	if _, err := d.Alloc(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Alloc after Close: %v", err)
	}
}
