package plan

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
)

// Estimator learns how long waits take, per readback point: a key that stands
// for waits that are alike (call site, stream, step kind). Make one with
// NewEstimator; the zero value is ready too, and never predicts. An Estimator
// must not be copied. All methods may be called from many goroutines; none
// blocks but for a short lock.
//
// What is predicted is the minimum of the point's last window exact residuals,
// and the sleep before the next wait is that less the margin: none while there
// are no residuals, when it would be under the minimum, or when the margin
// exceeds the prediction, and never more than the maximum. To wake early costs
// CPU time, to wake late costs latency; hence the minimum, and hence a wake
// that came too late, of which only an upper bound is known, counts as half the
// prediction or half the wait, whichever is less. Late wakes so lower the
// prediction geometrically, and never raise it.
type Estimator[K comparable] struct {
	pred   Prediction
	mu     sync.RWMutex
	points map[K]*Point
	made   uint64
}

// NewEstimator returns an estimator for waits that run a plan with this
// prediction.
func NewEstimator[K comparable](p Prediction) *Estimator[K] { return &Estimator[K]{pred: p} }

// Prediction returns the prediction that the estimator was made with.
func (e *Estimator[K]) Prediction() Prediction { return e.pred }

// Point returns the key's point, which it makes when there is none. A hot path
// keeps the point instead of the key.
func (e *Estimator[K]) Point(key K) *Point {
	if p := e.lookup(key); p != nil {
		return p
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.points[key]
	if p == nil {
		if e.points == nil {
			e.points = make(map[K]*Point)
		}
		e.made++
		p = &Point{pred: e.pred, order: e.made}
		e.points[key] = p
	}
	return p
}

func (e *Estimator[K]) lookup(key K) *Point {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.points[key]
}

// Sleep returns how long to sleep before the key's next wait, 0 for a key that
// is not known.
func (e *Estimator[K]) Sleep(key K) time.Duration { return e.lookup(key).Sleep() }

// Observe records a finished wait of the key; see Point.Observe.
func (e *Estimator[K]) Observe(key K, r event.Report) { e.Point(key).Observe(r) }

// Forget drops the key's point. Whoever still holds it may go on using it.
func (e *Estimator[K]) Forget(key K) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.points, key)
}

// Row is what Table tells of one point.
type Row[K comparable] struct {
	Key K
	Estimate
}

// Table returns the points in the order in which they were made. Each row is
// of one instant; together they are not.
func (e *Estimator[K]) Table() []Row[K] {
	type entry struct {
		key K
		p   *Point
	}
	e.mu.RLock()
	all := make([]entry, 0, len(e.points))
	for k, p := range e.points {
		all = append(all, entry{k, p})
	}
	e.mu.RUnlock()
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.p.order, b.p.order) })
	rows := make([]Row[K], len(all))
	for i, a := range all {
		rows[i] = Row[K]{a.key, a.p.Estimate()}
	}
	return rows
}

// Estimate is what a point has learned.
type Estimate struct {
	// Prediction is how long the next wait is expected to take at least; it
	// means nothing while Samples is 0.
	Prediction time.Duration
	// Sleep is how long to sleep before it.
	Sleep time.Duration
	// Samples counts the waits recorded, late ones included, Late those found
	// done by the first query after the sleep.
	Samples, Late uint64
	// Forgiven counts late waits that were not recorded; see Point.Missed.
	Forgiven uint64
}

// Point is one readback point of an Estimator. A nil *Point never predicts and
// records nothing, so that code without a prediction need not look. All methods
// may be called from many goroutines, and none allocates.
type Point struct {
	pred  Prediction
	order uint64
	// exactly is 1 more than a residual that Exact has left to be recorded, 0 for none.
	exactly atomic.Int64
	sleep   atomic.Int64 // what follows from the rest, for readers without the lock
	again   atomic.Int64 // likewise

	mu            sync.Mutex
	ring          [maxWindow]time.Duration // the last pred.window residuals
	min           time.Duration            // of those
	samples, late uint64
	forgiven      uint64
	credit        uint8         // see Missed
	censored      uint16        // which places of the ring are of late wakes
	exactMin      time.Duration // the minimum of the others, if the newest is one of them, else 0
}

// Sleep returns how long to sleep before the next wait.
func (p *Point) Sleep() time.Duration {
	if p == nil {
		return 0
	}
	p.settle()
	return time.Duration(p.sleep.Load())
}

// Exact records a wait that was seen pending and then done, after residual. A
// negative residual counts as 0.
//
// Whoever calls it has waited for the word and has not returned yet: it does not take the
// lock, but leaves the residual to whichever method is called next, mostly the Sleep of the
// next wait.
func (p *Point) Exact(residual time.Duration) {
	if p == nil || p.pred.window == 0 {
		return
	}
	if before := p.exactly.Swap(int64(min(max(residual, 0), math.MaxInt64-1)) + 1); before != 0 {
		p.mu.Lock()
		p.exact(time.Duration(before - 1))
		p.mu.Unlock()
	}
}

