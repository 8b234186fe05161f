package opencl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/opencl"
)

// What a process can do only once, or what depends on the environment at its
// start, runs in a child: this test binary again, with GPULINE_TEST_CHILD set.

var children = map[string]func() error{
	"no-icd": func() error {
		_, err := opencl.New(opencl.Config{}).Devices()
		if !errors.Is(err, event.NoDevice) {
			return fmt.Errorf("devices without an ICD: %v", err)
		}
		if event.StatusOf(err) != -1001 {
			return fmt.Errorf("status %d, want -1001", event.StatusOf(err))
		}
		_, err = opencl.New(opencl.Config{}).Open(0)
		if !errors.Is(err, event.NoDevice) {
			return fmt.Errorf("open without an ICD: %v", err)
		}
		return nil
	},
}

func child(mode string) {
	f := children[mode]
	if f == nil {
		fmt.Println("unknown child", mode)
		os.Exit(3)
	}
	if err := f(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("child ok")
}

// childCommand is the test binary as a child, with the tests' kernel cache.
func childCommand(t *testing.T, mode string, env ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), "GPULINE_TEST_CHILD="+mode), env...)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 10 * time.Second
	return cmd, out
}

func runChild(t *testing.T, mode string, env ...string) {
	t.Helper()
	cmd, out := childCommand(t, mode, env...)
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "child ok") {
		t.Errorf("child %s: %v\n%s", mode, err, out)
	}
}

func TestNoICD(t *testing.T) {
	if _, err := opencl.New(opencl.Config{}).Devices(); errors.Is(err, event.DriverMissing) && !required() {
		t.Skip("no OpenCL ICD loader (on Debian: apt-get install ocl-icd-libopencl1)")
	}
	runChild(t, "no-icd", "OCL_ICD_VENDORS=/nonexistent")
}

// PoCL's basic device runs every command inside the enqueue call, so each word
// has its number before anybody can wait for it. Without gates: there PoCL 3.1
// never returns from clSetUserEventStatus while a marker waits for the event.
func TestSynchronousDevice(t *testing.T) {
	if !strings.Contains(strings.ToLower(device(t).Info().Version), "pocl") {
		t.Skip("POCL_DEVICES is PoCL's (on Debian: apt-get install pocl-opencl-icd)")
	}
	if os.Getenv("POCL_DEVICES") != "" {
		t.Skip("this is the child")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^(TestStoresBehindKernels|TestLaunchArguments|TestAdopt.*|TestMemory|TestUseAfterClose)$", "-test.v")
	cmd.Env = append(os.Environ(), "POCL_DEVICES=basic", "GPULINE_REQUIRE=opencl")
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestStoresBehindKernels")) {
		t.Errorf("with POCL_DEVICES=basic: %v\n%s", err, out)
	}
}
