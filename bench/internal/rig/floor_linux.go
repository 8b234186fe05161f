package rig

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/uring"
)

func rawFloors() []floor {
	fs := []floor{
		{"futex wake", "a thread blocked in futex(2) on an idle processor, woken from another", futexFloor},
		{"eventfd wake", "a thread blocked in read(2) on an eventfd on an idle processor, woken from another", eventfdFloor(floorWork)},
	}
	for _, idle := range result.EventfdIdle {
		fs = append(fs, floor{result.EventfdWake(idle), "the same on a processor that has been idle for " + idle, eventfdFloor(must(time.ParseDuration(idle)))})
	}
	return append(fs,
		floor{"epoll wake", "a thread blocked in epoll_wait(2) for an eventfd on an idle processor, woken from another", epollFloor},
		floor{"ring message", "a thread blocked in io_uring_enter(2) on an idle processor, sent a message by another ring", messageFloor},
		floor{"kernel sleep", "how late a thread wakes from clock_nanosleep(2) of 100 us with the least timer slack", sleepFloor},
	)
}

func must(d time.Duration, err error) time.Duration {
	if err != nil {
		panic(err) // a constant of this module
	}
	return d
}

// pair runs a sleeper and its waker on two threads, tied to different processors
// where there are several. sleep blocks until woken, wake wakes; both are raw, with
// nothing of Go's scheduler. The sleeper's processor is idle for that long, while the
// waker sleeps and, for the last moments, looks at the clock, as who waits for a
// device would: it is awake when it is to wake.
func pair(j Job, idle time.Duration, note func(int64, time.Duration), sleep, wake func() error) error {
	const awake = 45 * time.Microsecond
	type woken struct {
		at, cpu time.Duration
		err     error
	}
	start, done := make(chan struct{}), make(chan woken)
	var ready atomic.Int64
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = sys.Pin(-1)
		for range start {
			ready.Add(1)
			cpu := sys.ThreadCPU()
			err := sleep()
			at := soft.Now()
			done <- woken{at, sys.ThreadCPU() - cpu, err}
		}
	}()
	defer close(start)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = sys.Pin(0)
	sys.SetTimerSlack(1)
	end := time.Now().Add(j.Measure)
	for n := int64(0); time.Now().Before(end); n++ {
		start <- struct{}{}
		for ready.Load() <= n {
			runtime.Gosched()
		}
		until := soft.Now() + 5*time.Microsecond + idle // the sleeper is about to make its call
		if idle > 2*awake {
			ts := unix.NsecToTimespec(int64(idle - awake))
			_ = unix.Nanosleep(&ts, nil)
		}
		for soft.Now() < until {
		}
		cpu := sys.ThreadCPU()
		at := soft.Now()
		if err := wake(); err != nil {
			return err
		}
		cpu = sys.ThreadCPU() - cpu
		w := <-done
		if w.err != nil {
			return w.err
		}
		if n >= 5 {
			note(int64(w.at-at), cpu+w.cpu)
		}
	}
	return nil
}

func futexFloor(j Job, note func(int64, time.Duration)) error {
	const wait, wake = 0 | 128, 1 | 128 // private
	var word atomic.Uint32
	seen := uint32(0)
	return pair(j, floorWork, note, func() error {
		for word.Load() == seen {
			_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&word)), wait, uintptr(seen), 0, 0, 0)
		}
		seen = word.Load()
		return nil
	}, func() error {
		word.Add(1)
		_, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&word)), wake, 1, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

func eventfdFloor(idle time.Duration) func(Job, func(int64, time.Duration)) error {
	return func(j Job, note func(int64, time.Duration)) error {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return err
		}
		return pair(j, idle, note, func() error { return readEventfd(fd) }, func() error { return writeEventfd(fd) })
	}
}

func epollFloor(j Job, note func(int64, time.Duration)) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return err
	}
	var got [1]unix.EpollEvent
	return pair(j, floorWork, note, func() error {
		for {
			n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&got)), 1, ^uintptr(0), 0, 0)
			if errno == 0 && n == 1 {
				return readEventfd(fd)
			}
			if errno != unix.EINTR {
				return errno
			}
		}
	}, func() error { return writeEventfd(fd) })
}

func readEventfd(fd int) error {
	var in [8]byte
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&in)), 8)
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

func writeEventfd(fd int) error {
	out := [8]byte{1}
	if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&out)), 8); errno != 0 {
		return errno
	}
	return nil
}

func messageFloor(j Job, note func(int64, time.Duration)) error {
	if s := uring.Probe().Message; s.Answer != uring.Works {
		return skipped(s.String())
	}
	to, err := uring.NewRing(uring.RingConfig{})
	if err != nil {
		return err
	}
	from, err := uring.NewRing(uring.RingConfig{})
	if err != nil {
		return errors.Join(err, to.Close())
	}
	err = pair(j, floorWork, note, func() error {
		for {
			ok, err := to.Wait(-1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if ok {
				break
			}
		}
		_, _ = to.Next()
		return nil
	}, func() error {
		if _, err := from.Message(1, to.Fd(), 2, 0); err != nil {
			return err
		}
		if err := from.Submit(); err != nil {
			return err
		}
		for {
			if _, ok := from.Next(); !ok {
				return nil
			}
		}
	})
	return err // the rings end with the process
}

func sleepFloor(j Job, note func(int64, time.Duration)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.SetTimerSlack(1)
	const nap = 100 * time.Microsecond
	ts := unix.NsecToTimespec(int64(nap))
	for end := time.Now().Add(j.Measure); time.Now().Before(end); {
		cpu, at := sys.ThreadCPU(), soft.Now()
		if _, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0); errno == 0 {
			note(int64(soft.Now()-at-nap), sys.ThreadCPU()-cpu)
		}
	}
	return nil
}
