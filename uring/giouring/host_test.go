//go:build giouring && linux

package giouringhost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/poller"
	"github.com/gpuline/gpuline/uring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quick = gpu.WithHealth(2*time.Millisecond, 200*time.Millisecond, 30*time.Millisecond)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bothModes runs f with ring messages (skipped where there are none) and with an
// eventfd.
func bothModes(t *testing.T, f func(t *testing.T, cfg uring.HostConfig)) {
	t.Run("message", func(t *testing.T) {
		if a := uring.Probe().Message; a.Answer != uring.Works {
			t.Skip(a)
		}
		f(t, uring.HostConfig{Strict: true})
	})
	t.Run("eventfd", func(t *testing.T) { f(t, uring.HostConfig{Eventfd: true}) })
}

func newRing(t *testing.T, entries, flags uint32) *giouring.Ring {
	t.Helper()
	ring := giouring.NewRing()
	if err := ring.QueueInit(entries, flags); err != nil {
		if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) || flags != 0 && errors.Is(err, syscall.EINVAL) {
			t.Skip("giouring: ", err)
		}
		t.Fatal(err)
	}
	return ring
}

func newHost(t *testing.T, ring *giouring.Ring, cfg uring.HostConfig) *Host {
	t.Helper()
	h, err := NewHost(ring, cfg)
	must(t, err)
	if got := h.Group() != nil; got != cfg.Eventfd {
		t.Fatal("eventfd:", got)
	}
	return h
}

func openSoft(t *testing.T, streams int) (*gpu.Device, []*gpu.Stream, []*soft.Stream) {
	t.Helper()
	d, err := gpu.Open(t.Context(), gpu.WithDriver("soft"), quick)
	must(t, err)
	var ss []*gpu.Stream
	var ws []*soft.Stream
	for range streams {
		s, err := d.NewStream()
		must(t, err)
		w, ok := soft.Of(s)
		if !ok {
			t.Fatal("not a soft stream")
		}
		ss, ws = append(ss, s), append(ws, w)
	}
	return d, ss, ws
}

func next(ring *giouring.Ring) (*giouring.CompletionQueueEvent, error) {
	for {
		_, err := ring.Submit()
		if err == nil {
			var cqe *giouring.CompletionQueueEvent
			if cqe, err = ring.WaitCQE(); err == nil && cqe != nil {
				return cqe, nil
			}
		}
		// The runtime's own signals interrupt the wait.
		if err != nil && err != syscall.EINTR && err != syscall.EAGAIN {
			return nil, err
		}
	}
}

// A server: one thread, one ring, for accept, recv, send and the device. A request is
// a number, the answer a status byte and the number that the device made of it.
type server struct {
	ring  *giouring.Ring
	host  *Host
	ss    []*gpu.Stream
	ws    []*soft.Stream
	ln    int
	conns []*conn
	ended int
	gpu   int     // completions of waits
	errs  []error // that came through the ring
}

type conn struct {
	fd     int
	wait   *poller.Wait
	in     [8]byte
	out    [9]byte
	n      int // bytes of in or out that are done
	result uint64
}

const (
	opAccept = iota
	opRecv
	opSend
)

const (
	answered = iota
	failed
)

func work(x uint64) uint64 { return x*0x9e3779b97f4a7c15 ^ 42 }

func (s *server) sqe(op, conn int) *giouring.SubmissionQueueEntry {
	e := s.ring.GetSQE()
	for e == nil {
		if _, err := s.ring.Submit(); err != nil && err != syscall.EINTR && err != syscall.EAGAIN && err != syscall.EBUSY {
			panic(err)
		}
		e = s.ring.GetSQE()
	}
	switch c := s.conn(conn); op {
	case opAccept:
		e.PrepareAccept(s.ln, 0, 0, syscall.SOCK_CLOEXEC)
	case opRecv:
		e.PrepareRecv(c.fd, uintptr(unsafe.Pointer(&c.in[c.n])), uint32(len(c.in)-c.n), 0)
	case opSend:
		e.PrepareSend(c.fd, uintptr(unsafe.Pointer(&c.out[c.n])), uint32(len(c.out)-c.n), syscall.MSG_NOSIGNAL)
	}
	e.UserData = uint64(op)<<32 | uint64(uint32(conn))
	return e
}

