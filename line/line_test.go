package line

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

func TestLayout(t *testing.T) {
	if n := unsafe.Sizeof(Word{}); n != 8 {
		t.Errorf("a word takes %d bytes", n)
	}
	if n := unsafe.Sizeof(Line{}); n != Size || Size != 64 || Words*8 != Size {
		t.Errorf("a line takes %d bytes", n)
	}
	m := mapped(t, 3)
	for i := range m.Lines {
		l := &m.Lines[i]
		if at := uintptr(unsafe.Pointer(l)); at%Size != 0 {
			t.Errorf("line %d is at %#x, not 64-byte aligned", i, at)
		}
		for s := range Words {
			if w := l.Word(slot(t, s)); w != &l[s] || w.Addr() != uintptr(unsafe.Pointer(l))+uintptr(8*s) {
				t.Errorf("word %d of line %d is at %#x", s, i, w.Addr())
			}
		}
	}
}

func mapped(t testing.TB, n int) *Mapping {
	t.Helper()
	m, err := Map(n, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func slot(t testing.TB, i int) Slot {
	t.Helper()
	s, err := NewSlot(i)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSlot(t *testing.T) {
	for i := range Words {
		if s := slot(t, i); s.Index() != i || s.String() != fmt.Sprint(i) {
			t.Errorf("slot %d is %v, %d", i, s, s.Index())
		}
	}
	if slot(t, 0) != (Slot{}) {
		t.Error("the zero slot is not slot 0")
	}
	for _, i := range []int{-1, Words, 255, 256, 264, math.MinInt, math.MaxInt} {
		s, err := NewSlot(i)
		if !errors.Is(err, event.InvalidArgument) {
			t.Errorf("slot %d: %v, %v", i, s, err)
			continue
		}
		if want := fmt.Sprintf("gpuline: line slot %d: out of range, want 0..7", i); err.Error() != want {
			t.Errorf("slot %d is refused with %q", i, err)
		}
	}
}

func TestWord(t *testing.T) {
	var l Line
	for i := range l {
		if l[i].Load() != 0 {
			t.Errorf("word %d of a fresh line is %d", i, l[i].Load())
		}
	}
	w := l.Word(slot(t, 3))
	w.Store(7)
	if w.Load() != 7 || !w.Reached(7) || !w.Reached(6) || w.Reached(8) || w.Atomic().Load() != 7 {
		t.Errorf("after a store of 7: %d", w.Load())
	}
	for i := range l {
		if i != 3 && l[i].Load() != 0 {
			t.Errorf("the store reached word %d", i)
		}
	}
	if w.Zero(); w.Load() != 0 {
		t.Errorf("zeroed, and still %d", w.Load())
	}
	w.Atomic().Store(9)
	if w.Load() != 9 {
		t.Error("the atomic is not the word")
	}
}

func TestReached(t *testing.T) {
	const half = uint64(1) << 63
	for _, c := range []struct {
		value, target uint64
		want          bool
	}{
		{0, 0, true}, {0, 1, false}, {1, 1, true}, {2, 1, true}, {1, 2, false},
		{5, 3, true}, // a later store landed first
		// The counter wraps.
		{math.MaxUint64, math.MaxUint64, true},
		{math.MaxUint64, 0, false},
		{0, math.MaxUint64, true},
		{5, math.MaxUint64 - 5, true},
		{math.MaxUint64 - 5, 5, false},
		// The sign bit is a number like any other.
		{half, half - 1, true}, {half - 1, half, false}, {half, half, true},
		// The horizon of the order.
		{half - 1, 0, true}, {half, 0, false}, {0, half, false}, {0, half + 1, true},
	} {
		if got := Reached(c.value, c.target); got != c.want {
			t.Errorf("%#x has reached %#x: %v", c.value, c.target, got)
		}
		var w Word
		w.Store(c.value)
		if got := w.Reached(c.target); got != c.want {
			t.Errorf("a word at %#x has reached %#x: %v", c.value, c.target, got)
		}
	}
}

func TestOrderProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		a, ahead := r.Uint64(), r.Uint64()>>(1+r.IntN(62))
		b := a + ahead // may wrap
		if !Reached(b, a) || Before(b, a) {
			t.Fatalf("%#x, %#x ahead of %#x, has not reached it", b, ahead, a)
		}
		if ahead > 0 && (Reached(a, b) || !Before(a, b)) {
			t.Fatalf("%#x, %#x behind %#x, has reached it", a, ahead, b)
		}
		// Whatever lies between is reached on the way.
		c := a + r.Uint64N(ahead+1)
		if !Reached(b, c) || !Reached(c, a) {
			t.Fatalf("%#x between %#x and %#x is out of order", c, a, b)
		}
	}
	if Before(3, 3) {
		t.Error("a number comes before itself")
	}
}

// TestWrapAround counts a word across the end of the counter.
func TestWrapAround(t *testing.T) {
	var w Word
	const start = math.MaxUint64 - 99
	for i := range uint64(200) {
		w.Store(start + i)
		for j := range uint64(200) {
			if got := w.Reached(start + j); got != (j <= i) {
				t.Fatalf("at %#x, %#x is reached: %v", w.Load(), uint64(start+j), got)
			}
		}
	}
}

func TestDescriptor(t *testing.T) {
	var zero Descriptor
	if zero.Valid() || zero.Reached() || zero.Word() != nil {
		t.Error("the zero descriptor names something")
	}
	if (Descriptor{Slot: slot(t, 3), Target: 0}).Reached() {
		t.Error("a descriptor without a line is reached")
	}
	var l Line
	d := Descriptor{&l, slot(t, 5), 2}
	if !d.Valid() || d.Word() != &l[5] || d.Reached() {
		t.Errorf("descriptor %+v", d)
	}
	l[4].Store(9)
	if d.Reached() {
		t.Error("a neighbour's store completes it")
	}
	if l[5].Store(1); d.Reached() {
		t.Error("an earlier number completes it")
	}
	if l[5].Store(3); !d.Reached() {
		t.Error("a later number does not complete it")
	}
	if d != (Descriptor{&l, slot(t, 5), 2}) {
		t.Error("descriptors don't compare")
	}
}

// TestPublishes: what was written before a store is visible after the load that
// saw it. The race detector checks the ordering, the values check the rest.
func TestPublishes(t *testing.T) {
	m := mapped(t, 1)
	const loops = 20_000
	w := &m.Lines[0][7]
	var data [16]uint64 // guarded by w and back alone
	back := &m.Lines[0][0]
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint64(1); n <= loops; n++ {
			for i := range data {
				data[i] = n
			}
			w.Store(n)
			for !back.Reached(n) {
				runtime.Gosched()
			}
		}
	})
	for n := uint64(1); n <= loops; n++ {
		for !w.Reached(n) {
			runtime.Gosched()
		}
		for i, v := range data {
			if v != n {
				t.Errorf("data[%d] is %d after %d was stored", i, v, n)
			}
		}
		back.Store(n)
	}
	wg.Wait()
}

