//go:build linux && (amd64 || arm64)

package opencl

import (
	"os"
	"os/signal"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A driver is played by raw changes of handlers. None of the signals is ever sent.

const spare = 45 // a real-time signal that nothing here uses

func TestKeepSignalsPutsBack(t *testing.T) {
	before, beforeQuit := getAction(spare), getAction(int(unix.SIGQUIT))
	keepSignals(func() {
		setAction(spare, sigaction{handler: 0x1234, flags: 0x04000000, restorer: before.restorer})
		keepSignals(func() { // calls nest, and run beside each other
			crash := beforeQuit
			crash.handler, crash.flags = 0x5678, crash.flags|saResetHand
			setAction(int(unix.SIGQUIT), crash)
		})
		if getAction(spare).handler != 0x1234 {
			t.Error("the inner call put back what the outer one had seen changed")
		}
		// The same handler without SA_ONSTACK is a change too.
		weaker := getAction(int(unix.SIGUSR2))
		weaker.flags &^= saOnStack
		setAction(int(unix.SIGUSR2), weaker)
	})
	if now := getAction(spare); now != before {
		t.Errorf("signal %d: %+v, was %+v", spare, now, before)
	}
	if now := getAction(int(unix.SIGQUIT)); now != beforeQuit {
		t.Errorf("SIGQUIT: %+v, was %+v", now, beforeQuit)
	}
	if now := getAction(int(unix.SIGUSR2)); now.flags&saOnStack == 0 {
		t.Error("SIGUSR2 has lost SA_ONSTACK")
	}
}

func TestKeepSignalsConcurrently(t *testing.T) {
	before := getAction(spare)
	for range 50 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				keepSignals(func() {
					setAction(spare, sigaction{handler: 0x1000 + uint64(i), flags: 0x04000000, restorer: before.restorer})
				})
			}()
		}
		wg.Wait()
		if now := getAction(spare); now != before {
			t.Fatalf("%+v, was %+v", now, before)
		}
	}
}

func TestKeepSignalsKeepsKernelsSIGFPE(t *testing.T) {
	before := getAction(int(unix.SIGFPE))
	defer setAction(int(unix.SIGFPE), before)
	keepSignals(func() {
		a := before
		a.handler, a.flags = 0x1234, a.flags&^saOnStack
		setAction(int(unix.SIGFPE), a)
	})
	if now := getAction(int(unix.SIGFPE)); now.handler != 0x1234 || now.flags&saOnStack == 0 {
		t.Errorf("%+v: want the driver's handler, on the signal stack", now)
	}
	setAction(int(unix.SIGFPE), before)
	keepSignals(func() {
		a := before
		a.handler, a.flags = 0x1234, a.flags|saResetHand
		setAction(int(unix.SIGFPE), a)
	})
	if now := getAction(int(unix.SIGFPE)); now != before {
		t.Errorf("%+v: a crash handler was kept", now)
	}
}

// What the program itself does meanwhile stays.
func TestKeepSignalsLeavesNotify(t *testing.T) {
	const sig = unix.SIGTSTP // has no handler until somebody first asks for it
	ch := make(chan os.Signal, 1)
	defer signal.Stop(ch)
	keepSignals(func() { signal.Notify(ch, sig) })
	if now := getAction(int(sig)); now.handler != getAction(int(unix.SIGURG)).handler {
		t.Errorf("%+v: signal.Notify was undone", now)
	}
}
