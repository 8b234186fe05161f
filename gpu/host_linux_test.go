package gpu_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/internal/forbid"
	"github.com/gpuline/gpuline/poller"
	"github.com/gpuline/gpuline/uring"
)

// One program under whichever host was chosen: waits for n marks and returns how
// often each arrived.
func deliver(t *testing.T, h gpu.Host, n int) []int {
	t.Helper()
	d, err := gpu.Open(t.Context(), gpu.WithDriver("soft"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make([]int, n)
	var sink poller.Sink
	var take func(left int) int // completions that came
	switch h {
	case gpu.ChannelHost:
		c := make(chan error, n)
		sink = poller.Chan{}
		take = func(int) int {
			select {
			case err := <-c:
				if err != nil {
					t.Fatal(err)
				}
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}
			return 1
		}
		for i := range n { // the channel does not say which
			seq, err := s.Mark()
			if err != nil {
				t.Fatal(err)
			}
			pending, err := s.Notify(&poller.Wait{Sink: sink, Data: c}, seq)
			if err != nil {
				t.Fatal(err)
			}
			if pending {
				take(1)
			}
			got[i]++
		}
		return got
	case gpu.EpollHost:
		g, err := epoll.NewGroup()
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		sink = g
		take = func(int) int { return takeGroup(t, ctx, g, got) }
	default:
		r, err := uring.NewRing(uring.RingConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		host, err := uring.NewHost(r.Fd(), uring.HostConfig{Strict: h == gpu.IOUringHost, Eventfd: h == gpu.IOUringEventfdHost})
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		sink = host
		take = func(int) int {
			if g := host.Group(); g != nil {
				if _, err := r.Poll(1, g.Fd(), unix.POLLIN, false); err != nil {
					t.Fatal(err)
				}
				if ok, err := r.Wait(30 * time.Second); err != nil || !ok {
					t.Fatal(ok, err)
				}
				r.Next()
				return takeGroup(t, ctx, g, got)
			}
			if ok, err := r.Wait(30 * time.Second); err != nil || !ok {
				t.Fatal(ok, err)
			}
			k := 0
			for c, ok := r.Next(); ok; c, ok = r.Next() {
				if err := host.Err(c.User, c.Res); err != nil {
					t.Fatal(err)
				}
				got[c.User]++
				k++
			}
			return k
		}
	}
	left := 0
	for i := range n {
		seq, err := s.Mark()
		if err != nil {
			t.Fatal(err)
		}
		pending, err := s.Notify(&poller.Wait{Sink: sink, User: uint64(i)}, seq)
		if err != nil {
			t.Fatal(err)
		}
		if pending {
			left++
		} else {
			got[i]++
		}
	}
	for left > 0 {
		left -= take(left)
	}
	return got
}

func takeGroup(t *testing.T, ctx context.Context, g *epoll.Group, got []int) int {
	t.Helper()
	buf := make([]epoll.Completion, 16)
	n, err := g.Wait(ctx, buf)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range buf[:n] {
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		got[c.Wait.User]++
	}
	return n
}

func each(t *testing.T, h gpu.Host) {
	t.Helper()
	for i, k := range deliver(t, h, 100) {
		if k != 1 {
			t.Errorf("%v: mark %d arrived %d times", h, i, k)
		}
	}
}

func TestHosts(t *testing.T) {
	caps := gpu.ProbeHosts()
	for _, h := range []gpu.Host{gpu.ChannelHost, gpu.EpollHost, gpu.IOUringHost, gpu.IOUringEventfdHost} {
		if _, err := h.Resolve(caps, true); err != nil {
			t.Logf("%v", err)
			continue
		}
		each(t, h)
	}
}

// io_uring forbidden by a filter: the fallback with the coded warning, or when strict
// the coded refusal, and the program runs on under what is left.
func TestHostsUnderSeccomp(t *testing.T) {
	forbid.Syscalls(t, []forbid.Rule{{Call: unix.SYS_IO_URING_SETUP, Any: true, Errno: unix.EPERM}}, func(t *testing.T) {
		caps := gpu.ProbeHosts()
		c, err := gpu.IOUringHost.Resolve(caps, false)
		if err != nil || c.Running != gpu.EpollHost || c.Label() != "epoll (fallback from io-uring)" ||
			!errors.Is(c.Warning, event.HostFallback) || !strings.Contains(c.Warning.Error(), "seccomp") {
			t.Errorf("%+v, %v", c, err)
		}
		if _, err := gpu.IOUringHost.Resolve(caps, true); !errors.Is(err, event.HostRefused) || !strings.Contains(err.Error(), "seccomp") {
			t.Errorf("strict: %v", err)
		}
		each(t, c.Running)
		each(t, gpu.ChannelHost)
	})
}
