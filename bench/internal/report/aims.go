package report

import (
	"fmt"
	"io"
	"math"

	"github.com/gpuline/gpuline/bench/internal/result"
)

// Aim is what the library aims at, as a ratio or a difference within one run, and what
// the run shows.
type Aim struct {
	What  string
	Got   string
	Aim   string
	Holds bool
}

// Aims are judged in cells with one stream and nothing else to do. The floor of a wake is of a
// processor that nothing else uses; with the soft device on two processors its engine is awake on
// the other one shortly before a completion.
const (
	WaitAim      = 1.5  // of a spinning reader, at the median
	DoneAim      = 0.4  // of a raw eventfd wake after as long an idle time
	FillAim      = 3.0  // of a spinning reader
	PredictedAim = 0.05 // of the spinning sync's CPU time, at 2 ms
	AboveAim     = 10e3 // ns above the spinning sync's median, at 2 ms
	PendingAim   = 300  // ns of CPU per completion with AimedPending waits pending
)

// AimedPending is how many waits are pending, on 1024 words, where PendingAim is stated.
const AimedPending = 102_400

// Aims lists those that the run has the numbers for.
func Aims(f *result.File) (out []Aim) {
	row := func(method, work string) *result.Row {
		for _, r := range f.Rows {
			if r.Method == method && r.Work == work && r.Streams == 1 && r.Load == "idle" && len(r.Samples) > 0 {
				return r
			}
		}
		return nil
	}
	floor := func(name string) float64 {
		for _, r := range f.Floors {
			if r.Method == name && len(r.Samples) > 0 {
				return r.Median(p50)
			}
		}
		return math.NaN()
	}
	// ours is the method as it is used: with a prediction, where one is made.
	ours := func(method, work string) *result.Row {
		if r := row(method+"+predict", work); r != nil {
			return r
		}
		return row(method, work)
	}
	ratio := func(method, work, base string, aim float64) {
		r, b := ours(method, work), floor(base)
		if r == nil || math.IsNaN(b) {
			return
		}
		l := r.Median(p50)
		out = append(out, Aim{
			What: fmt.Sprintf("%s, %s work: median of %s, of %s's %s", r.Method, work, Ns(l), base, Ns(b)),
			Got:  fmt.Sprintf("%.2f", l/b), Aim: fmt.Sprintf("<= %.1f", aim), Holds: l <= aim*b,
		})
	}
	for _, work := range []string{"20us", "200us"} {
		ratio("wait", work, "spinning reader", WaitAim)
	}
	for _, work := range result.EventfdIdle {
		ratio("done", work, result.EventfdWake(work), DoneAim)
	}
	for _, work := range []string{"20us", "200us"} {
		ratio("fill", work, "spinning reader", FillAim)
	}
	if spin, wait := row("spin", "2ms"), row("wait+predict", "2ms"); spin != nil && wait != nil {
		perWait := func(s result.Sample) float64 { return s.PerWait }
		a, b := wait.Median(perWait), spin.Median(perWait)
		out = append(out, Aim{
			What: fmt.Sprintf("%s, 2ms work: CPU of %s, of spin's %s", wait.Method, Ns(a), Ns(b)),
			Got:  fmt.Sprintf("%.1f %%", 100*a/b), Aim: fmt.Sprintf("<= %.0f %%", 100*PredictedAim), Holds: a <= PredictedAim*b,
		})
		a, b = wait.Median(p50), spin.Median(p50)
		above, sign := a-b, ""
		if above < 0 {
			sign = "-"
		}
		out = append(out, Aim{
			What: fmt.Sprintf("%s, 2ms work: median of %s, above spin's %s", wait.Method, Ns(a), Ns(b)),
			Got:  sign + Ns(math.Abs(above)), Aim: "<= " + Ns(AboveAim), Holds: above <= AboveAim,
		})
	}
	for _, s := range f.Scales {
		if s.Name == "completion, 1024 words" && s.X == AimedPending && len(s.Samples) > 0 {
			v := middle(s.Samples)
			out = append(out, Aim{
				What: fmt.Sprintf("CPU per completion, %d waits pending on 1024 words (%s)", AimedPending, s.Note),
				Got:  Ns(v), Aim: "<= " + Ns(PendingAim), Holds: v <= PendingAim,
			})
		}
	}
	return out
}

func aims(w io.Writer, f *result.File) {
	list := Aims(f)
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w, "\naims, on idle processors, medians of the rounds")
	tw := table(w)
	for _, a := range list {
		verdict := "holds"
		if !a.Holds {
			verdict = "MISSED"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t  %s\n", a.Got, a.Aim, verdict, a.What)
	}
	tw.Flush()
}
