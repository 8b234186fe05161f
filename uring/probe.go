package uring

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// Answer is what a probe found out.
type Answer uint8

const (
	// Unknown: the probe could not tell, for a reason that may pass (no memory, no
	// descriptors). It is asked again next time.
	Unknown Answer = iota
	// Works: tried, and it did what it should.
	Works
	// DoesNot: tried, and it can't work in this process.
	DoesNot
)

// String returns "could not tell", "works" or "does not work".
func (a Answer) String() string {
	switch a {
	case Works:
		return "works"
	case DoesNot:
		return "does not work"
	}
	return "could not tell"
}

// Cause says what stands in the way.
type Cause uint8

const (
	// NoCause: nothing stands in the way, or it is not known what.
	NoCause Cause = iota
	// Platform: the operating system is not Linux.
	Platform
	// Kernel: the running kernel is too old, or was built without it.
	Kernel
	// Seccomp: a seccomp filter forbids the system call, as container engines do.
	Seccomp
	// Sysctl: kernel.io_uring_disabled forbids it.
	Sysctl
	// Memlock: the limit on locked memory is too low (before Linux 5.12).
	Memlock
	// Policy: something else forbids it, such as a security module.
	Policy
)

var causes = [...]string{"no cause", "platform", "kernel", "seccomp", "sysctl", "memlock", "policy"}

// String returns the cause's name in lower case.
func (c Cause) String() string {
	if int(c) < len(causes) {
		return causes[c]
	}
	return "Cause(" + strconv.Itoa(int(c)) + ")"
}

// Support is the answer to one question.
type Support struct {
	Answer Answer
	Cause  Cause
	// What was asked for, and Why it does not work or could not be told, in words.
	What, Why string
	// Errno is the system's own answer, 0 where there was none.
	Errno syscall.Errno
}

// String returns the answer and the reason.
func (s Support) String() string {
	if s.Why == "" {
		return s.What + " " + s.Answer.String()
	}
	return s.What + " " + s.Answer.String() + ": " + s.Why
}

// Err is nil where it works, event.NotSupported where it does not (which matches
// errors.ErrUnsupported), and event.Backend where the probe could not tell.
func (s Support) Err() error {
	var e *event.Error
	switch s.Answer {
	case Works:
		return nil
	case DoesNot:
		e = event.New(event.NotSupported, s.What, s.Why)
	default:
		e = event.New(event.Backend, s.What+": "+s.Why, strconv.Itoa(int(s.Errno)))
	}
	if s.Errno != 0 {
		e = e.WithStatus(int64(s.Errno)).Wrap(s.Errno)
	}
	return e
}

// Report is what this process can do with io_uring.
type Report struct {
	// Kernel is the running kernel's release, empty where it is not known.
	Kernel string
	// Ring: a ring with the operations that this package uses can be made.
	Ring Support
	// Message: a ring can post completions on another one (Linux 5.18).
	Message Support
	// RinglessMessage: so can a process without a ring of its own (Linux 6.13).
	RinglessMessage Support
	// MultishotPoll: a poll can complete many times (Linux 5.13).
	MultishotPoll Support
}

var probed struct {
	sync.Mutex
	report Report
}

// Probe finds out what works here, by trying it, and remembers what it was told;
// what it could not tell is asked again by the next call. It takes some tens of
// microseconds the first time and leaves nothing open. Any goroutine may call it.
func Probe() Report {
	probed.Lock()
	defer probed.Unlock()
	r := &probed.report
	if r.Ring.Answer == Unknown || r.Message.Answer == Unknown || r.RinglessMessage.Answer == Unknown || r.MultishotPoll.Answer == Unknown {
		*r = theSystem.probe()
	}
	return *r
}

// system is what a probe asks; tests put in answers of their own.
type system struct {
	release  func() string
	seccomp  func() int
	memlock  func() string
	readFile func(string) ([]byte, error)
	ring     func() (*Ring, syscall.Errno)
}

var theSystem = system{
	release:  kernelRelease,
	seccomp:  seccompMode,
	memlock:  memlockLimit,
	readFile: os.ReadFile,
	ring:     func() (*Ring, syscall.Errno) { return newRing(RingConfig{Entries: 4}) },
}

// needOps are the operations without which there is no point.
var needOps = [...]int{opNop, opPollAdd, opTimeout, opAccept, opAsyncCancel, opRead, opSend, opRecv}

