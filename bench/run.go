package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/gpuline/gpuline/bench/internal/report"
	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/rig"
)

func runMain(args []string) error {
	fs := flag.NewFlagSet("run", flag.ExitOnError)
	var o options
	fs.BoolVar(&o.quick, "quick", false, "a few cells, in under a minute")
	fs.StringVar(&o.driver, "driver", "soft", "driver of the device to wait for")
	fs.StringVar(&o.only, "only", "", "regular expression: only these methods")
	fs.DurationVar(&o.budget, "budget", 0, "how long the run may take; default 55s with -quick, else 14m")
	fs.Float64Var(&o.plant, "plant", 0, "slow the waiter's own wake-ups down by this part, to see that compare finds it")
	out := fs.String("out", "", "write the results to this file, as JSON")
	html := fs.String("html", "", "write a report with plots to this file")
	_ = fs.Parse(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	f, err := run(ctx, o, report.NewProgress(os.Stdout))
	if f != nil && len(f.Rows) > 0 {
		report.Text(os.Stdout, f)
		if *out != "" {
			if serr := f.Save(*out); err == nil {
				err = serr
			}
		}
		if *html != "" {
			if serr := report.HTML(*html, f); err == nil {
				err = serr
			}
		}
	}
	return err
}

type options struct {
	quick  bool
	driver string
	only   string
	budget time.Duration
	plant  float64
}

var (
	allWorks   = []string{"20us", "200us", "2ms", "20ms", "mixed"}
	allStreams = []int{1, 64, 1024}
	allLoads   = []string{"idle", "busy", "gc"}
)

// cells returns the grid, or the part of it that a quick run has time for.
func cells(quick bool) []result.Cell {
	if quick {
		return []result.Cell{
			{Work: "20us", Streams: 1, Load: "idle"},
			{Work: "200us", Streams: 1, Load: "idle"},
			{Work: "2ms", Streams: 1, Load: "idle"},
			{Work: "2ms", Streams: 1, Load: "busy"},
			{Work: "2ms", Streams: 64, Load: "idle"},
			{Work: "20ms", Streams: 1024, Load: "idle"},
			{Work: "mixed", Streams: 64, Load: "gc"},
		}
	}
	var all []result.Cell
	for _, n := range allStreams {
		for _, w := range allWorks {
			for _, l := range allLoads {
				all = append(all, result.Cell{Work: w, Streams: n, Load: l})
			}
		}
	}
	return all
}

// warm is how long a cell runs before it is measured: the streams are made, and the
// predictions have something to go by.
func warm(c result.Cell) time.Duration {
	d, err := time.ParseDuration(c.Work)
	if err != nil { // mixed
		d = 10 * time.Millisecond
	}
	return 30*time.Millisecond + min(5*d, 100*time.Millisecond)
}

const (
	rounds = 3
	// overhead is what a child process costs besides warming and measuring.
	overhead = 60 * time.Millisecond
)

func run(ctx context.Context, o options, progress *report.Progress) (*result.File, error) {
	if o.budget == 0 {
		o.budget = 14 * time.Minute
		if o.quick {
			o.budget = 55 * time.Second
		}
	}
	start := time.Now()
	f := &result.File{Started: start, Mode: "full", Driver: o.driver}
	if o.quick {
		f.Mode = "quick"
	}
	var todo []*result.Row
	fixed := time.Duration(0)
	for _, c := range cells(o.quick) {
		for _, m := range rig.Methods() {
			row := &result.Row{Cell: c, Method: m.Name, Ours: m.Ours, Skip: m.Skip(o.driver, c)}
			f.Rows = append(f.Rows, row)
			if row.Skip == "" {
				todo = append(todo, row)
				fixed += rounds * (warm(c) + overhead)
			}
		}
	}
	measure := max((o.budget-fixed)/time.Duration(rounds*len(todo)), 50*time.Millisecond)
	for round := range rounds {
		for i, row := range todo {
			if err := ctx.Err(); err != nil {
				return f, err
			}
			if row.Skip != "" {
				continue
			}
			progress.Set(float64(round*len(todo)+i)/float64(rounds*len(todo)), fmt.Sprintf("%s: %s", row.Cell, row.Method))
			a, err := rig.Do(ctx, rig.Job{Kind: "cell", Name: row.Method, Driver: o.driver, Cell: row.Cell, Warm: warm(row.Cell), Measure: measure, Plant: o.plant})
			switch {
			case err != nil:
				row.Skip = "failed: " + err.Error()
			case a.Err != "":
				row.Skip = "failed: " + a.Err
			case a.Skip != "":
				row.Skip = a.Skip
			default:
				row.Add(a.Sample)
			}
		}
	}
	progress.End()
	f.Seconds = time.Since(start).Seconds()
	return f, nil
}
