package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
)

var field = Prediction{margin: 150 * us, minSleep: 20 * us, maxSleep: 50 * ms, window: 8}

// pointAt returns a point that predicts d.
func pointAt(d time.Duration) *Point {
	p := NewEstimator[int](field).Point(0)
	p.Exact(d)
	return p
}

// Exact leaves what it records to the next call: whichever that is sees it, in order.
func TestExactIsSeenByAll(t *testing.T) {
	if d := pointAt(ms).Sleep(); d != ms-field.margin {
		t.Errorf("Sleep after an exact wait of %v: %v, want %v", ms, d, ms-field.margin)
	}
	for _, c := range []struct {
		name       string
		next       func(p *Point)
		prediction time.Duration
		samples    uint64
	}{
		{"Estimate", func(*Point) {}, ms, 1},
		{"Exact", func(p *Point) { p.Exact(2 * ms) }, ms, 2},
		{"Missed", func(p *Point) { p.Missed(2 * ms) }, ms / 2, 2}, // less than was predicted before it
		{"MissedAgain", func(p *Point) { p.MissedAgain(2*ms, 2*ms) }, ms, 2},
	} {
		p := pointAt(ms)
		c.next(p)
		if e := p.Estimate(); e.Prediction != c.prediction || e.Samples != c.samples {
			t.Errorf("%s after an exact wait of %v: %+v, want a prediction of %v from %d", c.name, ms, e, c.prediction, c.samples)
		}
	}
	again := pointAt(ms)
	again.Late(ms)
	again.Exact(ms)
	if d := again.Again(); d != ms-field.margin {
		t.Errorf("Again after an exact wait of %v: %v, want %v", ms, d, ms-field.margin)
	}
	// In order: the late wake is bounded by what was predicted before it.
	p := pointAt(ms)
	p.Late(3 * ms)
	if e := p.Estimate(); e.Prediction != ms/2 || e.Samples != 2 || e.Late != 1 {
		t.Errorf("an exact wait of %v, then a late one: %+v, want a prediction of %v", ms, e, ms/2)
	}
	// Whatever is recorded at the same time, nothing is lost.
	p = NewEstimator[int](field).Point(0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				p.Exact(ms)
				p.Estimate()
			}
		})
	}
	wg.Wait()
	if e := p.Estimate(); e.Samples != 8000 {
		t.Errorf("%d waits recorded, want 8000", e.Samples)
	}
}

func TestEstimatorWorkedValues(t *testing.T) {
	e := NewEstimator[string](field)
	if e.Prediction() != field {
		t.Errorf("made with %v", e.Prediction())
	}
	if d := e.Sleep("decode"); d != 0 {
		t.Errorf("cold: %v", d)
	}
	p := e.Point("decode")
	if d := p.Sleep(); d != 0 {
		t.Errorf("cold: %v", d)
	}
	for _, d := range []time.Duration{1000 * us, 900 * us, 1100 * us} {
		p.Exact(d)
	}
	if d := e.Sleep("decode"); d != 750*us {
		t.Errorf("after 1.0, 0.9, 1.1 ms: %v, want 750us", d)
	}
	for range 7 {
		p.Exact(2 * ms)
	}
	if d := p.Sleep(); d != 950*us {
		// The last of the first three, 1.1 ms, is still in the window.
		t.Errorf("after seven more of 2.0 ms: %v, want 950us", d)
	}
	p.Exact(2 * ms)
	if d := p.Sleep(); d != 1850*us {
		t.Errorf("after eight more of 2.0 ms: %v, want 1850us", d)
	}
	for residual, want := range map[time.Duration]time.Duration{
		160 * us:           0,
		100 * us:           0,
		0:                  0,
		-time.Second:       0,
		math.MinInt64:      0,
		150 * us:           0,
		170*us - 1:         0,
		170 * us:           20 * us,
		math.MaxInt64:      50 * ms,
		10 * time.Hour:     50 * ms,
		50*ms + 150*us:     50 * ms,
		50*ms + 150*us - 1: 50*ms - 1,
	} {
		if d := pointAt(residual).Sleep(); d != want {
			t.Errorf("prediction %v: sleep %v, want %v", residual, d, want)
		}
	}
}

