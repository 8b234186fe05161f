package standin_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/standin"
	"github.com/gpuline/gpuline/gpu/hip"
)

// The whole library over the stand-ins, with everything that can go wrong. What
// the drivers do by themselves is tested in their own packages.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// each runs f over a fresh stand-in of each driver. At the end nothing may be
// left of what the library made, unless f says that the device was lost.
func each(t *testing.T, f func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error))) {
	for name, mk := range map[string]func(path string) driver.Driver{
		"cuda": func(p string) driver.Driver { return cuda.New(cuda.Config{Library: p}) },
		"hip":  func(p string) driver.Driver { return hip.New(hip.Config{Library: p}) },
	} {
		t.Run(name, func(t *testing.T) {
			path := standin.Build(t, name)
			ctl := standin.Open(t, path)
			drv := mk(path)
			f(t, ctl, func(opts ...gpu.Option) (*gpu.Device, error) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				return gpu.Open(ctx, append([]gpu.Option{gpu.Using(drv)}, opts...)...)
			})
			if n := ctl.Get("violations"); n != 0 {
				t.Errorf("%d violations, the last: %s", n, ctl.Violation())
			}
		})
	}
}

func clean(t *testing.T, ctl *standin.Control) {
	t.Helper()
	// What a Close has given up goes one by one, as the driver's calls return.
	end := time.Now().Add(time.Minute)
	for _, c := range []string{"threads", "streams", "events", "contexts", "pinned", "device_memory"} {
		for ctl.Get(c) != 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if n := ctl.Get(c); n != 0 {
			t.Errorf("%d %s leaked", n, c)
		}
	}
}

func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wait(s *gpu.Stream, seq uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Wait(ctx, seq)
}

func warned(d *gpu.Device, code event.Code) bool {
	for _, w := range d.Warnings() {
		if errors.Is(w, code) {
			return true
		}
	}
	return false
}

func TestMarks(t *testing.T) {
	each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
		d, err := open(gpu.Strict())
		must(t, d, err)
		var points []gpu.Point
		for range 8 {
			s, err := d.NewStream()
			must(t, s, err)
			var seq uint64
			for range 20 {
				ctl.Spin(s.Handle(), 1000)
				seq, err = s.Mark()
				must(t, seq, err)
			}
			points = append(points, gpu.Point{Stream: s, Seq: seq})
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := gpu.WaitAll(ctx, points...); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		clean(t, ctl)
	})
}

// A device that can't store, says so or not, is waited on by its events.
func TestStatusPolling(t *testing.T) {
	for setting, value := range map[string]int64{"write_status": 801, "attr64": 0, "store_lost": 1} {
		t.Run(setting, func(t *testing.T) {
			each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
				if setting == "attr64" && t.Name()[len(t.Name())-3:] == "hip" {
					t.Skip("HIP has no such attribute")
				}
				ctl.Set(setting, value)
				d, err := open(gpu.WithSelfTest(50 * time.Millisecond))
				must(t, d, err)
				if !warned(d, event.SelfTestFailed) {
					t.Errorf("warnings: %v", d.Warnings())
				}
				s, err := d.NewStream()
				must(t, s, err)
				ctl.Set("hold", 1)
				seq, err := s.Mark()
				must(t, seq, err)
				if s.Reached(seq) {
					t.Error("reached before the device got there")
				}
				ctl.Set("hold", 0)
				if err := wait(s, seq); err != nil {
					t.Error(err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				clean(t, ctl)

				if _, err := open(gpu.Strict(), gpu.WithSelfTest(50*time.Millisecond)); !errors.Is(err, event.SelfTestFailed) {
					t.Errorf("strict: %v", err)
				}
				clean(t, ctl)
			})
		})
	}
}

var quick = gpu.WithHealth(5*time.Millisecond, 200*time.Millisecond, 50*time.Millisecond)

