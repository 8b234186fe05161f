package gpu

import (
	"math"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// pace is how waits of one band are spent.
type pace struct {
	plan plan.Plan
	band int
	// block: in the vendor's blocking wait.
	block bool
	// spin is how long a waiting goroutine may look at the word itself.
	spin time.Duration
	est  *plan.Estimator[string]
}

// PlanCaps returns what wait plans can rely on here: the processor's park, and
// whether streams store words, with the reason where not.
func PlanCaps(words bool, why string) plan.Caps {
	park, whyPark := asm.Probe()
	return plan.Caps{
		DeviceWordStore: plan.Capability{OK: words, Why: why},
		ProcessorPark:   plan.Capability{OK: park.Hardware(), Why: whyPark},
	}
}

// settlePlan resolves the wait plan for what the machine and the device can do.
// noWords is why streams store no words, nil when they do: then the status
// poller's words take their place, so that waits may look at words all the same.
func (d *Device) settlePlan(text string, strict bool) error {
	bands := plan.One(plan.Default(PlanCaps(true, "")))
	if text != "" {
		var err error
		if bands, err = plan.ParseBands(text); err != nil {
			return err
		}
	}
	r := bands.Resolve(PlanCaps(true, ""))
	for _, w := range r.Warnings {
		if strict {
			return w
		}
		d.warns = append(d.warns, w)
	}
	d.bands = r
	for i, b := range r.Running.All() {
		p := pace{plan: b.Plan, band: i}
		switch b.Plan.Kind() {
		case plan.Block:
			p.block = true
		case plan.Poll, plan.Flag:
			p.spin = math.MaxInt64
		default:
			p.spin = b.Plan.Spin()
		}
		if pr, ok := b.Plan.Prediction(); ok {
			p.est = plan.NewEstimator[string](pr)
		}
		d.paces = append(d.paces, p)
	}
	return nil
}

// pace returns how a wait that begins now is spent: one atomic load where there
// is more than one band.
func (d *Device) pace() *pace {
	if len(d.paces) == 1 {
		return &d.paces[0]
	}
	return &d.paces[d.bands.Running.Index(d.opt.steps.Load())]
}

// points makes a stream's readback points, one per band.
func (d *Device) points(name string) []*plan.Point {
	ps := make([]*plan.Point, len(d.paces))
	for i := range d.paces {
		if est := d.paces[i].est; est != nil {
			ps[i] = est.Point(name)
		}
	}
	return ps
}

// waiterConfig is what the plan asks of the waiter, which serves all bands: the
// last band that does not block sets its pace.
func (d *Device) waiterConfig() poller.Config {
	cfg := poller.Config{Spin: -1}
	for _, p := range d.paces {
		switch p.plan.Kind() {
		case plan.Block:
		case plan.Poll, plan.Flag:
			cfg.Spin = time.Hour
		default:
			cfg.Spin, cfg.Nap = p.plan.Spin(), p.plan.Nap()
			if cfg.Spin == 0 {
				cfg.Spin = -1
			}
		}
		if k := p.plan.Kind(); k == plan.Flag || k == plan.Park {
			cfg.Park = true
		}
	}
	return cfg
}

// look is how long a wait on s that begins now can sleep before it looks.
func (p *pace) look(s *Stream) time.Duration { return s.points[p.band].Sleep() }

// Prediction is what was learned about the waits of one stream under one band.
type Prediction struct {
	Stream string
	Plan   string
	plan.Estimate
}

// Predictions returns what the estimator has learned, stream by stream, for
// each band with a prediction.
func (d *Device) Predictions() []Prediction {
	if d == nil {
		return nil
	}
	var out []Prediction
	for i := range d.paces {
		if d.paces[i].est == nil {
			continue
		}
		for _, r := range d.paces[i].est.Table() {
			out = append(out, Prediction{r.Key, d.paces[i].plan.String(), r.Estimate})
		}
	}
	return out
}

func sleepFor(d time.Duration) {
	c := event.RealClock{}
	c.SleepUntil(c.Now() + d)
}
