package fill

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
)

// AwaitPoint is Await at a point of an estimator: the thread, when it has nothing
// else to do, sleeps until the margin before the predicted completion and parks
// on the line only then. What is seen of the completion goes to the point: a wait
// that is over before it begins counts as 0; one whose completion ended a park, or
// was found between two short polls, is exact; one that was over when the thread
// woke from a sleep is late; one that ended while the thread did not look for more
// than an eighth of the wait counts only if it was shorter than predicted. A nil
// point makes this Await.
//
// While such a wait alone is asleep, its completion is noticed when the sleep is
// over and not within the park bound.
func (t *Task) AwaitPoint(p *plan.Point, d line.Descriptor) { t.AwaitPointUntil(p, d, never) }

// AwaitPointUntil is AwaitPoint with a deadline, as in AwaitUntil. A wait that the
// deadline ends tells the point nothing.
func (t *Task) AwaitPointUntil(p *plan.Point, d line.Descriptor, deadline time.Duration) bool {
	if !t.await(d, deadline, p.Sleep(), p != nil) {
		return false
	}
	t.seen.tell(p)
	return true
}

// tell records the sighting with the point.
func (s sighting) tell(p *plan.Point) {
	switch {
	case p == nil:
	case s.outcome == event.Late:
		p.Missed(s.took)
	case s.outcome == event.Exact:
		p.Exact(s.took)
	default:
		if e := p.Estimate(); e.Samples > 0 && s.took < e.Prediction {
			p.Exact(s.took)
		}
	}
}

// WritePoints writes what an estimator has learned as a table: a row per point,
// with its prediction, the sleep that follows from it, and how many waits were
// recorded and found late.
func WritePoints[K comparable](w io.Writer, e *plan.Estimator[K]) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(tw, "point\tprediction\tsleep\twaits\tlate\t")
	for _, r := range e.Table() {
		prediction := "none"
		if r.Samples > 0 {
			prediction = r.Prediction.Round(time.Microsecond).String()
		}
		_, _ = fmt.Fprintf(tw, "%v\t%s\t%v\t%d\t%d\t\n", r.Key, prediction, r.Sleep.Round(time.Microsecond), r.Samples, r.Late)
	}
	return tw.Flush() // reports the errors of the writes, too
}

// WaitPlan spends one wait on device work as p says, without holding up the other
// tasks, and reports how it went. d is the word that port.Arm queues the store
// for. The point, which may be nil, predicts the wait and learns from it.
//
// The port is asked at once; done is an immediate wait. Otherwise the word is
// armed and awaited, with a status query every backstop, and once it has been
// reached the port polls to done: success is never reported before the port said
// so. A plan that does not look at the word, or a d that names none, queries
// between the polls of other tasks, which keeps the processor busy. The plan
// block, and any plan under the naive executor, is the port's blocking wait,
// which holds up the whole run. How the thread parks is the run's own choice
// (Options), not the plan's: one park serves many waits. An error of the port ends
// the wait unchanged.
func (t *Task) WaitPlan(p plan.Plan, pt *plan.Point, port event.Port, d line.Descriptor) (event.Report, error) {
	t.check()
	start := t.Now()
	r, err := t.spend(p, pt, port, d, start)
	r.Wait = t.Now() - start
	if err == nil {
		pt.Observe(r)
	}
	return r, err
}

func (t *Task) spend(p plan.Plan, pt *plan.Point, port event.Port, d line.Descriptor, start time.Duration) (r event.Report, err error) {
	if p.Kind() == plan.Block || t.r.inline {
		defer t.blocked(start)
		return event.Report{Kind: event.Blocked}, port.Block()
	}
	if done, err := port.Query(); done || err != nil {
		return event.Report{Kind: event.Immediate, Outcome: event.Exact}, err
	}
	r.Kind, r.Outcome = event.Parked, event.Exact
	sleep := pt.Sleep()
	word := p.Word() && d.Valid()
	if word {
		if err := port.Arm(); err != nil {
			return r, err
		}
	}
	if sleep > 0 {
		reached := t.await(armed(d, word), after(start, sleep), sleep, true)
		r.Slept = t.Now() - start
		if done, err := port.Query(); err != nil {
			return r, err
		} else if done {
			if r.Kind, r.Outcome = event.LateKind, event.Late; reached && t.seen.outcome != event.Late {
				r.Kind, r.Outcome = event.Parked, t.seen.outcome
			}
			return r, nil
		}
	}
	if !word {
		for {
			t.Yield()
			if done, err := port.Query(); done || err != nil {
				return r, err
			}
		}
	}
	for {
		r.Parks++
		if t.await(d, after(t.Now(), p.Backstop()), 0, true) {
			r.Outcome = t.seen.outcome
			return r, port.Poll()
		}
		r.Queries++
		if done, err := port.Query(); done || err != nil {
			return r, err
		}
	}
}

// blocked counts a wait since start that was none of the run's own.
func (t *Task) blocked(start time.Duration) {
	t.r.stats.Blocked++
	t.r.stats.Idle += t.Now() - start
}

// armed is d, or no descriptor at all where the word is not looked at.
func armed(d line.Descriptor, word bool) line.Descriptor {
	if !word {
		return line.Descriptor{}
	}
	return d
}

// Stream is a *gpu.Stream, as far as a task needs it.
type Stream interface {
	// Descriptor names the word that the device stores seq into, or returns the error
	// that ended the stream or its device.
	Descriptor(seq uint64) (line.Descriptor, error)
	// Wait waits until the device has reached seq and that is known to be success.
	Wait(ctx context.Context, seq uint64) error
}

// A task that waits for a stream looks at its error after minHealth and then at
// intervals that double up to maxHealth, so that many long waits cost little.
const (
	minHealth = 10 * time.Millisecond
	maxHealth = time.Second
)

// Wait waits until the device has reached seq on s, without holding up the other
// tasks. It returns nil then, and the stream's error when the work or the device
// failed. Where a reached word does not prove success, the last step is the
// stream's own wait, whose status query holds up the run. Under the naive
// executor the stream's own wait is all of it.
func (t *Task) Wait(s Stream, seq uint64) error { return t.WaitPoint(nil, s, seq) }

// WaitPoint is Wait at a point of an estimator, as in AwaitPoint.
func (t *Task) WaitPoint(p *plan.Point, s Stream, seq uint64) error {
	t.check()
	if t.r.inline {
		defer t.blocked(t.Now())
		return s.Wait(t.r.ctx, seq)
	}
	d, err := s.Descriptor(seq)
	if err != nil {
		return err
	}
	start := t.Now()
	now, sleep, health := start, p.Sleep(), minHealth
	t.stream = s
	for !t.await(d, after(now, max(health, sleep)), sleep, p != nil) {
		if _, err = s.Descriptor(seq); err != nil {
			break
		}
		now, sleep, health = t.Now(), 0, min(2*health, maxHealth)
	}
	t.stream = nil
	if err != nil {
		return err
	}
	seen := t.seen
	seen.took += now - start
	if err := s.Wait(t.r.ctx, seq); err != nil {
		return err
	}
	seen.tell(p)
	return nil
}
