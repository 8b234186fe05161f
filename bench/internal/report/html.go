package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"os"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gpuline/gpuline/bench/internal/result"
)

//go:embed page.html
var page string

// HTML writes the report: one file with its plots inside, which needs no network.
func HTML(path string, f *result.File) error {
	p, err := newPage(f)
	if err != nil {
		return err
	}
	t, err := template.New("page").Parse(page)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

type htmlPage struct {
	File    *result.File
	Notes   []string
	Lost    []string
	Legend  []legend
	Floors  []htmlRow
	Cells   []htmlCell
	Scales  [][]string
	What    []string
	Plots   []template.HTML
	Skipped []string
}

type legend struct {
	Name, What string
	Color      template.CSS
	Ours       bool
}

type htmlRow struct {
	Color template.CSS
	Cols  []string
}

type htmlCell struct {
	ID      string
	Title   string
	Header  []string
	Rows    []htmlRow
	Verdict []string
	Skipped []string
	Plots   []template.HTML
}

func newPage(f *result.File) (*htmlPage, error) {
	p := &htmlPage{File: f, Notes: Notes(f), Lost: Lost(f)}
	colors := colorsOf(f)
	seen := map[string]bool{}
	for _, r := range f.Rows {
		if !seen[r.Method] && r.Method != Reference {
			seen[r.Method] = true
			p.Legend = append(p.Legend, legend{r.Method, r.What, css(colors[r.Method]), r.Ours})
		}
	}
	for _, r := range f.Floors {
		if len(r.Samples) > 0 {
			p.Floors = append(p.Floors, htmlRow{Cols: append(append([]string{r.Method}, latencies(r)...), floorCost(r), r.What)})
		} else {
			p.Skipped = append(p.Skipped, r.Method+": "+r.Skip)
		}
	}
	for i, c := range Cells(f) {
		h := htmlCell{ID: fmt.Sprintf("c%d", i), Title: c.Cell.String(), Header: c.Header(), Verdict: c.Verdict()}
		for _, r := range c.Rows {
			if len(r.Samples) > 0 {
				h.Rows = append(h.Rows, htmlRow{css(colors[r.Method]), c.Line(r)})
			}
			if r.Skip != "" {
				h.Skipped = append(h.Skipped, r.Method+": "+r.Skip)
			}
		}
		for _, draw := range []func(CellRows, map[string]color.Color) (template.HTML, error){distribution, paretoP50, paretoP99} {
			svg, err := draw(c, colors)
			if err != nil {
				return nil, fmt.Errorf("plot of %s: %w", c.Cell, err)
			}
			h.Plots = append(h.Plots, svg)
		}
		p.Cells = append(p.Cells, h)
	}
	last := ""
	for i, s := range f.Scales {
		p.Scales = append(p.Scales, ScaleLine(s))
		if s.Name == last {
			continue
		}
		last = s.Name
		p.What = append(p.What, s.Name+": "+s.What)
		svg, err := scalePlot(f.Scales[i:])
		if err != nil {
			return nil, err
		}
		if svg != "" {
			p.Plots = append(p.Plots, svg)
		}
	}
	return p, nil
}

// colorsOf gives every method a colour: warm and muted for what users do today,
// strong for ours, a lighter shade without the prediction.
func colorsOf(f *result.File) map[string]color.Color {
	cool := []color.RGBA{{0, 90, 181, 255}, {0, 140, 90, 255}, {120, 60, 190, 255}, {0, 150, 170, 255}, {200, 20, 110, 255}, {70, 70, 200, 255}}
	warm := []color.RGBA{{176, 110, 60, 255}, {214, 140, 0, 255}, {150, 120, 90, 255}, {190, 80, 60, 255}, {120, 120, 120, 255}, {160, 150, 40, 255}, {90, 70, 50, 255}}
	m := map[string]color.Color{}
	families := map[string]int{}
	baselines := 0
	for _, r := range f.Rows {
		if m[r.Method] != nil {
			continue
		}
		if !r.Ours {
			m[r.Method] = warm[baselines%len(warm)]
			baselines++
			continue
		}
		family, _, predicts := strings.Cut(r.Method, "+")
		if _, ok := families[family]; !ok {
			families[family] = len(families)
		}
		c := cool[families[family]%len(cool)]
		if !predicts {
			c = color.RGBA{c.R/2 + 110, c.G/2 + 110, c.B/2 + 110, 255}
		}
		m[r.Method] = c
	}
	return m
}

func css(c color.Color) template.CSS {
	if c == nil {
		return "#000"
	}
	r, g, b, _ := c.RGBA()
	return template.CSS(fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8))
}

const width, height = 4.6 * vg.Inch, 3.2 * vg.Inch

// svg draws a plot. The library states sizes in points and a prolog that has no
// place inside a page.
func svg(p *plot.Plot) (template.HTML, error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	text := b.String()
	if i := strings.Index(text, "<svg"); i > 0 {
		text = text[i:]
	}
	return template.HTML(longNumber.ReplaceAllString(text, "$1")), nil
}

// longNumber is more digits than a plot of this size can show.
var longNumber = regexp.MustCompile(`(\d\.\d\d)\d+`)

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, timeTicks{}
	p.Add(plotter.NewGrid())
	return p
}

// timeTicks marks decades of nanoseconds.
type timeTicks struct{}