// TestNeighbours: eight writers, each to its own word of one line.
func TestNeighbours(t *testing.T) {
	m := mapped(t, 1)
	l := &m.Lines[0]
	const loops = 10_000
	var wg sync.WaitGroup
	for s := range Words {
		wg.Go(func() {
			for n := uint64(1); n <= loops; n++ {
				if got := l[s].Load(); got != n-1 {
					t.Errorf("word %d is %d, want %d", s, got, n-1)
					return
				}
				l[s].Store(n)
			}
		})
	}
	wg.Wait()
	for s := range Words {
		if d := (Descriptor{l, slot(t, s), loops}); !d.Reached() {
			t.Errorf("word %d ended at %d", s, d.Word().Load())
		}
	}
}

// aligned returns n bytes, 64-byte aligned. They are on the Go heap, which is good
// enough for a test that keeps the slice.
func aligned(n int) []byte {
	b := make([]byte, n+Size)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & (Size - 1)
	return b[off : off+n : off+n]
}

func TestFromMemory(t *testing.T) {
	b := aligned(5*Size + 17)
	lines, err := FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 5 || unsafe.Pointer(&lines[0]) != unsafe.Pointer(&b[0]) {
		t.Errorf("%d lines at %p from 5 lines and a bit at %p", len(lines), &lines[0], &b[0])
	}
	lines[4][7].Store(0x0807060504030201)
	if b[4*Size+7*8] == 0 {
		t.Error("the lines are not the memory")
	}
	m := mapped(t, 1)
	if lines, err := FromAddr(m.Lines[0][0].Addr(), Size); err != nil || len(lines) != 1 || &lines[0] != &m.Lines[0] {
		t.Errorf("the line at its own address: %v, %v", lines, err)
	}
}

func TestFromMemoryRefuses(t *testing.T) {
	m := mapped(t, 1)
	at := m.Lines[0][0].Addr()
	for _, c := range []struct {
		addr uintptr
		n    int
	}{
		{0, Size}, {0, 0}, {at, Size - 1}, {at, 0}, {at, -1}, {at, math.MinInt},
		{at + 1, Size}, {at + 8, Size}, {at + 32, Size}, {at + 63, Size},
		{^uintptr(0) - 63, 2 * Size}, {^uintptr(0) - 63, math.MaxInt}, {^uintptr(0), Size},
	} {
		if lines, err := FromAddr(c.addr, c.n); !errors.Is(err, event.InvalidArgument) || lines != nil {
			t.Errorf("%d bytes at %#x: %d lines, %v", c.n, c.addr, len(lines), err)
		}
	}
	for name, b := range map[string][]byte{
		"nil": nil, "empty": {}, "short": aligned(Size - 1), "misaligned": aligned(2 * Size)[1:],
	} {
		if lines, err := FromBytes(b); !errors.Is(err, event.InvalidArgument) || lines != nil {
			t.Errorf("%s bytes: %d lines, %v", name, len(lines), err)
		}
	}
}

func BenchmarkReached(b *testing.B) {
	m := mapped(b, 1)
	w := &m.Lines[0][0]
	for b.Loop() {
		if w.Reached(1) {
			b.Fatal("nobody stored")
		}
	}
}