func (s *server) conn(i int) *conn {
	if i < 0 || i >= len(s.conns) {
		return nil
	}
	return s.conns[i]
}

// run serves until that many connections have ended.
func (s *server) run(connections int) error {
	s.sqe(opAccept, -1)
	gpuDone := func(user uint64, err error) {
		s.gpu++
		if err != nil {
			s.errs = append(s.errs, err)
		}
		s.answer(int(user), err)
	}
	for s.ended < connections {
		cqe, err := next(s.ring)
		if err != nil {
			return err
		}
		ours, err := s.host.Handle(cqe, gpuDone)
		if err != nil {
			return err
		}
		if !ours {
			if err := s.own(cqe.UserData>>32, int(int32(cqe.UserData)), cqe.Res); err != nil {
				return err
			}
		}
		s.ring.CQESeen(cqe)
	}
	return nil
}

func (s *server) own(op uint64, i int, res int32) error {
	if res < 0 {
		return fmt.Errorf("operation %d: %w", op, syscall.Errno(-res))
	}
	c := s.conn(i)
	switch op {
	case opAccept:
		i := len(s.conns)
		s.conns = append(s.conns, &conn{fd: int(res), wait: s.host.NewWait(uint64(i))})
		s.sqe(opRecv, i)
		s.sqe(opAccept, -1)
	case opRecv:
		if res == 0 {
			s.ended++
			return syscall.Close(c.fd)
		}
		if c.n += int(res); c.n < len(c.in) {
			s.sqe(opRecv, i)
			return nil
		}
		c.n = 0
		s.launch(i, binary.LittleEndian.Uint64(c.in[:]))
	case opSend:
		if c.n += int(res); c.n < len(c.out) {
			s.sqe(opSend, i)
			return nil
		}
		c.n = 0
		s.sqe(opRecv, i)
	}
	return nil
}

func (s *server) launch(i int, x uint64) {
	c, k := s.conns[i], i%len(s.ss)
	pending, err := func() (bool, error) {
		if x == math.MaxUint64 {
			open, err := s.ws[k].Gate() // until the wait is registered
			if err != nil {
				return false, err
			}
			defer open()
			if err := s.ws[k].Fail(errors.New("bad pointer")); err != nil {
				return false, err
			}
		} else {
			if err := s.ws[k].Work(time.Duration(x%64) * time.Microsecond); err != nil {
				return false, err
			}
			if err := s.ws[k].Run(func() error { c.result = work(x); return nil }); err != nil {
				return false, err
			}
		}
		seq, err := s.ss[k].Mark()
		if err != nil {
			return false, err
		}
		return s.ss[k].Notify(c.wait, seq)
	}()
	if !pending {
		s.answer(i, err)
	}
}

func (s *server) answer(i int, err error) {
	c := s.conns[i]
	c.out[0] = answered
	if err != nil {
		c.out[0] = failed
	} else {
		binary.LittleEndian.PutUint64(c.out[1:], c.result)
	}
	s.sqe(opSend, i)
}

