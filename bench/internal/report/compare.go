package report

import (
	"fmt"
	"io"

	"github.com/gpuline/gpuline/bench/internal/result"
)

// mostChanges is how many changes in single cells are listed.
const mostChanges = 40

// Comparison prints what changed between two runs.
func Comparison(w io.Writer, c *result.Comparison) {
	for _, l := range c.Warnings {
		fmt.Fprintln(w, "warning:", l)
	}
	if c.Compared == 0 {
		fmt.Fprintln(w, "the runs have nothing in common that was measured at least twice")
		return
	}
	fmt.Fprintf(w, "%d numbers compared, %d of them the same within the runs' own spread\n", c.Compared, c.Same)
	if len(c.Summary) == 0 && len(c.Changes) == 0 {
		fmt.Fprintln(w, "nothing changed beyond noise")
		return
	}
	if len(c.Summary) > 0 {
		fmt.Fprintln(w, "\nover all cells (what changes in the baselines, too, is the machine's)")
		changes(w, c.Summary)
	}
	if len(c.Changes) > 0 {
		fmt.Fprintln(w, "\nin single cells")
		changes(w, c.Changes[:min(len(c.Changes), mostChanges)])
		if n := len(c.Changes) - mostChanges; n > 0 {
			fmt.Fprintf(w, "  and %d smaller ones\n", n)
		}
	}
}

func changes(w io.Writer, cs []result.Change) {
	tw := table(w)
	for _, x := range cs {
		verdict := "WORSE"
		if x.Better {
			verdict = "better"
		}
		from := ""
		if x.Before != 0 {
			from = fmt.Sprintf("%s to %s", amount(x.Metric, x.Before), amount(x.Metric, x.After))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%+.0f %%\t(%+.0f .. %+.0f)\t%s\t%s\t\n", verdict, x.What, x.Metric,
			100*(x.Ratio-1), 100*(x.Low-1), 100*(x.High-1), from, x.Where)
	}
	tw.Flush()
}

func amount(metric string, v float64) string {
	switch metric {
	case "p50", "p99", "CPU/wait", "ns":
		return Ns(v)
	case "us":
		return Ns(1e3 * v)
	case "memory":
		return fmt.Sprintf("%.1f MB", v/(1<<20))
	case "neighbour":
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.3g", v)
}
