//go:build linux && (amd64 || arm64)

package opencl

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct sigaction of amd64 and arm64, as
// rt_sigaction(2) takes it with a mask of 8 bytes.
type sigaction struct{ handler, flags, restorer, mask uint64 }

const (
	saOnStack   = 0x08000000
	saResetHand = 0x80000000
	sigIgn      = 1
	numSignals  = 64
)

var signals struct {
	sync.Mutex
	depth  int
	before [numSignals + 1]sigaction
}

// keepSignals runs f and then undoes what f did to the process's signal handlers.
//
// Why: PoCL, like everything that carries LLVM's crash handlers, replaces 15 of
// them inside clGetDeviceIDs. Go then no longer sees the first SIGQUIT, SIGTERM
// and so on. Raw system calls are used because the runtime offers no way to read
// or write a handler it did not install.
//
// Invariant: the handlers found when no call is under way are those of the Go
// program, and they are what is put back, byte for byte, once no call is under way
// again. Left alone are a handler that has become Go's own (signal.Notify ran
// meanwhile; the one for SIGURG, with which the runtime preempts, tells which that
// is), and one for SIGFPE that is not a crash handler: PoCL's makes integer division
// by zero in a kernel harmless, and without it such a kernel ends the process. It
// only gets SA_ONSTACK, without which it may not run on a goroutine's stack.
func keepSignals(f func()) {
	s := &signals
	s.Lock()
	if s.depth == 0 {
		for i := 1; i <= numSignals; i++ {
			s.before[i] = getAction(i)
		}
	}
	s.depth++
	s.Unlock()

	defer func() {
		s.Lock()
		defer s.Unlock()
		s.depth--
		if s.depth > 0 {
			return
		}
		goHandler := s.before[unix.SIGURG].handler
		for i := 1; i <= numSignals; i++ {
			before, now := s.before[i], getAction(i)
			switch {
			case now == before:
			case now.handler == goHandler && before.handler != goHandler:
			case i == int(unix.SIGFPE) && now.handler > sigIgn && now.flags&saResetHand == 0:
				now.flags |= saOnStack
				setAction(i, now)
			default:
				setAction(i, before)
			}
		}
	}()
	f()
}

// getAction returns the zero action for a signal that can't be asked for.
func getAction(sig int) (a sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&a)), 8, 0, 0)
	return a
}

func setAction(sig int, a sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&a)), 0, 8, 0, 0)
}
