package rig

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/uring"
)

func rawFloors() []floor {
	return []floor{
		{"futex wake", "a thread blocked in futex(2) on an idle processor, woken from another", futexFloor},
		{"eventfd wake", "a thread blocked in read(2) on an eventfd on an idle processor, woken from another", eventfdFloor},
		{"ring message", "a thread blocked in io_uring_enter(2) on an idle processor, sent a message by another ring", messageFloor},
		{"kernel sleep", "how late a thread wakes from clock_nanosleep(2) of 100 us with the least timer slack", sleepFloor},
	}
}

// pair runs a sleeper and its waker on two threads, tied to different processors
// where there are several. sleep blocks until woken, wake wakes; both are raw, with
// nothing of Go's scheduler.
func pair(j Job, note func(int64), sleep, wake func() error) error {
	type woken struct {
		at  time.Duration
		err error
	}
	start, done := make(chan struct{}), make(chan woken)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = sys.Pin(-1)
		for range start {
			err := sleep()
			done <- woken{soft.Now(), err}
		}
	}()
	defer close(start)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = sys.Pin(0)
	ts := unix.NsecToTimespec(int64(floorWork))
	end := time.Now().Add(j.Measure)
	for n := 0; time.Now().Before(end); n++ {
		start <- struct{}{}
		_ = unix.Nanosleep(&ts, nil)
		at := soft.Now()
		if err := wake(); err != nil {
			return err
		}
		w := <-done
		if w.err != nil {
			return w.err
		}
		if n >= 5 {
			note(int64(w.at - at))
		}
	}
	return nil
}

func futexFloor(j Job, note func(int64)) error {
	const wait, wake = 0 | 128, 1 | 128 // private
	var word atomic.Uint32
	seen := uint32(0)
	return pair(j, note, func() error {
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

func eventfdFloor(j Job, note func(int64)) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	var in [8]byte
	out := [8]byte{1}
	return pair(j, note, func() error {
		for {
			_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&in)), 8)
			if errno == 0 {
				return nil
			}
			if errno != unix.EINTR {
				return errno
			}
		}
	}, func() error {
		if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&out)), 8); errno != 0 {
			return errno
		}
		return nil
	})
}

func messageFloor(j Job, note func(int64)) error {
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
	err = pair(j, note, func() error {
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

func sleepFloor(j Job, note func(int64)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.SetTimerSlack(1)
	const nap = 100 * time.Microsecond
	ts := unix.NsecToTimespec(int64(nap))
	for end := time.Now().Add(j.Measure); time.Now().Before(end); {
		at := soft.Now()
		if _, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0); errno == 0 {
			note(int64(soft.Now() - at - nap))
		}
	}
	return nil
}