func (s system) probe() Report {
	rep := Report{Kernel: s.release()}
	a, e := s.ring()
	if e != 0 {
		rep.Ring = s.explain(e)
		for _, x := range []struct {
			s    *Support
			what string
		}{{&rep.Message, whatMessage}, {&rep.RinglessMessage, whatRingless}, {&rep.MultishotPoll, whatMultishot}} {
			*x.s = rep.Ring
			x.s.What = x.what
		}
		return rep
	}
	defer a.Close()
	var ops probeArg
	e = sysRegister(a.fd, registerProbe, unsafe.Pointer(&ops), uint32(len(ops.ops)))
	rep.Ring = Support{Answer: Works, What: whatRing}
	for _, op := range needOps {
		if ops.ops[op].flags&opSupported == 0 {
			rep.Ring = s.tooOld(whatRing, "5.6", e)
		}
	}
	rep.MultishotPoll = Support{Answer: Works, What: whatMultishot}
	if a.features&featRsrcTags == 0 {
		rep.MultishotPoll = s.tooOld(whatMultishot, "5.13", 0)
	}
	rep.RinglessMessage = s.tryMessage(a, whatRingless, "6.13", sendRingless)
	if ops.ops[opMsgRing].flags&opSupported == 0 {
		rep.Message = s.tooOld(whatMessage, "5.18", e)
		return rep
	}
	b, e := s.ring()
	if e != 0 {
		rep.Message = s.explain(e)
		rep.Message.What = whatMessage
		return rep
	}
	defer b.Close()
	rep.Message = s.tryMessage(a, whatMessage, "5.18", func(fd int, user uint64, res int32) syscall.Errno {
		if _, err := b.Message(1, fd, user, res); err != nil {
			return syscall.ENOMEM
		}
		if _, err := b.Wait(probeWait); err != nil {
			return syscall.ENOMEM
		}
		c, ok := b.Next()
		if !ok {
			return errTime
		}
		return syscall.Errno(max(-c.Res, 0))
	})
	return rep
}

const (
	whatRing      = "io_uring"
	whatMessage   = "a message from ring to ring"
	whatRingless  = "a message to a ring without one's own"
	whatMultishot = "a multishot poll"
)

// tryMessage sends a message to ring a and looks whether it arrives.
func (s system) tryMessage(a *Ring, what, since string, send func(fd int, user uint64, res int32) syscall.Errno) Support {
	const user, res = 0x6770756c696e65, -40
	e := send(a.fd, user, res)
	switch e {
	case 0:
	case syscall.ENOMEM, syscall.EAGAIN, errTime:
		return Support{Unknown, NoCause, what, "the kernel is short of memory or time", e}
	case syscall.EPERM, syscall.EACCES:
		sup := s.explain(e)
		sup.What = what
		return sup
	default:
		return s.tooOld(what, since, e)
	}
	ok, err := a.Wait(probeWait)
	c, _ := a.Next()
	if err != nil || !ok || c.User != user || c.Res != res {
		return Support{DoesNot, Kernel, what, "the kernel took a message, but it did not arrive", 0}
	}
	return Support{Answer: Works, What: what}
}

func (s system) tooOld(what, since string, e syscall.Errno) Support {
	why := "it needs Linux " + since
	if r := s.release(); r != "" {
		why += ", this is " + r
	}
	return Support{DoesNot, Kernel, what, why, e}
}

// explain says why a ring could not be set up.
func (s system) explain(e syscall.Errno) Support {
	no := func(c Cause, why string) Support { return Support{DoesNot, c, whatRing, why, e} }
	filtered := s.seccomp() == seccompFilter
	switch e {
	case syscall.ENOSYS:
		if runtime.GOOS != "linux" {
			return no(Platform, "it is part of Linux alone")
		}
		if older(s.release(), 5, 5) {
			return s.tooOld(whatRing, "5.6", e)
		}
		if filtered {
			return no(Seccomp, "a seccomp filter hides it")
		}
		return no(Kernel, "the kernel was built without it")
	case syscall.EPERM, syscall.EACCES:
		if e == syscall.EPERM {
			switch v := s.disabled(); {
			case v == "2":
				return no(Sysctl, "the sysctl kernel.io_uring_disabled is 2")
			case v == "1" && !s.admin():
				return no(Sysctl, "the sysctl kernel.io_uring_disabled is 1 and the process is not in kernel.io_uring_group")
			}
		}
		if filtered {
			return no(Seccomp, "a seccomp filter forbids it, as container engines do by default")
		}
		return no(Policy, "it is forbidden, neither by a seccomp filter nor by a sysctl")
	case syscall.ENOMEM:
		if older(s.release(), 5, 12) {
			return no(Memlock, "before Linux 5.12 rings count as locked memory, which is limited to "+s.memlock())
		}
	}
	return Support{Unknown, NoCause, whatRing, "setting up a ring failed: " + e.Error(), e}
}

func (s system) disabled() string {
	b, _ := s.readFile("/proc/sys/kernel/io_uring_disabled")
	return strings.TrimSpace(string(b))
}

// admin reports whether CAP_SYS_ADMIN, which lifts the sysctl's 1, is effective.
func (s system) admin() bool {
	b, _ := s.readFile("/proc/self/status")
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && caps>>capSysAdmin&1 != 0
		}
	}
	return false
}

// older reports whether a kernel release is known to be older than major.minor.
func older(release string, major, minor uint) bool {
	a, rest, ok := strings.Cut(release, ".")
	x, err := strconv.ParseUint(a, 10, 16)
	if !ok || err != nil {
		return false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	y, err := strconv.ParseUint(rest[:end], 10, 16)
	if err != nil {
		return false
	}
	return x < uint64(major) || x == uint64(major) && y < uint64(minor)
}