func (timeTicks) Ticks(lo, hi float64) (ts []plot.Tick) {
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, k := range []float64{1, 2, 5} {
			t := plot.Tick{Value: k * math.Pow(10, e)}
			if k == 1 || hi < 100*lo {
				t.Label = strings.NewReplacer(".00", "", ".0", "").Replace(Ns(t.Value))
			}
			ts = append(ts, t)
		}
	}
	return ts
}

// nines marks quantiles on an axis of 1/(1-q).
type nines struct{}

func (nines) Ticks(_, hi float64) (ts []plot.Tick) {
	for _, t := range []plot.Tick{{Value: 1, Label: "min"}, {Value: 2, Label: "50 %"}, {Value: 10, Label: "90 %"}, {Value: 100, Label: "99 %"}, {Value: 1000, Label: "99.9 %"}, {Value: 10000, Label: "99.99 %"}, {Value: 100000, Label: "99.999 %"}} {
		if t.Value <= hi*1.01 {
			ts = append(ts, t)
		}
	}
	return ts
}

// distribution plots the quantiles of every method's latencies.
func distribution(c CellRows, colors map[string]color.Color) (template.HTML, error) {
	p := newPlot("store to goroutine", "quantile", "")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, nines{}
	lines := 0
	for _, r := range c.Rows {
		h := result.Decode(r.Hist)
		if h == nil || h.TotalCount() == 0 {
			continue
		}
		var xy plotter.XYs
		for x := 1.0; x <= float64(h.TotalCount()); x *= 1.15 {
			xy = append(xy, plotter.XY{X: x, Y: max(1, float64(h.ValueAtQuantile(100*(1-1/x))))})
		}
		if len(xy) < 2 {
			continue
		}
		l, err := plotter.NewLine(xy)
		if err != nil {
			return "", err
		}
		style(&l.LineStyle, r, colors)
		p.Add(l)
		lines++
	}
	if lines == 0 {
		return "", nil // an axis of logarithms has no place for nothing
	}
	p.X.Max = max(p.X.Max, 10)
	p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*1.2
	return svg(p)
}

func style(s *draw.LineStyle, r *result.Row, colors map[string]color.Color) {
	s.Color, s.Width = colors[r.Method], vg.Points(1.4)
	if !r.Ours {
		s.Dashes = []vg.Length{vg.Points(3), vg.Points(2)}
	}
}

func paretoP50(c CellRows, colors map[string]color.Color) (template.HTML, error) {
	return pareto(c, colors, "median", p50)
}

func paretoP99(c CellRows, colors map[string]color.Color) (template.HTML, error) {
	return pareto(c, colors, "99 %", p99)
}

// pareto plots latency against cost, with the front of the methods that nothing
// else is both faster and cheaper than.
func pareto(c CellRows, colors map[string]color.Color, name string, f func(result.Sample) float64) (template.HTML, error) {
	p := newPlot(name+" against cost", "CPU time per wait", "")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, timeTicks{}
	at := func(r *result.Row) plotter.XY {
		return plotter.XY{X: max(1, middle(c.Cost(r))), Y: max(1, r.Median(f))}
	}
	front := c.Pareto(f)
	var steps plotter.XYs
	for i, r := range front {
		if i > 0 {
			steps = append(steps, plotter.XY{X: at(r).X, Y: at(front[i-1]).Y})
		}
		steps = append(steps, at(r))
	}
	if len(steps) > 1 {
		l, err := plotter.NewLine(steps)
		if err != nil {
			return "", err
		}
		l.Color, l.Width = color.Gray{120}, vg.Points(1)
		p.Add(l)
	}
	var labels plotter.XYLabels
	for _, r := range c.Rows {
		if len(r.Samples) == 0 || r.Method == Reference || math.IsNaN(middle(c.Cost(r))) {
			continue
		}
		pt, err := plotter.NewScatter(plotter.XYs{at(r)})
		if err != nil {
			return "", err
		}
		pt.Color, pt.Radius, pt.Shape = colors[r.Method], vg.Points(3), draw.RingGlyph{}
		if r.Ours {
			pt.Shape = draw.CircleGlyph{}
		}
		p.Add(pt)
		labels.XYs, labels.Labels = append(labels.XYs, at(r)), append(labels.Labels, r.Method)
	}
	if len(labels.XYs) == 0 {
		return "", nil
	}
	ls, err := plotter.NewLabels(labels)
	if err != nil {
		return "", err
	}
	for i := range ls.TextStyle {
		ls.TextStyle[i].Font.Size = vg.Points(7)
	}
	ls.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(1)}
	p.Add(ls)
	// Room for the points, and for the text beside them.
	p.X.Min, p.X.Max = p.X.Min/1.5, p.X.Max*3
	p.Y.Min, p.Y.Max = p.Y.Min/1.5, p.Y.Max*1.5
	return svg(p)
}

// scalePlot plots the leading scales of one name, if there are several sizes that
// differ in more than name.
func scalePlot(ss []*result.Scale) (template.HTML, error) {
	var xy plotter.XYs
	for _, s := range ss {
		if s.Name != ss[0].Name {
			break
		}
		if s.X > 0 && len(s.Samples) > 0 {
			xy = append(xy, plotter.XY{X: float64(s.X), Y: middle(s.Samples)})
		}
	}
	if len(xy) < 3 {
		return "", nil
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = ss[0].Name, ss[0].XName, ss[0].Unit
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	l, pts, err := plotter.NewLinePoints(xy)
	if err != nil {
		return "", err
	}
	p.Add(l, pts)
	p.Y.Min = 0
	return svg(p)
}
