package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpuline/gpuline/bench/internal/result"
)

// Text prints the run: floors and scales, a table per cell, and what baselines win.
func Text(w io.Writer, f *result.File) {
	m := f.Machine
	fmt.Fprintf(w, "%s run of %.0f s on %d x %s, %s, kernel %s, %s, GOMAXPROCS %d; driver %s\nplan %s\n",
		f.Mode, f.Seconds, m.CPUs, m.CPU, m.OS, m.Kernel, m.Go, m.Procs, f.Driver, f.Plan)
	for _, n := range Notes(f) {
		fmt.Fprintln(w, "note:", n)
	}
	if len(f.Floors) > 0 {
		fmt.Fprintln(w, "\nfloors: how fast a thread can be woken here, without Go's scheduler")
		tw := table(w)
		fmt.Fprintln(tw, "floor\tp50\tp99\tp99.9\tmax\tCPU\t")
		for _, r := range f.Floors {
			if len(r.Samples) > 0 {
				fmt.Fprintf(tw, "%s\t%s\t%s\t\n", r.Method, strings.Join(latencies(r), "\t"), floorCost(r))
			}
		}
		tw.Flush()
		skips(w, f.Floors)
	}
	for _, c := range Cells(f) {
		fmt.Fprintf(w, "\n%s\n", c.Cell)
		tw := table(w)
		fmt.Fprintln(tw, strings.Join(c.Header(), "\t")+"\t")
		for _, r := range c.Rows {
			if len(r.Samples) > 0 {
				fmt.Fprintln(tw, strings.Join(c.Line(r), "\t")+"\t")
			}
		}
		tw.Flush()
		skips(w, c.Rows)
		for _, l := range c.Verdict() {
			fmt.Fprintln(w, " ", l)
		}
	}
	if len(f.Scales) > 0 {
		fmt.Fprintln(w, "\nscaling")
		tw := table(w)
		last := ""
		var what []string
		for _, s := range f.Scales {
			if s.Name != last {
				what = append(what, s.Name+": "+s.What)
			}
			last = s.Name
			fmt.Fprintln(tw, strings.Join(ScaleLine(s), "\t")+"\t")
		}
		tw.Flush()
		for _, l := range what {
			fmt.Fprintln(w, " ", l)
		}
	}
	aims(w, f)
	if lost := Lost(f); len(lost) > 0 {
		fmt.Fprintln(w, "\nbaselines that beat every one of ours, faster at p50 and p99 and cheaper, in every round:")
		for _, l := range lost {
			fmt.Fprintln(w, " ", l)
		}
	} else if len(f.Rows) > 0 {
		fmt.Fprintln(w, "\nno baseline beats every one of ours in any cell (faster at p50 and p99 and cheaper, in every round)")
	}
	fmt.Fprintln(w, "~ marks quantiles with fewer than ten samples beyond them")
}

// floorCost is the CPU time that both threads spend per wake.
func floorCost(r *result.Row) string {
	return Ns(r.Median(func(s result.Sample) float64 { return s.PerWait }))
}

