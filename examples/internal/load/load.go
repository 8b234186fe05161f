// Package load drives an example server with real HTTP clients and checks every
// answer.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/examples/internal/matvec"
)

// patience is how long an answer may take: then the request counts as lost.
const patience = 30 * time.Second

// Config says how hard to drive.
type Config struct {
	// URL is the address of the multiply handler.
	URL string
	// Clients is the number of clients, each with a connection of its own and one
	// request at a time. Their first requests never vanish, and none asks again
	// before all are connected.
	Clients int
	// Duration is how long new requests are started.
	Duration time.Duration
	// Vanish makes about one request in so many disconnect while it is waiting;
	// 0 means none.
	Vanish int
	// Progress, when set, gets a line about once a second.
	Progress io.Writer
}

// Result is what the clients saw.
type Result struct {
	Answered uint64 // checked answers
	Vanished uint64 // requests the client gave up on purpose
	Wrong    uint64 // answers that were not the product
	Failed   uint64 // requests that ended in an error
	FirstErr error
	Elapsed  time.Duration
	// Latencies of the answered requests, sorted.
	Latencies []time.Duration
}

// Quantile returns the q-quantile of the latencies, 0 <= q <= 1.
func (r *Result) Quantile(q float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(q*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// PerSecond returns the throughput.
func (r *Result) PerSecond() float64 { return float64(r.Answered) / r.Elapsed.Seconds() }

// Err reports whether a request was lost or answered wrongly.
func (r *Result) Err() error {
	if r.Wrong > 0 || r.Failed > 0 {
		return fmt.Errorf("%d wrong answers, %d failed requests: %w", r.Wrong, r.Failed, r.FirstErr)
	}
	if r.Answered == 0 {
		return errors.New("no request was answered")
	}
	return nil
}

type question struct{ x, y []byte }

// Run drives the server until the duration is over or ctx ends.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Clients < 1 || cfg.Duration <= 0 {
		return nil, fmt.Errorf("load: %d clients for %v, want at least one for some time", cfg.Clients, cfg.Duration)
	}
	// Answers worked out beforehand, so that checking costs a comparison.
	rnd := rand.New(rand.NewPCG(3, 4))
	m := matvec.Matrix()
	questions := make([]question, 64)
	for i := range questions {
		x := make([]byte, matvec.VectorBytes*(1+rnd.IntN(matvec.MaxBatch)))
		for j := range x {
			x[j] = byte(rnd.Uint32())
		}
		y := make([]byte, len(x))
		matvec.Multiply(m, y, x)
		questions[i] = question{x, y}
	}
	var answered, vanished, wrong, failed atomic.Uint64
	var firstErr error
	var once sync.Once
	fail := func(c *atomic.Uint64, err error) {
		c.Add(1)
		once.Do(func() { firstErr = err })
	}
	start := time.Now()
	runCtx, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	latencies := make([][]time.Duration, cfg.Clients)
	var wg, connected sync.WaitGroup
	connected.Add(cfg.Clients)
	for c := range cfg.Clients {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
			defer client.CloseIdleConnections()
			rnd := rand.New(rand.NewPCG(5, uint64(c)))
			for first := true; first || runCtx.Err() == nil; first = false {
				q := questions[rnd.IntN(len(questions))]
				// A request that has begun is answered even after the duration: ctx,
				// not runCtx.
				rctx, stop := ctx, context.CancelFunc(func() {})
				vanish := !first && cfg.Vanish > 0 && rnd.IntN(cfg.Vanish) == 0
				if vanish {
					rctx, stop = context.WithTimeout(ctx, time.Duration(rnd.IntN(2000))*time.Microsecond)
				}
				t0 := time.Now()
				y, err := ask(rctx, client, cfg.URL, q.x)
				took, gone := time.Since(t0), rctx.Err() != nil
				stop()
				if first {
					// From here on all connections are open at once.
					connected.Done()
					connected.Wait()
				}
				switch {
				case err == nil && bytes.Equal(y, q.y):
					answered.Add(1)
					latencies[c] = append(latencies[c], took)
				case err == nil:
					fail(&wrong, errors.New("wrong product"))
				case vanish && gone:
					vanished.Add(1)
				case ctx.Err() != nil:
					return
				default:
					fail(&failed, err)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-finished:
			running = false
		case <-tick.C:
			if cfg.Progress != nil {
				fmt.Fprintf(cfg.Progress, "  %4.0fs left  %d answered, %d vanished, %d failed\n",
					max(0, (cfg.Duration-time.Since(start)).Seconds()), answered.Load(), vanished.Load(), wrong.Load()+failed.Load())
			}
		}
	}
	r := &Result{
		Answered: answered.Load(), Vanished: vanished.Load(), Wrong: wrong.Load(), Failed: failed.Load(),
		FirstErr: firstErr, Elapsed: time.Since(start), Latencies: slices.Concat(latencies...),
	}
	slices.Sort(r.Latencies)
	return r, nil
}

func ask(ctx context.Context, client *http.Client, url string, x []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(x))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	y, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(y))
	}
	return y, err
}
