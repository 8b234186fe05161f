package poller

import (
	"time"

	"github.com/gpuline/gpuline/event"
)

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
