// Package standin builds, for tests, C libraries that stand in for the CUDA
// driver, the HIP runtime, and the Objective-C runtime with Metal: real entry
// point names, parameter lists and status numbers, a current context (or device)
// per thread, streams as worker threads that complete later, and failures on
// request.
//
// They imitate what the vendors document about the entry points that gpuline
// uses. A test that passes on them proves the binding (names, order and widths
// of arguments, context discipline, failure paths). It says nothing about the
// vendor's driver or about a GPU.
//
// The tests of this package run the whole library over them, with everything
// that can go wrong.
//
// The C sources are in src; engine.h and metal.c list every setting. Each Build returns a
// library file of its own, so that each test has its own device, with its own
// settings, counters and faults.
package standin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/gpu/internal/clib"
)

//go:embed src
var sources embed.FS

// Kernels is PTX text of the kernels that the CUDA stand-in knows. It is real:
// a GPU runs the same text.
//
//   - fill32(p uint64, value uint32, n uint32): each thread stores value into one
//     of the first n 32-bit elements at p
//   - spin(ns uint64): one thread looks at the clock until ns nanoseconds passed
//   - fault(): stores through a bad pointer
//
//go:embed kernels.ptx
var Kernels []byte

var built struct {
	sync.Mutex
	libs map[string][]byte
}

// Build compiles the stand-in of that name ("cuda", "hip" or "metal") and returns the
// path of a library file that belongs to the test alone. The functions named in
// without are missing from it. Without a C compiler the test is skipped, or,
// when GPULINE_REQUIRE contains "cc", fails.
func Build(t testing.TB, name string, without ...string) string {
	t.Helper()
	image := compile(t, name)
	for _, fn := range without {
		// The loader finds a symbol by its text, so changing the text removes the
		// symbol; the table behind cuGetProcAddress loses it the same way.
		from, to := []byte("\x00"+fn+"\x00"), []byte("\x00~"+fn[1:]+"\x00")
		if !bytes.Contains(image, from) {
			t.Fatalf("the %s stand-in has no %s", name, fn)
		}
		image = bytes.ReplaceAll(image, from, to)
	}
	path := filepath.Join(t.TempDir(), "lib"+name+"-standin.so")
	if err := os.WriteFile(path, image, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Required reports whether the environment variable GPULINE_REQUIRE, a
// comma-separated list, names what: then its absence is a failure, not a reason
// to skip.
func Required(what string) bool {
	for _, s := range strings.Split(os.Getenv("GPULINE_REQUIRE"), ",") {
		if s == what || s == "all" {
			return true
		}
	}
	return false
}

func compile(t testing.TB, name string) []byte {
	t.Helper()
	if runtime.GOOS != "linux" || !clib.Supported {
		t.Skip("the stand-in libraries are built on linux/amd64 and linux/arm64")
	}
	built.Lock()
	defer built.Unlock()
	if b := built.libs[name]; b != nil {
		return b
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		if Required("cc") {
			t.Fatal(err)
		}
		t.Skipf("install a C compiler to run this test: %v", err)
	}
	dir := t.TempDir()
	sum := sha256.New()
	for _, f := range []string{"engine.h", name + ".c"} {
		b, err := sources.ReadFile("src/" + f)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(b)
		if err := os.WriteFile(filepath.Join(dir, f), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "lib.so")
	// The build id keeps the loader from taking two copies for the same library.
	cmd := exec.Command(cc, "-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread",
		"-Wall", "-Wextra", "-Werror", "-Wl,-Bsymbolic,--build-id=0x"+hex.EncodeToString(sum.Sum(nil)[:16]),
		"-o", out, filepath.Join(dir, name+".c"))
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if built.libs == nil {
		built.libs = map[string][]byte{}
	}
	built.libs[name] = b
	return b
}

// Control steers a stand-in library and reads its counters. Its methods may be
// called from many goroutines.
type Control struct {
	lib *clib.Lib
	t   testing.TB
}

// Open returns the control of the library that Build returned the path of. The
// settings that can hold threads up are reset when the test ends.
func Open(t testing.TB, path string) *Control {
	t.Helper()
	lib, err := clib.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &Control{lib, t}
	t.Cleanup(func() {
		c.text("standin_set", "hold", 0)
		c.text("standin_set", "query_block", 0)
	})
	return c
}

// Set changes a setting; engine.h and metal.c list them. "fail:<entry point>"
// (CUDA and HIP) makes that entry point answer the given status until it is set
// to 0.
func (c *Control) Set(name string, value int64) {
	c.t.Helper()
	if c.text("standin_set", name, uintptr(value)) == 0 {
		c.t.Errorf("the stand-in has no setting %q", name)
	}
}

// Get reads a counter: "streams", "events", "contexts", "modules", "threads",
// "pinned", "device_memory" (what is alive), "violations" (misuse found),
// "calls:<entry point>", or, of the calling thread, "depth" (of its context
// stack) and "capture_mode"; or a setting. Metal's count what is alive of each
// class.
func (c *Control) Get(name string) int64 {
	c.t.Helper()
	v := int64(c.text("standin_get", name))
	if v == -1 {
		c.t.Errorf("the stand-in has no counter %q", name)
	}
	return v
}

// Violation describes the last misuse that the library saw, "" for none.
func (c *Control) Violation() string { return clib.String(c.Call("standin_violation")) }

// Fault queues work on the stream that fails as a kernel with a bad pointer
// does; on a Metal queue, where failed work leaves no trace, it makes all later
// command buffers fail.
func (c *Control) Fault(stream uintptr) { c.Call("standin_fault", stream) }

// Gate queues work on the stream that stays pending until open is called, which
// must happen exactly once.
func (c *Control) Gate(stream uintptr) (open func()) {
	g := c.Call("standin_gate", stream)
	return func() { c.Call("standin_open", g) }
}

// Spin queues ns nanoseconds of work on the stream.
func (c *Control) Spin(stream uintptr, ns uint64) { c.Call("standin_spin", stream, uintptr(ns)) }

// Call calls an entry point on the calling thread, as other code in the process
// would, and returns what it returned.
func (c *Control) Call(name string, args ...uintptr) uintptr {
	c.t.Helper()
	fn := c.lib.Sym(name)
	if fn == 0 {
		c.t.Fatalf("the stand-in has no %s", name)
	}
	f := clib.Get()
	defer f.Put()
	return f.Call(fn, args...)
}

// Out calls an entry point whose first parameter is where to put a pointer or a
// number, and returns that and the status.
func (c *Control) Out(name string, args ...uintptr) (value uint64, status int) {
	c.t.Helper()
	fn := c.lib.Sym(name)
	if fn == 0 {
		c.t.Fatalf("the stand-in has no %s", name)
	}
	f := clib.Get()
	defer f.Put()
	st := f.Call(fn, append([]uintptr{f.At(0)}, args...)...)
	return f.Out[0], int(int32(uint32(st)))
}

func (c *Control) text(fn, name string, args ...uintptr) uintptr {
	b := append([]byte(name), 0)
	var pin runtime.Pinner
	pin.Pin(&b[0])
	defer pin.Unpin()
	return c.Call(fn, append([]uintptr{uintptr(unsafe.Pointer(&b[0]))}, args...)...)
}
