package asm

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
	"unsafe"
)

// block is a line at its natural alignment.
func block() *[8]atomic.Uint64 {
	b := make([]byte, 128)
	// The aligned 64 bytes lie within b, which the result keeps alive.
	return (*[8]atomic.Uint64)(unsafe.Pointer(&b[-uintptr(unsafe.Pointer(&b[0]))&63]))
}

func load(line *[8]atomic.Uint64) (seen [8]uint64) {
	for i := range line {
		seen[i] = line[i].Load()
	}
	return seen
}

// storeSoon stores v once the goroutine that waits had a chance to be well into
// its wait. How long it takes changes nothing about what the tests assert.
func storeSoon(word *atomic.Uint64, v uint64) {
	go func() {
		time.Sleep(time.Millisecond)
		word.Store(v)
	}()
}

func TestProbe(t *testing.T) {
	p, why := Probe()
	t.Logf("probe: %v, %q", p, why)
	if p.Hardware() != (why == "") {
		t.Errorf("Probe() = %v, %q: want either hardware or a reason", p, why)
	}
	if again, _ := Probe(); again != p {
		t.Errorf("second Probe() = %v, first %v", again, p)
	}
	for k := UMWAIT; k < kinds; k++ {
		q, why := Lookup(k)
		t.Logf("%v: %q", k, why)
		switch {
		case why == "" && q.Kind() != k:
			t.Errorf("Lookup(%v) = %v", k, q)
		case why != "" && q != Park{}:
			t.Errorf("Lookup(%v) = %v although %q", k, q, why)
		case why == "" && !slices.Contains(native, k):
			t.Errorf("%v found on %s", k, runtime.GOARCH)
		case why == "" && !p.Hardware():
			t.Errorf("%v is there but Probe() = %v", k, p)
		}
	}
	if p, why := Lookup(Spin); p != (Park{}) || why != "" {
		t.Errorf("Lookup(Spin) = %v, %q", p, why)
	}
	if p, why := Lookup(99); p != (Park{}) || why == "" {
		t.Errorf("Lookup(99) = %v, %q", p, why)
	}
}

// The kernel's list of processor flags is an independent witness on Linux,
// wherever it is the kernel of the machine that the program is built for.
func TestProbeAgreesWithKernel(t *testing.T) {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || runtime.GOARCH != "amd64" {
		t.Skip("needs Linux on amd64 with /proc mounted")
	}
	_, flags, ok := strings.Cut(string(b), "\nflags")
	if !ok {
		t.Skip("no flags in /proc/cpuinfo")
	}
	flags, _, _ = strings.Cut(flags, "\n")
	cleared, _ := os.ReadFile("/proc/cmdline")
	if strings.Contains(string(cleared), "clearcpuid") {
		t.Skip("the kernel was told to hide flags")
	}
	for k, flag := range map[Kind]string{UMWAIT: "waitpkg", MWAITX: "mwaitx"} {
		_, why := Lookup(k)
		if has := slices.Contains(strings.Fields(flags), flag); has != (why == "") {
			t.Errorf("%v: kernel says %v, probe %q", k, has, why)
		}
	}
}

func TestParkSettings(t *testing.T) {
	var p Park
	if p.Kind() != Spin || p.Hardware() || p.String() != "spin" || p.Slice() != SpinSlice {
		t.Errorf("zero Park: %v, slice %v", p, p.Slice())
	}
	if s := (Park{kind: WFET}).Slice(); s != ParkSlice {
		t.Errorf("hardware slice %v", s)
	}
	for d, want := range map[time.Duration]time.Duration{
		-1: SpinSlice, 0: SpinSlice, 1: 1, time.Millisecond: MaxSlice, math.MaxInt64: MaxSlice,
	} {
		if got := p.WithSlice(d).Slice(); got != want {
			t.Errorf("WithSlice(%d).Slice() = %v, want %v", d, got, want)
		}
	}
	if s := kinds.String(); s != "unknown" {
		t.Errorf("String of no kind: %q", s)
	}
}

// parks returns every park of this processor, in every setting.
func parks() []Park {
	all := []Park{{}, Park{}.WithSlice(1), Park{}.WithSlice(MaxSlice)}
	for _, k := range native {
		if p, why := Lookup(k); why == "" {
			all = append(all, p, p.Light(), p.WithSlice(1), p.WithSlice(MaxSlice))
		}
	}
	// A value that no probe handed out waits in software.
	return append(all, Park{kind: kinds}, Park{kind: 255, light: true})
}

