package uring

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/internal/hammer"
)

// needRing skips where this process can't have io_uring at all.
func needRing(t testing.TB) {
	t.Helper()
	if r := Probe().Ring; r.Answer != Works {
		t.Skipf("%v: run on a kernel and in a container that allow io_uring", r)
	}
}

func testRing(t testing.TB, cfg RingConfig) *Ring {
	t.Helper()
	needRing(t)
	r, err := NewRing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// take waits for the next completion.
func take(t testing.TB, r *Ring) Completion {
	t.Helper()
	if ok, err := r.Wait(10 * time.Second); !ok || err != nil {
		t.Fatalf("Wait = %v, %v", ok, err)
	}
	c, ok := r.Next()
	if !ok {
		t.Fatal("Wait said that there is a completion, Next that there is none")
	}
	return c
}

func wantCompletion(t testing.TB, r *Ring, user uint64, res int32) {
	t.Helper()
	if c := take(t, r); c.User != user || c.Res != res {
		t.Fatalf("completion %+v, want user %#x, result %d", c, user, res)
	}
}

func wantNone(t testing.TB, r *Ring) {
	t.Helper()
	if c, ok := r.Next(); ok {
		t.Fatalf("completion %+v, want none", c)
	}
}

// do passes the operation on and ends the test on an error.
func do(t testing.TB) func(Op, error) Op {
	return func(op Op, err error) Op {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return op
	}
}

func testPipe(t testing.TB) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

var ringConfigs = map[string]RingConfig{"plain": {}, "owner thread": {OwnerThread: true}, "smallest": {Entries: 1}}

func eachRing(t *testing.T, f func(t *testing.T, r *Ring)) {
	for name, cfg := range ringConfigs {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			needRing(t)
			r, err := NewRing(cfg)
			if err != nil {
				t.Fatal(err)
			}
			f(t, r)
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The user's numbers come back whatever they are, also several times the same, and
// also those that look like a request's own.
func TestUserData(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		for _, u := range []uint64{0, 1, 1, opBit, internal, 1<<64 - 1, opBit | 1<<32, opBit | 1<<32} {
			do(t)(r.Nop(u))
			wantCompletion(t, r, u, 0)
		}
		if r.InFlight() != 0 {
			t.Errorf("%d in flight", r.InFlight())
		}
	})
}

// A full submission queue submits itself, and a full completion queue loses nothing.
func TestFullQueues(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		const n = 1000
		next := uint64(0)
		drain := func() {
			for c, ok := r.Next(); ok; c, ok = r.Next() {
				if c.User != next || c.Res != 0 {
					t.Fatalf("completion %+v, want user %d", c, next)
				}
				next++
			}
		}
		for i := range uint64(n) {
			_, err := r.Nop(i)
			if errors.Is(err, syscall.EBUSY) { // the kernel wants completions taken
				drain()
				_, err = r.Nop(i)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for next < n {
			if ok, err := r.Wait(10 * time.Second); !ok || err != nil {
				t.Fatalf("after %d: %v, %v", next, ok, err)
			}
			drain()
		}
		wantNone(t, r)
	})
}

func TestRead(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		pr, pw := testPipe(t)
		buf := make([]byte, 16)
		do(t)(r.Read(5, pr, buf, -1))
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		wantNone(t, r)
		if _, err := unix.Write(pw, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		wantCompletion(t, r, 5, 5)
		if string(buf[:5]) != "hello" {
			t.Errorf("read %q", buf[:5])
		}
		do(t)(r.Read(6, pr, nil, -1))
		wantCompletion(t, r, 6, 0)
		do(t)(r.Read(7, 1<<20, buf, -1))
		if c := take(t, r); !errors.Is(c.Err(), syscall.EBADF) {
			t.Errorf("read of no file: %+v, %v", c, c.Err())
		}
	})
}

func TestPoll(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		signal := func() { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
		do(t)(r.Poll(1, fd, unix.POLLIN, false))
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		wantNone(t, r)
		signal()
		if c := take(t, r); c.User != 1 || c.Res&unix.POLLIN == 0 || c.More() {
			t.Errorf("%+v", c)
		}
		if Probe().MultishotPoll.Answer != Works {
			t.Skip(Probe().MultishotPoll)
		}
		op := do(t)(r.Poll(2, fd, unix.POLLIN, true))
		for range 3 {
			if c := take(t, r); c.User != 2 || c.Res&unix.POLLIN == 0 || !c.More() {
				t.Errorf("%+v", c)
			}
			signal()
		}
		take(t, r)
		if r.InFlight() != 1 {
			t.Errorf("%d in flight, want the multishot poll", r.InFlight())
		}
		do(t)(r.Cancel(3, op))
		got := map[uint64]int32{}
		for range 2 {
			c := take(t, r)
			got[c.User] = c.Res
			if c.More() {
				t.Errorf("%+v", c)
			}
		}
		if got[2] != -int32(unix.ECANCELED) || got[3] != 0 || r.InFlight() != 0 {
			t.Errorf("%v, %d in flight", got, r.InFlight())
		}
	})
}

