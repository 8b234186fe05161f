// Command uringserver does the work of the net/http example (../server) in one
// thread: one io_uring serves the TCP connections and the device's completions,
// with no goroutine per request. A completion of the device is one more entry in
// the ring's completion queue. With -load it drives itself with the same HTTP
// clients.
//
//	go run ./examples/uringserver -load 10s
//	go run ./examples/uringserver -eventfd -load 10s
package main

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/examples/internal/drive"
	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/examples/internal/wire"
	"github.com/gpuline/gpuline/poller"
	"github.com/gpuline/gpuline/uring"
)

func main() {
	eventfd := flag.Bool("eventfd", false, "take the device's completions out of an eventfd, as on kernels without messages between rings")
	entries := flag.Int("entries", 512, "size of the ring; its completion queue is twice as large")
	drive.Main(func(mul *matvec.Multiplier) (drive.Server, error) {
		quit, err := wire.NewQuit()
		return &server{Quit: quit, mul: mul, eventfd: *eventfd, entries: *entries, ln: -1, many: true}, err
	})
}

// server is one ring. Everything but Stop belongs to its thread.
type server struct {
	drive.Count
	*wire.Quit
	mul     *matvec.Multiplier
	eventfd bool
	entries int
	ring    *uring.Ring
	host    *uring.Host
	ln      int // the listening socket
	conns   []*conn
	free    []int              // places in conns with nobody
	live    int                // places with somebody
	aside   []uring.Completion // taken to make room, still to be handled

	many      bool // accepts are multishot
	accepting bool // an accept is on the ring
	accepted  uring.Op
	quitting  bool
}

// conn is one connection. When the client vanishes its place, and so its user
// numbers, stay taken until neither a request of it is on the ring nor the device
// works for it: nothing can end that would be taken for the next client's.
type conn struct {
	wire.Exchange
	index  int
	fd     int
	buf    [4096]byte
	out    []byte // what is left to send
	flight int    // requests on the ring
	gone   bool
}

// A user number is a place in conns and one of these.
const (
	kindAccept = iota
	kindPause  // the time until the next accept
	kindQuit
	kindGroup // the host's eventfd
	kindNone  // nothing to do
	kindReceive
	kindSend
	kindDevice
	kinds
)

func user(index, kind int) uint64 { return uint64(index)*kinds + uint64(kind) }

func (s *server) Label() string { return s.host.Label() + ", one thread" }

func (s *server) open() (url string, err error) {
	if s.ring, err = uring.NewRing(uring.RingConfig{Entries: s.entries, OwnerThread: true}); err != nil {
		return "", err
	}
	if s.host, err = uring.NewHost(s.ring.Fd(), uring.HostConfig{Eventfd: s.eventfd}); err != nil {
		return "", err
	}
	if s.ln, url, err = wire.Listen(0); err != nil {
		return "", err
	}
	if err = s.request(kindQuit, nil); err != nil {
		return "", err
	}
	if s.host.Group() != nil {
		err = s.request(kindGroup, nil)
	} else {
		s.warm()
	}
	if err != nil {
		return "", err
	}
	return url, s.request(kindAccept, nil)
}

// warm makes the host open what it sends batches with: now, not at the first one,
// since what the process holds is counted around a load.
func (s *server) warm() {
	for range 8 {
		s.host.Complete(&poller.Wait{User: user(0, kindNone)}, nil)
	}
	s.host.Flush()
}

// close ends the ring while its thread is still there: the kernel cancels what a
// thread that exits has submitted.
func (s *server) close() error {
	var errs []error
	if s.host != nil {
		errs = append(errs, s.host.Close())
	}
	if s.ring != nil {
		errs = append(errs, s.ring.Close())
	}
	for _, c := range s.conns {
		if c != nil && c.fd >= 0 { // the ring has failed
			_ = unix.Close(c.fd)
		}
	}
	if s.ln >= 0 {
		_ = unix.Close(s.ln)
	}
	s.Close()
	return errors.Join(errs...)
}

// Serve serves until Stop, and until the device is done with what was begun.
func (s *server) Serve(address chan<- string) (err error) {
	runtime.LockOSThread() // one thread, as promised, and the ring's owner
	defer runtime.UnlockOSThread()
	defer func() { err = errors.Join(err, s.close()) }()
	url, err := s.open()
	if err != nil {
		return err
	}
	address <- url
	for !s.quitting || s.accepting || s.live > 0 {
		if len(s.aside) == 0 {
			if _, err := s.ring.Wait(-1); err != nil && !crowded(err) {
				return err
			}
		}
		for done, ok := s.next(); ok; done, ok = s.next() {
			if err := s.handle(done); err != nil {
				return err
			}
		}
	}
	return nil
}

// crowded reports whether the kernel wants completions taken first, or is short of
// memory.
func crowded(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EAGAIN) }

func (s *server) next() (done uring.Completion, ok bool) {
	if len(s.aside) > 0 {
		done, s.aside = s.aside[0], s.aside[1:]
		return done, true
	}
	return s.ring.Next()
}

