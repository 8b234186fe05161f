//go:build unix

package epoll

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/poller"
)

// kinds are the two descriptors that a Group can have; on Linux both are tested.
var kinds = map[string]func() (*signal, error){"own": newSignal, "pipe": newPipe}

func eachKind(t *testing.T, f func(t *testing.T, g *Group)) {
	for name, mk := range kinds {
		t.Run(name, func(t *testing.T) {
			s, err := mk()
			if err != nil {
				t.Fatal(err)
			}
			g := newGroup(s)
			defer func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}()
			f(t, g)
		})
	}
}

func complete(g *Group, users ...uint64) {
	for _, u := range users {
		g.Complete(&poller.Wait{User: u}, nil)
	}
	g.Flush()
}

func wantDrained(t *testing.T, g *Group, users ...uint64) {
	t.Helper()
	buf := make([]Completion, 16)
	n := g.Drain(buf)
	got := []uint64{}
	for _, c := range buf[:n] {
		got = append(got, c.Wait.User)
	}
	if len(got) != len(users) {
		t.Fatalf("drained %v, want %v", got, users)
	}
	for i := range got {
		if got[i] != users[i] {
			t.Fatalf("drained %v, want %v", got, users)
		}
	}
}

func wantReadable(t *testing.T, g *Group, want bool) {
	t.Helper()
	if got := readable(g.Fd()); got != want {
		t.Fatalf("readable = %v, want %v", got, want)
	}
}

// The protocol step by step: signalled once per arming, busy when completions beat
// the arming, quiet when drained and armed.
func TestProtocol(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		wantReadable(t, g, false)
		wantDrained(t, g)
		complete(g, 1, 2)
		wantReadable(t, g, true)
		complete(g, 3)
		if s := g.Stats().Signals; s != 1 {
			t.Errorf("%d signals for two batches in one arming, want 1", s)
		}
		wantDrained(t, g, 1, 2, 3)
		complete(g, 4)
		if !g.Arm() {
			t.Error("not busy with a completion queued")
		}
		wantDrained(t, g, 4)
		if g.Arm() {
			t.Error("busy with nothing queued")
		}
		wantReadable(t, g, false)
		complete(g, 5)
		wantReadable(t, g, true)
		if s := g.Stats(); s.Signals != 2 || s.Completed != 5 || s.Queued != 1 || s.MaxQueued != 3 {
			t.Errorf("stats %+v", s)
		}
		wantDrained(t, g, 5)
	})
}

// A completion that was there before anybody looked at the descriptor shows as
// readiness at once.
func TestArmedAfterTheEvent(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		complete(g, 1)
		wantReadable(t, g, true)
		wantDrained(t, g, 1)
		g.Arm()
		g.Complete(&poller.Wait{User: 2}, nil) // the batch is not flushed yet
		if !g.Arm() {
			t.Error("not busy")
		}
		wantDrained(t, g, 2)
		g.Flush() // somebody else has it already: nothing to signal
		wantReadable(t, g, false)
	})
}

// Readiness without a completion costs one round and is gone.
func TestSpuriousReadiness(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		// As a producer does that was overtaken between its count and its write.
		g.armed.Store(false)
		g.written.Add(1)
		if g.Arm() {
			t.Error("busy")
		}
		if err := g.sig.set(); err != nil {
			t.Fatal(err)
		}
		wantReadable(t, g, true)
		wantDrained(t, g)
		if g.Arm() {
			t.Error("busy")
		}
		wantReadable(t, g, false)
		complete(g, 1)
		wantReadable(t, g, true)
		wantDrained(t, g, 1)
	})
}

// Small buffers: what does not fit stays, in order, through growth and sliding.
func TestDrainInParts(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		next, want := uint64(0), uint64(0)
		buf := make([]Completion, 3)
		for round := range 200 {
			for range round % 7 {
				complete(g, next)
				next++
			}
			for _, c := range buf[:g.Drain(buf)] {
				if c.Wait.User != want {
					t.Fatalf("got %d, want %d", c.Wait.User, want)
				}
				want++
			}
			if int(next-want) != g.Queued() {
				t.Fatalf("%d queued, want %d", g.Queued(), next-want)
			}
		}
		for n := g.Drain(buf); n > 0; n = g.Drain(buf) {
			want += uint64(n)
		}
		if want != next || g.Queued() != 0 {
			t.Errorf("drained %d of %d, %d queued", want, next, g.Queued())
		}
	})
}