func TestTimeout(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		for _, d := range []time.Duration{-1, 0, 1, 3 * time.Millisecond} {
			start := now()
			do(t)(r.Timeout(9, d))
			wantCompletion(t, r, 9, -int32(unix.ETIME))
			if got := now() - start; got < d {
				t.Errorf("a timeout of %v after %v", d, got)
			}
		}
		// Several at a time, each with a time of its own.
		for i, ms := range []time.Duration{30, 10, 20} {
			do(t)(r.Timeout(uint64(i), ms*time.Millisecond))
		}
		for _, u := range []uint64{1, 2, 0} {
			wantCompletion(t, r, u, -int32(unix.ETIME))
		}
	})
}

// Wait lasts as long as it should, with nothing to wait for, under a storm of the
// runtime's own signals, and on kernels whose enter takes no timeout.
func TestWaitTimesOut(t *testing.T) {
	for _, ext := range []bool{true, false} {
		r := testRing(t, RingConfig{})
		r.extArg = r.extArg && ext
		quit := make(chan struct{})
		var side sync.WaitGroup
		side.Go(func() { hammer.Storm(quit) })
		for _, queue := range []bool{false, true} {
			const d = 30 * time.Millisecond
			pr, _ := testPipe(t)
			if queue {
				do(t)(r.Read(1, pr, make([]byte, 1), -1)) // submitted by the same call, never ends
			}
			start := now()
			if ok, err := r.Wait(d); ok || err != nil {
				t.Errorf("Wait = %v, %v", ok, err)
			}
			if got := now() - start; got < d || got > 20*d {
				t.Errorf("waited %v, want %v", got, d)
			}
		}
		if ok, err := r.Wait(0); ok || err != nil {
			t.Errorf("Wait(0) = %v, %v", ok, err)
		}
		// And it ends with what comes in time.
		do(t)(r.Timeout(2, 5*time.Millisecond))
		if ok, err := r.Wait(10 * time.Second); !ok || err != nil {
			t.Errorf("Wait = %v, %v", ok, err)
		}
		wantCompletion(t, r, 2, -int32(unix.ETIME))
		do(t)(r.Timeout(3, 5*time.Millisecond))
		if ok, err := r.Wait(-1); !ok || err != nil {
			t.Errorf("Wait = %v, %v", ok, err)
		}
		wantCompletion(t, r, 3, -int32(unix.ETIME))
		close(quit)
		side.Wait()
	}
}

func TestMessage(t *testing.T) {
	if m := Probe().Message; m.Answer != Works {
		t.Skip(m)
	}
	eachRing(t, func(t *testing.T, r *Ring) {
		to := testRing(t, RingConfig{})
		do(t)(r.Message(1, to.Fd(), MaxMessageUser, -7))
		wantCompletion(t, r, 1, 0)
		wantCompletion(t, to, MaxMessageUser, -7)
		do(t)(to.Message(2, r.Fd(), 0, 1<<30))
		wantCompletion(t, to, 2, 0)
		wantCompletion(t, r, 0, 1<<30)
		// A message that looks like a request that is over ends nothing.
		op := do(t)(r.Nop(3))
		wantCompletion(t, r, 3, 0)
		pr, _ := testPipe(t)
		do(t)(r.Read(4, pr, make([]byte, 1), -1))
		do(t)(to.Message(5, r.Fd(), uint64(op), 0))
		wantCompletion(t, to, 5, 0)
		wantCompletion(t, r, uint64(op), 0)
		if r.InFlight() != 1 {
			t.Errorf("%d in flight, want the read", r.InFlight())
		}
		do(t)(r.Message(6, pr, 0, 0))
		if c := take(t, r); c.Res != -int32(unix.EBADFD) {
			t.Errorf("message to no ring: %+v", c)
		}
	})
}

