package drivertest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/drivertest"
	"github.com/gpuline/gpuline/gpu/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hooks(drv driver.Driver) drivertest.Options {
	return drivertest.Options{
		Work: func(s driver.Stream, dst driver.Mem, n int, value byte) error {
			st, _ := soft.Of(s)
			d, _ := soft.DeviceOf(s.Device())
			return st.Run(func() error {
				time.Sleep(50 * time.Microsecond)
				for i, mem := 0, d.Bytes(dst, n); i < n; i++ {
					mem[i] = value
				}
				return nil
			})
		},
		Gate: func(s driver.Stream) (func() error, error) {
			st, _ := soft.Of(s)
			open, err := st.Gate()
			return func() error { open(); return nil }, err
		},
		Poison: func(s driver.Stream) error {
			st, _ := soft.Of(s)
			return st.Fail(errors.New("asked for"))
		},
		Foreign: func(t testing.TB, d driver.Device) uintptr { return handle(t, d) },
		Alien: func(t testing.TB, _ driver.Device) uintptr {
			other, err := drv.Open(0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = other.Close() })
			return handle(t, other)
		},
		Capture: func(s driver.Stream) (func() error, error) {
			st, _ := soft.Of(s)
			st.BeginCapture()
			return func() error { st.EndCapture(); return nil }, nil
		},
	}
}

func handle(t testing.TB, d driver.Device) uintptr {
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.Handle()
}

func TestSoft(t *testing.T) {
	for name, cfg := range map[string]soft.Config{
		"default":   {},
		"go engine": {GoEngine: true},
		"process":   {Process: true},
		"unproven":  {Unproven: true, StoreAfterFault: true},
		"no stores": {Lie: soft.NoStores},
		"2 engines": {Engines: 2, Devices: 2},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) (driver.Driver, drivertest.Options) {
				drv := soft.New(cfg)
				if d, err := drv.Open(0); errors.Is(err, event.NotSupported) {
					t.Skip(err)
				} else if err == nil {
					_ = d.Close()
				}
				return drv, hooks(drv)
			})
		})
	}
}

// A suite that passes anything shows nothing: each fault below is a driver that
// is wrong in one way, and the test that must catch it has to fail on it.

var faults = map[string]struct {
	caught string // the test that must fail
	driver func() driver.Driver
}{
	"store overtakes the work":    {"StoreDoesNotWait", wrap(func(s driver.Stream) driver.Stream { return early{s} })},
	"store of 32 bits":            {"StoreEveryBit", wrap(func(s driver.Stream) driver.Stream { return narrow{s} })},
	"store misses its word":       {"StoreEveryBit", wrap(func(s driver.Stream) driver.Stream { return off{s} })},
	"stores go back":              {"StoresInOrder", wrap(func(s driver.Stream) driver.Stream { return &back{Stream: s} })},
	"copy of one byte too few":    {"StoreBehindWork", wrap(func(s driver.Stream) driver.Stream { return short{s} })},
	"query says done":             {"QuerySyncStoreAgree", wrap(func(s driver.Stream) driver.Stream { return done{s} })},
	"sync does not wait":          {"QuerySyncStoreAgree", wrap(func(s driver.Stream) driver.Stream { return hasty{s} })},
	"events say done":             {"Events", wrap(func(s driver.Stream) driver.Stream { return instant{s} })},
	"errors without a code":       {"UseAfterClose", wrap(func(s driver.Stream) driver.Stream { return uncoded{s} })},
	"misaligned store accepted":   {"StoreBadArguments", wrap(func(s driver.Stream) driver.Stream { return lenient{s} })},
	"failure not reported":        {"Failure", wrap(func(s driver.Stream) driver.Stream { return blind{s} })},
	"words that prove nothing":    {"Failure", func() driver.Driver { return proven{soft.New(soft.Config{})} }},
	"settle does not wait":        {"Settle", func() driver.Driver { return unsettled{soft.New(soft.Config{})} }},
	"stores that never land":      {"StoreEveryBit", func() driver.Driver { return soft.New(soft.Config{Lie: soft.LieNever}) }},
	"stores refused against caps": {"StoreEveryBit", func() driver.Driver { return soft.New(soft.Config{Lie: soft.LieUnsupported}) }},
}

const faultEnv = "GPULINE_DRIVERTEST_FAULT"

// TestFaulty is the child of TestSuiteCatches.
func TestFaulty(t *testing.T) {
	f, ok := faults[os.Getenv(faultEnv)]
	if !ok {
		t.Skip("run by TestSuiteCatches")
	}
	drv := f.driver()
	drivertest.Run(t, func(*testing.T) (driver.Driver, drivertest.Options) { return drv, hooks(drv) })
}

func TestSuiteCatches(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestFaulty$/^"+f.caught+"$", "-test.v")
			cmd.Env = append(os.Environ(), faultEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("--- FAIL: TestFaulty/"+f.caught)) {
				t.Errorf("not caught by %s: %v\n%s", f.caught, err, out)
			}
			if strings.Contains(string(out), "panic:") {
				t.Errorf("caught by a panic:\n%s", out)
			}
		})
	}
}
