// Command fill decodes several sequences at once on one thread: each step of
// a sequence launches device work of its own length, waits for the logits, and
// then samples and detokenises on the CPU while the other sequences wait. It runs
// the same program under each executor, checks the text, and prints how much of
// the time spent waiting for the device was filled with work.
//
// By default the device is the embedded software one; GPULINE_DRIVER selects
// another, which then takes the time that its copies take.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/gpu"
)

func main() {
	executor := flag.String("executor", "all", "io-uring, gpu-reactor, naive, or all of them")
	strict := flag.Bool("strict", false, "refuse an executor that can't run here instead of falling back")
	sequences := flag.Int("sequences", 8, "sequences decoded at once")
	tokens := flag.Int("tokens", 40, "tokens per sequence")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *executor, *strict, *sequences, *tokens); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, executor string, strict bool, sequences, tokens int) (err error) {
	dev, err := gpu.Open(ctx, gpu.WithDriver("soft"))
	if err != nil {
		return err
	}
	defer func() {
		if cerr := dev.Close(); err == nil {
			err = cerr
		}
	}()
	fmt.Fprintln(out, dev.Label())

	caps := fill.ProbeCaps()
	if c := dev.Driver().Caps(); !c.StreamStore {
		caps.NoWords = c.NoStore
	}
	executors := []fill.Executor{fill.Naive, fill.GPUReactor, fill.IOUring}
	if executor != "all" {
		e, err := fill.ParseExecutor(executor)
		if err != nil {
			return err
		}
		executors = []fill.Executor{e}
	}
	d, err := newDecoder(ctx, dev, sequences, tokens)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := d.close(); err == nil {
			err = cerr
		}
	}()
	for _, e := range executors {
		choice, err := e.Resolve(caps, strict)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s\n", choice.Label())
		if choice.Warning != nil {
			fmt.Fprintln(out, "  ", choice.Warning)
		}
		opt := fill.Options{Executor: choice.Running}
		best := time.Duration(0)
		for range 3 {
			took, err := threeWaits(ctx, opt, d)
			if err != nil {
				return err
			}
			if best == 0 || took < best {
				best = took
			}
		}
		fmt.Fprintf(out, "   waits of 2, 4 and 6 ms beside 5 ms of work: %.1f ms (best of 3)\n", millis(best))
		if err := d.decode(ctx, out, opt); err != nil {
			return err
		}
	}
	return nil
}

// threeWaits has the device work for 2, 4 and 6 ms on three streams, and the host
// for 5 ms in slices, and returns how long all of it takes.
func threeWaits(ctx context.Context, opt fill.Options, d *decoder) (time.Duration, error) {
	stats, err := fill.Run(ctx, opt, func(t *fill.Task) error {
		for i := range 3 {
			s := d.streams[i%len(d.streams)]
			if err := d.busy(s, time.Duration(i+1)*2*time.Millisecond); err != nil {
				return err
			}
			seq, err := s.Mark()
			if err != nil {
				return err
			}
			t.Spawn(func(t *fill.Task) error { return t.Wait(s, seq) })
		}
		t.Spawn(func(t *fill.Task) error {
			for range 50 {
				for end := t.Now() + 100*time.Microsecond; t.Now() < end; {
				}
				t.Yield()
			}
			return nil
		})
		return nil
	})
	return stats.Total, err
}