func TestWaitReachedAtOnce(t *testing.T) {
	for _, c := range []struct{ word, target uint64 }{
		{0, 0}, {5, 5}, {6, 5}, {math.MaxUint64, math.MaxUint64}, {0, math.MaxUint64},
		{3, math.MaxUint64 - 3}, {1 << 63, 1}, {1<<63 - 1, 0},
	} {
		var w atomic.Uint64
		w.Store(c.word)
		for _, p := range parks() {
			for _, bound := range []time.Duration{math.MinInt64, -1, 0, math.MaxInt64} {
				if ok, n := p.wait(&w, c.target, bound); !ok || n != 0 {
					t.Errorf("%+v: Wait(word %d, target %d, bound %d) = %v after %d slices", p, c.word, c.target, bound, ok, n)
				}
			}
		}
	}
}

func TestWaitBound(t *testing.T) {
	for _, c := range []struct{ word, target uint64 }{
		{0, 1}, {math.MaxUint64, 0}, {5, 6}, {0, 1 << 63}, {1, 1<<63 + 1},
	} {
		var w atomic.Uint64
		w.Store(c.word)
		for _, p := range parks() {
			for _, bound := range []time.Duration{math.MinInt64, -1, 0} {
				if ok, n := p.wait(&w, c.target, bound); ok || n != 0 {
					t.Errorf("%+v: Wait(word %d, target %d, bound %d) = %v after %d slices", p, c.word, c.target, bound, ok, n)
				}
			}
			start := time.Now()
			if ok, n := p.wait(&w, c.target, 300*time.Microsecond); ok || n == 0 {
				t.Errorf("%+v: Wait(word %d, target %d) = %v after %d slices", p, c.word, c.target, ok, n)
			}
			if d := time.Since(start); d < 300*time.Microsecond {
				t.Errorf("%+v: gave up after %v", p, d)
			}
		}
	}
}

func TestWaitSeesStore(t *testing.T) {
	for _, p := range parks() {
		var w atomic.Uint64
		w.Store(math.MaxUint64) // so that the store wraps
		data := 0
		go func() {
			time.Sleep(time.Millisecond)
			data = 42
			w.Store(2)
		}()
		if !p.Wait(&w, 1, math.MaxInt64) {
			t.Fatalf("%+v: not reached", p)
		}
		if data != 42 { // also the race detector's business
			t.Errorf("%+v: data before the store not visible", p)
		}
	}
	var w atomic.Uint64
	storeSoon(&w, 1)
	if !SpinUntil(&w, 1, math.MaxInt64) {
		t.Error("SpinUntil: not reached")
	}
}

func TestWaitGoesOnAfterOtherStores(t *testing.T) {
	for _, p := range parks() {
		line := block()
		done := make(chan bool)
		go func() { done <- p.Wait(&line[3], 10, math.MaxInt64) }()
		for v := range uint64(10) {
			line[3].Store(v)     // not yet the target
			line[v%3].Store(100) // another word of the line
			time.Sleep(10 * time.Microsecond)
		}
		select {
		case <-done:
			t.Fatalf("%+v: returned before the target", p)
		default:
		}
		line[3].Store(10)
		if !<-done {
			t.Fatalf("%+v: not reached", p)
		}
	}
}

func TestWaitLine(t *testing.T) {
	for _, p := range parks() {
		line := block()
		for i := range line {
			line[i].Store(uint64(i))
		}
		seen := load(line)
		for _, bound := range []time.Duration{math.MinInt64, 0, 100 * time.Microsecond} {
			if p.WaitLine(line, &seen, bound) {
				t.Errorf("%+v: a change without a store", p)
			}
		}
		for i := range line {
			storeSoon(&line[i], 0-seen[i]-1)
			if !p.WaitLine(line, &seen, math.MaxInt64) {
				t.Errorf("%+v: store to word %d not seen", p, i)
			}
			// The change counts from seen on, not from the call on.
			if ok, n := p.waitLine(line, &seen, 0); !ok || n != 0 {
				t.Errorf("%+v: change of word %d seen after %d slices: %v", p, i, n, ok)
			}
			if seen[i] == line[i].Load() {
				t.Errorf("%+v: seen was written", p)
			}
			seen = load(line)
		}
		// A line that no monitor covers.
		odd := (*[8]atomic.Uint64)(unsafe.Pointer(&new([2][8]atomic.Uint64)[0][1]))
		seen = load(odd)
		storeSoon(&odd[7], 1)
		if !p.WaitLine(odd, &seen, math.MaxInt64) {
			t.Errorf("%+v: store to a misaligned line not seen", p)
		}
	}
}