func TestEstimatorLate(t *testing.T) {
	// The wake is an upper bound: it counts only where it is below the prediction.
	for _, c := range []struct{ prediction, wake, want time.Duration }{
		{2 * ms, 3 * ms, ms},
		{2 * ms, 2 * ms, ms},
		{2 * ms, 1 * ms, 500 * us},
		{2 * ms, 0, 0},
		{2 * ms, -ms, 0},
		{2 * ms, math.MaxInt64, ms},
		{3, math.MaxInt64, 1},
	} {
		p := pointAt(c.prediction)
		p.Late(c.wake)
		if got := p.Estimate(); got.Prediction != c.want || got.Samples != 2 || got.Late != 1 {
			t.Errorf("prediction %v, woken late at %v: %+v, want %v", c.prediction, c.wake, got, c.want)
		}
	}
	// Late wakes one after the other halve the prediction, to nothing in the end.
	p := pointAt(40 * ms)
	for i, want := 0, 40*ms; i < 70; i++ {
		p.Late(time.Hour)
		want /= 2
		if got := p.Estimate().Prediction; got != want {
			t.Fatalf("after %d late wakes: %v, want %v", i+1, got, want)
		}
	}
	if p.Sleep() != 0 {
		t.Errorf("and still sleeps %v", p.Sleep())
	}
	// A censored record leaves the window like any other.
	p = pointAt(2 * ms)
	p.Late(2 * ms)
	for i := range 8 {
		want := ms
		if i == 7 {
			want = 2 * ms
		}
		if p.Exact(2 * ms); p.Estimate().Prediction != want {
			t.Errorf("%d exact waits after a late one: %v, want %v", i+1, p.Estimate().Prediction, want)
		}
	}
	// Late with nothing known: half of the wait.
	p = NewEstimator[int](field).Point(0)
	if p.Late(2 * ms); p.Estimate().Prediction != ms {
		t.Errorf("late when cold: %v", p.Estimate())
	}
}

// A sleep that ended too late by itself is forgiven now and then.
func TestEstimatorMissed(t *testing.T) {
	p := NewEstimator[int](field).Point(0)
	check := func(what string, prediction time.Duration, late, forgiven uint64) {
		t.Helper()
		if e := p.Estimate(); e.Prediction != prediction || e.Late != late || e.Forgiven != forgiven {
			t.Errorf("%s: %+v, want a prediction of %v, %d late and %d forgiven", what, e, prediction, late, forgiven)
		}
	}
	p.Missed(4 * ms)
	check("cold, it is late", 2*ms, 1, 0)
	for range field.window {
		p.Exact(2 * ms)
	}
	p.Missed(2*ms - 1)
	check("woken before the predicted completion, it is late", ms-1, 2, 0)
	for range field.window {
		p.Exact(2 * ms)
	}
	samples := p.Estimate().Samples
	for range 3 {
		p.Missed(3 * ms)
	}
	check("three after many exact waits", 2*ms, 2, 3)
	if e := p.Estimate(); e.Samples != samples {
		t.Errorf("recorded all the same: %+v", e)
	}
	p.Missed(3 * ms)
	check("the fourth", ms, 3, 3)
	for range 3 {
		p.Exact(2 * ms)
	}
	p.Missed(3 * ms)
	check("three exact waits later", ms/2, 4, 3)
	p.Exact(2 * ms)
	p.Missed(3 * ms)
	check("the fourth exact wait earns one", ms/2, 4, 4)

	// Always late: the prediction comes down as with Late.
	p = NewEstimator[int](field).Point(0)
	p.Exact(40 * ms)
	for range 70 {
		p.Missed(time.Hour)
	}
	if p.Sleep() != 0 {
		t.Errorf("still sleeps %v", p.Sleep())
	}
}