// The number is closed by somebody else and taken over by another file: the Group
// neither writes to nor closes that file.
func TestDescriptorClosedUnderUs(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		fd := g.Fd()
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		var p [2]int
		if err := unix.Pipe(p[:]); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
		if err := unix.SetNonblock(p[0], true); err != nil {
			t.Fatal(err)
		}
		// Put the stranger at our number, unless the pipe got it anyway.
		if p[0] != fd && p[1] != fd {
			if err := dup2(p[0], fd); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
		}
		complete(g, 1)
		wantDrained(t, g, 1)
		g.Arm()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Errorf("the stranger was closed: %v", err)
		}
		if n, err := unix.Read(p[0], make([]byte, 8)); err != unix.EAGAIN {
			t.Errorf("the stranger was written to: %d, %v", n, err)
		}
	})
}

func openFDs(t *testing.T) int {
	e, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Skipf("no /dev/fd to count descriptors in: %v", err)
	}
	return len(e)
}

func TestCloseLeavesNoDescriptor(t *testing.T) {
	for name, mk := range kinds {
		before := openFDs(t)
		s, err := mk()
		if err != nil {
			t.Fatal(err)
		}
		g := newGroup(s)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Wait(ctx, make([]Completion, 1)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		for range 2 {
			if err := g.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if after := openFDs(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
}

func TestAfterClose(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		complete(g, 1)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		complete(g, 2)
		g.Arm()
		buf := make([]Completion, 4)
		if n, err := g.Wait(t.Context(), buf); n != 2 || err != nil {
			t.Errorf("Wait = %d, %v, want what is left", n, err)
		}
		if _, err := g.Wait(t.Context(), buf); !errors.Is(err, event.Closed) || !errors.Is(err, os.ErrClosed) {
			t.Errorf("Wait on the empty rest: %v", err)
		}
		if _, err := g.File(); !errors.Is(err, event.Closed) {
			t.Errorf("File: %v", err)
		}
	})
}

func TestWaitInNetpoller(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		buf := make([]Completion, 4)
		if _, err := g.Wait(t.Context(), nil); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("empty buffer: %v", err)
		}
		for i := range uint64(200) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				if i%3 == 0 {
					time.Sleep(time.Duration(i) * time.Microsecond)
				}
				complete(g, i)
			}()
			n, err := g.Wait(t.Context(), buf)
			if err != nil || n != 1 || buf[0].Wait.User != i {
				t.Fatalf("round %d: %d, %v", i, n, err)
			}
			<-done
		}
	})
}

// A wait that is given up takes nothing with it and does not disturb the next one.
func TestWaitGivenUp(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		buf := make([]Completion, 4)
		for i := range uint64(100) {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
			} else {
				ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
			}
			_, err := g.Wait(ctx, buf)
			if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("round %d: %v", i, err)
			}
			cancel()
			complete(g, i)
			if n, err := g.Wait(t.Context(), buf); n != 1 || err != nil || buf[0].Wait.User != i {
				t.Fatalf("round %d: %d, %v", i, n, err)
			}
		}
	})
}

// Close wakes everybody in Wait, those in line included.
func TestCloseWakesWaiters(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, err := g.Wait(t.Context(), make([]Completion, 1)); !errors.Is(err, event.Closed) {
					t.Errorf("Wait: %v", err)
				}
			})
		}
		time.Sleep(time.Millisecond)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// File is a duplicate: readiness shows on it, and closing it harms nothing.
func TestFile(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		f, err := g.File()
		if err != nil {
			t.Fatal(err)
		}
		c, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		go complete(g, 7)
		if err := c.Read(func(uintptr) bool { return g.Queued() > 0 }); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		wantDrained(t, g, 7)
		g.Arm()
		complete(g, 8)
		wantReadable(t, g, true)
	})
}