// Failing work ends every wait on the device with one sticky error, whether the
// stores behind it land or not: success is never reported.
func TestFault(t *testing.T) {
	for _, lands := range []int64{0, 1} {
		each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
			ctl.Set("store_after_fault", lands)
			d, err := open(quick)
			must(t, d, err)
			s, err := d.NewStream()
			must(t, s, err)
			other, err := d.NewStream()
			must(t, other, err)
			openOther := ctl.Gate(other.Handle())
			pending, err := other.Mark()
			must(t, pending, err)
			ctl.Set("hold", 1)
			before, err := s.Mark()
			must(t, before, err)
			ctl.Fault(s.Handle())
			after, err := s.Mark()
			must(t, after, err)
			ctl.Set("hold", 0)
			if err := wait(s, after); !errors.Is(err, event.DeviceLost) || event.StatusOf(err) != 700 {
				t.Errorf("wait behind the fault: %v (status %d)", err, event.StatusOf(err))
			}
			if err := wait(other, pending); !errors.Is(err, event.DeviceLost) {
				t.Errorf("wait on another stream: %v", err)
			}
			if _, err := s.Mark(); !errors.Is(err, event.DeviceLost) {
				t.Errorf("a later mark: %v", err)
			}
			if err := s.Err(); !errors.Is(err, event.DeviceLost) {
				t.Errorf("Err: %v", err)
			}
			openOther()
			// The page can't be freed under a device that says 700 to everything.
			if err := d.Close(); !errors.Is(err, event.Leaked) {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// The store that never lands, on a device that passed its self-test.
func TestStoreLost(t *testing.T) {
	each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
		d, err := open(quick)
		must(t, d, err)
		s, err := d.NewStream()
		must(t, s, err)
		ctl.Set("store_lost", 1)
		seq, err := s.Mark()
		must(t, seq, err)
		if err := wait(s, seq); !errors.Is(err, event.StoreLost) {
			t.Errorf("wait: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		clean(t, ctl)
	})
}

// A store that lands after the device says done is waited for.
func TestStoreLate(t *testing.T) {
	each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
		d, err := open(gpu.WithHealth(5*time.Millisecond, time.Second, time.Minute))
		must(t, d, err)
		s, err := d.NewStream()
		must(t, s, err)
		ctl.Set("store_late_us", 30_000)
		seq, err := s.Mark()
		must(t, seq, err)
		if err := wait(s, seq); err != nil {
			t.Error(err)
		}
		// Closed with a late store under way: the page outlives it.
		if _, err := s.Mark(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		clean(t, ctl)
	})
}

// A status query that never returns counts as a lost device, and closing is
// bounded all the same.
func TestQueryBlocks(t *testing.T) {
	each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
		d, err := open(gpu.WithHealth(5*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond),
			gpu.WithCloseBound(200*time.Millisecond))
		must(t, d, err)
		s, err := d.NewStream()
		must(t, s, err)
		openGate := ctl.Gate(s.Handle())
		seq, err := s.Mark()
		must(t, seq, err)
		ctl.Set("query_block", 1)
		if err := wait(s, seq); !errors.Is(err, event.DeviceLost) {
			t.Errorf("wait: %v", err)
		}
		start := time.Now()
		if err := d.Close(); !errors.Is(err, event.Leaked) {
			t.Errorf("Close under a blocked query: %v", err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("Close took %v", took)
		}
		ctl.Set("query_block", 0)
		openGate()
		clean(t, ctl) // what was given up goes as the driver's calls return
	})
}

// The context goes away under the library: an error for those who wait, none for
// the one who closes.
func TestContextDestroyed(t *testing.T) {
	for _, st := range []int64{4, 201, 709} {
		each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
			d, err := open(quick)
			must(t, d, err)
			s, err := d.NewStream()
			must(t, s, err)
			openGate := ctl.Gate(s.Handle())
			seq, err := s.Mark()
			must(t, seq, err)
			ctl.Set("destroyed", st)
			if err := wait(s, seq); !errors.Is(err, event.DeviceLost) || event.StatusOf(err) != st {
				t.Errorf("wait: %v (status %d)", err, event.StatusOf(err))
			}
			openGate()
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// A store that is queued although the call fails: the mark fails, earlier marks
// complete, and the page is not freed before the store has landed.
func TestQueuedDespiteError(t *testing.T) {
	each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
		d, err := open(quick)
		must(t, d, err)
		s, err := d.NewStream()
		must(t, s, err)
		openGate := ctl.Gate(s.Handle())
		good, err := s.Mark()
		must(t, good, err)
		ctl.Set("write_status_after", 999)
		if _, err := s.Mark(); !errors.Is(err, event.WorkFailed) || event.StatusOf(err) != 999 {
			t.Errorf("Mark: %v (status %d)", err, event.StatusOf(err))
		}
		ctl.Set("write_status_after", 0)
		openGate()
		if err := wait(s, good); err != nil {
			t.Errorf("the mark before: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		clean(t, ctl)
	})
}

// A mark on a capturing stream is refused, and nothing that the library does
// beside the capture invalidates it.
func TestCaptureSurvives(t *testing.T) {
	each(t, func(t *testing.T, ctl *standin.Control, open func(...gpu.Option) (*gpu.Device, error)) {
		d, err := open(gpu.WithHealth(time.Millisecond, time.Second, time.Second))
		must(t, d, err)
		s, err := d.NewStream()
		must(t, s, err)
		busy, err := d.NewStream()
		must(t, busy, err)
		begin, end := "cuStreamBeginCapture_v2", "cuStreamEndCapture"
		if d.Info().Driver == "hip" {
			begin, end = "hipStreamBeginCapture", "hipStreamEndCapture"
		}
		raw := d.Driver().(interface {
			Call(name string, args ...uintptr) error
		})
		runtime.LockOSThread() // the capture is this thread's, in global mode
		defer runtime.UnlockOSThread()
		if err := raw.Call(begin, s.Handle(), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Mark(); !errors.Is(err, event.CaptureRefused) {
			t.Errorf("Mark while capturing: %v", err)
		}
		for range 20 {
			openGate := ctl.Gate(busy.Handle())
			seq, err := busy.Mark()
			must(t, seq, err)
			time.AfterFunc(3*time.Millisecond, openGate) // a few health ticks
			if err := wait(busy, seq); err != nil {
				t.Error(err)
			}
		}
		var graph uintptr
		var pin runtime.Pinner
		pin.Pin(&graph)
		defer pin.Unpin()
		if err := raw.Call(end, s.Handle(), uintptr(unsafe.Pointer(&graph))); err != nil {
			t.Errorf("the capture was invalidated: %v", err)
		}
		seq, err := s.Mark()
		must(t, seq, err)
		if err := wait(s, seq); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		clean(t, ctl)
	})
}
