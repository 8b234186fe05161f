package report

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/gpuline/gpuline/bench/internal/result"
)

// Text prints the run as tables, one per cell.
func Text(w io.Writer, f *result.File) {
	for _, c := range Cells(f) {
		fmt.Fprintf(w, "\n%s\n", c.Cell)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(tw, "method\tp50\tp99\tp99.9\tmax\tCPU\tCPU/wait\twaits/s\tallocs\tthreads\tMB\t")
		if c.Load != "idle" {
			fmt.Fprint(tw, "neighbour\t")
		}
		fmt.Fprintln(tw)
		for _, r := range c.Rows {
			if len(r.Samples) == 0 {
				continue
			}
			fmt.Fprintf(tw, "%s\t", r.Method)
			for _, q := range []float64{0.5, 0.99, 0.999} {
				ns, ok := r.Quantile(q)
				fmt.Fprintf(tw, "%s\t", mark(ns, ok))
			}
			most := 0.0
			for _, s := range r.Samples {
				most = max(most, s.Max)
			}
			fmt.Fprintf(tw, "%s\t%.1f %%\t%s\t%.0f\t%.1f\t%.0f\t%.1f\t", Ns(most),
				100*r.Median(func(s result.Sample) float64 { return s.CPU }),
				Ns(r.Median(func(s result.Sample) float64 { return s.PerWait })),
				r.Median(func(s result.Sample) float64 { return s.Rate }),
				r.Median(func(s result.Sample) float64 { return s.Allocs }),
				r.Median(func(s result.Sample) float64 { return float64(s.Threads) }),
				r.Median(func(s result.Sample) float64 { return float64(s.Memory) })/(1<<20))
			if c.Load != "idle" {
				fmt.Fprintf(tw, "%.0f/s\t", r.Median(func(s result.Sample) float64 { return s.Neighbour }))
			}
			fmt.Fprintln(tw)
		}
		tw.Flush()
		for _, r := range c.Rows {
			if r.Skip != "" {
				fmt.Fprintf(w, "  not run: %s: %s\n", r.Method, r.Skip)
			}
		}
	}
}

func mark(ns float64, enough bool) string {
	if !enough {
		return "~" + Ns(ns)
	}
	return Ns(ns)
}

// Ns writes nanoseconds with three digits.
func Ns(ns float64) string {
	switch {
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
