package uring

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/internal/forbid"
)

// On a kernel that is new enough the probes must say so: it is they that are tested
// here.
func TestProbe(t *testing.T) {
	fds := openFDs(t)
	r := theSystem.probe()
	t.Logf("%+v", r)
	if r.Ring.Answer == DoesNot && r.Ring.Cause != Kernel {
		t.Skipf("%v: run where io_uring is allowed", r.Ring)
	}
	for _, c := range []struct {
		s            Support
		major, minor uint
	}{{r.Ring, 5, 6}, {r.MultishotPoll, 5, 13}, {r.Message, 5, 18}, {r.RinglessMessage, 6, 13}} {
		want := Works
		if older(r.Kernel, c.major, c.minor) {
			want = DoesNot
		}
		if c.s.Answer != want {
			t.Errorf("%v on Linux %s", c.s, r.Kernel)
		}
		if want == DoesNot && c.s.Cause != Kernel {
			t.Errorf("%v: cause %v", c.s, c.s.Cause)
		}
	}
	if n := openFDs(t); n != fds {
		t.Errorf("%d descriptors before, %d after", fds, n)
	}
}

// What could not be told is asked again, what could is not.
func TestProbeRemembers(t *testing.T) {
	needRing(t)
	reset := func() { probed.report = Report{} }
	reset()
	defer reset()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	r := Probe()
	_, err := NewRing(RingConfig{})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if r.Ring.Answer != Unknown || r.Ring.Errno != syscall.EMFILE || !errors.Is(r.Ring.Err(), event.Backend) {
		t.Errorf("without descriptors: %v", r.Ring)
	}
	if !errors.Is(err, syscall.EMFILE) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NewRing without descriptors: %v", err)
	}
	if r := Probe(); r.Ring.Answer != Works {
		t.Errorf("with descriptors: %v", r.Ring)
	}
	real := theSystem
	theSystem = saying("4.0", 0, "", "", syscall.ENOSYS)
	defer func() { theSystem = real }()
	if r := Probe(); r.Ring.Answer != Works {
		t.Errorf("asked again: %v", r.Ring)
	}
}

func TestForbiddenBySeccomp(t *testing.T) {
	for name, errno := range map[string]unix.Errno{"EPERM": unix.EPERM, "ENOSYS": unix.ENOSYS} {
		t.Run(name, func(t *testing.T) {
			forbid.Syscalls(t, []forbid.Rule{{Call: unix.SYS_IO_URING_SETUP, Any: true, Errno: errno}}, func(t *testing.T) {
				r := Probe()
				if r.Ring.Answer != DoesNot || r.Ring.Cause != Seccomp || r.Ring.Errno != errno {
					t.Errorf("%v, cause %v", r.Ring, r.Ring.Cause)
				}
				for _, f := range []func() error{
					func() error { _, err := NewRing(RingConfig{}); return err },
					func() error { _, err := NewClock(); return err },
				} {
					if err := f(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "seccomp") {
						t.Errorf("%v", err)
					}
				}
				for _, strict := range []bool{true, false} {
					if _, err := NewHost(0, HostConfig{Strict: strict}); !errors.Is(err, event.HostRefused) || !errors.Is(err, errno) {
						t.Errorf("NewHost: %v", err)
					}
				}
			})
		})
	}
}

// A kernel between 5.18 and 6.13: messages need a ring of one's own.
func TestWithoutRinglessMessages(t *testing.T) {
	needMessages(t)
	forbid.Syscalls(t, []forbid.Rule{{Call: unix.SYS_IO_URING_REGISTER, Arg1: registerSendMsgRing, Errno: unix.EINVAL}}, func(t *testing.T) {
		probed.report = Report{} // of before the filter
		r := Probe()
		if r.Ring.Answer != Works || r.Message.Answer != Works || r.RinglessMessage.Answer != DoesNot || r.RinglessMessage.Cause != Kernel {
			t.Errorf("%+v", r)
		}
		to := testRing(t, RingConfig{})
		h := testHost(t, to, HostConfig{Strict: true})
		for i := range uint64(10) {
			post(h, i)
			wantCompletion(t, to, i, 0)
		}
	})
}

// The sysctl for real, where a test may write it: it is the whole machine's, so only
// on request.
func TestForbiddenBySysctl(t *testing.T) {
	const path = "/proc/sys/kernel/io_uring_disabled"
	if os.Getenv("GPULINE_SYSCTL") == "" {
		t.Skip("set GPULINE_SYSCTL=1 to let this test forbid io_uring on the whole machine for a moment")
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("%v: run on Linux 6.6 or later", err)
	}
	if err := os.WriteFile(path, []byte("2\n"), 0); err != nil {
		t.Skipf("%v: run as root", err)
	}
	r := theSystem.probe()
	if err := os.WriteFile(path, old, 0); err != nil {
		t.Fatal(err)
	}
	if r.Ring.Answer != DoesNot || r.Ring.Cause != Sysctl {
		t.Errorf("%v, cause %v", r.Ring, r.Ring.Cause)
	}
}
