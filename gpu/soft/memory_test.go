package soft

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Copies larger than a chunk, of odd sizes and places, and fills, to the byte.
func TestBigCopies(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		const size = 5*copyChunk + 13
		m, err := d.Alloc(size)
		must(t, err)
		in, out := make([]byte, size), make([]byte, size)
		for i := range in {
			in[i] = byte(i ^ i>>8 ^ i>>16)
		}
		var pin runtime.Pinner
		pin.Pin(&in[0])
		pin.Pin(&out[0])
		defer pin.Unpin()
		want := bytes.Clone(in)
		must(t, s.CopyToDevice(m, unsafe.Pointer(&in[0]), size))
		for _, c := range []struct{ off, n int }{{1, 1}, {17, 15}, {1000, 2*copyChunk + 7}, {size - 31, 31}, {4 * copyChunk, copyChunk}} {
			must(t, s.Fill(m+driver.Mem(c.off), byte(c.n), c.n))
			for i := range c.n {
				want[c.off+i] = byte(c.n)
			}
		}
		for _, c := range []struct{ to, from, n int }{{3, 5, 16}, {70000, 1, copyChunk + 1}, {0, 200000, 15}} {
			must(t, s.CopyToDevice(m+driver.Mem(c.to), unsafe.Pointer(&in[c.from]), c.n))
			copy(want[c.to:c.to+c.n], in[c.from:])
		}
		must(t, s.CopyToHost(unsafe.Pointer(&out[0]), m, size))
		must(t, s.Sync())
		if !bytes.Equal(out, want) {
			for i := range out {
				if out[i] != want[i] {
					t.Fatalf("byte %d is %#x, want %#x", i, out[i], want[i])
				}
			}
		}
	})
}

// A copy reads its source in its turn: reuse before that is what it reads.
func TestCopyReadsLate(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		m, err := d.Alloc(64)
		must(t, err)
		src := bytes.Repeat([]byte{1}, 64)
		var pin runtime.Pinner
		pin.Pin(&src[0])
		defer pin.Unpin()
		open, err := s.Gate()
		must(t, err)
		must(t, s.CopyToDevice(m, unsafe.Pointer(&src[0]), 64))
		src[63] = 2
		open()
		must(t, s.Sync())
		if b := d.Bytes(m, 64); b[0] != 1 || b[63] != 2 {
			t.Errorf("the copy read %v: not when its turn had come", b)
		}
	})
}

func TestFreedInUse(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		for name, use := range map[string]func(t *testing.T, d *Device, s *Stream) (free func() error){
			"store, in the ring": func(t *testing.T, d *Device, s *Stream) func() error {
				w := openWord(t, d)
				must(t, s.Work(time.Hour))
				must(t, s.Store(w.host+8, w.dev+8, 1))
				return func() error { return d.FreeHost(w.host) }
			},
			"store, behind a gate": func(t *testing.T, d *Device, s *Stream) func() error {
				w := openWord(t, d)
				_, err := s.Gate()
				must(t, err)
				must(t, s.Store(w.host, w.dev, 1))
				return func() error { return d.FreeHost(w.host) }
			},
			"store, held": func(t *testing.T, d *Device, s *Stream) func() error {
				w := openWord(t, d)
				s.HoldStores()
				must(t, s.Store(w.host, w.dev, 1))
				must(t, s.Sync())
				return func() error { return d.FreeHost(w.host) }
			},
			"store, late": func(t *testing.T, d *Device, s *Stream) func() error {
				w := openWord(t, d)
				s.DelayStores(time.Hour)
				must(t, s.Store(w.host, w.dev, 1))
				must(t, s.Sync())
				return func() error { return d.FreeHost(w.host) }
			},
			"fill": func(t *testing.T, d *Device, s *Stream) func() error {
				m, err := d.Alloc(100)
				must(t, err)
				must(t, s.Work(time.Hour))
				must(t, s.Fill(m+99, 1, 1))
				return func() error { return d.Free(m) }
			},
			"copy to pinned memory": func(t *testing.T, d *Device, s *Stream) func() error {
				m, err := d.Alloc(100)
				must(t, err)
				w := openWord(t, d)
				must(t, s.Work(time.Hour))
				must(t, s.CopyToHost(unsafe.Pointer(w.Word), m, 8))
				return func() error { return d.FreeHost(w.host) }
			},
		} {
			t.Run(name, func(t *testing.T) {
				d := openDevice(t, cfg)
				free := use(t, d, openStream(t, d))
				other := openWord(t, d)
				must(t, d.FreeHost(other.host)) // nothing uses it
				must(t, d.Status())
				must(t, free())
				if err := d.Status(); !errors.Is(err, event.WorkFailed) || event.StatusOf(err) != StatusIllegalAddress {
					t.Errorf("Status: %v", err)
				}
				if c := d.Counters(); c.FreedInUse != 1 || c.HostPages+c.Memory > 1 {
					t.Errorf("%+v", c)
				}
				if err := free(); !errors.Is(err, event.InvalidArgument) {
					t.Errorf("freed twice: %v", err)
				}
				must(t, d.Settle())
			})
		}
	})
}

// Whoever has seen the word, or whose copy is done, may free at once.
func TestFreeRightAfter(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		for i := range uint64(300) {
			w := openWord(t, d)
			m, err := d.Alloc(64)
			must(t, err)
			must(t, s.Fill(m, 1, 64))
			must(t, s.Store(w.host, w.dev, i+1))
			for !w.Reached(i + 1) {
				runtime.Gosched()
			}
			must(t, d.FreeHost(w.host))
			must(t, d.Free(m))
		}
		must(t, d.Status())
		if c := d.Counters(); c.HostPages != 0 || c.Memory != 0 || c.FreedInUse != 0 {
			t.Errorf("%+v", c)
		}
	})
}

func TestMemoryMisuse(t *testing.T) {
	d := openDevice(t, Config{})
	s := openStream(t, d)
	w := openWord(t, d)
	m, err := d.Alloc(100)
	must(t, err)
	invalid := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	page := uintptr(1) << 12
	invalid("store past the end", s.Store(w.host+page, w.dev+uint64(page), 1))
	invalid("store to device memory", s.Store(uintptr(uint64(m)-deviceOffset), uint64(m), 1))
	must(t, d.FreeHost(w.host))
	invalid("store to freed memory", s.Store(w.host, w.dev, 1))
	invalid("host memory freed as device memory", d.FreeHost(uintptr(uint64(m)-deviceOffset)))
	invalid("free inside", d.Free(m+8))
	_, err = d.DeviceAddr(w.host)
	invalid("device address of freed memory", err)
	for _, n := range []int{0, -1, 1<<30 + 1} {
		_, err = d.AllocHost(n)
		invalid("AllocHost", err)
		_, err = d.Alloc(n)
		invalid("Alloc", err)
	}
	if d.Bytes(m, 101) != nil || d.Bytes(m, -1) != nil || d.Bytes(m-1, 1) != nil || len(d.Bytes(m+50, 50)) != 50 {
		t.Error("Bytes")
	}
	must(t, s.Sync())
	must(t, d.Status())
}
