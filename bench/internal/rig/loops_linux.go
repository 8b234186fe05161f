package rig

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/uring"
)

// startEpoll is an event loop of the program's own, in one thread, that has the
// library's descriptor beside its sockets.
func startEpoll(r *run) error {
	g, err := epoll.NewGroup()
	if err != nil {
		return err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(g.Fd())}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, g.Fd(), &ev); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	r.start(func() error {
		defer func() {
			_ = unix.Close(ep)
			_ = g.Close()
		}()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		lp := newLoop(r, g)
		if err := lp.begin(); err != nil {
			return err
		}
		var evs [8]unix.EpollEvent
		buf := make([]epoll.Completion, 256)
		for lp.running > 0 {
			if _, err := unix.EpollWait(ep, evs[:], -1); err != nil && err != unix.EINTR {
				return os.NewSyscallError("epoll_wait", err)
			}
			for {
				for n := g.Drain(buf); n > 0; n = g.Drain(buf) {
					for _, c := range buf[:n] {
						if err := lp.completed(c.Wait, c.Err); err != nil {
							return err
						}
					}
				}
				if !g.Arm() {
					break
				}
			}
		}
		return nil
	})
	return nil
}

// startNetpoll is a goroutine that takes all completions through Go's netpoller.
func startNetpoll(r *run) error {
	g, err := epoll.NewGroup()
	if err != nil {
		return err
	}
	r.start(func() error {
		defer g.Close()
		lp := newLoop(r, g)
		if err := lp.begin(); err != nil {
			return err
		}
		buf := make([]epoll.Completion, 256)
		for lp.running > 0 {
			n, err := g.Wait(r.ctx, buf)
			if err != nil {
				return err
			}
			for _, c := range buf[:n] {
				if err := lp.completed(c.Wait, c.Err); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return nil
}

// startUring is an event loop of the program's own on an io_uring, to which the
// library posts its completions.
func startUring(r *run) error {
	if s := uring.Probe().Ring; s.Answer != uring.Works {
		return skipped(s.String())
	}
	r.start(func() (err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ring, err := uring.NewRing(uring.RingConfig{Entries: 64, Completions: 4096, OwnerThread: true})
		if err != nil {
			return err
		}
		host, err := uring.NewHost(ring.Fd(), uring.HostConfig{Strict: true})
		if err != nil {
			return errors.Join(err, ring.Close())
		}
		defer func() { err = errors.Join(err, host.Close(), ring.Close()) }()
		lp := newLoop(r, host)
		if err := lp.begin(); err != nil {
			return err
		}
		for lp.running > 0 {
			if _, err := ring.Wait(-1); err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			for c, ok := ring.Next(); ok; c, ok = ring.Next() {
				if err := lp.completed(&lp.waits[c.User], host.Err(c.User, c.Res)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return nil
}

func loops() []*Method {
	return []*Method{
		{Name: "epoll", What: "the program's own epoll loop in one thread, the library's descriptor beside its sockets", start: startEpoll},
		{Name: "netpoll", What: "one goroutine taking completions from an epoll.Group through Go's netpoller", start: startNetpoll},
		{Name: "uring", What: "the program's own io_uring loop in one thread, to which the library posts completions", start: startUring},
	}
}