// serve runs a server on a thread of its own and a client per connection.
func serve(t *testing.T, cfg uring.HostConfig, entries, flags uint32, connections int, client func(t *testing.T, i int, ask func(uint64) (byte, uint64))) *server {
	t.Helper()
	d, ss, ws := openSoft(t, 5)
	defer d.Close()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	must(t, err)
	defer f.Close()

	s := &server{ss: ss, ws: ws, ln: int(f.Fd())}
	var wg sync.WaitGroup
	ended := make(chan error, 1)
	wg.Go(func() {
		runtime.LockOSThread()
		// Not unlocked: the thread ends with the goroutine, and its requests before it.
		ended <- func() error {
			s.ring = giouring.NewRing()
			if err := s.ring.QueueInit(entries, flags); err != nil {
				return err
			}
			defer s.ring.QueueExit()
			var err error
			if s.host, err = NewHost(s.ring, cfg); err != nil {
				return err
			}
			defer s.host.Close()
			return s.run(connections)
		}()
	})
	for i := range connections {
		wg.Go(func() {
			c, err := net.Dial("tcp4", ln.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			client(t, i, func(x uint64) (byte, uint64) {
				var in [9]byte
				_, err := c.Write(binary.LittleEndian.AppendUint64(nil, x))
				if err == nil {
					_, err = io.ReadFull(c, in[:])
				}
				if err != nil {
					t.Error(i, err)
					return 255, 0
				}
				return in[0], binary.LittleEndian.Uint64(in[1:])
			})
		})
	}
	must(t, <-ended)
	wg.Wait()
	return s
}

func TestServer(t *testing.T) {
	const connections, requests = 16, 40
	for _, r := range []struct {
		name           string
		entries, flags uint32
	}{
		{"plain", 64, 0},
		{"one entry", 1, 0},
		{"deferred", 64, giouring.SetupSingleIssuer | giouring.SetupDeferTaskrun},
		{"cooperative", 64, giouring.SetupCoopTaskrun | giouring.SetupTaskrunFlag},
	} {
		t.Run(r.name, func(t *testing.T) {
			newRing(t, r.entries, r.flags).QueueExit()
			bothModes(t, func(t *testing.T, cfg uring.HostConfig) {
				s := serve(t, cfg, r.entries, r.flags, connections, func(t *testing.T, i int, ask func(uint64) (byte, uint64)) {
					for k := range uint64(requests) {
						x := uint64(i)*1000 + k
						if status, y := ask(x); status != answered || y != work(x) {
							t.Errorf("request %d: status %d, %d instead of %d", x, status, y, work(x))
							return
						}
					}
				})
				if len(s.errs) > 0 {
					t.Error(s.errs)
				}
				if s.gpu == 0 {
					t.Error("no completion came through the ring")
				}
				t.Log(s.host.Label(), s.gpu, "of", connections*requests, "through the ring;", s.host.Stats())
			})
		})
	}
}

// The device fails under one client's request: every client gets a failure from
// there on, the server goes on, and the error is the device's own.
func TestServerFailedDevice(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg uring.HostConfig) {
		const connections = 8
		s := serve(t, cfg, 64, 0, connections, func(t *testing.T, i int, ask func(uint64) (byte, uint64)) {
			for k := range uint64(10) {
				if status, y := ask(k); status == answered && y != work(k) {
					t.Errorf("request %d: %d instead of %d", k, y, work(k))
				}
			}
			if i == 0 {
				if status, _ := ask(math.MaxUint64); status != failed {
					t.Error("status", status, "of work that failed")
				}
			}
			for k := uint64(0); ; k++ { // it ends when the device does
				if status, _ := ask(k); status != answered {
					return
				}
			}
		})
		if len(s.errs) == 0 {
			t.Error("no error came through the ring")
		}
		t.Log(len(s.errs), "errors through the ring")
		for _, err := range s.errs {
			wantFault(t, err)
		}
	})
}

func wantFault(t *testing.T, err error) {
	t.Helper()
	var e *event.Error
	if !errors.Is(err, event.DeviceLost) || !errors.As(err, &e) || e.Status != soft.StatusIllegalAddress || !strings.Contains(err.Error(), "bad pointer") {
		t.Errorf("error %v", err)
	}
}

// Waits that are pending when the device fails: each ends through the ring, once,
// with the device's own error.
func TestFault(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg uring.HostConfig) {
		ring := newRing(t, 64, 0)
		defer ring.QueueExit()
		h := newHost(t, ring, cfg)
		defer h.Close()
		d, ss, ws := openSoft(t, 4)
		defer d.Close()
		var open []func()
		for _, w := range ws {
			f, err := w.Gate()
			must(t, err)
			open = append(open, f)
		}
		must(t, ws[0].Fail(errors.New("bad pointer")))
		const waits = 40
		for i := range waits {
			seq, err := ss[i%len(ss)].Mark()
			must(t, err)
			if pending, err := ss[i%len(ss)].Notify(h.NewWait(uint64(i)), seq); err != nil || !pending {
				t.Fatal(pending, err)
			}
		}
		open[0]() // the others stay shut: it is the fault that ends their waits
		got := make([]int, waits)
		for left := waits; left > 0; {
			cqe, err := next(ring)
			must(t, err)
			ours, err := h.Handle(cqe, func(user uint64, err error) {
				wantFault(t, err)
				got[user]++
				left--
			})
			must(t, err)
			if !ours {
				t.Fatal("a strange entry", *cqe)
			}
			ring.CQESeen(cqe)
		}
		for i, n := range got {
			if n != 1 {
				t.Errorf("wait %d ended %d times", i, n)
			}
		}
		for _, f := range open[1:] {
			f()
		}
	})
}