// request queues a request. While the ring can't take it, completions are put
// aside, which makes room.
func (s *server) request(kind int, c *conn) (err error) {
	for {
		switch kind {
		case kindAccept:
			s.accepted, err = s.ring.Accept(user(0, kind), s.ln, s.many)
			s.accepting = err == nil
		case kindPause:
			_, err = s.ring.Timeout(user(0, kind), 10*time.Millisecond)
		case kindQuit:
			_, err = s.ring.Read(user(0, kind), s.Fd(), make([]byte, 8), -1)
		case kindGroup:
			_, err = s.ring.Poll(user(0, kind), s.host.Group().Fd(), unix.POLLIN, false)
		case kindNone:
			_, err = s.ring.Cancel(user(0, kind), s.accepted)
		case kindReceive:
			_, err = s.ring.Recv(user(c.index, kind), c.fd, c.buf[:])
		case kindSend:
			_, err = s.ring.Send(user(c.index, kind), c.fd, c.out)
		}
		if err == nil && c != nil {
			c.flight++
		}
		if err == nil || !crowded(err) {
			return err
		}
		n := len(s.aside)
		for done, ok := s.ring.Next(); ok; done, ok = s.ring.Next() {
			s.aside = append(s.aside, done)
		}
		if len(s.aside) == n {
			time.Sleep(time.Millisecond) // the kernel is short of memory
		}
	}
}

func (s *server) handle(done uring.Completion) error {
	kind := int(done.User % kinds)
	switch kind {
	case kindAccept:
		return s.accept(done)
	case kindPause:
		if !s.quitting {
			return s.request(kindAccept, nil)
		}
		return nil
	case kindQuit:
		return s.quit()
	case kindGroup:
		if err := done.Err(); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		return s.completions()
	case kindNone:
		return nil
	}
	c := s.conns[done.User/kinds]
	var err error
	switch kind {
	case kindReceive:
		c.flight--
		err = s.receive(c, done)
	case kindSend:
		c.flight--
		err = s.sent(c, done)
	case kindDevice:
		err = s.step(c, c.Done(s.host.Err(done.User, done.Res)))
	}
	s.leave(c)
	return err
}

// accept takes a new connection, and asks for the next one where the kernel does
// not go on by itself.
func (s *server) accept(done uring.Completion) error {
	if done.Res >= 0 {
		if err := s.enter(int(done.Res)); err != nil {
			return err
		}
	}
	if done.More() {
		return nil
	}
	s.accepting = false
	switch err := done.Err(); {
	case s.quitting:
		return nil
	case err == nil, err == unix.ECONNABORTED, err == unix.EINTR, err == unix.EAGAIN:
	case err == unix.EINVAL && s.many: // before Linux 5.19
		s.many = false
	case err == unix.EBADF, err == unix.EINVAL, err == unix.ENOTSOCK, err == unix.EOPNOTSUPP:
		return fmt.Errorf("accept: %w", err)
	default: // out of descriptors or memory for a while
		return s.request(kindPause, nil)
	}
	return s.request(kindAccept, nil)
}

func (s *server) enter(fd int) error {
	if s.quitting {
		return unix.Close(fd)
	}
	if len(s.free) == 0 {
		s.free = append(s.free, len(s.conns))
		s.conns = append(s.conns, nil)
	}
	c := &conn{fd: fd, index: s.free[len(s.free)-1]}
	s.free = s.free[:len(s.free)-1]
	c.Wait.Sink, c.Wait.User, c.Wait.Data = s.host, user(c.index, kindDevice), c
	s.conns[c.index] = c
	s.live++
	s.Opened()
	return s.request(kindReceive, c)
}

// drop ends a connection: what it has on the ring ends soon. Device work for it
// goes on, and its buffers stay until that is done.
func (s *server) drop(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	if c.Busy() {
		s.Vanished()
	}
}

// leave frees what a dropped connection does not need any more.
func (s *server) leave(c *conn) {
	if !c.gone || c.flight > 0 {
		return
	}
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
	if !c.Busy() {
		s.conns[c.index] = nil
		s.free = append(s.free, c.index)
		s.live--
		s.Closed()
	}
}

// receive takes what has come and asks for more, also while the device works: so a
// client that vanishes is noticed.
func (s *server) receive(c *conn, done uring.Completion) error {
	switch err := done.Err(); {
	case c.gone:
		return nil
	case err == unix.EINTR, err == unix.EAGAIN:
		return s.request(kindReceive, c)
	case done.Res <= 0 || !c.Feed(c.buf[:done.Res]):
		s.drop(c)
		return nil
	}
	if err := s.request(kindReceive, c); err != nil || len(c.out) > 0 {
		return err
	}
	return s.step(c, c.Next(s.mul))
}

// step goes on with a connection as far as it can.
func (s *server) step(c *conn, next wire.Step) error {
	switch {
	case c.gone:
	case next == wire.Drop:
		s.drop(c)
	case next == wire.Send:
		c.out = c.Out
		return s.request(kindSend, c)
	}
	return nil
}

// sent sends the rest of a response, or goes on with a request that came in
// meanwhile.
func (s *server) sent(c *conn, done uring.Completion) error {
	switch err := done.Err(); {
	case c.gone:
		return nil
	case err == unix.EINTR, err == unix.EAGAIN:
	case err != nil:
		s.drop(c)
		return nil
	default:
		c.out = c.out[done.Res:]
	}
	if len(c.out) > 0 {
		return s.request(kindSend, c)
	}
	return s.step(c, c.Next(s.mul))
}

// completions takes what the device has done out of the host's group: drain, arm,
// and again when more came in between.
func (s *server) completions() error {
	var buf [64]epoll.Completion
	g := s.host.Group()
	for {
		for n := g.Drain(buf[:]); n > 0; n = g.Drain(buf[:]) {
			for _, done := range buf[:n] {
				c := done.Wait.Data.(*conn)
				if err := s.step(c, c.Done(done.Err)); err != nil {
					return err
				}
				s.leave(c)
			}
		}
		if !g.Arm() {
			return s.request(kindGroup, nil)
		}
	}
}

// quit takes no more clients and drops those that are there.
func (s *server) quit() error {
	s.quitting = true
	for _, c := range s.conns {
		if c != nil {
			s.drop(c)
			s.leave(c)
		}
	}
	if s.accepting {
		return s.request(kindNone, nil)
	}
	return nil
}
