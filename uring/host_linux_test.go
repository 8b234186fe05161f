package uring

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/poller"
)

func needMessages(t testing.TB) {
	t.Helper()
	if m := Probe().Message; m.Answer != Works {
		t.Skipf("%v: run on Linux 5.18 or later", m)
	}
}

func testHost(t testing.TB, r *Ring, cfg HostConfig) *Host {
	t.Helper()
	h, err := NewHost(r.Fd(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// post completes waits with the given numbers as one batch.
func post(h *Host, users ...uint64) {
	for _, u := range users {
		h.Complete(&poller.Wait{User: u}, nil)
	}
	h.Flush()
}

func numbers(from, to uint64) (out []uint64) {
	for ; from < to; from++ {
		out = append(out, from)
	}
	return out
}

// Completions arrive with the user's number, one by one and in batches, on rings of
// every make.
func TestHostPosts(t *testing.T) {
	needMessages(t)
	for name, flags := range map[string]uint32{
		"plain": 0, "single issuer": setupSingleIssuer, "deferred": setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag,
		"cooperative": 1<<8 | setupTaskrunFlag, "kernel thread": 1 << 1, "for polled files": 1 << 0,
	} {
		for _, ringless := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ringless %v", name, ringless), func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				r, e := setupRing(8, params{flags: flags | setupClamp | setupCQSize, cqEntries: 1024})
				if e != 0 {
					t.Skipf("this kernel has no such ring: %v", e)
				}
				defer r.Close()
				h := testHost(t, r, HostConfig{Strict: true})
				h.ringless = h.ringless && ringless
				if h.Label() != "uring (ring message)" || h.Warning() != nil || h.Group() != nil {
					t.Errorf("%q, %v, %v", h.Label(), h.Warning(), h.Group())
				}
				next := uint64(1)
				for _, batch := range []uint64{1, 2, 3, 1, 300, 0, 600, 1} {
					post(h, numbers(next, next+batch)...)
					for ; batch > 0; batch-- {
						wantCompletion(t, r, next, 0)
						next++
					}
				}
				wantNone(t, r)
				s := h.Stats()
				if s.Posted != next-1 || s.Retried != 0 || s.Lost != 0 || s.Waiting != 0 || s.Calls > 14 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// A ring's owner that sleeps in the kernel is woken.
func TestHostWakes(t *testing.T) {
	needMessages(t)
	eachRing(t, func(t *testing.T, r *Ring) {
		h := testHost(t, r, HostConfig{})
		for i := range uint64(50) {
			go func() {
				time.Sleep(time.Duration(i) * 10 * time.Microsecond)
				if i%2 == 0 {
					post(h, i)
				} else {
					post(h, i, i, i)
				}
			}()
			for range 1 + i%2*2 {
				if ok, err := r.Wait(-1); !ok || err != nil {
					t.Fatal(ok, err)
				}
				wantCompletion(t, r, i, 0)
			}
		}
	})
}

// Failures arrive as negative results that can be turned back, and the error itself
// is kept until it is asked for.
func TestHostErrors(t *testing.T) {
	needMessages(t)
	r := testRing(t, RingConfig{})
	h := testHost(t, r, HostConfig{})
	lost := event.New(event.DeviceLost, "soft 0", "pulled out")
	for i, c := range []struct {
		err error
		res int32
	}{
		{lost, -19}, {fmt.Errorf("wrapped: %w", event.New(event.Closed, "word")), -108}, {poller.ErrLook, -11},
		{event.New(event.WorkFailed, "s", "x"), -5}, {event.New(event.StoreLost, "s", "x"), -61},
		{event.New(event.Backend, "s", "700"), -121}, {context.Canceled, -125}, {context.DeadlineExceeded, -62},
		{errors.New("something else"), -71}, {event.New(event.Panicked, "s", "x"), -14},
	} {
		h.Complete(&poller.Wait{User: uint64(i)}, c.err)
		h.Flush()
		wantCompletion(t, r, uint64(i), c.res)
		if got := h.Err(uint64(i), c.res); got != c.err {
			t.Errorf("Err = %v, want %v", got, c.err)
		}
		again := h.Err(uint64(i), c.res) // forgotten: what the number says
		if code := event.CodeOf(c.err); code != 0 && !errors.Is(again, code) || code == 0 && c.res != -71 && !errors.Is(again, c.err) || again == nil {
			t.Errorf("Err of %v afterwards = %v", c.err, again)
		}
	}
	post(h, 77)
	wantCompletion(t, r, 77, 0)
	if err := h.Err(77, 0); err != nil {
		t.Error(err)
	}
}

func TestResults(t *testing.T) {
	if Result(nil) != 0 || ResultError(0) != nil || ResultError(5) != nil {
		t.Error("success is no error")
	}
	seen := map[int32]error{}
	for _, r := range results {
		res := Result(r.err)
		if res != -r.errno || seen[res] != nil || res == -otherResult {
			t.Errorf("%v: %d, which is also %v's", r.err, res, seen[res])
		}
		seen[res] = r.err
		if back := ResultError(res); !errors.Is(back, r.err) {
			t.Errorf("%v became %v", r.err, back)
		}
	}
	if err := ResultError(-71); !errors.Is(err, syscall.EPROTO) || !errors.Is(err, event.Backend) {
		t.Error(err)
	}
}

// The ring's completion queue has room for four; 5,000 completions come and the
// owner takes his time.
func TestHostFullQueue(t *testing.T) {
	needMessages(t)
	for name, cfg := range map[string]RingConfig{"plain": {Entries: 2, Completions: 4}, "deferred": {Entries: 2, Completions: 4, OwnerThread: true}} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r, err := NewRing(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			h := testHost(t, r, HostConfig{Strict: true})
			const n = 5000
			go func() {
				for i := uint64(0); i < n; {
					k := min(1+i%7*100, n-i)
					post(h, numbers(i, i+k)...)
					i += k
				}
			}()
			for i := range uint64(n) {
				if i%1000 == 0 {
					time.Sleep(2 * time.Millisecond)
				}
				wantCompletion(t, r, i, 0)
			}
			wantNone(t, r)
			if s := h.Stats(); s.Posted != n || s.Lost != 0 || s.Waiting != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// What the kernel can't take is kept and tried again, in time: a ring that its owner
// has not enabled yet refuses everything.
func TestHostRetries(t *testing.T) {
	needMessages(t)
	for _, batch := range []uint64{1, 1000} {
		r, e := setupRing(8, params{flags: setupRDisabled | setupCQSize, cqEntries: 2048})
		if e != 0 {
			t.Fatal(e)
		}
		h := testHost(t, r, HostConfig{})
		post(h, numbers(0, batch)...)
		time.Sleep(20 * time.Millisecond)
		s := h.Stats()
		if s.Posted != 0 || s.Retried < 2 || s.Waiting != int(batch) || h.Broken() != nil {
			t.Errorf("%+v, %v", s, h.Broken())
		}
		post(h, numbers(batch, 2*batch)...)
		if e := sysRegister(r.fd, registerEnableRings, nil, 0); e != 0 {
			t.Fatal(e)
		}
		start := now()
		seen := make(map[uint64]int)
		for range 2 * batch {
			seen[take(t, r).User]++
		}
		if d := now() - start; d > 100*retryMost {
			t.Errorf("%v after there was room, the bound is %v", d, retryMost)
		}
		if len(seen) != int(2*batch) {
			t.Errorf("%d different completions, want %d", len(seen), 2*batch)
		}
		wantNone(t, r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A kernel that is short of memory now and then: nothing lost, nothing twice.
func TestHostShortOfMemory(t *testing.T) {
	needMessages(t)
	r := testRing(t, RingConfig{Completions: 4096})
	h := testHost(t, r, HostConfig{})
	if !h.ringless {
		t.Skip("needs messages without a ring, which the test can put answers into")
	}
	var calls atomic.Int64
	h.newRing = func() (*Ring, syscall.Errno) { return nil, syscall.EMFILE }
	h.post = func(fd int, user uint64, res int32) syscall.Errno {
		switch n := calls.Add(1); {
		case n%3 == 0:
			return errOverflow
		case n%7 == 0:
			return syscall.ENOMEM
		}
		return sendRingless(fd, user, res)
	}
	for i := range uint64(100) {
		post(h, numbers(10*i, 10*i+10)...)
	}
	for i := range uint64(1000) {
		wantCompletion(t, r, i, 0)
	}
	wantNone(t, r)
	if s := h.Stats(); s.Posted != 1000 || s.Retried == 0 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// Closing says what could not be posted.
func TestHostClosedWithBacklog(t *testing.T) {
	needMessages(t)
	r, e := setupRing(8, params{flags: setupRDisabled})
	if e != 0 {
		t.Fatal(e)
	}
	defer r.Close()
	fds := openFDs(t)
	h, err := NewHost(r.Fd(), HostConfig{})
	if err != nil {
		t.Fatal(err)
	}
	post(h, 1, 2, 3, 4, 5)
	if err := h.Close(); !errors.Is(err, event.Leaked) {
		t.Errorf("Close: %v", err)
	}
	post(h, 6)
	if s := h.Stats(); s.Lost != 6 || s.Waiting != 0 || !errors.Is(h.Broken(), event.Closed) {
		t.Errorf("%+v, %v", s, h.Broken())
	}
	if err := h.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if n := openFDs(t); n != fds {
		t.Errorf("%d descriptors, want %d", n, fds)
	}
}

// Nothing can be posted any more: the Host says so and counts what is lost.
func TestHostBroken(t *testing.T) {
	needMessages(t)
	for _, batch := range []uint64{1, 1000} {
		r := testRing(t, RingConfig{})
		h, err := NewHost(r.Fd(), HostConfig{})
		if err != nil {
			t.Fatal(err)
		}
		post(h, 1, 2, 3)
		for i := range uint64(3) {
			wantCompletion(t, r, i+1, 0)
		}
		unix.Close(h.fd) // by somebody who closes what is not his
		post(h, numbers(0, batch)...)
		post(h, 5)
		if err := h.Broken(); !errors.Is(err, syscall.EBADF) {
			t.Errorf("Broken: %v", err)
		}
		if s := h.Stats(); s.Posted != 3 || s.Lost != batch+1 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		if err := h.Close(); !errors.Is(err, syscall.EBADF) {
			t.Errorf("Close: %v", err)
		}
	}
}

// The user closes his ring first and the number goes to somebody else: completions
// don't go there.
func TestHostRingClosedUnderUs(t *testing.T) {
	needMessages(t)
	r, err := NewRing(RingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	fd := r.Fd()
	h := testHost(t, r, HostConfig{})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	other := testRing(t, RingConfig{})
	if other.Fd() != fd {
		if err := unix.Dup3(other.Fd(), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	post(h, 1)
	post(h, 2, 3, 4)
	wantNone(t, other)
}

func TestHostOfNoRing(t *testing.T) {
	needRing(t)
	pr, _ := testPipe(t)
	for _, fd := range []int{-1, pr, 1 << 20} {
		if _, err := NewHost(fd, HostConfig{}); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

// Without messages: the eventfd, polled on the ring, with the coded warning; or the
// coded refusal.
func TestHostFallsBackToEventfd(t *testing.T) {
	needRing(t)
	rep := Probe()
	rep.Message = theSystem.tooOld(whatMessage, "5.18", syscall.EINVAL)
	rep.RinglessMessage.Answer = DoesNot
	eachRing(t, func(t *testing.T, r *Ring) {
		if _, err := newHost(r.Fd(), HostConfig{Strict: true}, rep); !errors.Is(err, event.HostRefused) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("strict: %v", err)
		}
		h, err := newHost(r.Fd(), HostConfig{}, rep)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if !errors.Is(h.Warning(), event.HostFallback) || h.Label() != "uring (eventfd) (fallback from uring (ring message))" || h.Group() == nil {
			t.Errorf("%v, %q", h.Warning(), h.Label())
		}
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
		const pollUser = 99
		do(t)(r.Poll(pollUser, h.Group().Fd(), unix.POLLIN, true))
		buf := make([]epoll.Completion, 4)
		for i := uint64(1); i <= 100; i++ {
			ok, err := x.Add(&poller.Wait{Sink: h, User: i}, i)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			go m.Lines[0][0].Store(i)
			for got := false; !got; {
				if c := take(t, r); c.User != pollUser || !c.More() {
					t.Fatalf("%+v", c)
				}
				for {
					for n := h.Group().Drain(buf); n > 0; n = h.Group().Drain(buf) {
						if n != 1 || buf[0].Wait.User != i || buf[0].Err != nil {
							t.Fatalf("%+v", buf[:n])
						}
						got = true
					}
					if !h.Group().Arm() {
						break
					}
				}
			}
		}
	})
}

// The eventfd by choice is no fallback.
func TestHostEventfdByChoice(t *testing.T) {
	r := testRing(t, RingConfig{})
	h := testHost(t, r, HostConfig{Eventfd: true})
	if h.Warning() != nil || h.Group() == nil || h.Label() != "uring (eventfd)" {
		t.Errorf("%v, %q", h.Warning(), h.Label())
	}
}

// A sleep on the ring lasts as long as it should and not the timer slack longer.
func TestClock(t *testing.T) {
	needRing(t)
	c, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{-time.Second, 0, time.Microsecond, 2 * time.Millisecond} {
		start := c.Now()
		c.SleepUntil(start + d)
		if got := c.Now() - start; got < d {
			t.Errorf("slept %v, want %v", got, d)
		}
	}
	// Two sleepers at a time: the second has no ring, and both sleep.
	done := make(chan time.Duration, 2)
	start := c.Now()
	for range 2 {
		go func() {
			c.SleepUntil(start + 20*time.Millisecond)
			done <- c.Now() - start
		}()
	}
	for range 2 {
		if got := <-done; got < 20*time.Millisecond {
			t.Errorf("slept %v of 20 ms", got)
		}
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	start = c.Now()
	c.SleepUntil(start + time.Millisecond)
	if got := c.Now() - start; got < time.Millisecond {
		t.Errorf("after Close: slept %v", got)
	}
}

func BenchmarkClock(b *testing.B) {
	const d = 100 * time.Microsecond
	c, err := NewClock()
	if err != nil {
		b.Skip(err)
	}
	defer c.Close()
	for name, clock := range map[string]event.Clock{"ring": c, "nanosleep": event.RealClock{}} {
		b.Run(name, func(b *testing.B) {
			var over time.Duration
			for range b.N {
				t := clock.Now() + d
				clock.SleepUntil(t)
				over += clock.Now() - t
			}
			b.ReportMetric(float64(over.Nanoseconds())/float64(b.N), "ns-late/op")
		})
	}
}

func BenchmarkHost(b *testing.B) {
	needMessages(b)
	for _, batch := range []int{1, 2, 3, 8, 64} {
		for _, ringless := range []bool{true, false} {
			if batch > ringlessMost && ringless {
				continue
			}
			b.Run(fmt.Sprintf("batch=%d,ringless=%v", batch, ringless), func(b *testing.B) {
				r := testRing(b, RingConfig{})
				h := testHost(b, r, HostConfig{})
				h.ringless = h.ringless && ringless
				w := &poller.Wait{}
				b.ReportAllocs()
				for i := 0; i < b.N; i += batch {
					for range batch {
						h.Complete(w, nil)
					}
					h.Flush()
					for range batch {
						if _, ok := r.Next(); !ok {
							b.Fatal("lost")
						}
					}
				}
			})
		}
	}
}
