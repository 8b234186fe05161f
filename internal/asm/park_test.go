package asm

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// loosely is set for an emulator that parks, but may leave it to the next timer
// interrupt to end the park: Bochs before 2.8 (github.com/bochs-emu/Bochs#150).
var loosely = os.Getenv("GPULINE_PARK_LOOSELY") != ""

// eachPark runs f on every hardware park of this processor. The environment
// variable GPULINE_REQUIRE_PARK names a kind without which the test fails: how a
// run under an emulator makes sure that something was tested.
func eachPark(t *testing.T, f func(t *testing.T, p Park)) {
	found := false
	for _, k := range native {
		p, why := Lookup(k)
		if why != "" {
			if os.Getenv("GPULINE_REQUIRE_PARK") == k.String() {
				t.Errorf("%v is required: %s", k, why)
			}
			t.Log(why)
			continue
		}
		found = true
		for _, p := range []Park{p, p.Light()} {
			// The longest slice that the kernel lets through.
			slice := MaxSlice
			if lim, err := UmwaitLimits(); err == nil && k == UMWAIT && lim.MaxTicks != 0 {
				hz, _ := TickRate()
				slice = min(slice, time.Duration(float64(lim.MaxTicks)/float64(hz)*1e9))
			}
			t.Run(p.name(), func(t *testing.T) { f(t, p.WithSlice(slice)) })
		}
	}
	if !found {
		t.Skip("no park instruction on this processor (for amd64, .ci/bochs emulates ones that have it)")
	}
}

// once waits one slice on the words at addr and returns its length in ticks.
func (p Park) once(addr, seen *uint64, n int) uint64 {
	start := Ticks()
	p.waitSlice(measured(), addr, seen, n, MaxSlice)
	return Ticks() - start
}

// The timer ends a wait when nothing is stored, and not before.
func TestParkTimerEnds(t *testing.T) {
	eachPark(t, func(t *testing.T, p Park) {
		full := measured().ticks(p.Slice())
		line := block()
		var seen [8]uint64
		var took [51]uint64
		for i := range took {
			took[i] = p.once((*uint64)(unsafe.Pointer(line)), &seen[0], 8)
		}
		slices.Sort(took[:])
		t.Logf("slices of %d ticks took %d to %d, median %d", full, took[0], took[50], took[25])
		if p.Kind() == WFE {
			return // the event stream bounds it, however long that takes
		}
		if took[25] < full/2 || took[25] > full*10 && !loosely {
			t.Errorf("slices of %d ticks took %d (median)", full, took[25])
		}
	})
}

// What was stored before the monitor was armed wakes nobody: the look between
// arming and waiting has to see it.
func TestParkLooksOnceArmed(t *testing.T) {
	eachPark(t, func(t *testing.T, p Park) {
		full := measured().ticks(p.Slice())
		line := block()
		for i := range line {
			var seen [8]uint64
			seen[i] = 1 // as if the word had changed since
			var took [51]uint64
			for j := range took {
				took[j] = p.once((*uint64)(unsafe.Pointer(line)), &seen[0], 8)
			}
			slices.Sort(took[:])
			if took[25] > full/4 {
				t.Errorf("word %d: a changed word was waited for %d ticks of %d (median)", i, took[25], full)
			}
		}
	})
}

// Wake-ups for another reason than the target do not end Wait.
func TestParkSpuriousWakes(t *testing.T) {
	eachPark(t, func(t *testing.T, p Park) {
		line := block()
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for v := uint64(1); ; v++ {
				select {
				case <-stop:
					return
				default:
					line[1].Store(v)
					line[0].Store(v % 8)
					runtime.Gosched()
				}
			}
		}()
		ok, n := p.wait(&line[0], 8, 20*time.Millisecond)
		close(stop)
		<-done
		t.Logf("%d waits", n)
		if ok || n < 2 {
			t.Errorf("Wait = %v after %d waits", ok, n)
		}
	})
}

func TestParkRequired(t *testing.T) {
	name := os.Getenv("GPULINE_REQUIRE_PARK")
	if name == "" {
		t.Skip("GPULINE_REQUIRE_PARK is not set")
	}
	p, why := Probe()
	lim, err := UmwaitLimits()
	t.Logf("%s: probe %v %q, granule %d, umwait limits %+v %v", strings.TrimSpace(runtime.Version()), p, why, Granule(), lim, err)
	if p.String() != name {
		t.Errorf("probe found %v, not %s: %s", p, name, why)
	}
}
