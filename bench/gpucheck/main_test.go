package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/bench/internal/rig"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/driver/standin"
	"github.com/gpuline/gpuline/line"
)

// envMain makes the test binary be the command.
const envMain = "GPULINE_CHECK_MAIN"

func TestMain(m *testing.M) {
	rig.Child()
	child()
	if os.Getenv(envMain) != "" {
		os.Unsetenv(envMain) // the tests that it runs are tests
		main()
		return
	}
	os.Exit(m.Run())
}

// TestDriver is the conformance suite over the CUDA driver of this machine, or over
// the library that GPULINE_BENCH_CUDA names.
func TestDriver(t *testing.T) {
	drv := rig.CUDA()
	if _, err := drv.Devices(); errors.Is(err, event.DriverMissing) || errors.Is(err, event.NoDevice) {
		t.Skip("no NVIDIA GPU here: ", err)
	}
	drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) {
		h := &hooks{t: t, mods: map[driver.Device]*cuda.Module{}}
		opt := drivertest.Options{Poison: h.poison, Foreign: foreign, Capture: capture}
		if h.can(drv, "gate") {
			opt.Gate = h.gate
		}
		return drv, opt
	})
}

// hooks are what the suite needs beyond the driver's contract, as kernels.
type hooks struct {
	t    *testing.T
	mods map[driver.Device]*cuda.Module
}

func (h *hooks) kernel(d driver.Device, name string) (*cuda.Function, error) {
	m := h.mods[d]
	if m == nil {
		var err error
		if m, err = d.(*cuda.Device).LoadModule(rig.Kernels); err != nil {
			return nil, err
		}
		h.mods[d] = m
	}
	return m.Function(name)
}

// can reports whether the driver has a kernel: the stand-in knows them by name.
func (h *hooks) can(drv driver.Driver, name string) bool {
	d, err := drv.Open(0)
	if err != nil {
		return false
	}
	defer d.Close()
	defer delete(h.mods, d)
	_, err = h.kernel(d, name)
	return err == nil
}

func (h *hooks) poison(s driver.Stream) error {
	f, err := h.kernel(s.Device(), "fault")
	if err != nil {
		return err
	}
	return launch(s, f)
}

// gate is a kernel that looks at a host word until that is stored to.
func (h *hooks) gate(s driver.Stream) (func() error, error) {
	d := s.Device()
	f, err := h.kernel(d, "gate")
	if err != nil {
		return nil, err
	}
	host, err := d.AllocHost(line.Size)
	if err != nil {
		return nil, err
	}
	dev, err := d.DeviceAddr(host)
	if err != nil {
		return nil, err
	}
	lines, err := line.FromAddr(host, line.Size)
	if err != nil {
		return nil, err
	}
	lines[0][0].Zero()
	// The page is left to the end of the process: the kernel reads it until it has
	// seen the store.
	return func() error { lines[0][0].Store(1); return nil }, launch(s, f, dev)
}

// foreign makes a stream as other code does: by a call of the driver's.
func foreign(t testing.TB, d driver.Device) uintptr {
	cd := d.(*cuda.Device)
	h := new(uintptr)
	var pin runtime.Pinner
	pin.Pin(h)
	defer pin.Unpin()
	if err := cd.Call("cuStreamCreate", uintptr(unsafe.Pointer(h)), 1); err != nil {
		t.Fatal(err)
	}
	stream := *h
	t.Cleanup(func() { _ = cd.Call("cuStreamDestroy_v2", stream) })
	return stream
}

// capture puts a stream in capture mode. Relaxed (2), so that any thread may end it.
func capture(s driver.Stream) (end func() error, err error) {
	d := s.Device().(*cuda.Device)
	if err := d.Call("cuStreamBeginCapture_v2", s.Handle(), 2); err != nil {
		return nil, err
	}
	return func() error {
		graph := new(uintptr)
		var pin runtime.Pinner
		pin.Pin(graph)
		defer pin.Unpin()
		return d.Call("cuStreamEndCapture", s.Handle(), uintptr(unsafe.Pointer(graph)))
	}, nil
}

// The whole check, over the stand-in: it proves that the check runs, not what a GPU
// does.
func TestCheckOverTheStandIn(t *testing.T) {
	lib := standin.Build(t, "cuda")
	out := filepath.Join(t.TempDir(), "report.json")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-library", lib, "-test", self, "-out", out, "-budget", "25s")
	cmd.Env = append(os.Environ(), envMain+"=1")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Library != lib || r.SelfTest == nil || r.SelfTest.Info.Driver != "cuda" {
		t.Errorf("self-test: %+v", r.SelfTest)
	}
	if !r.Tests.OK {
		t.Errorf("driver tests: %+v", r.Tests)
	}
	if len(r.Faults) != len(faultKinds) {
		t.Fatalf("%d faults, want %d", len(r.Faults), len(faultKinds))
	}
	for _, f := range r.Faults {
		// The stand-in runs what lies ahead of failed work, and reports a fault.
		if ahead := f.Kind == faultKinds[3]; ahead && !f.Written || f.Sync == "" {
			t.Errorf("%+v", f)
		}
	}
	if f := r.Faults[len(r.Faults)-1]; f.Enqueue == "" && f.Wait == "" {
		t.Errorf("the library reported success for failed work: %+v", f)
	}
	if len(r.Copies) == 0 || r.Copies[0].Wrong != 0 {
		t.Errorf("copies: %+v", r.Copies)
	}
	measured := map[string]bool{}
	for _, row := range r.Wakes.Rows {
		if len(row.Samples) > 0 {
			measured[row.Method] = true
		}
	}
	for _, name := range []string{"thread", "spin", "callback", "events", "wait+predict", "done+predict"} {
		if !measured[name] {
			t.Errorf("%s was not measured", name)
		}
	}
}
