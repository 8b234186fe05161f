// Command server is a net/http server whose handlers do real work on a device's
// streams (batched matrix-vector products) and wait for it in a select with the
// request's context. With -load it drives itself with real HTTP clients, some of
// which vanish in the middle of a wait, checks every answer, and prints what it
// cost.
//
//	go run ./examples/server -load 10s
//	go run ./examples/server -driver opencl -load 10s
//	go run ./examples/server -listen 127.0.0.1:8080
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gpuline/gpuline/examples/internal/drive"
	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/gpu"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	drive.Main(func(mul *matvec.Multiplier) (drive.Server, error) { return newServer(mul, *listen), nil })
}

type server struct {
	drive.Count
	http.Server
	mul *matvec.Multiplier
}

func newServer(mul *matvec.Multiplier, listen string) *server {
	s := &server{mul: mul}
	s.Server = http.Server{Addr: listen, Handler: s, ReadHeaderTimeout: 10 * time.Second, ConnState: s.state}
	return s
}

func (s *server) Serve(url chan<- string) error {
	ln, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return err
	}
	url <- "http://" + ln.Addr().String() + "/"
	if err := s.Server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *server) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = s.Shutdown(ctx)
}

func (s *server) Label() string { return "net/http, a select per request" }

func (s *server) state(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.Opened()
	case http.StateClosed:
		s.Closed()
	}
}

// ServeHTTP multiplies. A request costs the device a copy, a kernel, a copy, and
// this goroutine one select.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, err := io.ReadAll(http.MaxBytesReader(w, r.Body, matvec.MaxBatch*matvec.VectorBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.Waits(1)
	defer s.Waits(-1)
	y := make([]byte, len(x))
	p, err := s.mul.Submit(y, x)
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, matvec.ErrBatch) {
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	select {
	case <-gpu.Done(p.Stream, p.Seq):
		if err := p.Stream.Err(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(y)
	case <-r.Context().Done():
		// The copies go on; x and y are retained until they are done.
		s.Vanished()
	}
}
