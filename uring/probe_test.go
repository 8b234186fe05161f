package uring

import (
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuline/gpuline/event"
)

// saying is a system that answers as told and never makes a ring.
func saying(release string, seccomp int, disabled, status string, e syscall.Errno) system {
	return system{
		release: func() string { return release },
		seccomp: func() int { return seccomp },
		memlock: func() string { return "65536 bytes" },
		readFile: func(path string) ([]byte, error) {
			switch {
			case path == "/proc/sys/kernel/io_uring_disabled" && disabled != "":
				return []byte(disabled), nil
			case path == "/proc/self/status" && status != "":
				return []byte(status), nil
			}
			return nil, fs.ErrNotExist
		},
		ring: func() (*Ring, syscall.Errno) { return nil, e },
	}
}

func TestExplain(t *testing.T) {
	const admin, user = "Name:\tx\nCapEff:\t000001ffffffffff\n", "Name:\tx\nCapEff:\t00000000a80425fb\n"
	enosys := Kernel
	if runtime.GOOS != "linux" {
		enosys = Platform
	}
	ifLinux := func(c Cause) Cause {
		if enosys == Platform {
			return Platform
		}
		return c
	}
	for _, c := range []struct {
		name   string
		sys    system
		answer Answer
		cause  Cause
		says   string
	}{
		{"old kernel", saying("4.19.0-26", 0, "", "", syscall.ENOSYS), DoesNot, enosys, ""},
		{"old kernel in a container", saying("5.4.1", 2, "", "", syscall.ENOSYS), DoesNot, enosys, ""},
		{"hidden by seccomp", saying("6.1.0", 2, "0\n", "", syscall.ENOSYS), DoesNot, ifLinux(Seccomp), ""},
		{"not built in", saying("6.1.0", 0, "", "", syscall.ENOSYS), DoesNot, enosys, ""},
		{"sysctl 2", saying("6.8.0", 2, "2\n", admin, syscall.EPERM), DoesNot, Sysctl, "io_uring_disabled is 2"},
		{"sysctl 1", saying("6.8.0", 0, "1\n", user, syscall.EPERM), DoesNot, Sysctl, "io_uring_group"},
		{"sysctl 1 does not bind", saying("6.8.0", 2, "1\n", admin, syscall.EPERM), DoesNot, Seccomp, "seccomp"},
		{"seccomp", saying("6.8.0", 2, "0\n", user, syscall.EPERM), DoesNot, Seccomp, "container engines"},
		{"seccomp, no sysctl", saying("5.15.0", 2, "", "", syscall.EPERM), DoesNot, Seccomp, ""},
		{"security module", saying("6.16.0", 0, "0\n", user, syscall.EACCES), DoesNot, Policy, ""},
		{"forbidden by who knows", saying("6.8.0", -1, "0\n", "", syscall.EPERM), DoesNot, Policy, ""},
		{"memlock", saying("5.10.0", 0, "", "", syscall.ENOMEM), DoesNot, Memlock, "65536 bytes"},
		{"no memory", saying("6.8.0", 0, "0", "", syscall.ENOMEM), Unknown, NoCause, ""},
		{"no descriptors", saying("6.8.0", 0, "0", "", syscall.EMFILE), Unknown, NoCause, ""},
		{"unknown kernel", saying("", 0, "", "", syscall.ENOMEM), Unknown, NoCause, ""},
	} {
		r := c.sys.probe()
		for _, s := range []Support{r.Ring, r.Message, r.RinglessMessage, r.MultishotPoll} {
			if s.Answer != c.answer || s.Cause != c.cause || !strings.Contains(s.Why, c.says) || s.What == "" {
				t.Errorf("%s: %v, cause %v", c.name, s, s.Cause)
			}
			err := s.Err()
			if errors.Is(err, errors.ErrUnsupported) != (c.answer == DoesNot) || errors.Is(err, event.NotSupported) != (c.answer == DoesNot) {
				t.Errorf("%s: %v", c.name, err)
			}
			if !errors.Is(err, s.Errno) || event.StatusOf(err) != int64(s.Errno) {
				t.Errorf("%s: %v does not carry %v", c.name, err, s.Errno)
			}
		}
	}
	if err := (Support{Answer: Works}).Err(); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	if s := Unknown.String() + ", " + Works.String() + ", " + DoesNot.String(); s != "could not tell, works, does not work" {
		t.Error(s)
	}
	for c := NoCause; c <= Policy; c++ {
		if c.String() == "" || strings.Contains(c.String(), "(") {
			t.Error(c)
		}
	}
	if s := Cause(99).String(); s != "Cause(99)" {
		t.Error(s)
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		release string
		want    bool
	}{
		{"5.11.22", true}, {"5.12.0", false}, {"4.19.0-amd64", true}, {"6.0.0", false}, {"10.1", false}, {"5.12-rc1", false},
		{"", false}, {"x", false}, {"5", false}, {"5.", false}, {"5.x", false}, {"-1.-1", false},
	} {
		if got := older(c.release, 5, 12); got != c.want {
			t.Errorf("older(%q, 5, 12) = %v", c.release, got)
		}
	}
}

func FuzzOlder(f *testing.F) {
	for _, s := range []string{"6.18.44-fc", "5.12", "", "999999999999999999999.1", "5.-3"} {
		f.Add(s, uint8(5), uint8(12))
	}
	f.Fuzz(func(t *testing.T, release string, major, minor uint8) {
		if older(release, uint(major), uint(minor)) && !older(release, uint(major)+1, 0) {
			t.Errorf("%q is older than %d.%d, but not than %d.0", release, major, minor, major+1)
		}
		if older(release, 0, 0) {
			t.Errorf("%q is older than 0.0", release)
		}
	})
}

func TestElsewhere(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Skip("Linux has io_uring; see the other tests")
	}
	if r := Probe(); r.Ring.Answer != DoesNot || r.Ring.Cause != Platform {
		t.Errorf("%+v", r)
	}
	if _, err := NewRing(RingConfig{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NewRing: %v", err)
	}
	if _, err := NewClock(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NewClock: %v", err)
	}
	if _, err := NewHost(3, HostConfig{}); !errors.Is(err, event.HostRefused) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NewHost: %v", err)
	}
}