// A cancellation hits the request that it names, and not a later one in its place.
func TestCancel(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		pr, pw := testPipe(t)
		buf := make([]byte, 1)
		first := do(t)(r.Read(1, pr, buf, -1))
		unix.Write(pw, []byte{1})
		wantCompletion(t, r, 1, 1)
		do(t)(r.Read(2, pr, buf, -1))
		do(t)(r.Cancel(3, first))
		wantCompletion(t, r, 3, -int32(unix.ENOENT))
		unix.Write(pw, []byte{1})
		wantCompletion(t, r, 2, 1)
		second := do(t)(r.Timeout(4, time.Hour))
		do(t)(r.Cancel(5, second))
		got := map[uint64]int32{}
		for range 2 {
			c := take(t, r)
			got[c.User] = c.Res
		}
		if got[4] != -int32(unix.ECANCELED) || got[5] != 0 {
			t.Errorf("%v", got)
		}
		if _, err := r.Cancel(6, 17); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("cancel of no request: %v", err)
		}
	})
}

// An echo over TCP with everything on the ring.
func TestSockets(t *testing.T) {
	eachRing(t, func(t *testing.T, r *Ring) {
		ln, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ln)
		if err := unix.Bind(ln, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(ln, 8); err != nil {
			t.Fatal(err)
		}
		addr, err := unix.Getsockname(ln)
		if err != nil {
			t.Fatal(err)
		}
		accept := do(t)(r.Accept(1, ln, true))
		for round := range 3 {
			cl, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Connect(cl, addr); err != nil {
				t.Fatal(err)
			}
			c := take(t, r)
			if c.User != 1 || c.Res < 0 || !c.More() {
				t.Fatalf("accept %+v", c)
			}
			conn := int(c.Res)
			if fl, err := unix.FcntlInt(uintptr(conn), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
				t.Errorf("flags %x, %v: want close-on-exec", fl, err)
			}
			question := bytes.Repeat([]byte{byte('a' + round)}, 100)
			if _, err := unix.Write(cl, question); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 256)
			do(t)(r.Recv(2, conn, buf))
			wantCompletion(t, r, 2, 100)
			do(t)(r.Send(3, conn, buf[:100]))
			wantCompletion(t, r, 3, 100)
			answer := make([]byte, 256)
			if n, err := unix.Read(cl, answer); err != nil || !bytes.Equal(answer[:n], question) {
				t.Errorf("answer %q, %v", answer[:max(n, 0)], err)
			}
			unix.Close(cl)
			do(t)(r.Recv(4, conn, buf))
			wantCompletion(t, r, 4, 0)
			for { // the peer is gone: an error in the end, and no signal
				do(t)(r.Send(5, conn, buf))
				if c := take(t, r); c.Res < 0 {
					if !errors.Is(c.Err(), syscall.EPIPE) && !errors.Is(c.Err(), syscall.ECONNRESET) {
						t.Errorf("send to nobody: %v", c.Err())
					}
					break
				}
			}
			unix.Close(conn)
		}
		do(t)(r.Cancel(6, accept))
		for range 2 {
			take(t, r)
		}
	})
}