// A completion queue of two entries, and a thousand completions of both kinds before
// the program takes the first.
func TestFullQueue(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg uring.HostConfig) {
		ring := newRing(t, 1, 0)
		defer ring.QueueExit()
		h := newHost(t, ring, cfg)
		defer h.Close()
		d, ss, ws := openSoft(t, 4)
		defer d.Close()
		const waits = 500
		for range 2 { // the second time the poll is not fresh
			var own, got [waits]int
			var open []func()
			for _, w := range ws {
				f, err := w.Gate()
				must(t, err)
				open = append(open, f)
			}
			for i := range waits {
				s := ss[i%len(ss)]
				seq, err := s.Mark()
				must(t, err)
				if pending, err := s.Notify(h.NewWait(uint64(i)), seq); err != nil || !pending {
					t.Fatal(pending, err)
				}
			}
			before := h.Stats().Posted
			for i := range waits {
				e := ring.GetSQE()
				for e == nil {
					_, err := ring.Submit()
					if err != nil && err != syscall.EINTR && err != syscall.EBUSY && err != syscall.EAGAIN {
						t.Fatal(err)
					}
					e = ring.GetSQE()
				}
				e.PrepareNop()
				e.UserData = uint64(i)
				if i == waits/2 {
					for _, f := range open {
						f()
					}
				}
			}
			_, err := ring.Submit()
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			for {
				n := int(h.Stats().Posted - before)
				if g := h.Group(); g != nil {
					n = g.Queued()
				}
				if n == waits {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("%d of %d posted; %+v", n, waits, h.Stats())
				}
				time.Sleep(time.Millisecond)
			}
			cancel()
			if !ring.CQHasOverflow() {
				t.Error("the queue is not over-full")
			}
			for left := 2 * waits; left > 0; {
				cqe, err := next(ring)
				must(t, err)
				ours, err := h.Handle(cqe, func(user uint64, err error) {
					must(t, err)
					got[user]++
					left--
				})
				must(t, err)
				if !ours {
					own[cqe.UserData]++
					left--
				}
				ring.CQESeen(cqe)
			}
			for i := range waits {
				if own[i] != 1 || got[i] != 1 {
					t.Errorf("%d: own %d, device %d", i, own[i], got[i])
				}
			}
		}
		if s := h.Stats(); s.Lost != 0 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Waits that are registered again from within Handle, more often than the queue is
// long.
func TestAgain(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg uring.HostConfig) {
		ring := newRing(t, 2, 0)
		defer ring.QueueExit()
		h := newHost(t, ring, cfg)
		defer h.Close()
		d, ss, ws := openSoft(t, 3)
		defer d.Close()
		const rounds = 200
		left := 0
		var start func(i int)
		turns, waits := make([]int, len(ss)), make([]*poller.Wait, len(ss))
		start = func(i int) {
			for turns[i] < rounds {
				turns[i]++
				must(t, ws[i].Work(20*time.Microsecond))
				seq, err := ss[i].Mark()
				must(t, err)
				pending, err := ss[i].Notify(waits[i], seq)
				must(t, err)
				if pending {
					return
				}
			}
			left--
		}
		for i := range ss {
			waits[i] = h.NewWait(MaxUser - uint64(i))
			left++
			start(i)
		}
		for left > 0 {
			cqe, err := next(ring)
			must(t, err)
			ours, err := h.Handle(cqe, func(user uint64, err error) {
				must(t, err)
				start(int(MaxUser - user))
			})
			must(t, err)
			if !ours {
				t.Fatal("a strange entry", *cqe)
			}
			ring.CQESeen(cqe)
		}
	})
}