func table(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

func skips(w io.Writer, rows []*result.Row) {
	for _, r := range rows {
		if r.Skip != "" {
			fmt.Fprintf(w, "  not run: %s: %s\n", r.Method, r.Skip)
		}
	}
}

// Notes says what makes a run noisy or incomplete.
func Notes(f *result.File) (out []string) {
	if f.Machine.Load > 0.3*float64(f.Machine.CPUs) {
		out = append(out, fmt.Sprintf("the machine was busy when the run began (load %.1f on %d processors): the numbers say little", f.Machine.Load, f.Machine.CPUs))
	}
	if f.Machine.Stolen > 0.01 {
		out = append(out, fmt.Sprintf("the hypervisor gave %.1f %% of the CPU time to others during the samples", 100*f.Machine.Stolen))
	}
	if f.Again > 0 || f.Disturbed > 0 {
		out = append(out, fmt.Sprintf("%d repetitions of samples because the hypervisor gave over 1 %% of their time to others (and 20 ms or more); %d that were kept are disturbed so", f.Again, f.Disturbed))
	}
	if f.Machine.CPUs <= 2 && f.Driver == "soft" {
		out = append(out, fmt.Sprintf("the soft device takes one of the %d processors while work is about to end", f.Machine.CPUs))
	}
	if f.Realtime {
		out = append(out, "where one stream waits, nothing else runs and the work is longer than 20us, the soft device's process has real-time priority (-realtime), as a device has processors of its own; a thread that spins where it runs is kept from it for up to 0.1 ms")
	}
	if f.Driver != "soft" {
		out = append(out, fmt.Sprintf("driver %s does not say when it stores: a thread that watches all words does, on a processor of its own; its CPU time is taken off", f.Driver))
		if f.Machine.CPUs < 4 {
			out = append(out, fmt.Sprintf("with %d processors that thread disturbs what it measures", f.Machine.CPUs))
		}
	}
	if f.Driver == "opencl" {
		out = append(out, "a device that computes on this machine's processors does so at the expense of the program: its time is in the program's CPU time")
	}
	if f.Cut {
		out = append(out, "the time was over before the last round was")
	}
	return out
}

// Lost lists the cells in which a baseline beats every one of ours.
func Lost(f *result.File) (out []string) {
	for _, c := range Cells(f) {
		if _, lost := c.Beaten(); len(lost) > 0 {
			out = append(out, fmt.Sprintf("%s: %s", c.Cell, strings.Join(lost, ", ")))
		}
	}
	return out
}

// Verdict says which of ours a baseline beats.
func (c CellRows) Verdict() (out []string) {
	by, lost := c.Beaten()
	for _, r := range c.Rows {
		if bs := by[r.Method]; len(bs) > 0 {
			out = append(out, fmt.Sprintf("%s is beaten by %s", r.Method, strings.Join(bs, ", ")))
		}
	}
	if len(lost) > 0 {
		out = append(out, "LOST to "+strings.Join(lost, ", "))
	}
	return out
}

// Header names the columns of Line.
func (c CellRows) Header() []string {
	h := []string{"method", "p50", "p99", "p99.9", "max", "spread", "CPU", "cost/wait", "waits/s", "allocs", "threads", "MB"}
	if c.Load != "idle" {
		h = append(h, "neighbour", "GC pause", "longest")
	}
	return h
}

// Line is a row of the table of a cell.
func (c CellRows) Line(r *result.Row) []string {
	med := func(f func(s result.Sample) float64) float64 { return r.Median(f) }
	line := append([]string{r.Method}, latencies(r)...)
	line = append(line, spread(values(r, p50)),
		fmt.Sprintf("%.1f %%", 100*med(func(s result.Sample) float64 { return s.CPU })),
		Ns(middle(c.Cost(r))),
		fmt.Sprintf("%.0f", med(func(s result.Sample) float64 { return s.Rate })),
		fmt.Sprintf("%.1f", med(func(s result.Sample) float64 { return s.Allocs })),
		fmt.Sprintf("%.0f", med(func(s result.Sample) float64 { return float64(s.Threads) })),
		fmt.Sprintf("%.1f", med(func(s result.Sample) float64 { return float64(s.Memory) })/(1<<20)))
	if r.Method == Reference {
		for i := 1; i < 11; i++ {
			if i != 6 {
				line[i] = "-"
			}
		}
	}
	if c.Load != "idle" {
		line = append(line, fmt.Sprintf("%.0f/s", med(func(s result.Sample) float64 { return s.Neighbour })),
			Ns(med(func(s result.Sample) float64 { return s.PauseP50 })), Ns(slices.Max(values(r, func(s result.Sample) float64 { return s.PauseMax }))))
	}
	return line
}

// ScaleLine is a row of the table of scales: name, size, median, spread, note.
func ScaleLine(s *result.Scale) []string {
	name := s.Name
	if s.XName != "" {
		name = fmt.Sprintf("%s, %s %d", s.Name, s.XName, s.X)
	}
	switch {
	case s.Skip != "":
		return []string{name, "not run", "", s.Skip}
	case len(s.Samples) == 0:
		return []string{name, "-", "", ""}
	}
	v := middle(s.Samples)
	text := fmt.Sprintf("%.3g %s", v, s.Unit)
	switch s.Unit {
	case "ns":
		text = Ns(v)
		if v < 100 {
			text = fmt.Sprintf("%.1f ns", v)
		}
	case "us":
		text = Ns(1e3 * v)
	case "/s":
		text = fmt.Sprintf("%.0f/s", v)
	case "us/s":
		text = fmt.Sprintf("%.2g %%", v/1e4)
	}
	return []string{name, text, spread(s.Samples), s.Note}
}

// latencies are the quantiles of a row's latencies, and the longest.
func latencies(r *result.Row) []string {
	var out []string
	for _, q := range []float64{0.5, 0.99, 0.999} {
		ns, ok := r.Quantile(q)
		if ok {
			out = append(out, Ns(ns))
		} else {
			out = append(out, "~"+Ns(ns))
		}
	}
	most := 0.0
	for _, s := range r.Samples {
		most = max(most, s.Max)
	}
	return append(out, Ns(most))
}

// spread is half the distance from the least to the greatest, in parts of the
// middle.
func spread(v []float64) string {
	m := middle(v)
	if len(v) < 2 || m == 0 {
		return ""
	}
	return fmt.Sprintf("±%.0f %%", 100*(slices.Max(v)-slices.Min(v))/2/m)
}

// Ns writes nanoseconds with three digits.
func Ns(ns float64) string {
	switch {
	case math.IsNaN(ns) || math.IsInf(ns, 0):
		return "-"
	case ns < 1e3:
		return fmt.Sprintf("%.0f ns", ns)
	case ns < 1e6:
		return digits(ns/1e3) + " us"
	case ns < 1e9:
		return digits(ns/1e6) + " ms"
	}
	return digits(ns/1e9) + " s"
}

func digits(v float64) string {
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Floor(math.Log10(max(v, 1))))), v)
}

// CellRows is one cell with all its rows.
type CellRows struct {
	result.Cell
	Rows []*result.Row
}

// Cells groups the rows by cell, in the order of the run.
func Cells(f *result.File) []CellRows {
	var out []CellRows
	at := map[result.Cell]int{}
	for _, r := range f.Rows {
		i, ok := at[r.Cell]
		if !ok {
			i = len(out)
			at[r.Cell] = i
			out = append(out, CellRows{Cell: r.Cell})
		}
		out[i].Rows = append(out[i].Rows, r)
	}
	return out
}