// A buffer lives until its request is over, and no longer.
func TestBuffersAreKept(t *testing.T) {
	r := testRing(t, RingConfig{})
	pr, pw := testPipe(t)
	var gone atomic.Bool
	func() {
		buf := new([4096]byte)
		runtime.AddCleanup(buf, func(int) { gone.Store(true) }, 0)
		do(t)(r.Read(1, pr, buf[:], -1))
	}()
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	collect := func() {
		for range 5 {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}
	collect()
	if gone.Load() {
		t.Fatal("the buffer was collected under the request")
	}
	unix.Write(pw, []byte{1})
	wantCompletion(t, r, 1, 1)
	for range 100 {
		if collect(); gone.Load() {
			return
		}
	}
	t.Error("the buffer is kept although its request is over")
}

func openFDs(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func openRings() (n int) {
	rings.Range(func(any, any) bool { n++; return true })
	return n
}

// Close ends what is in flight, also with other people's completions in between,
// and leaves nothing.
func TestCloseWithRequestsInFlight(t *testing.T) {
	needRing(t)
	pr, _ := testPipe(t)
	fds, open := openFDs(t), openRings()
	for name, cfg := range ringConfigs {
		runtime.LockOSThread()
		r, err := NewRing(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(100) {
			do(t)(r.Read(i, pr, make([]byte, 64), -1))
			do(t)(r.Poll(i, pr, unix.POLLIN, false))
			do(t)(r.Timeout(i, time.Hour))
			do(t)(r.Nop(i))
		}
		start := now()
		if err := r.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.live != 0 || now()-start > closeWait/2 {
			t.Errorf("%s: %d in flight after %v", name, r.live, now()-start)
		}
		runtime.UnlockOSThread()
	}
	runtime.GC() // would find a pin that was forgotten
	if openFDs(t) != fds || openRings() != open {
		t.Errorf("%d descriptors, %d rings, want %d and %d", openFDs(t), openRings(), fds, open)
	}
}

func TestClosedRing(t *testing.T) {
	needRing(t)
	r, err := NewRing(RingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, e1 := r.Nop(1)
	_, e2 := r.Wait(time.Second)
	for _, err := range []error{e1, e2, r.Submit()} {
		if !errors.Is(err, event.Closed) || !errors.Is(err, os.ErrClosed) {
			t.Errorf("%v, want closed", err)
		}
	}
	wantNone(t, r)
}

// The descriptor is closed by somebody else: errors, and no hang.
func TestRingClosedUnderUs(t *testing.T) {
	needRing(t)
	r, err := NewRing(RingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	do(t)(r.Nop(1))
	unix.Close(r.Fd())
	if err := r.Submit(); !errors.Is(err, syscall.EBADF) || event.StatusOf(err) != int64(syscall.EBADF) {
		t.Errorf("Submit: %v", err)
	}
	if _, err := r.Wait(time.Second); !errors.Is(err, syscall.EBADF) {
		t.Errorf("Wait: %v", err)
	}
	if err := r.Close(); !errors.Is(err, syscall.EBADF) {
		t.Errorf("Close: %v", err)
	}
	rings.Delete(r)
}

// Buffers that the kernel may still write into are leaked and said so.
func TestCloseLeaksRatherThanFrees(t *testing.T) {
	needRing(t)
	r, err := NewRing(RingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := testPipe(t)
	do(t)(r.Read(1, pr, make([]byte, 64), -1))
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(r.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(r.Fd()) // now nothing can be cancelled
	if err := r.Close(); !errors.Is(err, event.Leaked) {
		t.Errorf("Close: %v", err)
	}
	if _, kept := rings.Load(r); !kept {
		t.Error("the ring is not kept")
	}
	// Tidy up for real.
	unix.Write(pw, []byte{1})
	unix.Close(fd)
	r.release(0, r.slots[0])
	rings.Delete(r)
}

// A ring with an owner thread refuses others.
func TestOwnerThread(t *testing.T) {
	needRing(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := NewRing(RingConfig{OwnerThread: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if older(kernelRelease(), 6, 1) {
		t.Skip("before Linux 6.1 rings have no owner")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, err := r.Nop(1)
		done <- errors.Join(err, r.Submit())
	}()
	if err := <-done; !errors.Is(err, syscall.EEXIST) {
		t.Errorf("from another thread: %v", err)
	}
	wantCompletion(t, r, 1, 0)
}

func TestBadArguments(t *testing.T) {
	for _, cfg := range []RingConfig{{Entries: -1}, {Entries: 1 << 20}, {Completions: -1}, {Completions: 1 << 20}} {
		if _, err := NewRing(cfg); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	r := testRing(t, RingConfig{})
	beyond := uint(1) << 31 // negative where an int has 32 bits
	for _, fd := range []int{-2, int(beyond)} {
		if _, err := r.Poll(1, fd, 1, false); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("fd %d: %v", fd, err)
		}
	}
}

// A Ring that NewRing did not make is a closed one; its zero descriptor is
// somebody's standard input.
func TestNoRing(t *testing.T) {
	for name, r := range map[string]*Ring{"nil": nil, "zero": {}} {
		if _, err := r.Nop(1); !errors.Is(err, event.Closed) {
			t.Errorf("%s: Nop: %v", name, err)
		}
		if err := r.Submit(); !errors.Is(err, event.Closed) {
			t.Errorf("%s: Submit: %v", name, err)
		}
		if ok, err := r.Wait(-1); ok || !errors.Is(err, event.Closed) {
			t.Errorf("%s: Wait: %v, %v", name, ok, err)
		}
		if _, ok := r.Next(); ok || r.Fd() != -1 || r.InFlight() != 0 || r.Close() != nil {
			t.Errorf("%s: not closed", name)
		}
	}
	if err := unix.Fstat(0, &unix.Stat_t{}); err != nil {
		t.Errorf("standard input: %v", err)
	}
}

func BenchmarkNop(b *testing.B) {
	r := testRing(b, RingConfig{})
	b.ReportAllocs()
	for range b.N {
		do(b)(r.Nop(1))
		if err := r.Submit(); err != nil {
			b.Fatal(err)
		}
		if _, ok := r.Next(); !ok {
			b.Fatal("no completion")
		}
	}
}

func BenchmarkRead(b *testing.B) {
	r := testRing(b, RingConfig{})
	f, err := os.Open("/dev/zero")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	fd, buf := int(f.Fd()), make([]byte, 64)
	b.ReportAllocs()
	for range b.N {
		do(b)(r.Read(1, fd, buf, -1))
		if ok, err := r.Wait(-1); !ok || err != nil {
			b.Fatal(err)
		}
		r.Next()
	}
}
