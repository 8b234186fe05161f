package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/driver/standin"
)

// TestDriver is the conformance suite over the CUDA driver of this machine, or
// over the library that GPUCHECK_LIBRARY names.
func TestDriver(t *testing.T) {
	drv := cuda.New(cuda.Config{Library: os.Getenv("GPUCHECK_LIBRARY")})
	if _, err := drv.Devices(); errors.Is(err, event.DriverMissing) || errors.Is(err, event.NoDevice) {
		t.Skip("no NVIDIA GPU here: ", err)
	}
	drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) { return drv, drivertest.Options{} })
}

// The whole check, over the stand-in: it proves that the check runs, not what
// a GPU does.
func TestCheckOverTheStandIn(t *testing.T) {
	lib := standin.Build(t, "cuda")
	out := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command("go", "run", ".", "-library", lib, "-rounds", "5", "-out", out)
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
	seen := map[string]bool{}
	for _, s := range r.Steps {
		seen[s.Name] = s.OK
	}
	for _, name := range []string{"open and self-test", "data behind a mark", "1 streams, Wait", "64 streams, Done", "1024 streams, Wait", "1 streams, host function", "1 streams, blocking event", "64 streams, event polling", "close", "fault"} {
		if !seen[name] {
			t.Errorf("step %q is missing or failed", name)
		}
	}
}
