package soft

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const haveAsmEngine = true

// startEngine is in engine_linux_amd64.s.
//
//go:noescape
func startEngine(flags, stack, tid, ctl uintptr) (pid int)

// asmEngine is the engine in assembly, on a thread or in a process of its own.
type asmEngine struct {
	m     *memory
	stack []byte
	pid   int
	own   bool // a process
}

const (
	threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM | unix.CLONE_CHILD_CLEARTID
	// A process that shares memory and open files: its own thread group, hence its
	// own CPU account, and nothing inherited that could keep a file open. No signal
	// is sent when it ends, so nobody's SIGCHLD handling sees it; it is waited for
	// with __WALL.
	processFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SYSVSEM | unix.CLONE_CHILD_CLEARTID
)

// startAsm starts the engine.
//
// Soundness: the new thread runs engine_linux_amd64.s alone, which touches the
// control block, what that points to, and its own stack, all of it in mappings
// that outlive the thread (stop joins it). It has no g, so it must never run Go
// code: it calls none, and no signal can make it, because all are blocked around
// the clone and the mask is inherited. The runtime does not know the thread; it
// neither stops it for a collection nor needs to, since it holds no Go pointers
// but those into buffers that their owners pin for the length of a copy.
func startAsm(m *memory, bell int, process bool) (engine, error) {
	const stackSize = 16 << 10 // the routine itself uses none
	stack, err := unix.Mmap(-1, 0, stackSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_STACK)
	if err != nil {
		return nil, fmt.Errorf("soft: engine stack: %w", err)
	}
	e := &asmEngine{m: m, stack: stack, own: process}
	m.ctl.bell = int64(bell)
	flags := uintptr(threadFlags)
	if process {
		flags = processFlags
		m.ctl.parent = uint64(unix.Getpid())
	}
	m.ctl.tid.Store(1)
	top := uintptr(unsafe.Pointer(&stack[0])) + stackSize - 64
	runtime.LockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old)
	if err == nil {
		e.pid = startEngine(flags, top, uintptr(unsafe.Pointer(&m.ctl.tid)), uintptr(unsafe.Pointer(m.ctl)))
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
		if e.pid < 0 {
			err = unix.Errno(-e.pid)
		}
	}
	runtime.UnlockOSThread()
	if err != nil {
		_ = unix.Munmap(stack)
		return nil, fmt.Errorf("soft: clone of the store engine: %w", err)
	}
	return e, nil
}

func (e *asmEngine) wake() {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(e.m.doorbellAddr()), futexWake, 1, 0, 0, 0)
}

// stop joins the engine: the kernel clears tid when it is gone for good
// (CLONE_CHILD_CLEARTID). The engine never blocks for longer than its sleep, which
// the doorbell ends.
func (e *asmEngine) stop() {
	e.m.ctl.quit.Store(1)
	e.m.ctl.doorbell.Add(1)
	e.wake()
	for e.m.ctl.tid.Load() != 0 {
		waitWord(e.m.tidAddr(), 1, 10*time.Millisecond)
	}
	if e.own {
		for {
			_, err := unix.Wait4(e.pid, nil, unix.WALL, nil)
			if err != unix.EINTR {
				break
			}
		}
	}
	_ = unix.Munmap(e.stack)
}
