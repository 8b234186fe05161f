// Package clib reaches C libraries at run time, for the drivers that share it:
// opening, looking names up, calling without allocating, and the reference count
// that keeps a handle alive while calls are in it.
package clib

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Lib is an open library. It stays open for the life of the process: GPU
// drivers start threads of their own and can't be unloaded safely.
type Lib struct {
	handle uintptr
	// Path is the name under which the library was found.
	Path string
}

// Open opens the first of the candidates that there is. The error names all of
// them, with the loader's reasons.
func Open(candidates ...string) (*Lib, error) {
	if len(candidates) == 0 {
		return nil, errors.New("there is no such library for this system")
	}
	var why []string
	for _, path := range candidates {
		h, err := open(path)
		if err == nil {
			return &Lib{handle: h, Path: path}, nil
		}
		why = append(why, err.Error())
	}
	return nil, errors.New(strings.Join(why, "; "))
}

// Sym returns the address of a function, 0 when the library has no such name.
func (l *Lib) Sym(name string) uintptr { return sym(l.handle, name) }

// Frame holds the arguments and results of calls. Frames come from a pool and
// are always heap objects, so that the addresses of their fields, which C is
// given as plain integers, stay valid until Put: Go's collector does not move
// heap objects, and the caller's reference keeps the frame alive.
type Frame struct {
	args [16]uintptr
	// Out are 64-bit results; Text is room for a name.
	Out  [3]uint64
	Text [256]byte
}

var frames = sync.Pool{New: func() any { return new(Frame) }}

// Get returns a frame with stale contents.
func Get() *Frame { return frames.Get().(*Frame) }

// Put gives the frame back.
func (f *Frame) Put() { frames.Put(f) }

// At returns the address of f.Out[i], zeroed.
func (f *Frame) At(i int) uintptr {
	f.Out[i] = 0
	return uintptr(unsafe.Pointer(&f.Out[i]))
}

// TextAt returns the address of f.Text, emptied.
func (f *Frame) TextAt() uintptr {
	f.Text = [256]byte{}
	return uintptr(unsafe.Pointer(&f.Text[0]))
}

// Str returns f.Text up to its terminator.
func (f *Frame) Str() string {
	s, _, _ := strings.Cut(string(f.Text[:]), "\x00")
	return s
}

// Call calls fn, which takes integers and pointers only, and returns its
// result. At most 16 arguments. The arguments are copied into the frame, which
// saves the allocation that a variadic call through purego costs.
func (f *Frame) Call(fn uintptr, args ...uintptr) uintptr {
	n := copy(f.args[:], args)
	return syscallN(fn, f.args[:n])
}

// String copies the C string at p, "" for 0.
//
// Soundness: p comes from a library function that documents a terminated string
// which outlives the call, in memory outside the Go heap.
func String(p uintptr) string {
	if p == 0 {
		return ""
	}
	base := *(*unsafe.Pointer)(unsafe.Pointer(&p)) // see line.FromAddr for why this way
	n := 0
	for *(*byte)(unsafe.Add(base, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(base), n))
}

// Gate counts the calls that are inside a handle, so that it is destroyed by
// whoever leaves last and never under a call. Closing does not wait: a call that
// a broken driver never returns from must not hold up the one who closes.
type Gate struct {
	n    atomic.Int64
	done atomic.Bool
}

const closed = -1 << 62

// Enter reports whether the gate is open and, if so, counts the caller in.
func (g *Gate) Enter() bool { return g.n.Add(1) > 0 }

// Leave must follow every Enter, also one that returned false. It returns true,
// once in the gate's life, to the one who has to destroy the handle.
func (g *Gate) Leave() bool {
	return g.n.Add(-1) == closed && g.done.CompareAndSwap(false, true)
}

// Close closes the gate. first is false when it was closed already; destroy is
// true when nobody is inside and the caller has to destroy the handle.
func (g *Gate) Close() (first, destroy bool) {
	for {
		n := g.n.Load()
		if n < 0 {
			return false, false
		}
		if g.n.CompareAndSwap(n, n+closed) {
			return true, n == 0 && g.done.CompareAndSwap(false, true)
		}
	}
}
