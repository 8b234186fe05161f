package report

import (
	"math"
	"slices"

	"github.com/gpuline/gpuline/bench/internal/result"
)

// Reference is the method that waits for nothing: what the neighbours get done when
// left alone.
const Reference = "nobody"

// Cost returns what a row's waits cost, a value per sample in nanoseconds of CPU
// time per wait. In an idle program that is the process's CPU time. Where other
// goroutines use up what is left, it is what they lost: the part of the work that
// they get done when nobody waits, in CPU time.
func (c CellRows) Cost(r *result.Row) []float64 {
	if c.Load == "idle" {
		return values(r, func(s result.Sample) float64 { return s.PerWait })
	}
	alone, cpu := 0.0, 0.0
	for _, ref := range c.Rows {
		if ref.Method == Reference {
			alone = ref.Median(func(s result.Sample) float64 { return s.Neighbour })
			cpu = ref.Median(func(s result.Sample) float64 { return s.CPU })
		}
	}
	if alone == 0 {
		return nil
	}
	return values(r, func(s result.Sample) float64 {
		if s.Rate == 0 {
			return math.Inf(1)
		}
		return max(0, 1-s.Neighbour/alone) * cpu * 1e9 / s.Rate
	})
}

func values(r *result.Row, f func(result.Sample) float64) []float64 {
	v := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		v[i] = f(s)
	}
	return v
}

func middle(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func p50(s result.Sample) float64 { return s.P50 }
func p99(s result.Sample) float64 { return s.P99 }

// beats reports whether a is faster than b, at the middle and in the tail, and
// cheaper, each in every round: its worst is better than b's best.
func (c CellRows) beats(a, b *result.Row) bool {
	less := func(x, y []float64) bool { return len(x) > 0 && len(y) > 0 && slices.Max(x) < slices.Min(y) }
	return less(values(a, p50), values(b, p50)) && less(values(a, p99), values(b, p99)) && less(c.Cost(a), c.Cost(b))
}

// Beaten returns, for each of our methods that was measured, the baselines that
// beat it; and those baselines that beat all of ours.
func (c CellRows) Beaten() (by map[string][]string, lost []string) {
	by = map[string][]string{}
	count := map[string]int{}
	n := 0
	for _, o := range c.Rows {
		if !o.Ours || len(o.Samples) == 0 {
			continue
		}
		n++
		for _, b := range c.Rows {
			if !b.Ours && b.Method != Reference && c.beats(b, o) {
				by[o.Method] = append(by[o.Method], b.Method)
				count[b.Method]++
			}
		}
	}
	for _, b := range c.Rows {
		if n > 0 && count[b.Method] == n {
			lost = append(lost, b.Method)
		}
	}
	return by, lost
}

// Pareto returns the rows that nothing else is both faster and cheaper than, by
// the medians of the latency f and of the cost, cheapest first.
func (c CellRows) Pareto(f func(result.Sample) float64) []*result.Row {
	var rows []*result.Row
	for _, r := range c.Rows {
		if len(r.Samples) > 0 && r.Method != Reference {
			rows = append(rows, r)
		}
	}
	at := func(r *result.Row) (float64, float64) { return middle(c.Cost(r)), r.Median(f) }
	slices.SortStableFunc(rows, func(a, b *result.Row) int {
		ac, al := at(a)
		bc, bl := at(b)
		switch {
		case ac < bc || ac == bc && al < bl:
			return -1
		case ac == bc && al == bl:
			return 0
		}
		return 1
	})
	best := math.Inf(1)
	var front []*result.Row
	for _, r := range rows {
		if _, l := at(r); l < best {
			best = l
			front = append(front, r)
		}
	}
	return front
}