// What is the program's own stays so.
func TestNotOurs(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg uring.HostConfig) {
		ring := newRing(t, 8, 0)
		defer ring.QueueExit()
		h := newHost(t, ring, cfg)
		defer h.Close()
		for _, user := range []uint64{0, 1, MaxUser, Tag - 1, math.MaxUint64} {
			ours, err := h.Handle(&giouring.CompletionQueueEvent{UserData: user, Res: -1}, func(uint64, error) { t.Error("called") })
			if ours || err != nil {
				t.Errorf("%#x: %v, %v", user, ours, err)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	newRing(t, 1, 0).QueueExit()
	if _, err := NewHost(nil, uring.HostConfig{}); !errors.Is(err, event.InvalidArgument) {
		t.Error("nil ring:", err)
	}
	if _, err := NewHost(giouring.NewRing(), uring.HostConfig{}); !errors.Is(err, event.InvalidArgument) {
		t.Error("a ring that was not set up:", err)
	}
}

// The poll of the eventfd: again after it ended, single shots where the kernel has
// no other, and an error when it can't be.
func TestPoll(t *testing.T) {
	ring := newRing(t, 4, 0)
	defer ring.QueueExit()
	h := newHost(t, ring, uring.HostConfig{Eventfd: true})
	defer h.Close()
	none := func(uint64, error) { t.Error("called") }
	if n := ring.SQReady(); n != 1 {
		t.Fatal(n, "entries after NewHost")
	}
	// A kernel without multishot polls.
	ours, err := h.Handle(&giouring.CompletionQueueEvent{UserData: pollUser, Res: -int32(syscall.EINVAL)}, none)
	if !ours || err != nil || !h.oneShot || ring.SQReady() != 2 {
		t.Fatal(ours, err, h.oneShot, ring.SQReady())
	}
	// No second chance for the single shot, and none for a poll that was cancelled.
	for _, e := range []syscall.Errno{syscall.EINVAL, syscall.ECANCELED} {
		ours, err = h.Handle(&giouring.CompletionQueueEvent{UserData: pollUser, Res: -int32(e)}, none)
		if !ours || !errors.Is(err, event.Backend) || !errors.Is(err, e) || ring.SQReady() != 2 {
			t.Fatal(ours, err, ring.SQReady())
		}
	}
	must(t, h.Arm())
	must(t, h.Arm()) // it is there
	if n := ring.SQReady(); n != 3 {
		t.Fatal(n, "entries after Arm")
	}
	// A full submission queue is submitted.
	ring.GetSQE().PrepareNop()
	if ring.GetSQE() != nil {
		t.Fatal("room left")
	}
	h.armed = false
	must(t, h.Arm())
	if n := ring.SQReady(); n != 1 {
		t.Fatal(n, "entries after Arm with a full queue")
	}
}

// A single-shot poll, as before Linux 5.13, loses nothing either.
func TestSingleShot(t *testing.T) {
	ring := newRing(t, 4, 0)
	defer ring.QueueExit()
	h := newHost(t, ring, uring.HostConfig{Eventfd: true})
	defer h.Close()
	// Turns the poll that NewHost prepared into a single shot.
	h.oneShot, h.armed = true, false
	for ring.SQReady() > 0 {
		e := ring.GetSQE()
		if e == nil {
			break
		}
		e.PrepareNop()
	}
	must(t, h.Arm())
	d, ss, ws := openSoft(t, 1)
	defer d.Close()
	const waits = 300
	got := 0
	for range waits {
		must(t, ws[0].Work(10*time.Microsecond))
		seq, err := ss[0].Mark()
		must(t, err)
		pending, err := ss[0].Notify(h.NewWait(7), seq)
		must(t, err)
		if !pending {
			got++
		}
	}
	for got < waits {
		cqe, err := next(ring)
		must(t, err)
		_, err = h.Handle(cqe, func(user uint64, err error) {
			must(t, err)
			if user != 7 {
				t.Error("user", user)
			}
			got++
		})
		must(t, err)
		ring.CQESeen(cqe)
	}
}
