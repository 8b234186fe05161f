package opencl_test

import (
	"errors"
	"io"
	"math/bits"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/opencl"
)

func TestMissingLibrary(t *testing.T) {
	drv := opencl.New(opencl.Config{Library: "libgpuline-no-such-thing.so.9"})
	if drv.Name() != "opencl" {
		t.Errorf("Name() = %q", drv.Name())
	}
	_, err := drv.Devices()
	wantCode(t, "Devices", err, event.DriverMissing)
	if event.StatusOf(err) != event.StatusMissing {
		t.Errorf("status %d", event.StatusOf(err))
	}
	_, err = drv.Open(0)
	wantCode(t, "Open", err, event.DriverMissing)
	_, err = drv.OpenContext(1, 0)
	wantCode(t, "OpenContext", err, event.DriverMissing)
	if runtime.GOOS == "linux" {
		// A library that is there, but is no OpenCL: the error names what it lacks.
		_, err = opencl.New(opencl.Config{Library: "libc.so.6"}).Devices()
		wantCode(t, "libc", err, event.DriverMissing)
	}
}

// Each missing entry point is named; those of later versions may be missing.
func TestMissingEntryPoints(t *testing.T) {
	for name, optional := range opencl.Entries() {
		err := opencl.Missing(name)
		if optional {
			must(t, err)
			continue
		}
		wantCode(t, name, err, event.DriverMissing)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestReasonsForNoStore(t *testing.T) {
	device(t)
	for want, l := range map[string]opencl.Limited{
		"coarse-grained": {SVM: 1},
		"clSVMAlloc":     {SVM: ^uint64(0), Lack: "SVM"},
		"is 0":           {SVM: 0},
	} {
		l.Driver = opencl.New(opencl.Config{})
		d, err := l.Open(0)
		must(t, err)
		if c := d.Caps(); c.StreamStore || !strings.Contains(c.NoStore, want) || !c.Events {
			t.Errorf("caps %+v, want a reason with %q", c, want)
		}
		_, err = d.AllocHost(64)
		wantCode(t, "AllocHost", err, event.NotSupported)
		if _, err = d.Alloc(64); want != "coarse-grained" {
			wantCode(t, "Alloc", err, event.NotSupported)
		}
		must(t, d.Close())
	}
}

func TestDevices(t *testing.T) {
	d := device(t)
	infos, err := opencl.New(opencl.Config{}).Devices()
	must(t, err)
	for i, info := range infos {
		if info.Ordinal != i || info.Driver != "opencl" || info.Name == "" || info.Version == "" {
			t.Errorf("device %d: %+v", i, info)
		}
	}
	if infos[0] != d.Info() {
		t.Errorf("the open device says %+v, the list %+v", d.Info(), infos[0])
	}
	for _, n := range []int{-1, len(infos)} {
		_, err := opencl.New(opencl.Config{}).Open(n)
		wantCode(t, "ordinal out of range", err, event.NoDevice)
	}
	c := d.Caps()
	if c.StreamStore == (c.NoStore != "") || c.WordProves || c.WhyProves == "" || !c.Events || c.Capture {
		t.Errorf("caps %+v", c)
	}
}

func TestMemory(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	const n = 100_000
	m := alloc(t, d, n)
	src, dst := make([]byte, n), make([]byte, n)
	for i := range src {
		src[i] = byte(i * 7)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&src[0])
	pin.Pin(&dst[0])
	must(t, s.CopyToDevice(m, unsafe.Pointer(&src[0]), n))
	must(t, s.Fill(m+1000, 0xAB, 3))
	must(t, s.CopyToHost(unsafe.Pointer(&dst[0]), m, n))
	must(t, s.Sync())
	copy(src[1000:], []byte{0xAB, 0xAB, 0xAB})
	for i := range src {
		if src[i] != dst[i] {
			t.Fatalf("byte %d is %#x, want %#x", i, dst[i], src[i])
		}
	}

	p := unsafe.Pointer(&src[0])
	for what, err := range map[string]error{
		"range that sticks out":     s.Fill(m+1, 0, n),
		"huge length":               s.Fill(m, 0, int(^uint(0)>>1)),
		"address before":            s.Fill(m-1, 0, 1),
		"address behind":            s.Fill(m+n, 0, 1),
		"null":                      s.Fill(0, 0, 1),
		"negative length":           s.Fill(m, 0, -1),
		"copy that sticks out":      s.CopyToDevice(m+n-1, p, 2),
		"copy back that sticks out": s.CopyToHost(p, m+n-1, 2),
		"copy from nil":             s.CopyToDevice(m, nil, 1),
		"copy to nil":               s.CopyToHost(nil, m, 1),
		"store to null":             s.Store(0, 0, 1),
		"misaligned store":          s.Store(uintptr(m)+4, uint64(m)+4, 1),
		"free of an inner address":  d.Free(m + 8),
		"free of null":              d.Free(0),
		"free as a host page":       d.FreeHost(uintptr(m)),
	} {
		wantCode(t, what, err, event.InvalidArgument)
	}
	must(t, s.Fill(m, 0, 0))
	must(t, s.CopyToDevice(m, nil, 0))
	must(t, s.Sync())

	for _, n := range []int{0, -1, int(^uint(0) >> 1)} {
		_, err := d.Alloc(n)
		wantCode(t, "Alloc", err, event.InvalidArgument)
		_, err = d.AllocHost(n)
		wantCode(t, "AllocHost", err, event.InvalidArgument)
	}
	if huge := uint64(1) << 50; bits.UintSize == 64 {
		_, err := d.Alloc(int(huge))
		wantCode(t, "more memory than there is", err, event.Backend)
	}

	host, err := d.AllocHost(100)
	must(t, err)
	if host%uintptr(os.Getpagesize()) != 0 {
		t.Errorf("host page at %#x", host)
	}
	dev, err := d.DeviceAddr(host + 64)
	must(t, err)
	if dev != uint64(host)+64 {
		t.Errorf("DeviceAddr = %#x", dev)
	}
	wantCode(t, "host page freed as memory", d.Free(driver.Mem(host)), event.InvalidArgument)
	must(t, d.FreeHost(host))
	wantCode(t, "second free", d.FreeHost(host), event.InvalidArgument)
	_, err = d.DeviceAddr(host)
	wantCode(t, "address of freed memory", err, event.InvalidArgument)
}

func TestUseAfterClose(t *testing.T) {
	d := device(t)
	ds, err := d.NewStream()
	must(t, err)
	s, _ := opencl.Of(ds)
	k := kernel(t, d, "put")
	m := alloc(t, d, 64)
	page, _ := words(t, d)
	must(t, s.Close())
	var none *opencl.Stream
	var noDevice *opencl.Device
	var noProgram *opencl.Program
	var noKernel *opencl.Kernel
	buf := make([]byte, 8)
	for _, s := range []*opencl.Stream{s, none} {
		_, q := s.Query()
		_, c := s.Capturing()
		_, r := s.Record()
		_, g := s.Gate()
		for what, err := range map[string]error{
			"Query": q, "Capturing": c, "Record": r, "Gate": g, "Sync": s.Sync(),
			"Store": s.Store(page, uint64(page), 1), "Fill": s.Fill(m, 0, 1),
			"CopyToDevice": s.CopyToDevice(m, unsafe.Pointer(&buf[0]), 1),
			"CopyToHost":   s.CopyToHost(unsafe.Pointer(&buf[0]), m, 1),
			"Launch":       s.Launch(k, []int{1}, nil, m, uint32(1), uint32(1)),
		} {
			wantCode(t, what, err, event.Closed)
		}
		if s.Handle() != 0 {
			t.Error("a closed stream has a handle")
		}
	}
	wantCode(t, "Close of nil", none.Close(), event.Closed)
	must(t, s.Close())

	own := ownDevice(t)
	must(t, own.Close())
	for _, d := range []*opencl.Device{own, noDevice} {
		_, n := d.NewStream()
		_, a := d.AdoptStream(1)
		_, m := d.Alloc(8)
		_, h := d.AllocHost(8)
		_, da := d.DeviceAddr(4096)
		_, b := d.Build(source, "")
		for what, err := range map[string]error{
			"NewStream": n, "AdoptStream": a, "Alloc": m, "AllocHost": h, "DeviceAddr": da, "Build": b,
			"Free": d.Free(1), "FreeHost": d.FreeHost(4096), "Settle": d.Settle(), "Status": d.Status(),
			"Retain": d.Retain(), "Release": d.Release(),
		} {
			wantCode(t, what, err, event.Closed)
		}
		_, _, _ = d.Info(), d.Caps(), d.Context()+d.ID()
	}
	wantCode(t, "Close of nil", noDevice.Close(), event.Closed)
	_, err = noProgram.Kernel("k")
	wantCode(t, "kernel of nil", err, event.Closed)
	wantCode(t, "Close of nil", noProgram.Close(), event.Closed)
	wantCode(t, "Close of nil", noKernel.Close(), event.Closed)
}

func TestOf(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	for _, x := range []any{s, driver.Stream(s), wrapped{s: s}} {
		if got, ok := opencl.Of(x); !ok || got != s {
			t.Errorf("Of(%T) = %v, %v", x, got, ok)
		}
	}
	for _, x := range []any{d, driver.Device(d), wrappedDevice{d}} {
		if got, ok := opencl.DeviceOf(x); !ok || got != d {
			t.Errorf("DeviceOf(%T) = %v, %v", x, got, ok)
		}
	}
	for _, x := range []any{nil, 1, d, (*opencl.Stream)(nil), wrapped{}} {
		if _, ok := opencl.Of(x); ok {
			t.Errorf("Of(%T) is a stream", x)
		}
	}
	for _, x := range []any{nil, s, (*opencl.Device)(nil), wrappedDevice{}} {
		if _, ok := opencl.DeviceOf(x); ok {
			t.Errorf("DeviceOf(%T) is a device", x)
		}
	}
}

type wrapped struct{ s driver.Stream }

func (w wrapped) Driver() driver.Stream { return w.s }

type wrappedDevice struct{ d driver.Device }

func (w wrappedDevice) Driver() driver.Device { return w.d }

// Status queries, syncs and closes go on beside the enqueues, and a queue is not
// released under any of them.
func TestConcurrentUse(t *testing.T) {
	d := device(t)
	page, _ := words(t, d)
	m := alloc(t, d, 4096)
	for round := range 30 {
		s := stream(t, d)
		if round%2 == 0 {
			s.Handle() // now Query puts markers
		}
		var wg sync.WaitGroup
		run := func(n int, f func() error) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range n {
					if err := f(); err != nil && !errors.Is(err, event.Closed) {
						t.Error(err)
						return
					}
				}
			}()
		}
		run(100, func() error { return s.Store(page, uint64(page), 1) })
		run(100, func() error { return s.Fill(m, 1, 4096) })
		run(100, func() error { _, err := s.Query(); return err })
		run(20, s.Sync)
		run(50, d.Status)
		run(5, d.Settle)
		run(50, func() error {
			ev, err := s.Record()
			if err != nil {
				return err
			}
			_, err = ev.Query()
			ev.Release()
			return err
		})
		if round%5 != 4 {
			run(1, func() error {
				for range 100 * (round % 5) {
					runtime.Gosched()
				}
				return s.Close()
			})
		}
		wg.Wait()
	}
	must(t, d.Settle())
}

