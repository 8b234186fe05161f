// Package drive runs an example server: until it is interrupted, or under its own
// load, after which nothing may be left behind.
package drive

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
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

// Server is what can be driven. It embeds a Count.
type Server interface {
	// Serve serves until Stop. It sends its address when clients may come.
	Serve(url chan<- string) error
	// Stop ends Serve, also one that has not begun or has ended.
	Stop()
	// Label says how it serves. It is called while Serve does.
	Label() string

	count() *Count
}

// Count is what a server counts.
type Count struct {
	conns, most, waits, vanished atomic.Int64
}

func (c *Count) count() *Count { return c }

// Opened counts a connection.
func (c *Count) Opened() {
	n := c.conns.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
}

// Closed counts a connection of which nothing is left.
func (c *Count) Closed() { c.conns.Add(-1) }

// Waits counts a request (1) and its end (-1).
func (c *Count) Waits(n int64) { c.waits.Add(n) }

// Vanished counts a client that went away while the device worked for it.
func (c *Count) Vanished() { c.vanished.Add(1) }

// Opener makes a server that multiplies with m.
type Opener func(m *matvec.Multiplier) (Server, error)

// Config says how to run.
type Config struct {
	Driver, Plan             string
	Streams, Clients, Vanish int
	Load, Work               time.Duration

	patience time.Duration // how long what was used may take to go away
}

// Main is a program's main function. Define further flags before it.
func Main(open Opener) {
	var c Config
	flag.StringVar(&c.Driver, "driver", "soft", "driver to use: opencl, soft")
	flag.StringVar(&c.Plan, "plan", "", "wait plan (see package plan); empty for the device's default")
	flag.IntVar(&c.Streams, "streams", 64, "device streams")
	flag.IntVar(&c.Clients, "clients", 64, "connections of the load")
	flag.DurationVar(&c.Load, "load", 0, "drive the server for this long, then print a summary; 0 serves until interrupted")
	flag.DurationVar(&c.Work, "work", 2*time.Millisecond, "extra device time of a batch on the soft device")
	flag.IntVar(&c.Vanish, "vanish", 50, "about one client request in so many disconnects while it waits; 0 for none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := Run(ctx, os.Stdout, c, open); err != nil {
		log.Fatal(err)
	}
}

// Run opens the device, serves and, when asked to, drives. It fails when a request
// is lost or answered wrongly, and when the process holds other than before what a
// load, or a device and its server, have used.
func Run(ctx context.Context, out io.Writer, c Config, open Opener) error {
	if c.patience == 0 {
		c.patience = 10 * time.Second
	}
	if c.Load <= 0 {
		return session(ctx, out, c, open)
	}
	// What is opened at first use and then stays (the runtime's poller, a driver's
	// library) is no leak.
	if err := session(ctx, io.Discard, Config{Driver: c.Driver, Plan: c.Plan, Streams: c.Streams, patience: c.patience, Load: -1}, open); err != nil {
		return err
	}
	before := steady(c.patience)
	if err := session(ctx, out, c, open); err != nil {
		return err
	}
	return settled(out, "run", before, c.patience)
}

// session is one device with one server. A negative c.Load is a load as short as
// can be.
func session(ctx context.Context, out io.Writer, c Config, open Opener) (err error) {
	opts := []gpu.Option{gpu.WithDriver(c.Driver)}
	if c.Plan != "" {
		opts = append(opts, gpu.WithPlan(c.Plan))
	}
	dev, err := gpu.Open(ctx, opts...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	fmt.Fprintln(out, "device:", dev.Label())
	for _, w := range dev.Warnings() {
		fmt.Fprintln(out, "note:  ", w)
	}
	mul, err := matvec.New(dev, c.Streams, c.Work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mul.Close()) }()
	s, err := open(mul)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	address, served := make(chan string, 1), make(chan error, 1)
	go func() {
		defer cancel() // no server, no load
		served <- s.Serve(address)
	}()
	defer func() {
		s.Stop()
		err = errors.Join(<-served, err)
	}()
	var url string
	select {
	case url = <-address:
	case <-ctx.Done():
		return nil
	}
	fmt.Fprintln(out, "server:", s.Label())
	if c.Load == 0 {
		fmt.Fprintf(out, "serving on %s: POST 1 to %d vectors of %d little-endian int32, ^C to stop\n", url, matvec.MaxBatch, matvec.Dim)
		<-ctx.Done()
		return nil
	}
	return measure(ctx, out, c, dev, s.count(), url)
}

func measure(ctx context.Context, out io.Writer, c Config, dev *gpu.Device, n *Count, url string) error {
	res, err := load.Run(ctx, load.Config{URL: url, Clients: 2, Duration: time.Millisecond})
	if err != nil {
		return err
	}
	if err := errors.Join(res.Err(), idle(dev, n, c.patience)); err != nil || c.Load < 0 {
		return err
	}
	held := steady(c.patience)
	fmt.Fprintf(out, "load:   %d clients for %v on %d streams, one request in %d vanishes\n", c.Clients, c.Load, c.Streams, c.Vanish)
	before, cpu := dev.Stats(), usage.Now()
	res, err = load.Run(ctx, load.Config{URL: url, Clients: c.Clients, Duration: c.Load, Vanish: c.Vanish, Progress: out})
	if err != nil {
		return err
	}
	spent := usage.Now().Sub(cpu)
	// Requests that were given up leave the wait, not the work: once the device is
	// through with it, nothing may be left.
	if err := errors.Join(res.Err(), idle(dev, n, c.patience)); err != nil {
		return err
	}
	summary.Print(out, res, spent, before, dev.Stats())
	fmt.Fprintf(out, "server     %d connections at most at once, %d clients vanished while the device worked for them\n", n.most.Load(), n.vanished.Load())
	if most := n.most.Load(); most < int64(c.Clients) {
		return fmt.Errorf("%d connections at most at once, want %d", most, c.Clients)
	}
	return settled(out, "load", held, c.patience)
}
