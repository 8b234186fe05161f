package rig

import (
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// loop is what an event loop does about its lanes, whatever the completions come
// through: it registers a Wait per lane, and on its completion the next.
type loop struct {
	r       *run
	waits   []poller.Wait
	points  []*plan.Point
	ready   []reached // before they were registered
	running int       // lanes that go on
}

type reached struct {
	wt  *poller.Wait
	seq uint64
}

func newLoop(r *run, sink poller.Sink) *loop {
	lp := &loop{r: r, waits: make([]poller.Wait, len(r.lanes)), running: len(r.lanes)}
	lp.points = r.points()
	for i := range lp.waits {
		lp.waits[i].Sink, lp.waits[i].User = sink, uint64(i)
	}
	return lp
}

// points returns a readback point per lane, nil ones when the method does not
// predict.
func (r *run) points() []*plan.Point {
	ps := make([]*plan.Point, len(r.lanes))
	p, err := plan.Parse(r.plan)
	if err != nil {
		return ps
	}
	pred, ok := p.Prediction()
	if !ok {
		return ps
	}
	est := plan.NewEstimator[int](pred)
	for i := range ps {
		ps[i] = est.Point(i)
	}
	return ps
}

// begin launches the first piece of work on each lane.
func (lp *loop) begin() error {
	for i := range lp.waits {
		if err := lp.next(&lp.waits[i]); err != nil {
			return err
		}
	}
	return lp.drainReady()
}

func (lp *loop) next(wt *poller.Wait) error {
	l := lp.r.lanes[wt.User]
	seq, err := l.marked()
	if err != nil {
		return err
	}
	wt.Look = lp.points[wt.User].Sleep()
	registered, err := l.s.Notify(wt, seq)
	if err == nil && !registered {
		lp.ready = append(lp.ready, reached{wt, seq})
	}
	return err
}

// completed notes a completion and launches the lane's next piece of work.
func (lp *loop) completed(wt *poller.Wait, err error) error {
	if err != nil {
		return err
	}
	point := lp.points[wt.User]
	if took := wt.DoneAt - wt.AddedAt(); wt.Late {
		point.Late(took)
	} else {
		point.Exact(took)
	}
	if err := lp.turn(wt, wt.Target()); err != nil {
		return err
	}
	return lp.drainReady()
}

func (lp *loop) turn(wt *poller.Wait, seq uint64) error {
	if !lp.r.lanes[wt.User].done(seq) {
		lp.running--
		return nil
	}
	return lp.next(wt)
}

func (lp *loop) drainReady() error {
	for len(lp.ready) > 0 {
		x := lp.ready[len(lp.ready)-1]
		lp.ready = lp.ready[:len(lp.ready)-1]
		if err := lp.turn(x.wt, x.seq); err != nil {
			return err
		}
	}
	return nil
}