// Many commands of one stream may be pending at once; a query does a bounded part
// of the book-keeping.
func TestManyPending(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	page, lines := words(t, d)
	open, err := s.Gate()
	must(t, err)
	const n = 5000
	for i := uint64(1); i <= n; i++ {
		must(t, s.Store(page, uint64(page), i))
	}
	if done, err := s.Query(); done || err != nil {
		t.Fatalf("Query: %v, %v", done, err)
	}
	must(t, open(0))
	await(t, &lines[0][0], n)
	must(t, s.Sync())
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("Query after Sync: %v, %v", done, err)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop what it is given")
	}
	d := device(t)
	s := stream(t, d)
	page, _ := words(t, d)
	var seq uint64
	n := testing.AllocsPerRun(2000, func() {
		seq++
		if err := s.Store(page, uint64(page), seq); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Query(); err != nil {
			t.Fatal(err)
		}
	})
	if n >= 1 {
		t.Errorf("%v allocations per store and query", n)
	}
}

func BenchmarkStore(b *testing.B) {
	d := device(b)
	s := stream(b, d)
	page, _ := words(b, d)
	b.ReportAllocs()
	var seq uint64
	for b.Loop() {
		// Behind a gate the pure cost is seen; opened now and then, as the queue
		// would grow without bound.
		b.StopTimer()
		open, err := s.Gate()
		must(b, err)
		b.StartTimer()
		for range 512 {
			seq++
			if err := s.Store(page, uint64(page), seq); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		must(b, open(0))
		must(b, s.Sync())
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(seq), "ns/store")
}

func BenchmarkQuery(b *testing.B) {
	d := device(b)
	s := stream(b, d)
	open, err := s.Gate()
	must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Query(); err != nil {
			b.Fatal(err)
		}
	}
	must(b, open(0))
}

// The example has no Output comment, since it needs a device; so it is run here.
func TestExample(t *testing.T) {
	device(t)
	r, w, err := os.Pipe()
	must(t, err)
	stdout := os.Stdout
	os.Stdout = w
	Example()
	os.Stdout = stdout
	must(t, w.Close())
	got, err := io.ReadAll(r)
	must(t, err)
	if string(got) != "[0 1 4 9 16 25 36 49]\n" {
		t.Errorf("the example printed %q", got)
	}
}