// A slice must end although nothing is stored, or it would hold up the runtime
// for ever.
func TestSpinSliceEnds(t *testing.T) {
	m := measured()
	var w, seen [8]uint64
	for range 100 {
		m.slice(Spin, &w[0], &seen[0], 8, m.ticks(MaxSlice), false)
	}
}

// The runtime must be able to stop the world beside a wait: beside an unbounded
// stretch of assembly, GC would not return.
func TestGCBesideWait(t *testing.T) {
	for _, p := range parks() {
		var w atomic.Uint64
		done := make(chan bool)
		go func() { done <- p.Wait(&w, 1, math.MaxInt64) }()
		for range 5 {
			runtime.GC()
		}
		w.Store(1)
		if !<-done {
			t.Errorf("%+v: not reached", p)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	line := block()
	var seen [8]uint64
	for _, p := range parks() {
		if n := testing.AllocsPerRun(10, func() {
			p.Wait(&line[0], 1, time.Microsecond)
			p.WaitLine(line, &seen, time.Microsecond)
		}); n != 0 {
			t.Errorf("%+v: %v allocations", p, n)
		}
	}
}

func TestTicks(t *testing.T) {
	hz, constant := TickRate()
	t.Logf("%d Hz, constant: %v", hz, constant)
	if hz < 1e6 {
		t.Fatalf("rate %d Hz", hz)
	}
	if !constant {
		t.Skip("the counter is no clock on this processor")
	}
	// Clock and counter are not read at once, so any one comparison may be off;
	// a wrong unit or rate is off in all of them.
	var got float64
	for range 5 {
		start, c := time.Now(), Ticks()
		time.Sleep(5 * time.Millisecond)
		d, ticks := time.Since(start), Ticks()-c
		if got = float64(ticks) / d.Seconds() / float64(hz); got > 0.9 && got < 1.1 {
			return
		}
	}
	t.Errorf("the counter ran at %v times its rate of %d Hz", got, hz)
}

func TestPause(t *testing.T) { Pause() }

func TestUntil(t *testing.T) {
	m := measured()
	for _, bound := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1} {
		if e := m.until(bound); e != math.MaxInt64 {
			t.Errorf("until(%d) = %d", bound, e)
		}
	}
	for _, bound := range []time.Duration{math.MinInt64, -1, 0} {
		if e, now := m.until(bound), m.now(); e < 0 || e > now {
			t.Errorf("until(%d) = %d at %d", bound, e, now)
		}
	}
}

func FuzzReadLimits(f *testing.F) {
	f.Add("100000\n", "1\n")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, ticks, c02 string) {
		l, err := readLimits(fstest.MapFS{"max_time": {Data: []byte(ticks)}, "enable_c02": {Data: []byte(c02)}})
		if err != nil {
			if l != (Limits{}) {
				t.Errorf("%+v beside %v", l, err)
			}
			return
		}
		if n := strings.TrimLeft(strings.TrimSpace(ticks), "0"); n != "" && n != strconv.FormatUint(uint64(l.MaxTicks), 10) {
			t.Errorf("%q read as %d", ticks, l.MaxTicks)
		}
	})
}

func TestReadLimits(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	got, err := readLimits(fstest.MapFS{"max_time": file("100000\n"), "enable_c02": file("1\n")})
	if want := (Limits{100000, true}); got != want || err != nil {
		t.Errorf("limits %+v, %v; want %+v", got, err, want)
	}
	got, err = readLimits(fstest.MapFS{"max_time": file("0"), "enable_c02": file("0")})
	if got != (Limits{}) || err != nil {
		t.Errorf("limits %+v, %v", got, err)
	}
	if _, err = readLimits(fstest.MapFS{"max_time": file("1")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	for _, bad := range []string{"", "-1", "4294967296", "x"} {
		if got, err := readLimits(fstest.MapFS{"max_time": file(bad), "enable_c02": file("1")}); err == nil || got != (Limits{}) {
			t.Errorf("max_time %q: %+v, %v", bad, got, err)
		}
	}
	switch lim, err := UmwaitLimits(); {
	case err == nil:
		t.Logf("this kernel: %+v", lim)
	case !errors.Is(err, fs.ErrNotExist):
		t.Error(err)
	}
}
