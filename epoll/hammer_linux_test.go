package epoll

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/internal/hammer"
	"github.com/gpuline/gpuline/poller"
)

type target interface {
	Finished() <-chan struct{}
	done(Completion)
}

// loop is a user's own epoll loop on one thread: it handles completions until the
// rig is through.
func loop(t testing.TB, g *Group, r target, batch int, edge bool, slow time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Close(ep)
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Close(stop)
	gone := make(chan struct{})
	defer func() { <-gone }()
	go func() {
		defer close(gone)
		<-r.Finished()
		unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
	events := uint32(unix.EPOLLIN)
	if edge {
		events |= unix.EPOLLET
	}
	for fd, ev := range map[int]uint32{g.Fd(): events, stop: unix.EPOLLIN} {
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: ev, Fd: int32(fd)}); err != nil {
			t.Error(err)
			return
		}
	}
	buf := make([]Completion, batch)
	ready := make([]unix.EpollEvent, 2)
	for handled := 0; ; {
		n, err := unix.EpollWait(ep, ready, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		for _, e := range ready[:n] {
			if int(e.Fd) == stop {
				return
			}
			for {
				for n := g.Drain(buf); n > 0; n = g.Drain(buf) {
					for i, c := range buf[:n] {
						buf[i] = Completion{}
						r.done(c)
						if handled++; slow > 0 && handled%256 == 0 {
							time.Sleep(slow)
						}
					}
				}
				if !g.Arm() {
					break
				}
			}
		}
	}
}

// TestHammerProtocol leaves the waiter out: producers complete and flush one at a
// time, as fast as they get their tokens back, so that the queue runs empty and the
// arming changes hands all the time.
func TestHammerProtocol(t *testing.T) {
	n := hammer.Total(100_000) / 20
	perturbation = hammer.Perturb()
	t.Cleanup(func() { perturbation = nil })
	for _, v := range []struct {
		name                 string
		procs                int
		producers, consumers int
		edge, netpoll, pipe  bool
	}{
		{"one to one", 2, 1, 1, false, false, false},
		{"three to one", 8, 3, 1, true, false, false},
		{"two to three", 8, 2, 3, false, false, false},
		{"two to three, edge", 2, 2, 3, true, false, false},
		{"two to two, pipe", 2, 2, 2, false, false, true},
		{"two to three, netpoller", 2, 2, 3, false, true, false},
		{"one to two, netpoller, one P", 1, 1, 2, false, true, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(v.procs))
			mk := newSignal
			if v.pipe {
				mk = newPipe
			}
			s, err := mk()
			if err != nil {
				t.Fatal(err)
			}
			g := newGroup(s)
			p := &pingPong{finished: make(chan struct{}), seen: make([]atomic.Int64, v.producers)}
			per := n / v.producers
			p.left.Store(int64(per * v.producers))
			var all sync.WaitGroup
			for i := range v.producers {
				tokens := make(chan *poller.Wait, 2)
				p.tokens = append(p.tokens, tokens)
				for range cap(tokens) {
					tokens <- &poller.Wait{User: uint64(i)}
				}
				all.Go(func() {
					for range per {
						g.Complete(<-tokens, nil)
						perturb()
						g.Flush()
					}
				})
			}
			for range v.consumers {
				all.Go(func() {
					if !v.netpoll {
						loop(t, g, p, 2, v.edge, 0)
						return
					}
					buf := make([]Completion, 2)
					for {
						n, err := g.Wait(t.Context(), buf)
						if err != nil {
							return
						}
						for _, c := range buf[:n] {
							p.done(c)
						}
					}
				})
			}
			<-p.finished
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			all.Wait()
			for i := range p.seen {
				if got := p.seen[i].Load(); got != int64(per) {
					t.Errorf("producer %d: %d of %d arrived", i, got, per)
				}
			}
			st := g.Stats()
			t.Logf("%+v", st)
			if st.Queued != 0 || st.Signals == 0 {
				t.Errorf("not the traffic that was meant: %+v", st)
			}
		})
	}
}

// pingPong gives tokens back to their producers.
type pingPong struct {
	tokens   []chan *poller.Wait
	seen     []atomic.Int64
	left     atomic.Int64
	finished chan struct{}
}

