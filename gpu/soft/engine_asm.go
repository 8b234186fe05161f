//go:build linux && (amd64 || arm64)

package soft

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
)

// startEngine is in engine_linux_*.s.
//
//go:noescape
func startEngine(flags, stack, tid, ctl uintptr) (pid int)

// asmEngine is the engine in assembly, on a thread or in a process of its own.
type asmEngine struct {
	m       *memory
	stack   []byte
	pid     int
	release chan struct{} // lets the process's parent thread go; nil for a thread
}

const (
	// threadFlags are those of pthread_create but for the TLS, which the engine does
	// not touch: qemu-user accepts no other set.
	threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM | unix.CLONE_CHILD_CLEARTID
	// processFlags make a process: a thread group, and so a CPU account, of its own.
	// It shares the memory, all of it: rings, words, and the source of a copy
	// wherever that lies; and the file table, so that it keeps nothing open that the
	// program closes. No signal is sent when it ends, so nobody's SIGCHLD handling
	// sees it; __WALL waits for it.
	processFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SYSVSEM | unix.CLONE_CHILD_CLEARTID
)

// startAsm starts the engine.
//
// Soundness: the new thread runs engine_linux_*.s and nothing else. That touches
// its registers, the control block and what it points to, and a stack of its own,
// all in mappings that outlive it (stop joins it), besides the memory that copies
// name, which their owners keep in place until they are done. It has no g, so it
// must never run Go code: it calls none, and no signal handler will, because all
// signals are blocked around the clone and a thread inherits the mask. The runtime
// does not know the thread: it neither stops it for a collection, nor has to,
// since Go's heap objects do not move.
func startAsm(m *memory, b *bell, process bool) (engine, error) {
	const stackSize = 64 << 10 // the vDSO is given some; the routine needs 16 bytes
	page := os.Getpagesize()
	stack, err := unix.Mmap(-1, 0, stackSize+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_STACK)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Mprotect(stack[:page], unix.PROT_NONE)
	e := &asmEngine{m: m, stack: stack}
	c := m.ctl
	c.bell, c.vdso, c.longest = int64(b.fd), vdsoClock(), int64(time.Hour)
	copy(c.name[:15], "gpuline-soft")
	if !process {
		err = e.clone(threadFlags)
	} else {
		// The kernel kills the process when the thread that made it ends. So that
		// thread does nothing else until the engine is stopped.
		c.parent, c.longest = uint64(unix.Getpid()), int64(longest)
		e.release = make(chan struct{})
		started := make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			err := e.clone(processFlags)
			started <- err
			if err == nil {
				<-e.release
			}
		}()
		err = <-started
		// Until the engine has asked for it, nothing kills it with a program that replaces
		// itself: it has done so before its first turn.
		for err == nil && c.turns.Load() == 0 && e.alive() {
			time.Sleep(settleNap)
		}
	}
	if err != nil {
		_ = unix.Munmap(stack)
		return nil, event.New(event.NotSupported, "a store engine that is no goroutine", "the system refuses to start it").Wrap(err)
	}
	return e, nil
}

// clone starts the thread or process.
func (e *asmEngine) clone(flags uintptr) error {
	c := e.m.ctl
	c.tid.Store(1)
	top := (uintptr(unsafe.Pointer(&e.stack[0])) + uintptr(len(e.stack))) &^ 63
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return os.NewSyscallError("rt_sigprocmask", err)
	}
	e.pid = startEngine(flags, top, uintptr(unsafe.Pointer(&c.tid)), uintptr(unsafe.Pointer(c)))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	if e.pid < 0 {
		return os.NewSyscallError("clone", unix.Errno(-e.pid))
	}
	return nil
}

// String implements engine.
func (e *asmEngine) String() string {
	if e.release != nil {
		return "process " + strconv.Itoa(e.pid)
	}
	return "thread " + strconv.Itoa(e.pid)
}

func (e *asmEngine) wake() { futexWake(uint64(uintptr(unsafe.Pointer(&e.m.ctl.doorbell)))) }

func (e *asmEngine) alive() bool { return e.m.ctl.tid.Load() != 0 }

// stop joins the engine: the kernel clears tid when it has left its stack for
// good (CLONE_CHILD_CLEARTID). It ends within a turn: a look at all rings, with at
// most a chunk of a copy for each.
func (e *asmEngine) stop() {
	c := e.m.ctl
	c.quit.Store(1)
	c.doorbell.Add(1)
	e.wake()
	for c.tid.Load() != 0 {
		// The kernel wakes this one as a shared futex, which a private wait would not
		// hear.
		ts := unix.NsecToTimespec(int64(10 * time.Millisecond))
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.tid)), 0, 1, uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
	if e.release != nil {
		close(e.release)
		for {
			if _, err := unix.Wait4(e.pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	_ = unix.Munmap(e.stack)
}
