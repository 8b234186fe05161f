package uring

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/internal/hammer"
	"github.com/gpuline/gpuline/poller"
)

const (
	stopUser = 1<<62 + iota
	pollUser
)

// ringLoop is a user's server loop on one thread: everything that happens comes out
// of his ring.
func ringLoop(t testing.TB, cfg RingConfig, hostCfg HostConfig, slow time.Duration, ready chan<- *Host, rig <-chan *hammer.Rig) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := NewRing(cfg)
	if err != nil {
		t.Error(err)
		close(ready)
		return
	}
	h, err := NewHost(r.Fd(), hostCfg)
	if err != nil {
		t.Error(err)
		close(ready)
		return
	}
	ready <- h
	rg := <-rig
	watch := func() {
		if _, err := r.Poll(pollUser, h.Group().Fd(), unix.POLLIN, true); err != nil {
			t.Error(err)
		}
	}
	if h.Group() != nil {
		watch()
	}
	handled := 0
	done := func(user uint64, err error) (stop bool) {
		if user == stopUser {
			return true
		}
		rg.Done(user, err)
		if handled++; slow > 0 && handled%256 == 0 {
			time.Sleep(slow)
		}
		return false
	}
	buf := make([]epoll.Completion, 32)
	for stop := false; !stop; {
		if _, err := r.Wait(-1); err != nil {
			t.Error(err)
			return
		}
		for c, ok := r.Next(); ok; c, ok = r.Next() {
			if c.User != pollUser {
				stop = done(c.User, h.Err(c.User, c.Res)) || stop
				continue
			}
			if !c.More() {
				watch()
			}
			for {
				for n := h.Group().Drain(buf); n > 0; n = h.Group().Drain(buf) {
					for i, c := range buf[:n] {
						buf[i] = epoll.Completion{}
						stop = done(c.Wait.User, c.Err) || stop
					}
				}
				if !h.Group().Arm() {
					break
				}
			}
		}
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestHammer looks for lost, early and doubled completions on the way to the user's
// ring: by messages (one, several rings, rings of every kind, room for four) and by
// an eventfd, with slow owners, with few and many Ps, under a storm of signals, and
// with every P busy.
func TestHammer(t *testing.T) {
	needRing(t)
	n := hammer.Total(100_000)
	owner := RingConfig{OwnerThread: true}
	small := RingConfig{Entries: 2, Completions: 4}
	fd := HostConfig{Eventfd: true}
	fds, open := openFDs(t), openRings()
	for _, v := range []struct {
		name           string
		procs          int
		storm, busy    bool
		ring           RingConfig
		host           HostConfig
		rings          int
		noRingless     bool
		slow           time.Duration
		late           bool
		streams, depth int
		share          int // per mille of all completions
	}{
		{name: "message", procs: 2, rings: 1, streams: 64, depth: 32, share: 150},
		{name: "message, owner thread", procs: 2, ring: owner, rings: 1, streams: 64, depth: 32, share: 150},
		{name: "message, one P", procs: 1, rings: 1, streams: 64, depth: 32, share: 120},
		{name: "message, four rings", procs: 8, storm: true, ring: owner, rings: 4, streams: 64, depth: 32, share: 100},
		{name: "message, full queue", procs: 2, ring: small, rings: 1, streams: 64, depth: 32, share: 80},
		{name: "message, full queue, slow", procs: 2, storm: true, ring: RingConfig{Entries: 2, Completions: 4, OwnerThread: true}, rings: 2, slow: 100 * time.Microsecond, streams: 256, depth: 32, share: 30},
		{name: "message, late", procs: 2, rings: 1, late: true, streams: 64, depth: 8, share: 30},
		{name: "message, few", procs: 2, rings: 1, streams: 8, depth: 2, share: 20},
		{name: "message, few, by ring", procs: 8, noRingless: true, ring: owner, rings: 2, streams: 8, depth: 2, share: 20},
		{name: "message, sparse", procs: 2, storm: true, rings: 1, streams: 2, depth: 1, share: 5},
		{name: "message, busy", procs: 2, busy: true, rings: 1, streams: 64, depth: 32, share: 5},
		{name: "message, busy, one P", procs: 1, busy: true, storm: true, ring: owner, rings: 1, streams: 64, depth: 32, share: 2},
		{name: "eventfd", procs: 2, host: fd, rings: 1, streams: 64, depth: 32, share: 150},
		{name: "eventfd, owner thread, two", procs: 8, storm: true, ring: owner, host: fd, rings: 2, streams: 64, depth: 32, share: 50},
		{name: "eventfd, full queue", procs: 2, ring: small, host: fd, rings: 1, streams: 64, depth: 32, share: 30},
		{name: "eventfd, few", procs: 1, host: fd, rings: 1, streams: 8, depth: 2, share: 20},
	} {
		t.Run(v.name, func(t *testing.T) {
			if !v.host.Eventfd {
				needMessages(t)
			}
			var consumers sync.WaitGroup
			var hosts []*Host
			var sinks []poller.Sink
			var rigs []chan *hammer.Rig
			for range v.rings {
				ready, rig := make(chan *Host), make(chan *hammer.Rig)
				consumers.Go(func() { ringLoop(t, v.ring, v.host, v.slow, ready, rig) })
				h := <-ready
				if h == nil {
					t.FailNow()
				}
				h.ringless = h.ringless && !v.noRingless
				hosts, sinks, rigs = append(hosts, h), append(sinks, h), append(rigs, rig)
			}
			r := hammer.Start(t, hammer.Config{
				Sinks: sinks, Completions: max(n*v.share/1000, v.streams*v.depth), Streams: v.streams, Depth: v.depth,
				Procs: v.procs, Storm: v.storm, Busy: v.busy, Late: v.late, Poller: poller.Config{Nap: 20 * time.Microsecond},
			})
			for _, rig := range rigs {
				rig <- r
			}
			<-r.Finished()
			for _, h := range hosts {
				h.Complete(&poller.Wait{User: stopUser}, nil)
				h.Flush()
			}
			consumers.Wait()
			r.Stop()
			posted := uint64(0)
			for _, h := range hosts {
				s := h.Stats()
				t.Logf("%+v", s)
				if s.Lost != 0 || s.Waiting != 0 {
					t.Errorf("%d lost, %d waiting", s.Lost, s.Waiting)
				}
				posted += s.Posted
				if h.Group() != nil {
					posted += h.Group().Stats().Completed
				}
			}
			if want := uint64(r.Seen()) + uint64(len(hosts)); posted != want {
				t.Errorf("the hosts posted %d, the loops saw %d", posted, want)
			}
		})
	}
	if openFDs(t) != fds || openRings() != open {
		t.Errorf("%d descriptors and %d rings, want %d and %d", openFDs(t), openRings(), fds, open)
	}
}
