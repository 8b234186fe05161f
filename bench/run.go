package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"

	"github.com/gpuline/gpuline/bench/internal/report"
	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/rig"
	"github.com/gpuline/gpuline/bench/internal/sys"
)

func runMain(args []string) error {
	fs := flag.NewFlagSet("run", flag.ExitOnError)
	var o options
	fs.BoolVar(&o.quick, "quick", false, "a few cells, in about a minute")
	fs.BoolVar(&o.aims, "aims", false, "only what the library's aims are stated of, in a minute")
	fs.StringVar(&o.driver, "driver", "soft", "driver of the device to wait for: "+rig.Drivers)
	fs.StringVar(&o.only, "only", "", "regular expression: only these methods, floors and scales")
	fs.StringVar(&o.cell, "cell", "", `regular expression: only these cells, as in "2ms/64/idle"`)
	fs.DurationVar(&o.budget, "budget", 0, "about how long the run takes (default 50s with -quick, 60s with -aims, else 14m)")
	fs.DurationVar(&o.patience, "patience", 0, "how much longer the run may take to repeat samples during which the hypervisor gave time to others (default half the budget, negative not at all)")
	fs.Float64Var(&o.plant, "plant", 0, "burn this part of what each wait took after it, in our methods, to see that compare finds it")
	fs.BoolVar(&o.realtime, "realtime", false, "give the soft device's process real-time priority where one stream waits and nothing else runs, as a device has processors of its own (needs CAP_SYS_NICE; for machines with few processors)")
	out := fs.String("out", "", "write the results to this file, as JSON")
	html := fs.String("html", "", "write a report with plots to this file")
	_ = fs.Parse(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	f, err := run(ctx, o, report.NewProgress(os.Stdout))
	if f == nil {
		return err
	}
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
	return err
}

type options struct {
	quick      bool
	aims       bool
	driver     string
	only, cell string
	budget     time.Duration
	patience   time.Duration
	plant      float64
	realtime   bool
}

var (
	allWorks   = []string{"20us", "200us", "2ms", "20ms", "mixed"}
	allStreams = []int{1, 64, 1024}
	allLoads   = []string{"idle", "busy", "gc"}
)

// cells returns the grid, or the part of it that a short run has time for.
func cells(o options) []result.Cell {
	if o.aims {
		return []result.Cell{
			{Work: "20us", Streams: 1, Load: "idle"},
			{Work: "200us", Streams: 1, Load: "idle"},
			{Work: "2ms", Streams: 1, Load: "idle"},
		}
	}
	if o.quick {
		return []result.Cell{
			{Work: "20us", Streams: 1, Load: "idle"},
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

// aimed are the methods, floors and scales that aims are stated of.
var aimed = regexp.MustCompile(`^(spin|(wait|done|fill)(\+predict)?|spinning reader|eventfd wake, .*|completion, 1024 words)$`)

// quickMethod leaves out of a quick run what it has no time for: event loops without
// a prediction, where there can be one, and the one through the netpoller.
func quickMethod(m *rig.Method, c result.Cell) bool {
	family, _, predicts := strings.Cut(m.Name, "+")
	switch family {
	case "netpoll":
		return false
	case "epoll", "uring":
		return predicts || c.Work == "20us"
	}
	return true
}

// warm is how long a cell runs before it is measured: the streams are made, and the
// predictions have something to go by.
func warm(c result.Cell) time.Duration {
	d, err := time.ParseDuration(c.Work)
	if err != nil { // mixed
		d = 10 * time.Millisecond
	}
	return 20*time.Millisecond + min(5*d, 80*time.Millisecond)
}

// overhead is about what a child process takes besides warming and measuring.
func overhead(c result.Cell) time.Duration {
	return 20*time.Millisecond + time.Duration(c.Streams)*80*time.Microsecond
}

// weight says how long a cell is measured, relative to others: longer waits come
// less often.
func weight(c result.Cell) float64 {
	switch c.Work {
	case "20us", "200us":
		return 0.6
	case "2ms":
		return 1
	}
	return 1.5
}

// rounds is how often everything is measured, each time in a process of its own:
// what differs between processes is most of the noise. Each round goes over the
// whole list, so that a machine that changes meanwhile changes for all alike.
const rounds = 3

// step is one measurement of each round.
type step struct {
	job  rig.Job
	what string
	cost time.Duration
	keep func(a rig.Answer)
	skip func(why string)
	off  bool // not to be tried again

	taken []sample
}

func run(ctx context.Context, o options, progress *report.Progress) (*result.File, error) {
	if o.budget == 0 {
		o.budget = 14 * time.Minute
		switch {
		case o.aims:
			o.budget = time.Minute
		case o.quick:
			o.budget = 50 * time.Second
		}
	}
	if o.patience == 0 {
		o.patience = o.budget / 2
	}
	if o.realtime && o.driver != "soft" {
		return nil, fmt.Errorf("-realtime is for the soft device's process, the driver is %s", o.driver)
	}
	start := time.Now()
	f := &result.File{Started: start, Mode: "full", Driver: o.driver, Machine: rig.Machine(), Rounds: rounds, Plan: rig.PlanText(true), Realtime: o.realtime}
	switch {
	case o.aims:
		f.Mode = "aims"
	case o.quick:
		f.Mode = "quick"
	}
	steps, err := planRun(f, o)
	if err != nil {
		return nil, err
	}
	total := time.Duration(0)
	for _, s := range steps {
		total += rounds * s.cost
	}
	spent, deadline := time.Duration(0), start.Add(o.budget+o.budget/10+2*time.Second)
	defer func() {
		progress.End()
		f.Seconds = time.Since(start).Seconds()
		for _, s := range steps {
			for _, m := range s.taken {
				s.keep(m.answer)
			}
		}
		f.Machine.Stolen, f.Disturbed = disturbance(steps)
	}()
rounds:
	for round := range rounds {
		for _, s := range steps {
			spent += s.cost
			if s.off {
				continue
			}
			if round > 0 && time.Now().After(deadline) {
				f.Cut = true
				break rounds
			}
			progress.Set(float64(spent-s.cost)/float64(total), s.what)
			m, why, err := s.measure(ctx)
			if err != nil {
				return f, err
			}
			if why != "" {
				s.skip(why)
				s.off = true
				continue
			}
			s.taken = append(s.taken, m)
		}
	}
	return f, again(ctx, f, steps, start, time.Now().Add(o.patience), progress)
}

// readStolen is sys.Stolen, but in a test.
var readStolen = sys.Stolen

// sample is an answer, and what the hypervisor gave to others while it was taken, of
// how many ticks.
type sample struct {
	answer        rig.Answer
	stolen, ticks float64
}

// disturbed: more than a hundredth of the time was another machine's. The clock of
// that is coarse.
func (m sample) disturbed() bool { return m.stolen >= 2 && m.stolen > 0.01*m.ticks }

// measure takes a sample, or says why there is none.
func (s *step) measure(ctx context.Context) (m sample, why string, err error) {
	stolen, ticks := readStolen()
	a, err := rig.Do(ctx, s.job)
	switch {
	case ctx.Err() != nil:
		return m, "", ctx.Err()
	case err != nil:
		return m, "failed: " + err.Error(), nil
	case a.Err != "":
		return m, "failed: " + a.Err, nil
	case a.Skip != "":
		return m, a.Skip, nil
	}
	after, end := readStolen()
	return sample{a, after - stolen, end - ticks}, "", nil
}

// again takes disturbed samples once more, for as long as there is time: a processor that
// is another machine's for some milliseconds says nothing about what was to be measured.
// Disturbances come in stretches of seconds: after one that is still disturbed it waits.
// What is taken again is so for what the hypervisor did, never for what was measured; it keeps its
// place among the rounds.
func again(ctx context.Context, f *result.File, steps []*step, start, deadline time.Time, progress *report.Progress) error {
	for {
		left, tried := 0, false
		for _, s := range steps {
			for i, m := range s.taken {
				if !m.disturbed() {
					continue
				}
				left++
				if time.Until(deadline) < s.cost {
					continue
				}
				progress.Set(float64(time.Since(start))/float64(deadline.Sub(start)), "again, the hypervisor took time: "+s.what)
				tried = true
				better, why, err := s.measure(ctx)
				if err != nil {
					return err
				}
				f.Again++
				if why == "" && better.stolen*m.ticks < m.stolen*better.ticks {
					s.taken[i] = better
				}
				if why != "" || better.disturbed() {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(min(2*time.Second, max(0, time.Until(deadline)/8))):
					}
				}
			}
		}
		if left == 0 || !tried {
			return nil
		}
	}
}

// disturbance is what part of the time of the samples was given to others, and how many of
// them were disturbed.
func disturbance(steps []*step) (share float64, n int) {
	stolen, ticks := 0.0, 0.0
	for _, s := range steps {
		for _, m := range s.taken {
			stolen, ticks = stolen+m.stolen, ticks+m.ticks
			if m.disturbed() {
				n++
			}
		}
	}
	if ticks == 0 {
		return 0, 0
	}
	return stolen / ticks, n
}

// planRun lists what is to be measured, with a place in the file for each, and
// spreads the time over it.
func planRun(f *result.File, o options) ([]*step, error) {
	pattern, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	only := func(name string) bool { return pattern.MatchString(name) && (!o.aims || aimed.MatchString(name)) }
	cell, err := regexp.Compile(o.cell)
	if err != nil {
		return nil, err
	}
	var steps []*step
	fixed := time.Duration(0)
	// What is besides the grid takes the same time in every run.
	short, idle := 100*time.Millisecond, 500*time.Millisecond
	if !o.quick {
		short, idle = 500*time.Millisecond, 2*time.Second
	}
	names, what := rig.Floors()
	for i, name := range names {
		if !only(name) || o.cell != "" {
			continue
		}
		row := &result.Row{Method: name, What: what[i]}
		f.Floors = append(f.Floors, row)
		steps = append(steps, &step{
			job:  rig.Job{Kind: "floor", Name: name, Measure: short, Realtime: f.Realtime},
			what: name, cost: short + 20*time.Millisecond,
			keep: func(a rig.Answer) { row.Add(a.Sample) },
			skip: func(why string) { row.Skip = why },
		})
	}
	for _, s := range rig.Scales() {
		if !only(s.Name) || o.cell != "" {
			continue
		}
		xs := s.X
		if len(xs) == 0 {
			xs = []int{0}
		}
		switch {
		case o.aims:
			xs = []int{report.AimedPending}
		case o.quick && len(xs) > 3:
			xs = []int{xs[0], xs[2]}
		}
		for _, x := range xs {
			sc := &result.Scale{Name: s.Name, What: s.What, X: x, XName: s.XName, Unit: s.Unit, Lower: s.Lower}
			f.Scales = append(f.Scales, sc)
			d := short
			if s.XName == "" {
				d = idle
			}
			exec := s.Exec
			st := &step{
				job:  rig.Job{Kind: "scale", Name: s.Name, X: x, Warm: 10 * time.Millisecond, Measure: d, Plant: o.plant},
				what: s.Name, cost: d + 30*time.Millisecond + time.Duration(x/2)*time.Microsecond,
				keep: func(a rig.Answer) {
					sc.Note = a.Note
					if exec {
						a.Values = []float64{float64(a.Wall) / 1e3}
					}
					sc.Samples = append(sc.Samples, a.Values...)
				},
				skip: func(why string) { sc.Skip = why },
			}
			if exec {
				st.cost = 20 * time.Millisecond
			}
			steps = append(steps, st)
		}
	}
	for _, s := range steps {
		fixed += rounds * s.cost
	}
	weights := 0.0
	grid := len(steps)
	for _, c := range cells(o) {
		if !cell.MatchString(fmt.Sprintf("%s/%d/%s", c.Work, c.Streams, c.Load)) {
			continue
		}
		for _, m := range rig.Methods() {
			if !only(m.Name) && m.Name != report.Reference {
				continue
			}
			if m.Name == report.Reference && c.Load == "idle" || o.quick && o.only == "" && !quickMethod(m, c) {
				continue
			}
			row := &result.Row{Cell: c, Method: m.Name, Ours: m.Ours, What: m.What, Skip: m.Skip(o.driver, c)}
			f.Rows = append(f.Rows, row)
			if row.Skip != "" {
				continue
			}
			fixed += rounds * (warm(c) + overhead(c))
			weights += rounds * weight(c)
			steps = append(steps, &step{
				job:  rig.Job{Kind: "cell", Name: m.Name, Driver: o.driver, Cell: c, Warm: warm(c), Plant: o.plant, Realtime: f.Realtime && rig.Hurries(c)},
				what: fmt.Sprintf("%s: %s", c, m.Name),
				keep: func(a rig.Answer) { row.Add(a.Sample) },
				skip: func(why string) { row.Skip = why },
			})
		}
	}
	unit := min(max(float64(o.budget-fixed)/max(weights, 1), float64(30*time.Millisecond)), float64(2*time.Second))
	for _, s := range steps[grid:] {
		s.job.Measure = time.Duration(unit * weight(s.job.Cell))
		s.cost = warm(s.job.Cell) + overhead(s.job.Cell) + s.job.Measure
	}
	return steps, nil
}
