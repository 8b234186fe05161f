package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
)

// On a machine with nothing, opening everything says why for each driver, and
// quickly.
func TestNothingToOpen(t *testing.T) {
	if os.Getenv("GPULINE_CHILD") == "nothing" {
		start := time.Now()
		_, err := gpu.Open(context.Background())
		took := time.Since(start)
		for _, code := range []event.Code{event.DriverPassedOver} {
			if !errors.Is(err, code) {
				t.Errorf("%v: %v", code, err)
			}
		}
		fmt.Printf("took %v\n%v\n", took, err)
		if os.Getenv("GPULINE_GUARDS") != "" && took > 50*time.Millisecond {
			t.Errorf("took %v, want under 50 ms", took)
		}
		return
	}
	var out []byte
	for try := 1; ; try++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNothingToOpen$")
		cmd.Env = append(os.Environ(), "GPULINE_CHILD=nothing", "OCL_ICD_VENDORS=/nonexistent", "GPULINE_DRIVER=")
		var err error
		if out, err = cmd.CombinedOutput(); err == nil {
			break
		}
		if try == 5 { // the time is a measurement: the fastest of five counts
			t.Fatalf("%v\n%s", err, out)
		}
	}
	t.Logf("%s", out)
	if gpuHere() {
		t.Skip("this machine has a GPU driver with a device")
	}
	for _, d := range []string{"cuda", "hip", "metal", "opencl"} {
		if !strings.Contains(string(out), "driver "+d+" passed over: ") {
			t.Errorf("no reason for %s", d)
		}
	}
}

// gpuHere reports whether a driver other than OpenCL has a device.
func gpuHere() bool {
	found, _ := gpu.Devices("cuda", "hip", "metal")
	for _, f := range found {
		if f.Err == nil {
			return true
		}
	}
	return false
}
