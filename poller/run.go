package poller

import (
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/plan"
)

// Run spends one wait on the calling goroutine as the plan says, and reports how
// it went. sleep is how long to sleep before the first look, the estimator's
// answer for this wait; 0 means not at all. The plan should be a resolved one: a
// park on a machine or driver without it is whatever port.Park makes of it.
//
//   - block: only port.Block, the vendor's blocking wait.
//   - else one query; done is an immediate wait.
//   - a plan that looks at the word arms it.
//   - with a sleep: sleep to start + sleep, then query; done is a late wait.
//   - poll: port.Poll to the end. flag: parks on the word of at most park_us with
//     a query every backstop_us, then port.Poll to the end. staged and park: the
//     same for spin_us, then naps of nap_us on the clock with a look at the word
//     (port.Park(0)) after each.
//
// Success is never reported before a query or the blocking wait said so, and an
// error of the port ends the wait and is returned unchanged. Run blocks, knows no
// context and may be called from many goroutines with a port each. Record the
// report with plan.Point.Observe.
func Run(p plan.Plan, sleep time.Duration, port event.Port, clock event.Clock) (event.Report, error) {
	s := spend{
		block: p.Kind() == plan.Block, word: p.Word(),
		park: p.Park(), spin: p.Spin(), nap: p.Nap(), backstop: p.Backstop(),
	}
	if p.Kind() == plan.Staged {
		s.park = s.spin // the loop on the word has no other bound
	}
	return run(s, sleep, port, clock)
}

// spend is what a plan comes down to for one wait.
type spend struct {
	block    bool
	word     bool          // look at the word, else poll the status
	park     time.Duration // the longest park on the word
	spin     time.Duration // staged: how long to park before napping
	nap      time.Duration // staged: the length of a nap; 0 never naps
	backstop time.Duration // between two status queries
}

// run is Run for a plan taken apart.
func run(p spend, sleep time.Duration, port event.Port, clock event.Clock) (r event.Report, err error) {
	start := clock.Now()
	defer func() { r.Wait = clock.Now() - start }()
	if p.block {
		return event.Report{Kind: event.Blocked}, port.Block()
	}
	done, err := port.Query()
	if err != nil {
		return r, err
	}
	if done {
		return event.Report{Kind: event.Immediate, Outcome: event.Exact}, nil
	}
	r.Kind, r.Outcome = event.Parked, event.Exact
	if p.word {
		if err := port.Arm(); err != nil {
			return r, err
		}
	}
	if sleep > 0 {
		clock.SleepUntil(start + sleep)
		r.Slept = clock.Now() - start
		if done, err = port.Query(); err != nil {
			return r, err
		}
		if done {
			r.Kind, r.Outcome = event.LateKind, event.Late
			return r, nil
		}
	}
	if p.word {
		if done, err = p.parkOn(port, clock, &r); done || err != nil {
			return r, err
		}
	}
	return r, port.Poll()
}

// parkOn parks on the word until it has reached its target (false: the status
// still has to say so) or a backstop query says done.
func (p spend) parkOn(port event.Port, clock event.Clock, r *event.Report) (done bool, err error) {
	begin := clock.Now()
	query := begin + p.backstop
	for {
		now := clock.Now()
		napping := p.nap > 0 && now-begin >= p.spin
		r.Parks++
		if napping {
			clock.SleepUntil(now + min(p.nap, query-now))
			if port.Park(0) {
				return false, nil
			}
		} else {
			bound := min(p.park, query-now)
			if p.nap > 0 {
				bound = min(bound, begin+p.spin-now)
			}
			if port.Park(bound) {
				return false, nil
			}
		}
		if now = clock.Now(); now >= query {
			r.Queries++
			if done, err = port.Query(); done || err != nil {
				return done, err
			}
			query = now + p.backstop
		}
	}
}