// settle records what Exact has left.
func (p *Point) settle() {
	if p.exactly.Load() != 0 {
		p.lock()
		p.mu.Unlock()
	}
}

// lock locks mu and records what Exact has left.
func (p *Point) lock() {
	p.mu.Lock()
	if d := p.exactly.Swap(0); d != 0 {
		p.exact(time.Duration(d - 1))
	}
}

// exact is Exact; the caller holds mu.
func (p *Point) exact(residual time.Duration) {
	p.credit = min(p.credit+1, maxCredit)
	p.record(residual, false)
}

// Again returns how long after its start a wait may sleep once more that was seen pending
// after the time of Sleep, 0 when it is to be watched from there on.
//
// A late wake halves the prediction for a window of waits. Each of these is looked at as
// early as that asks for. But one that is pending then is not what was guarded against, and
// what is known of such waits are the window's exact residuals, once there is one since the
// late wake: their minimum, less the margin, is when to look next.
func (p *Point) Again() time.Duration {
	if p == nil {
		return 0
	}
	p.settle()
	return time.Duration(p.again.Load())
}

// MissedAgain records a wait that was seen pending after pending, and done by the first look
// after the sleep of Again, after wake. As with Missed, a wake after what that sleep went by is
// forgiven if it is rare. Else the wait counts as exact, and as having taken pending.
func (p *Point) MissedAgain(pending, wake time.Duration) {
	if p == nil || p.pred.window == 0 {
		return
	}
	p.lock()
	defer p.mu.Unlock()
	if wake > p.exactMin && p.forgive() {
		return
	}
	p.exact(max(pending, 0))
}

// Late records a wait that the first look after the sleep found done, after
// wake.
func (p *Point) Late(wake time.Duration) {
	if p == nil || p.pred.window == 0 {
		return
	}
	p.lock()
	defer p.mu.Unlock()
	p.recordLate(max(wake, 0))
}

// Missed is Late for waits whose sleep may itself have ended late: the processor was
// somebody else's. A wake after the predicted completion says nothing about the work,
// which may have taken exactly as long as was predicted, and to wake sooner next time is
// no remedy for what happens now and then. So it is forgiven: nothing is recorded. Each
// that is forgiven is paid for by four exact waits; where sleeps end late more
// often than that, sooner is the remedy, and Missed is Late, as it is for a wake before
// the predicted completion, which proves that the work was shorter.
func (p *Point) Missed(wake time.Duration) {
	if p == nil || p.pred.window == 0 {
		return
	}
	p.lock()
	defer p.mu.Unlock()
	if p.samples > 0 && wake > p.min && p.forgive() {
		return
	}
	p.recordLate(max(wake, 0))
}

// forgive reports whether there is credit for one more. The caller holds mu.
func (p *Point) forgive() bool {
	if p.credit < missCost {
		return false
	}
	p.credit -= missCost
	p.forgiven++
	return true
}

const (
	missCost  = 4
	maxCredit = 3 * missCost // three misses in a row are forgiven after many exact waits
)

// recordLate records an upper bound. The caller holds mu.
func (p *Point) recordLate(wake time.Duration) {
	if p.samples > 0 {
		wake = min(wake, p.min)
	}
	p.late++
	p.record(wake/2, true)
}

// Observe records a finished wait by its outcome: Exact or Late with the wait's
// length, nothing for a wait that was blocked. Work that the first query found
// done was complete before the wait began: its residual is 0.
func (p *Point) Observe(r event.Report) {
	switch {
	case r.Kind == event.Immediate:
		p.Exact(0)
	case r.Outcome == event.Exact:
		p.Exact(r.Wait)
	case r.Outcome == event.Late:
		p.Late(r.Wait)
	}
}

// record puts d in place of the oldest residual. The caller holds mu.
func (p *Point) record(d time.Duration, late bool) {
	n := uint64(p.pred.window)
	i := p.samples % n
	p.ring[i] = d
	p.censored &^= 1 << i
	if late {
		p.censored |= 1 << i
	}
	p.samples++
	all := p.ring[:min(p.samples, n)]
	p.min, p.exactMin = slices.Min(all), 0
	if !late {
		p.exactMin = d
		for i, r := range all {
			if p.censored&(1<<i) == 0 {
				p.exactMin = min(p.exactMin, r)
			}
		}
	}
	sleep, again := p.pred.sleep(p.min), p.pred.sleep(p.exactMin)
	if sleep == 0 || again < sleep+p.pred.minSleep {
		again = 0
	}
	p.sleep.Store(int64(sleep))
	p.again.Store(int64(again))
}

// Estimate returns what the point has learned.
func (p *Point) Estimate() Estimate {
	if p == nil {
		return Estimate{}
	}
	p.lock()
	defer p.mu.Unlock()
	return Estimate{Prediction: p.min, Sleep: time.Duration(p.sleep.Load()), Samples: p.samples, Late: p.late, Forgiven: p.forgiven}
}
