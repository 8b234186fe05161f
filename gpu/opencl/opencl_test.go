package opencl_test

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/opencl"
	"github.com/gpuline/gpuline/line"
)

// The tests run on whatever OpenCL is installed; CI installs PoCL and sets
// GPULINE_REQUIRE=opencl, so that nothing is skipped there.

func TestMain(m *testing.M) {
	if mode := os.Getenv("GPULINE_TEST_CHILD"); mode != "" {
		child(mode)
		return
	}
	os.Exit(func() int {
		// A cache of its own: the user's may be missing, read-only or full.
		if dir, err := os.MkdirTemp("", "gpuline-pocl"); err == nil {
			defer os.RemoveAll(dir)
			os.Setenv("POCL_CACHE_DIR", dir)
		}
		code := m.Run()
		if code == 0 {
			if err := goleak.Find(); err != nil {
				println(err.Error())
				code = 1
			}
		}
		return code
	}())
}

func required() bool {
	for _, name := range strings.Split(os.Getenv("GPULINE_REQUIRE"), ",") {
		if name == "opencl" {
			return true
		}
	}
	return false
}

// One device and program serve all tests but those that break a context: loading
// PoCL and compiling with a cold cache takes seconds.
var shared = sync.OnceValues(func() (*opencl.Device, error) {
	d, err := opencl.New(opencl.Config{}).Open(0)
	if err != nil {
		return nil, err
	}
	return d.(*opencl.Device), nil
})

func device(t testing.TB) *opencl.Device {
	t.Helper()
	d, err := shared()
	if err != nil {
		if required() {
			t.Fatal(err)
		}
		t.Skipf("no OpenCL device (on Debian: apt-get install pocl-opencl-icd ocl-icd-libopencl1): %v", err)
	}
	return d
}

// ownDevice is for tests that poison a context or count references.
func ownDevice(t testing.TB) *opencl.Device {
	t.Helper()
	device(t)
	d, err := opencl.New(opencl.Config{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d.(*opencl.Device)
}

const source = `
__kernel void put(__global uint *p, uint v, uint spin) {
	uint x = v;
	for (uint i = 0; i < spin; i++) x = x * 1664525u + 1013904223u;
	// Always v, but the compiler can't know that the loop has no effect.
	p[get_global_id(0)] = spin == 0xffffffffu ? x : v;
}
__kernel void bytes(__global uchar *p, uchar v, uint spin) {
	uint x = v;
	for (uint i = 0; i < spin; i++) x = x * 1664525u + 1013904223u;
	p[get_global_id(0)] = spin == 0xffffffffu ? x : v;
}
__kernel void div(__global int *p, int d) { p[get_global_id(0)] = p[get_global_id(0) + 64] / d; }
__kernel void sum(__global const uint *in, __global ulong *out, __local ulong *tmp, uint n) {
	ulong s = 0;
	for (uint i = get_local_id(0); i < n; i += get_local_size(0)) s += in[i];
	tmp[get_local_id(0)] = s;
	barrier(CLK_LOCAL_MEM_FENCE);
	if (get_local_id(0) == 0) {
		ulong all = 0;
		for (uint i = 0; i < get_local_size(0); i++) all += tmp[i];
		*out = all;
	}
}
__kernel void args(__global double *o, char a, uchar b, short c, ushort d, int e, uint f, long g, ulong h, float i) {
	o[0] = a; o[1] = b; o[2] = c; o[3] = d; o[4] = e; o[5] = f; o[6] = g; o[7] = h; o[8] = i;
	o[9] = get_global_size(0) * 10000 + get_global_size(1) * 100 + get_global_size(2);
	o[10] = get_local_size(0) * 10000 + get_local_size(1) * 100 + get_local_size(2);
}
`

var programs sync.Map // *opencl.Device -> *opencl.Program

func kernel(t testing.TB, d *opencl.Device, name string) *opencl.Kernel {
	t.Helper()
	p, ok := programs.Load(d)
	if !ok {
		prog, err := d.Build(source, "")
		if err != nil {
			t.Fatal(err)
		}
		p, _ = programs.LoadOrStore(d, prog)
	}
	k, err := p.(*opencl.Program).Kernel(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func stream(t testing.TB, d *opencl.Device) *opencl.Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	cl, ok := opencl.Of(s)
	if !ok {
		t.Fatalf("Of(%T) failed", s)
	}
	return cl
}

// words allocates a page of zeroed words.
func words(t testing.TB, d *opencl.Device) (host uintptr, w []line.Line) {
	t.Helper()
	size := os.Getpagesize()
	host, err := d.AllocHost(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Settle(), d.FreeHost(host)); err != nil {
			t.Error(err)
		}
	})
	lines, err := line.FromAddr(host, size)
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		for j := range lines[i] {
			lines[i][j].Zero()
		}
	}
	return host, lines
}

