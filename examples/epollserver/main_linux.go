// Command epollserver does the work of the net/http example (../server) in one
// thread: one epoll loop serves the TCP connections and the device's completions,
// with no goroutine per request. A completion is readiness of one more
// descriptor. With -load it drives itself with the same HTTP clients.
//
//	go run ./examples/epollserver -load 10s
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/examples/internal/load"
	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/examples/internal/summary"
	"github.com/gpuline/gpuline/examples/internal/usage"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/poller"
)

func main() {
	driver := flag.String("driver", "soft", "driver to use: opencl, soft")
	streams := flag.Int("streams", 64, "device streams")
	clients := flag.Int("clients", 64, "connections of the load")
	duration := flag.Duration("load", 0, "drive the server for this long, then print a summary; 0 serves until interrupted")
	work := flag.Duration("work", 2*time.Millisecond, "extra device time of a batch on the soft device")
	vanish := flag.Int("vanish", 50, "about one client request in so many disconnects while it waits; 0 for none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *driver, *streams, *clients, *vanish, *duration, *work); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, driver string, streams, clients, vanish int, duration, work time.Duration) (err error) {
	dev, err := gpu.Open(ctx, gpu.WithDriver(driver))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	fmt.Println("device:", dev.Label())
	mul, err := matvec.New(dev, streams, work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mul.Close()) }()
	s, err := newServer(mul)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.loop() }()
	defer func() {
		s.stop()
		err = errors.Join(err, <-served)
	}()
	if duration <= 0 {
		fmt.Println("serving on", s.url, "- ^C to stop")
		<-ctx.Done()
		return nil
	}
	fmt.Printf("load:   %d clients for %v on %d streams, one request in %d vanishes\n", clients, duration, streams, vanish)
	before, cpu := dev.Stats(), usage.Now()
	res, err := load.Run(ctx, load.Config{URL: s.url, Clients: clients, Duration: duration, Vanish: vanish, Progress: os.Stdout})
	if err != nil {
		return err
	}
	spent := usage.Now().Sub(cpu)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if st := dev.Stats(); st.Waiter.Pending == 0 && st.Retained == 0 {
			break
		} else if time.Now().After(end) {
			return fmt.Errorf("left behind: %d registrations, %d retained buffers", st.Waiter.Pending, st.Retained)
		}
	}
	summary.Print(os.Stdout, res, spent, before, dev.Stats())
	return res.Err()
}

// server is one epoll loop. Everything but stop belongs to its thread.
type server struct {
	mul   *matvec.Multiplier
	group *epoll.Group
	url   string
	ep    int // the epoll instance
	ln    int // the listening socket
	quit  int // an eventfd that ends the loop
	conns map[int32]*conn
}

// conn is one connection. Its wait outlives it when the client vanishes: then
// the completion finds fd < 0.
type conn struct {
	fd   int
	in   []byte
	out  []byte
	y    []byte
	wait poller.Wait
	busy bool // the device works for it
}

func newServer(mul *matvec.Multiplier) (*server, error) {
	s := &server{mul: mul, ep: -1, ln: -1, quit: -1, conns: map[int32]*conn{}}
	err := s.open()
	if err != nil {
		s.close()
	}
	return s, err
}

func (s *server) open() (err error) {
	if s.group, err = epoll.NewGroup(); err != nil {
		return err
	}
	if s.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if s.quit, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if s.ln, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err = unix.Bind(s.ln, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err = unix.Listen(s.ln, 1024); err != nil {
		return os.NewSyscallError("listen", err)
	}
	sa, err := unix.Getsockname(s.ln)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.url = "http://127.0.0.1:" + strconv.Itoa(sa.(*unix.SockaddrInet4).Port) + "/"
	for _, fd := range []int{s.ln, s.quit, s.group.Fd()} {
		if err := s.watch(fd); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) watch(fd int) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
}

func (s *server) stop() { _, _ = unix.Write(s.quit, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (s *server) close() {
	for _, c := range s.conns {
		_ = unix.Close(c.fd)
	}
	for _, fd := range []int{s.ep, s.ln, s.quit} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if s.group != nil {
		_ = s.group.Close()
	}
}

// loop serves until stop.
func (s *server) loop() error {
	runtime.LockOSThread() // one thread, as promised
	defer runtime.UnlockOSThread()
	defer s.close()
	s.group.Arm()
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(s.ep, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:n] {
			switch int(e.Fd) {
			case s.quit:
				return nil
			case s.ln:
				s.accept()
			case s.group.Fd():
				s.completions()
			default:
				if c := s.conns[e.Fd]; c != nil {
					s.serve(c)
				}
			}
		}
	}
}

func (s *server) accept() {
	for {
		fd, _, err := unix.Accept4(s.ln, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		c := &conn{fd: fd}
		c.wait.Sink, c.wait.Data = s.group, c
		s.conns[int32(fd)] = c
		if s.watch(fd) != nil {
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
}

// serve reads what there is and starts a request when one is complete.
func (s *server) serve(c *conn) {
	var buf [8192]byte
	for {
		n, err := unix.Read(c.fd, buf[:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			s.start(c)
			return
		case n <= 0:
			s.drop(c)
			return
		default:
			c.in = append(c.in, buf[:n]...)
		}
	}
}

const maxHeader = 16 << 10

func (s *server) start(c *conn) {
	if c.busy {
		return
	}
	end := bytes.Index(c.in, []byte("\r\n\r\n"))
	if end < 0 {
		if len(c.in) > maxHeader {
			s.drop(c)
		}
		return
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(c.in[:end+4])))
	if err != nil || r.ContentLength < 0 || r.ContentLength > matvec.MaxBatch*matvec.VectorBytes {
		s.drop(c)
		return
	}
	all := end + 4 + int(r.ContentLength)
	if len(c.in) < all {
		return
	}
	x := bytes.Clone(c.in[end+4 : all]) // the device's until it is done
	c.in = append(c.in[:0], c.in[all:]...)
	c.y = make([]byte, len(x))
	p, err := s.mul.Submit(c.y, x)
	if err != nil {
		s.answer(c, http.StatusBadRequest, []byte(err.Error()))
		return
	}
	c.wait.Look = p.Stream.Predict()
	switch pending, err := p.Stream.Notify(&c.wait, p.Seq); {
	case err != nil:
		s.answer(c, http.StatusInternalServerError, []byte(err.Error()))
	case pending:
		c.busy = true
	default: // reached by now
		s.answer(c, http.StatusOK, c.y)
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
				c.busy = false
				switch {
				case c.fd < 0: // the client has vanished
				case done.Err != nil:
					s.answer(c, http.StatusInternalServerError, []byte(done.Err.Error()))
				default:
					s.answer(c, http.StatusOK, c.y)
				}
				if c.fd >= 0 {
					s.start(c) // a request that came in meanwhile
				}
			}
		}
		if !s.group.Arm() {
			return
		}
	}
}

// answer writes a response. Answers are small enough for an empty socket buffer;
// a client that does not read is dropped.
func (s *server) answer(c *conn, status int, body []byte) {
	c.out = fmt.Appendf(c.out[:0], "HTTP/1.1 %d %s\r\nContent-Length: %d\r\n\r\n", status, http.StatusText(status), len(body))
	c.out = append(c.out, body...)
	for len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			s.drop(c)
			return
		}
		c.out = c.out[n:]
	}
}
