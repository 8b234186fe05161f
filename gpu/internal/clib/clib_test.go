package clib

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

func libc(t testing.TB) *Lib {
	if runtime.GOOS != "linux" || !Supported {
		t.Skip("the test calls glibc")
	}
	l, err := Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestOpen(t *testing.T) {
	_, err := Open("libfirst-missing.so", "libsecond-missing.so")
	if err == nil || !strings.Contains(err.Error(), "libfirst-missing.so") || !strings.Contains(err.Error(), "libsecond-missing.so") {
		t.Errorf("the error must name every candidate: %v", err)
	}
	if _, err := Open(); err == nil {
		t.Error("no candidates: want an error")
	}
	l := libc(t)
	if l.Sym("strlen") == 0 || l.Sym("no_such_function_") != 0 {
		t.Error("Sym")
	}
}

func TestCall(t *testing.T) {
	l := libc(t)
	f := Get()
	defer f.Put()
	p := f.TextAt()
	copy(f.Text[:], "twelve bytes")
	if n := f.Call(l.Sym("strlen"), p); n != 12 {
		t.Errorf("strlen = %d", n)
	}
	if f.Str() != "twelve bytes" || String(p) != "twelve bytes" || String(0) != "" {
		t.Error("text")
	}
	f.Out[1] = ^uint64(0)
	at := f.At(1)
	if f.Out[1] != 0 || at != uintptr(unsafe.Pointer(&f.Out[1])) {
		t.Error("At must zero what it points to")
	}
	// labs takes a whole register.
	big := ^uintptr(0)>>2 + 1
	if r := f.Call(l.Sym("labs"), -big); r != big {
		t.Errorf("labs = %#x", r)
	}
}

func TestCallDoesNotAllocate(t *testing.T) {
	fn := libc(t).Sym("labs")
	if n := testing.AllocsPerRun(1000, func() {
		f := Get()
		f.Call(fn, 1, 2, 3, 4)
		f.Put()
	}); n > 0.1 { // the race detector makes the pool drop frames
		if !raceEnabled {
			t.Errorf("%v allocations per call", n)
		}
	}
}

func TestGateDestroysOnce(t *testing.T) {
	for range 50 {
		var g Gate
		var destroyed, inside atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for ok := true; ok; {
					if ok = g.Enter(); ok {
						inside.Add(1)
						if destroyed.Load() != 0 {
							t.Error("destroyed under a call")
						}
						inside.Add(-1)
					}
					if g.Leave() {
						if inside.Load() != 0 {
							t.Error("destroyed under a call")
						}
						destroyed.Add(1)
					}
				}
			}()
		}
		firsts := atomic.Int32{}
		for range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				runtime.Gosched()
				first, destroy := g.Close()
				if first {
					firsts.Add(1)
				}
				if destroy {
					destroyed.Add(1)
				}
			}()
		}
		wg.Wait()
		if destroyed.Load() != 1 || firsts.Load() != 1 {
			t.Fatalf("destroyed %d times, closed first %d times", destroyed.Load(), firsts.Load())
		}
	}
}

func TestGateCloseDoesNotWait(t *testing.T) {
	var g Gate
	if !g.Enter() {
		t.Fatal("an open gate lets in")
	}
	if first, destroy := g.Close(); !first || destroy {
		t.Errorf("Close with one inside: first %v, destroy %v", first, destroy)
	}
	if g.Enter() {
		t.Error("a closed gate lets nobody in")
	}
	if g.Leave() {
		t.Error("one is still inside")
	}
	if !g.Leave() {
		t.Error("the last one out destroys")
	}
}

func BenchmarkCall(b *testing.B) {
	fn := libc(b).Sym("labs")
	b.ReportAllocs()
	for b.Loop() {
		f := Get()
		f.Call(fn, 1, 2, 3, 4)
		f.Put()
	}
}
