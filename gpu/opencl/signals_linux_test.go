//go:build linux && (amd64 || arm64)

package opencl_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/opencl"
)

type sigaction struct{ handler, flags, restorer, mask uint64 }

func handlers() (all [65]sigaction) {
	for i := 1; i < len(all); i++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(i), 0, uintptr(unsafe.Pointer(&all[i])), 8, 0, 0)
	}
	return all
}

func init() {
	children["signals"] = func() error {
		before := handlers()
		d, s, err := openAndRun()
		if err != nil {
			return err
		}
		var errs []error
		for i, now := range handlers() {
			if now == before[i] {
				continue
			}
			const onStack = 0x08000000
			if i == int(syscall.SIGFPE) && now.flags&onStack != 0 {
				continue // kept for the kernels, see keepSignals
			}
			errs = append(errs, fmt.Errorf("handler of signal %d: %+v before, %+v now", i, before[i], now))
		}
		if errs != nil {
			return errors.Join(errs...)
		}

		// Signals still reach the Go program, each the first time.
		ch := make(chan os.Signal, 8)
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT} {
			signal.Notify(ch, sig)
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				return err
			}
			select {
			case got := <-ch:
				if got != sig {
					return fmt.Errorf("sent %v, got %v", sig, got)
				}
			case <-time.After(20 * time.Second):
				return fmt.Errorf("%v never reached the Go program", sig)
			}
			signal.Reset(sig)
		}
		// A nil dereference is still a panic.
		if err := func() (err error) {
			defer func() {
				if recover() == nil {
					err = errors.New("a nil dereference did not panic")
				}
			}()
			var p *int
			*p = 1
			return nil
		}(); err != nil {
			return err
		}
		return errors.Join(s.Close(), d.Close())
	}
	// A kernel that divides by zero is undefined in its result only; on PoCL the
	// process's SIGFPE handler has to see to that.
	children["divide"] = func() error {
		d, s, err := openAndRun()
		if err != nil {
			return err
		}
		p, err := d.Build(source, "")
		if err != nil {
			return err
		}
		k, err := p.Kernel("div")
		if err != nil {
			return err
		}
		var m driver.Mem
		if m, err = d.Alloc(4 * 128); err != nil {
			return err
		}
		return errors.Join(s.Fill(m, 1, 4*128), s.Launch(k, []int{64}, nil, m, int32(0)), s.Sync(),
			k.Close(), p.Close(), s.Close(), d.Free(m), d.Close())
	}
	children["quit"] = func() error {
		if _, _, err := openAndRun(); err != nil {
			return err
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGQUIT); err != nil {
			return err
		}
		time.Sleep(20 * time.Second)
		return errors.New("still alive after the first SIGQUIT")
	}
}

// openAndRun makes the driver do everything that may touch signal handlers.
func openAndRun() (*opencl.Device, *opencl.Stream, error) {
	dd, err := opencl.New(opencl.Config{}).Open(0)
	if err != nil {
		return nil, nil, err
	}
	d, _ := opencl.DeviceOf(dd)
	ds, err := d.NewStream()
	if err != nil {
		return nil, nil, err
	}
	s, _ := opencl.Of(ds)
	p, err := d.Build(source, "")
	if err != nil {
		return nil, nil, err
	}
	k, err := p.Kernel("put")
	if err != nil {
		return nil, nil, err
	}
	m, err := d.Alloc(4)
	if err != nil {
		return nil, nil, err
	}
	return d, s, errors.Join(s.Launch(k, []int{1}, nil, m, uint32(1), uint32(1)), s.Sync(), d.Free(m), k.Close(), p.Close())
}

func TestSignalHandlersIntact(t *testing.T) {
	device(t)
	runChild(t, "signals")
}

func TestKernelMayDivideByZero(t *testing.T) {
	device(t)
	runChild(t, "divide")
}

func TestFirstQuitDumpsGoroutines(t *testing.T) {
	device(t)
	cmd, out := childCommand(t, "quit")
	err := cmd.Run()
	if err == nil || !strings.Contains(out.String(), "SIGQUIT: quit") || !strings.Contains(out.String(), "goroutine 1 ") {
		t.Errorf("want a goroutine dump at the first SIGQUIT; got %v\n%s", err, out)
	}
}