func alloc(t testing.TB, d *opencl.Device, n int) driver.Mem {
	t.Helper()
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Settle(), d.Free(m)); err != nil {
			t.Error(err)
		}
	})
	return m
}

// view is device memory as the host sees it: fine-grained SVM is host memory.
func view[T any](m driver.Mem, n int) []T {
	p := *(*unsafe.Pointer)(unsafe.Pointer(&m))
	return unsafe.Slice((*T)(p), n)
}

// await waits for a word. The bound is only there for a run that hangs.
func await(t testing.TB, w *line.Word, target uint64) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !w.Reached(target); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("word is %d, never reached %d", w.Load(), target)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, what string, err error, code event.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("%s: error %v, want %v", what, err, code)
	}
}

// until polls Query until it stops saying pending.
func until(t testing.TB, s driver.Stream) error {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; runtime.Gosched() {
		done, err := s.Query()
		if done || err != nil {
			return err
		}
		if time.Now().After(end) {
			t.Fatal("Query never stopped saying pending")
		}
	}
}

func TestStoresBehindKernels(t *testing.T) {
	d := device(t)
	put := kernel(t, d, "put")
	page, lines := words(t, d)
	const queues, rounds, n = 12, 60, 512
	var wrong atomic.Int64
	var wg sync.WaitGroup
	for q := range queues {
		s, mem := stream(t, d), alloc(t, d, 4*n)
		word, addr := &lines[q][0], page+uintptr(q)*line.Size
		wg.Add(1)
		go func() {
			defer wg.Done()
			data := view[uint32](mem, n)
			for r := uint64(1); r <= rounds; r++ {
				err := s.Launch(put, []int{n}, nil, mem, uint32(r), uint32(200*(r%5)))
				err = errors.Join(err, s.Store(addr, uint64(addr), r))
				if err != nil {
					t.Error(err)
					return
				}
				await(t, word, r)
				for _, v := range data {
					if v != uint32(r) {
						wrong.Add(1)
					}
				}
			}
		}()
	}
	wg.Wait()
	if wrong.Load() != 0 {
		t.Errorf("%d items were older than the word said", wrong.Load())
	}
	must(t, d.Status())
}