// A wait that is still pending when a halved prediction has it looked at goes by what is
// known of the others.
func TestEstimatorAgain(t *testing.T) {
	p := NewEstimator[int](field).Point(0)
	check := func(what string, sleep, again time.Duration) {
		t.Helper()
		if p.Sleep() != sleep || p.Again() != again {
			t.Errorf("%s: sleeps %v, and until %v; want %v and %v", what, p.Sleep(), p.Again(), sleep, again)
		}
	}
	check("cold", 0, 0)
	for range field.window {
		p.Exact(2 * ms)
		check("exact", 1850*us, 0)
	}
	p.Late(1900 * us)
	check("late: nothing is known since", 800*us, 0)
	p.Exact(1800 * us)
	check("an exact wait since", 800*us, 1650*us)
	p.Exact(1900 * us)
	check("a longer one", 800*us, 1650*us)
	for range 3 {
		p.MissedAgain(800*us, 1900*us)
	}
	if e := p.Estimate(); e.Forgiven != 2 {
		t.Errorf("%+v: ten exact waits pay for two", e)
	}
	check("missed too often, it took as long as it was seen pending", 650*us, 0)
	for range field.window {
		p.Exact(1200 * us)
	}
	check("the late wake has left the window", 1050*us, 0)

	// Work of two lengths: the shorter counts while it is in the window.
	p = NewEstimator[int](field).Point(0)
	p.Exact(1200 * us)
	p.Late(1 * ms)
	p.Exact(2 * ms)
	check("short, late, long", 350*us, 1050*us)
	// Nothing to gain.
	p = NewEstimator[int](field).Point(0)
	p.Exact(400 * us)
	p.Late(390 * us)
	p.Exact(400 * us)
	check("short work", 45*us, 250*us)
	p.Late(100 * us)
	p.Exact(400 * us)
	check("too short to sleep for", 0, 0)
	if (*Point)(nil).Again() != 0 {
		t.Error("a nil point")
	}
	(*Point)(nil).MissedAgain(ms, ms)
}

// model is the estimator as the text states it.
type model struct {
	pred Prediction
	all  []time.Duration
}

func (m *model) prediction() (time.Duration, bool) {
	if len(m.all) == 0 {
		return 0, false
	}
	return slices.Min(m.all[max(0, len(m.all)-m.pred.window):]), true
}

func (m *model) late(wake time.Duration) {
	if d, ok := m.prediction(); ok && d < wake {
		wake = d
	}
	m.all = append(m.all, wake/2)
}

func (m *model) sleep() time.Duration {
	d, ok := m.prediction()
	switch {
	case !ok, m.pred.margin > d:
		return 0
	case d-m.pred.margin < m.pred.minSleep:
		return 0
	}
	return min(d-m.pred.margin, m.pred.maxSleep)
}

func TestEstimatorAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		low := time.Duration(r.Int64N(int64(ms)))
		m := model{pred: Prediction{
			margin: time.Duration(r.Int64N(int64(ms))), minSleep: low, maxSleep: low + time.Duration(r.Int64N(int64(10*ms))),
			window: 1 + r.IntN(maxWindow),
		}}
		p := NewEstimator[int](m.pred).Point(0)
		for i := range 100 {
			d := time.Duration(r.Int64N(int64(20 * ms)))
			before, warm := m.prediction()
			late := r.IntN(4) == 0
			if late {
				m.late(d)
				p.Late(d)
			} else {
				m.all = append(m.all, d)
				p.Exact(d)
			}
			want, _ := m.prediction()
			got := p.Estimate()
			if got.Prediction != want || got.Sleep != m.sleep() || p.Sleep() != m.sleep() {
				t.Fatalf("%v, step %d: %+v, want %v and a sleep of %v", m.pred, i, got, want, m.sleep())
			}
			if late && warm && got.Prediction > before/2 {
				t.Fatalf("%v, step %d: a late wake took the prediction from %v to %v", m.pred, i, before, got.Prediction)
			}
			if got.Sleep > m.pred.maxSleep || got.Sleep > max(0, got.Prediction-m.pred.margin) {
				t.Fatalf("%v: slept %v before %v", m.pred, got.Sleep, got.Prediction)
			}
		}
	}
}

func TestObserve(t *testing.T) {
	for _, c := range []struct {
		r    event.Report
		want Estimate
	}{
		{event.Report{Kind: event.Blocked, Wait: ms}, Estimate{}},
		{event.Report{Kind: event.Immediate, Outcome: event.Exact, Wait: 3 * us}, Estimate{Samples: 1}},
		{event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: ms}, Estimate{Prediction: ms, Sleep: 850 * us, Samples: 1}},
		{event.Report{Kind: event.LateKind, Outcome: event.Late, Wait: ms}, Estimate{Prediction: ms / 2, Sleep: 350 * us, Samples: 1, Late: 1}},
	} {
		e := NewEstimator[int](field)
		e.Observe(7, c.r)
		if got := e.Point(7).Estimate(); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.r, got, c.want)
		}
	}
}