func (p *pingPong) Finished() <-chan struct{} { return p.finished }

func (p *pingPong) done(c Completion) {
	p.seen[c.Wait.User].Add(1)
	p.tokens[c.Wait.User] <- c.Wait // never blocks: it had room for all its tokens
	if p.left.Add(-1) == 0 {
		close(p.finished)
	}
}

// rigged is a hammer.Rig as a target of loop.
type rigged struct{ *hammer.Rig }

func (r rigged) done(c Completion) { r.Done(c.Wait.User, c.Err) }

// TestHammer looks for lost, early and doubled completions on the way through the
// descriptor: one and several consumers, level- and edge-triggered, slow ones, both
// kinds of descriptor, the netpoller, with few and many Ps, under a storm of
// signals, and with every P busy.
func TestHammer(t *testing.T) {
	type variant struct {
		name           string
		procs          int
		storm, busy    bool
		consumers      int
		edge, pipe     bool
		netpoll, late  bool
		slow           time.Duration
		streams, depth int
		share          int // per mille of all completions
	}
	n := hammer.Total(100_000)
	perturbation = hammer.Perturb()
	t.Cleanup(func() { perturbation = nil })
	for _, v := range []variant{
		{name: "one loop", procs: 2, consumers: 1, streams: 64, depth: 32, share: 250},
		{name: "one loop, one P", procs: 1, consumers: 1, edge: true, streams: 64, depth: 32, share: 200},
		{name: "four loops", procs: 8, consumers: 4, streams: 64, depth: 32, share: 150},
		{name: "four loops, edge", procs: 8, storm: true, consumers: 4, edge: true, streams: 64, depth: 32, share: 100},
		{name: "slow", procs: 2, consumers: 1, slow: 100 * time.Microsecond, streams: 256, depth: 32, share: 50},
		{name: "late", procs: 2, consumers: 1, late: true, streams: 64, depth: 8, share: 50},
		{name: "few", procs: 2, consumers: 1, streams: 8, depth: 2, share: 40},
		{name: "few, two loops", procs: 8, consumers: 2, streams: 8, depth: 2, share: 15},
		{name: "sparse", procs: 2, consumers: 2, storm: true, streams: 2, depth: 1, share: 5},
		{name: "busy", procs: 2, busy: true, consumers: 1, streams: 64, depth: 32, share: 6},
		{name: "busy, one P", procs: 1, busy: true, storm: true, consumers: 1, streams: 64, depth: 32, share: 2},
		{name: "pipe", procs: 2, consumers: 2, pipe: true, streams: 16, depth: 4, share: 60},
		{name: "netpoller", procs: 2, storm: true, consumers: 3, netpoll: true, streams: 16, depth: 4, share: 60},
	} {
		t.Run(v.name, func(t *testing.T) {
			mk := newSignal
			if v.pipe {
				mk = newPipe
			}
			s, err := mk()
			if err != nil {
				t.Fatal(err)
			}
			g := newGroup(s)
			r := hammer.Start(t, hammer.Config{
				Sinks: []poller.Sink{g}, Completions: max(n*v.share/1000, v.streams*v.depth), Streams: v.streams, Depth: v.depth,
				Procs: v.procs, Storm: v.storm, Busy: v.busy, Late: v.late, Poller: poller.Config{Nap: 20 * time.Microsecond},
			})
			var consumers sync.WaitGroup
			for range v.consumers {
				consumers.Go(func() {
					if !v.netpoll {
						loop(t, g, rigged{r}, 32, v.edge, v.slow)
						return
					}
					buf := make([]Completion, 32)
					for {
						n, err := g.Wait(t.Context(), buf)
						if err != nil {
							return // closed, at the end
						}
						for _, c := range buf[:n] {
							r.Done(c.Wait.User, c.Err)
						}
					}
				})
			}
			<-r.Finished()
			if v.netpoll {
				g.Close()
			}
			consumers.Wait()
			r.Stop()
			st := g.Stats()
			t.Logf("%+v", st)
			if st.Queued != 0 || st.Completed != uint64(r.Seen()) {
				t.Errorf("the group got %d completions and has %d left, the consumers saw %d", st.Completed, st.Queued, r.Seen())
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
