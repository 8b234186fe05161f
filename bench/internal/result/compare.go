package result

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Change is one thing that differs between two runs by more than their noise.
type Change struct {
	// What is the method, floor or scale, Where the cell or size.
	What, Where string
	Metric      string
	// Before and After are the medians of the runs' samples; both 0 for a change
	// over several cells.
	Before, After float64
	// Ratio is after over before, Low and High the bounds within which it lies,
	// as far as the runs' own spread tells.
	Ratio, Low, High float64
	// Better says which way it went, Rows how many comparisons it rests on.
	Better bool
	Rows   int
	Ours   bool
}

// Comparison is what Compare found.
type Comparison struct {
	// Summary has, for each method and metric, and for all of ours and all others
	// together, the change over all cells, where there is one. A change in what is
	// not ours is the machine's. Changes has those in single cells, floors and scales.
	Summary, Changes []Change
	// Compared counts comparisons, Same those without a change.
	Compared, Same int
	Warnings       []string
}

const (
	// leastChange is never a change worth a line.
	leastChange = 1.05
	// rowZ and sumZ are how many standard errors a change must exceed in a single
	// row, of which there are thousands, and in a summary.
	rowZ, sumZ = 4.5, 3.5
	// priorWeight is how many degrees of freedom the spread of all rows of a metric
	// counts for, against the two or so of a row's own samples.
	priorWeight = 4
)

// metric is one number of a sample that two runs can be compared by.
type metric struct {
	name   string
	of     func(Sample) float64
	lower  bool // less is better
	floors bool
	only   func(r *Row) bool
}

func metrics() []metric {
	return []metric{
		{name: "p50", of: func(s Sample) float64 { return s.P50 }, lower: true, floors: true},
		{name: "p99", of: func(s Sample) float64 {
			if s.N < 500 {
				return 0 // too few to tell
			}
			return s.P99
		}, lower: true, floors: true},
		{name: "CPU/wait", of: func(s Sample) float64 { return s.PerWait }, lower: true, only: func(r *Row) bool { return r.Load == "idle" }},
		{name: "neighbour", of: func(s Sample) float64 { return s.Neighbour }, only: func(r *Row) bool { return r.Load != "idle" }},
		{name: "threads", of: func(s Sample) float64 { return float64(s.Threads) }, lower: true},
		{name: "memory", of: func(s Sample) float64 { return float64(s.Memory) }, lower: true},
		{name: "allocs", of: func(s Sample) float64 { return max(0.5, math.Round(s.Allocs*10)/10) }, lower: true, only: func(r *Row) bool { return r.Load == "idle" }},
	}
}

// pair is one number, measured several times before and after, as logarithms.
type pair struct {
	what, where   string
	ours, summed  bool
	metric        string
	lower         bool
	before, after []float64 // as measured
	logB, logA    []float64
}

func (p *pair) shift() float64 { return mean(p.logA) - mean(p.logB) }

// Compare says what changed from a to b by more than their spread. The noise of
// a number is estimated from how its samples scatter in both runs, shrunk towards
// how that metric scatters in all rows, since a few samples say little about their
// own scatter.
func Compare(a, b *File) *Comparison {
	c := &Comparison{}
	c.warn(a, b)
	pairs := c.pairs(a, b)

	// The scatter of each metric over all rows.
	type pool struct{ sum, n float64 }
	pools := map[string]*pool{}
	for _, p := range pairs {
		ss, df := scatter(p)
		if pools[p.metric] == nil {
			pools[p.metric] = &pool{}
		}
		pools[p.metric].sum += ss
		pools[p.metric].n += df
	}
	sd := func(p *pair) float64 {
		ss, df := scatter(p)
		prior := 0.0
		if q := pools[p.metric]; q.n > 0 {
			prior = q.sum / q.n
		}
		return math.Sqrt((ss + priorWeight*prior) / (df + priorWeight))
	}
	summed := map[[2]string][]*pair{}
	var order [][2]string
	for _, p := range pairs {
		if p.summed {
			group := "all baselines"
			if p.ours {
				group = "all of ours"
			}
			for _, k := range [][2]string{{group, p.metric}, {p.what, p.metric}} {
				if summed[k] == nil {
					order = append(order, k)
				}
				summed[k] = append(summed[k], p)
			}
		}
		c.Compared++
		d := p.shift()
		e := sd(p) * math.Sqrt(1/float64(len(p.logA))+1/float64(len(p.logB)))
		if math.Abs(d) < rowZ*e || math.Abs(d) < math.Log(leastChange) {
			c.Same++
			continue
		}
		c.Changes = append(c.Changes, Change{
			What: p.what, Where: p.where, Metric: p.metric, Before: median(p.before), After: median(p.after),
			Ratio: math.Exp(d), Low: math.Exp(d - 2*e), High: math.Exp(d + 2*e), Better: (d < 0) == p.lower, Rows: 1, Ours: p.ours,
		})
	}
	// A change that all cells of a method share is found although it drowns in the
	// noise of each. What is measured in one cell shares that cell's luck, so it
	// counts as one; and the fewer cells, the more of a change it takes.
	for _, k := range order {
		ps := summed[k]
		cells := map[string][]float64{}
		noise := 0.0
		for _, p := range ps {
			cells[p.where] = append(cells[p.where], p.shift())
			noise += sd(p) * sd(p) * (1/float64(len(p.logA)) + 1/float64(len(p.logB)))
		}
		var ds []float64
		for _, v := range cells {
			ds = append(ds, mean(v))
		}
		n := float64(len(ds))
		if n < 3 {
			continue
		}
		// Whichever is larger: how the cells scatter, or what their own noise adds
		// up to; a few cells may agree by chance.
		e := max(stddev(ds)/math.Sqrt(n), math.Sqrt(noise)/float64(len(ps)))
		d := mean(ds)
		if math.Abs(d) < sumZ*(1+2/(n-1))*e || math.Abs(d) < math.Log(leastChange) {
			continue
		}
		c.Summary = append(c.Summary, Change{
			What: k[0], Where: fmt.Sprintf("%d cells", len(ds)), Metric: k[1],
			Ratio: math.Exp(d), Low: math.Exp(d - 2*e), High: math.Exp(d + 2*e), Better: (d < 0) == ps[0].lower, Rows: len(ps), Ours: ps[0].ours,
		})
	}
	size := func(x Change) float64 { return -math.Abs(math.Log(x.Ratio)) }
	slices.SortStableFunc(c.Changes, func(x, y Change) int { return cmp.Compare(size(x), size(y)) })
	slices.SortStableFunc(c.Summary, func(x, y Change) int { return cmp.Compare(size(x), size(y)) })
	return c
}