// Errors arrive with their wait, through a real waiter.
func TestFailedWait(t *testing.T) {
	eachKind(t, func(t *testing.T, g *Group) {
		m, err := line.Map(1, false)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		w := poller.NewWaiter(poller.Config{})
		defer w.Close()
		x, err := w.Watch(&m.Lines[0][0], poller.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wait := &poller.Wait{Sink: g, User: 9}
		if ok, err := x.Add(wait, 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
		x.Fail(event.New(event.DeviceLost, "soft 0", "test"))
		buf := make([]Completion, 2)
		n, err := g.Wait(t.Context(), buf)
		if n != 1 || err != nil || buf[0].Wait != wait || !errors.Is(buf[0].Err, event.DeviceLost) {
			t.Errorf("%d %v %+v", n, err, buf[0])
		}
	})
}

func TestNoDescriptorsLeft(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, err := NewGroup()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("NewGroup: %v, want EMFILE", err)
	}
}

// window runs f in the k-th of the windows between two steps, once.
type window struct{ left atomic.Int64 }

func at(t *testing.T, k int, f func()) *window {
	w := new(window)
	w.left.Store(int64(k))
	perturbation = func() {
		if w.left.Add(-1) == -1 {
			f()
		}
	}
	t.Cleanup(func() { perturbation = nil })
	return w
}

// hit reports whether f has been run, and sees to it that it will not be any more.
func (w *window) hit() bool { return w.left.Swap(1<<40) < 0 }

// Whatever happens in whichever window of Arm: after it the consumer is told, one
// way or the other, of what is queued.
func TestEveryWindowOfArm(t *testing.T) {
	for _, before := range []bool{false, true} {
		for _, others := range []string{"producer", "producer and consumer", "consumer arms too"} {
			for k := 0; ; k++ {
				g, err := NewGroup()
				if err != nil {
					t.Fatal(err)
				}
				if before {
					complete(g, 1)
					wantDrained(t, g, 1)
				}
				win := at(t, k, func() {
					complete(g, 2)
					switch others {
					case "producer and consumer":
						wantDrained(t, g, 2)
					case "consumer arms too":
						wantDrained(t, g, 2)
						g.Arm()
						complete(g, 3)
					}
				})
				busy := g.Arm()
				hit := win.hit()
				if g.Queued() > 0 && !busy && !readable(g.Fd()) {
					t.Errorf("%s in window %d: %d queued, not busy, not readable", others, k, g.Queued())
				}
				for busy {
					g.Drain(make([]Completion, 4))
					busy = g.Arm()
				}
				// Now asleep, perhaps with a spurious readiness ahead.
				complete(g, 4)
				wantReadable(t, g, true)
				g.Close()
				if !hit {
					if k < 3 {
						t.Errorf("only %d windows", k)
					}
					break
				}
			}
		}
	}
}

// The same for a consumer in the netpoller, with another one that is faster.
func TestEveryWindowOfWait(t *testing.T) {
	for _, stolen := range []bool{false, true} {
		for k := 0; ; k++ {
			g, err := NewGroup()
			if err != nil {
				t.Fatal(err)
			}
			var late sync.WaitGroup
			win := at(t, k, func() {
				complete(g, 1)
				if stolen {
					wantDrained(t, g, 1)
					late.Go(func() {
						time.Sleep(4 * time.Millisecond)
						complete(g, 2)
					})
				}
				time.Sleep(2 * time.Millisecond) // time for the netpoller to see it, and for Wait to miss it
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			hit := true
			done := make(chan struct{})
			late.Go(func() {
				select {
				case <-done:
				case <-time.After(20 * time.Millisecond):
					if hit = win.hit(); !hit { // there is no such window: end it
						complete(g, 3)
					}
				}
			})
			buf := make([]Completion, 4)
			n, err := g.Wait(ctx, buf)
			if err != nil || n == 0 || ctx.Err() != nil {
				t.Errorf("window %d, stolen %v: %d, %v, %v", k, stolen, n, err, ctx.Err())
			}
			cancel()
			close(done)
			late.Wait()
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if !hit {
				if k < 4 {
					t.Errorf("only %d windows", k)
				}
				break
			}
		}
	}
}
