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
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/examples/internal/load"
	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/examples/internal/summary"
	"github.com/gpuline/gpuline/examples/internal/usage"
	"github.com/gpuline/gpuline/gpu"
)

func main() {
	driver := flag.String("driver", "soft", "driver to use: cuda, hip, metal, opencl, soft")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	streams := flag.Int("streams", 64, "device streams")
	clients := flag.Int("clients", 64, "connections of the load")
	duration := flag.Duration("load", 0, "drive the server for this long, then print a summary; 0 serves until interrupted")
	work := flag.Duration("work", 2*time.Millisecond, "extra device time of a batch on the soft device")
	vanish := flag.Int("vanish", 50, "about one client request in so many disconnects while it waits; 0 for none")
	plan := flag.String("plan", "", "wait plan (see package plan); empty for the device's default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *driver, *plan, *listen, *streams, *clients, *vanish, *duration, *work); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, driver, plan, listen string, streams, clients, vanish int, duration, work time.Duration) (err error) {
	opts := []gpu.Option{gpu.WithDriver(driver)}
	if plan != "" {
		opts = append(opts, gpu.WithPlan(plan))
	}
	dev, err := gpu.Open(ctx, opts...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	fmt.Println("device:", dev.Label())
	for _, w := range dev.Warnings() {
		fmt.Println("note:  ", w)
	}
	mul, err := matvec.New(dev, streams, work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mul.Close()) }()

	h := &handler{mul: mul}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		sctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(sctx)
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
	}()
	url := "http://" + ln.Addr().String() + "/"
	if duration <= 0 {
		fmt.Printf("serving on %s: POST 1 to %d vectors of %d little-endian int32, ^C to stop\n", url, matvec.MaxBatch, matvec.Dim)
		<-ctx.Done()
		return nil
	}
	fmt.Printf("load:   %d clients for %v on %d streams, one request in %d vanishes\n", clients, duration, streams, vanish)
	before, cpu := dev.Stats(), usage.Now()
	res, err := load.Run(ctx, load.Config{URL: url, Clients: clients, Duration: duration, Vanish: vanish, Progress: os.Stdout})
	if err != nil {
		return err
	}
	spent := usage.Now().Sub(cpu)
	// Requests that were given up leave the wait, not the work: once the device is
	// through with it, nothing may be left.
	if err := h.drained(ctx, dev); err != nil {
		return err
	}
	summary.Print(os.Stdout, res, spent, before, dev.Stats())
	fmt.Printf("server: %d handlers gave a wait up because their client had vanished\n", h.abandoned.Load())
	return res.Err()
}

// handler multiplies. A request costs the device a copy, a kernel, a copy, and
// this goroutine one select.
type handler struct {
	mul       *matvec.Multiplier
	waiting   atomic.Int64
	abandoned atomic.Int64
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, err := io.ReadAll(http.MaxBytesReader(w, r.Body, matvec.MaxBatch*matvec.VectorBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.waiting.Add(1)
	defer h.waiting.Add(-1)
	y := make([]byte, len(x))
	p, err := h.mul.Submit(y, x)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
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
		h.abandoned.Add(1)
	}
}

// drained waits until no handler waits and the device owes nothing.
func (h *handler) drained(ctx context.Context, dev *gpu.Device) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		s := dev.Stats()
		if h.waiting.Load() == 0 && s.Waiter.Pending == 0 && s.Retained == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("left behind: %d handlers, %d registrations, %d retained buffers", h.waiting.Load(), s.Waiter.Pending, s.Retained)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