func TestEstimatorWithoutPrediction(t *testing.T) {
	var zero Estimator[string]
	for name, p := range map[string]*Point{"zero estimator": zero.Point("x"), "nil point": nil, "zero point": new(Point)} {
		p.Exact(ms)
		p.Late(ms)
		p.Missed(ms)
		p.Observe(event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: ms})
		if p.Sleep() != 0 || p.Estimate() != (Estimate{}) {
			t.Errorf("%s: %+v", name, p.Estimate())
		}
	}
}

func TestEstimatorTable(t *testing.T) {
	type key struct {
		site   string
		stream int
	}
	e := NewEstimator[key](field)
	if rows := e.Table(); len(rows) != 0 {
		t.Errorf("empty table: %v", rows)
	}
	var want []Row[key]
	for i := range 20 {
		k := key{"decode", 20 - i}
		e.Point(k).Exact(ms)
		want = append(want, Row[key]{k, Estimate{Prediction: ms, Sleep: 850 * us, Samples: 1}})
	}
	e.Point(key{"decode", 20}).Late(ms)
	want[0].Estimate = Estimate{Prediction: ms / 2, Sleep: 350 * us, Samples: 2, Late: 1}
	if got := e.Table(); !slices.Equal(got, want) {
		t.Errorf("table\n %v, want\n %v", got, want)
	}
	if a, b := e.Point(key{"decode", 1}), e.Point(key{"decode", 1}); a != b {
		t.Error("two points for one key")
	}
	held := e.Point(key{"decode", 20})
	e.Forget(key{"decode", 20})
	e.Forget(key{"unknown", 1})
	if got := e.Table(); !slices.Equal(got, want[1:]) {
		t.Errorf("after Forget: %v", got)
	}
	held.Exact(ms) // must not bring it back
	if e.Sleep(key{"decode", 20}) != 0 || len(e.Table()) != 19 {
		t.Error("a forgotten point came back")
	}
	if p := e.Point(key{"decode", 20}); p == held || p.Sleep() != 0 {
		t.Error("a new point remembers the forgotten one")
	}
}

func TestObservingDoesNotAllocate(t *testing.T) {
	e := NewEstimator[string](field)
	p := e.Point("decode")
	r := event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: ms}
	for name, f := range map[string]func(){
		"Exact":    func() { p.Exact(ms) },
		"Late":     func() { p.Late(ms) },
		"Missed":   func() { p.Missed(ms) },
		"Sleep":    func() { _ = p.Sleep() },
		"Observe":  func() { e.Observe("decode", r) },
		"Estimate": func() { _ = p.Estimate() },
		"by key":   func() { _ = e.Sleep("decode") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestHammerEstimator(t *testing.T) {
	const goroutines, loops, keys = 8, 2000, 4
	e := NewEstimator[int](field)
	for key := range keys {
		e.Point(key).Exact(ms)
	}
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range loops {
				p := e.Point(i % keys)
				switch g % 4 {
				case 0, 1:
					p.Exact(ms + time.Duration(i))
				case 2:
					p.Late(time.Hour)
				case 3:
					for _, row := range e.Table() {
						if row.Sleep < 0 || row.Sleep > field.maxSleep || row.Late > row.Samples {
							t.Errorf("row %+v", row)
						}
					}
				}
				if d := p.Sleep(); d < 0 || d > ms+loops-field.margin {
					t.Errorf("sleep %v", d)
				}
			}
		})
	}
	wg.Wait()
	var samples, late uint64
	for _, row := range e.Table() {
		samples += row.Samples
		late += row.Late
	}
	if samples != keys+goroutines*loops*3/4 || late != goroutines*loops/4 {
		t.Errorf("%d samples, %d late: some were lost", samples, late)
	}
}

func BenchmarkPoint(b *testing.B) {
	p := NewEstimator[string](field).Point("decode")
	b.Run("Sleep", func(b *testing.B) {
		for b.Loop() {
			_ = p.Sleep()
		}
	})
	b.Run("Exact", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Exact(ms)
		}
	})
}

func BenchmarkBandsAt(b *testing.B) {
	for n := 1; n <= MaxBands; n++ {
		text := "block"
		for i := 1; i < n; i++ {
			text += fmt.Sprintf(";rows>=%d:poll", 10*i)
		}
		bands, err := ParseBands(text)
		if err != nil {
			b.Fatal(err)
		}
		var steps Steps
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				_ = bands.Index(steps.Load())
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = ParseBands("block;rows>=32:flag:park_us=100,backstop_us=1000+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8")
	}
}