func TestBuildErrors(t *testing.T) {
	d := device(t)
	_, err := d.Build("__kernel void broken(__global int *p) { *p = undeclared_thing; }", "")
	wantCode(t, "bad source", err, event.Backend)
	var be *opencl.BuildError
	if !errors.As(err, &be) || !strings.Contains(be.Log, "undeclared_thing") {
		t.Errorf("the build log must name the culprit: %v", err)
	}
	if event.StatusOf(err) != -11 {
		t.Errorf("status %d, want -11", event.StatusOf(err))
	}
	_, err = d.Build("a\x00b", "")
	wantCode(t, "zero byte in source", err, event.InvalidArgument)
	_, err = d.Build("__kernel void k() {}", "-D\x00")
	wantCode(t, "zero byte in options", err, event.InvalidArgument)

	p, err := d.Build("__kernel void k(__global int *p) { *p = VALUE; }", "-D VALUE=77")
	must(t, err)
	_, err = p.Kernel("nope")
	wantCode(t, "missing kernel", err, event.Backend)
	if event.StatusOf(err) != -46 {
		t.Errorf("status %d, want -46", event.StatusOf(err))
	}
	k, err := p.Kernel("k")
	must(t, err)
	if k.Name() != "k" {
		t.Errorf("Name() = %q", k.Name())
	}
	must(t, p.Close())
	must(t, p.Close())
	_, err = p.Kernel("k")
	wantCode(t, "kernel of a closed program", err, event.Closed)

	// The kernel outlives its program, and the option arrived.
	s, mem := stream(t, d), alloc(t, d, 4)
	must(t, s.Launch(k, []int{1}, nil, mem))
	must(t, s.Sync())
	if v := view[int32](mem, 1)[0]; v != 77 {
		t.Errorf("kernel wrote %d", v)
	}
	must(t, k.Close())
	must(t, k.Close())
	wantCode(t, "launch of a closed kernel", s.Launch(k, []int{1}, nil, mem), event.Closed)
}

func TestLaunchArguments(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	out := alloc(t, d, 8*16)
	k := kernel(t, d, "args")
	all := []any{out, int8(-1), uint8(200), int16(-300), uint16(60000), int32(-70000), uint32(4e9), int64(-1 << 40), uint64(1 << 50), float32(0.5)}
	must(t, s.Launch(k, []int{4, 6, 2}, []int{2, 3, 1}, all...))
	must(t, s.Sync())
	want := []float64{-1, 200, -300, 60000, -70000, 4e9, -1 << 40, 1 << 50, 0.5, 40602, 20301}
	for i, v := range view[float64](out, len(want)) {
		if v != want[i] {
			t.Errorf("slot %d = %v, want %v", i, v, want[i])
		}
	}

	in, sum := alloc(t, d, 4*1000), alloc(t, d, 8)
	for i := range view[uint32](in, 1000) {
		view[uint32](in, 1000)[i] = uint32(i)
	}
	must(t, s.Launch(kernel(t, d, "sum"), []int{8}, []int{8}, in, sum, opencl.Local(64), uint32(1000)))
	must(t, s.Sync())
	if got := view[uint64](sum, 1)[0]; got != 499500 {
		t.Errorf("sum = %d", got)
	}

	with := func(i int, v any) []any {
		a := append([]any(nil), all...)
		a[i] = v
		return a
	}
	wantCode(t, "too few arguments", s.Launch(k, []int{1}, nil, out), event.InvalidArgument)
	wantCode(t, "an int", s.Launch(k, []int{1}, nil, with(5, 5)...), event.InvalidArgument)
	wantCode(t, "nil", s.Launch(k, []int{1}, nil, with(5, nil)...), event.InvalidArgument)
	wantCode(t, "wrong width", s.Launch(k, []int{1}, nil, with(5, int64(1))...), event.Backend)
	wantCode(t, "memory that is none", s.Launch(k, []int{1}, nil, with(0, driver.Mem(4096))...), event.InvalidArgument)
	wantCode(t, "no local memory", s.Launch(kernel(t, d, "sum"), []int{1}, nil, in, sum, opencl.Local(0), uint32(1)), event.InvalidArgument)
	wantCode(t, "no dimensions", s.Launch(k, nil, nil, all...), event.InvalidArgument)
	wantCode(t, "four dimensions", s.Launch(k, []int{1, 1, 1, 1}, nil, all...), event.InvalidArgument)
	wantCode(t, "dimensions differ", s.Launch(k, []int{1, 1}, []int{1}, all...), event.InvalidArgument)
	wantCode(t, "zero size", s.Launch(k, []int{0}, nil, all...), event.InvalidArgument)
	wantCode(t, "work-group does not divide", s.Launch(k, []int{4}, []int{8}, all...), event.Backend)
	wantCode(t, "nil kernel", s.Launch(nil, []int{1}, nil), event.InvalidArgument)
	other := ownDevice(t)
	wantCode(t, "kernel of another device", stream(t, other).Launch(k, []int{1}, nil, all...), event.ForeignStream)
	// None of that has harmed the stream.
	must(t, s.Sync())
	must(t, until(t, s))
}

