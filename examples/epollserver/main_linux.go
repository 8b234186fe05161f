// Command epollserver does the work of the net/http example (../server) in one
// thread: one epoll loop serves the TCP connections and the device's completions,
// with no goroutine per request. A completion is readiness of one more
// descriptor. With -load it drives itself with the same HTTP clients.
//
//	go run ./examples/epollserver -load 10s
package main

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/examples/internal/drive"
	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/examples/internal/wire"
)

func main() { drive.Main(newServer) }

// server is one epoll loop. Everything but Stop belongs to its thread.
type server struct {
	drive.Count
	*wire.Quit
	mul   *matvec.Multiplier
	group *epoll.Group
	ep    int // the epoll instance
	ln    int // the listening socket
	again int // when to accept again, in ms; -1 when the socket is ready
	conns map[int32]*conn
}

// conn is one connection. Its wait outlives it when the client vanishes: then
// the completion finds fd < 0.
type conn struct {
	wire.Exchange
	fd int
}

func newServer(mul *matvec.Multiplier) (drive.Server, error) {
	quit, err := wire.NewQuit()
	return &server{Quit: quit, mul: mul, ep: -1, ln: -1, again: -1, conns: map[int32]*conn{}}, err
}

func (s *server) Label() string { return "epoll, one thread" }

func (s *server) open() (url string, err error) {
	if s.group, err = epoll.NewGroup(); err != nil {
		return "", err
	}
	if s.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return "", os.NewSyscallError("epoll_create1", err)
	}
	if s.ln, url, err = wire.Listen(unix.SOCK_NONBLOCK); err != nil {
		return "", err
	}
	// Edge-triggered: out of descriptors, the socket would be ready without end.
	if err := s.watch(s.ln, unix.EPOLLIN|unix.EPOLLET); err != nil {
		return "", err
	}
	if err := s.watch(s.Fd(), unix.EPOLLIN); err != nil {
		return "", err
	}
	return url, s.watch(s.group.Fd(), unix.EPOLLIN)
}

func (s *server) watch(fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}))
}

func (s *server) close() {
	for _, c := range s.conns {
		s.drop(c)
	}
	for _, fd := range []int{s.ep, s.ln} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if s.group != nil {
		_ = s.group.Close()
	}
	s.Close()
}

// Serve serves until Stop.
func (s *server) Serve(address chan<- string) error {
	runtime.LockOSThread() // one thread, as promised
	defer runtime.UnlockOSThread()
	defer s.close()
	url, err := s.open()
	if err != nil {
		return err
	}
	address <- url
	s.group.Arm()
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(s.ep, events, s.again)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("epoll_wait", err)
		}
		if s.again >= 0 {
			s.accept()
		}
		for _, e := range events[:n] {
			switch int(e.Fd) {
			case s.Fd():
				return nil
			case s.ln:
				s.accept()
			case s.group.Fd():
				s.completions()
			default:
				if c := s.conns[e.Fd]; c != nil {
					s.receive(c)
				}
			}
		}
	}
}

func (s *server) accept() {
	for {
		fd, _, err := unix.Accept4(s.ln, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch err {
		case nil:
		case unix.EINTR, unix.ECONNABORTED:
			continue
		case unix.EAGAIN:
			s.again = -1
			return
		default: // out of descriptors or memory for a while
			s.again = 10
			return
		}
		c := &conn{fd: fd}
		c.Wait.Sink, c.Wait.Data = s.group, c
		s.conns[int32(fd)] = c
		s.Opened()
		if s.watch(fd, unix.EPOLLIN) != nil {
			s.drop(c)
		}
	}
}

// drop forgets a connection. Device work for it goes on, and its buffers stay
// until that is done; its completion finds nobody.
func (s *server) drop(c *conn) {
	delete(s.conns, int32(c.fd))
	_ = unix.Close(c.fd)
	c.fd = -1
	s.Closed()
	if c.Busy() {
		s.Vanished()
	}
}

// receive reads what there is and starts a request when one is complete.
func (s *server) receive(c *conn) {
	var buf [8192]byte
	for {
		n, err := unix.Read(c.fd, buf[:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			s.step(c, c.Next(s.mul))
			return
		case n <= 0 || !c.Feed(buf[:n]):
			s.drop(c)
			return
		}
	}
}

// step goes on with a connection until it has to wait.
func (s *server) step(c *conn, next wire.Step) {
	for {
		switch next {
		case wire.Receive, wire.Device:
			return
		case wire.Send:
			if !s.send(c) {
				return
			}
			next = c.Next(s.mul) // a request that came in meanwhile
		case wire.Drop:
			s.drop(c)
			return
		}
	}
}

// completions takes what the device has done: drain, arm, and again when more
// came in between.
func (s *server) completions() {
	var buf [64]epoll.Completion
	for {
		for n := s.group.Drain(buf[:]); n > 0; n = s.group.Drain(buf[:]) {
			for _, done := range buf[:n] {
				c := done.Wait.Data.(*conn)
				next := c.Done(done.Err)
				if c.fd >= 0 { // else the client has vanished
					s.step(c, next)
				}
			}
		}
		if !s.group.Arm() {
			return
		}
	}
}

// send writes the response. Responses are small enough for an empty socket buffer;
// a client that does not read is dropped.
func (s *server) send(c *conn) bool {
	for out := c.Out; len(out) > 0; {
		n, err := unix.Write(c.fd, out)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			s.drop(c)
			return false
		}
		out = out[n:]
	}
	return true
}