func (c *Comparison) warn(a, b *File) {
	differ := func(what, x, y string) {
		if x != y {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s differs: %s, then %s", what, x, y))
		}
	}
	differ("processor", a.Machine.CPU, b.Machine.CPU)
	differ("number of processors", fmt.Sprint(a.Machine.CPUs), fmt.Sprint(b.Machine.CPUs))
	differ("GOMAXPROCS", fmt.Sprint(a.Machine.Procs), fmt.Sprint(b.Machine.Procs))
	differ("kernel", a.Machine.Kernel, b.Machine.Kernel)
	differ("Go", a.Machine.Go, b.Machine.Go)
	differ("driver", a.Driver, b.Driver)
	differ("mode", a.Mode, b.Mode)
	differ("plan", a.Plan, b.Plan)
	differ("real-time priority of the soft device's process", fmt.Sprint(a.Realtime), fmt.Sprint(b.Realtime))
	for i, f := range []*File{a, b} {
		which := []string{"first", "second"}[i]
		if f.Machine.Load > 0.3*float64(f.Machine.CPUs) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the machine was busy during the %s run (load %.1f on %d processors)", which, f.Machine.Load, f.Machine.CPUs))
		}
		if f.Machine.Stolen > 0.01 {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the hypervisor took %.1f %% of the CPU time during the %s run", 100*f.Machine.Stolen, which))
		}
	}
}

// pairs lists what both runs measured at least twice.
func (c *Comparison) pairs(a, b *File) []*pair {
	var out []*pair
	add := func(p *pair) {
		keep := func(v []float64) (logs []float64) {
			for _, x := range v {
				if x > 0 && !math.IsInf(x, 0) {
					logs = append(logs, math.Log(x))
				}
			}
			return logs
		}
		p.logB, p.logA = keep(p.before), keep(p.after)
		if len(p.logB) >= 2 && len(p.logA) >= 2 {
			out = append(out, p)
		}
	}
	type key struct {
		Cell
		method string
	}
	before := map[key]*Row{}
	for _, r := range slices.Concat(a.Rows, a.Floors) {
		before[key{r.Cell, r.Method}] = r
	}
	for _, r := range slices.Concat(b.Rows, b.Floors) {
		old := before[key{r.Cell, r.Method}]
		if old == nil {
			continue
		}
		isFloor := r.Work == ""
		where := r.Cell.String()
		if isFloor {
			where = "floor"
		}
		for _, m := range metrics() {
			if isFloor && !m.floors || m.only != nil && !m.only(r) {
				continue
			}
			add(&pair{
				what: r.Method, where: where, ours: r.Ours, summed: !isFloor, metric: m.name, lower: m.lower,
				before: old.values(m.of), after: r.values(m.of),
			})
		}
	}
	type size struct {
		name string
		x    int
	}
	scales := map[size]*Scale{}
	for _, s := range a.Scales {
		scales[size{s.Name, s.X}] = s
	}
	for _, s := range b.Scales {
		if old := scales[size{s.Name, s.X}]; old != nil {
			where := ""
			if s.XName != "" {
				where = fmt.Sprintf("%s %d", s.XName, s.X)
			}
			add(&pair{what: s.Name, where: where, ours: true, summed: strings.HasPrefix(s.Name, "completion"), metric: s.Unit, lower: s.Lower, before: old.Samples, after: s.Samples})
		}
	}
	return out
}

// scatter returns the sum of squares of the logarithms about the mean of their own
// run, and its degrees of freedom.
func scatter(p *pair) (ss, df float64) {
	for _, v := range [][]float64{p.logB, p.logA} {
		m := mean(v)
		for _, x := range v {
			ss += (x - m) * (x - m)
		}
		df += float64(len(v) - 1)
	}
	return ss, df
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func stddev(v []float64) float64 {
	if len(v) < 2 {
		return 0
	}
	m, ss := mean(v), 0.0
	for _, x := range v {
		ss += (x - m) * (x - m)
	}
	return math.Sqrt(ss / float64(len(v)-1))
}