func TestGate(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	page, lines := words(t, d)
	open, err := s.Gate()
	must(t, err)
	must(t, s.Store(page, uint64(page), 1))
	ev, err := s.Record()
	must(t, err)
	defer ev.Release()
	for range 20 {
		if done, err := s.Query(); done || err != nil {
			t.Fatalf("Query behind a closed gate: %v, %v", done, err)
		}
		if done, err := ev.Query(); done || err != nil {
			t.Fatalf("event behind a closed gate: %v, %v", done, err)
		}
	}
	if lines[0][0].Load() != 0 {
		t.Fatal("the store went through a closed gate")
	}
	wantCode(t, "positive status", open(1), event.InvalidArgument)
	must(t, open(0))
	wantCode(t, "second opening", open(0), event.InvalidArgument)
	await(t, &lines[0][0], 1)
	must(t, s.Sync())
	if done, err := ev.Query(); !done || err != nil {
		t.Errorf("event after Sync: %v, %v", done, err)
	}
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("Query after Sync: %v, %v", done, err)
	}
	ev.Release()
	ev.Release()
	_, err = ev.Query()
	wantCode(t, "released event", err, event.Closed)
}

func TestPoison(t *testing.T) {
	d := ownDevice(t)
	s, other := stream(t, d), stream(t, d)
	page, lines := words(t, d)
	word := &lines[0][0]
	open, err := s.Gate()
	must(t, err)
	must(t, s.Store(page, uint64(page), 1))
	ev, err := s.Record()
	must(t, err)
	defer ev.Release()
	must(t, d.Status())
	must(t, open(-5))

	// Sync first: it must not believe clFinish.
	err = s.Sync()
	wantCode(t, "Sync of a poisoned queue", err, event.WorkFailed)
	if event.StatusOf(err) >= 0 {
		t.Errorf("status %d, want a negative event status", event.StatusOf(err))
	}
	_, err = s.Query()
	wantCode(t, "Query", err, event.WorkFailed)
	_, err = ev.Query()
	wantCode(t, "event", err, event.WorkFailed)
	wantCode(t, "Device.Status", d.Status(), event.WorkFailed)

	// The failure is sticky: PoCL would run a later store and so complete the lost
	// one's wait too.
	wantCode(t, "Store after the failure", s.Store(page, uint64(page), 2), event.WorkFailed)
	_, err = s.Record()
	wantCode(t, "Record after the failure", err, event.WorkFailed)
	mem := alloc(t, d, 64)
	wantCode(t, "Fill after the failure", s.Fill(mem, 1, 64), event.WorkFailed)
	must(t, other.Store(page+8, uint64(page)+8, 7))
	await(t, &lines[0][1], 7)
	must(t, other.Sync())
	if v := word.Load(); v != 0 {
		t.Errorf("the word is %d: a store behind failed work landed", v)
	}
	must(t, s.Close())
	must(t, d.Status()) // the failure went with its stream
}

// A failure is found even though other commands came after it: the store is
// queued, in a loop, while the gate in front fails.
func TestPoisonRace(t *testing.T) {
	d := ownDevice(t)
	page, lines := words(t, d)
	for round := range 60 {
		s := stream(t, d)
		word, addr := &lines[0][0], page
		word.Zero()
		open, err := s.Gate()
		must(t, err)
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := open(-5); err != nil {
				t.Error(err)
			}
		}()
		for i := uint64(1); i <= uint64(round%7)+1; i++ {
			if err := s.Store(addr, uint64(addr), i); err != nil {
				wantCode(t, "Store", err, event.WorkFailed)
			}
		}
		wg.Wait()
		wantCode(t, "Sync", s.Sync(), event.WorkFailed)
		_, err = s.Query()
		wantCode(t, "Query", err, event.WorkFailed)
		must(t, s.Close())
		must(t, d.Settle())
	}
}
