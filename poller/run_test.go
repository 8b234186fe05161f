package poller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/plan"
)

// scripted is a port on virtual time: the work is done at doneAt, the word is
// stored at storeAt.
type scripted struct {
	c       *event.ManualClock
	doneAt  time.Duration
	storeAt time.Duration
	failAt  time.Duration // a query from here on fails; 0 never
	armErr  error
	cost    time.Duration // of a query
	log     []string
}

var errWork = errors.New("work failed")

func (p *scripted) note(what string) { p.log = append(p.log, fmt.Sprintf("%s@%v", what, p.c.Now())) }

func (p *scripted) Query() (bool, error) {
	p.note("query")
	p.c.Advance(p.cost)
	if p.failAt > 0 && p.c.Now() >= p.failAt {
		return false, errWork
	}
	return p.c.Now() >= p.doneAt, nil
}

func (p *scripted) Block() error { p.note("block"); p.c.AdvanceTo(p.doneAt); return nil }

func (p *scripted) Poll() error {
	p.note("poll")
	if p.failAt > 0 && p.failAt <= p.doneAt {
		p.c.AdvanceTo(p.failAt)
		return errWork
	}
	p.c.AdvanceTo(p.doneAt)
	return nil
}

func (p *scripted) Arm() error { p.note("arm"); return p.armErr }

func (p *scripted) Park(bound time.Duration) bool {
	p.note("park " + bound.String())
	if until := p.c.Now() + bound; p.storeAt <= until {
		p.c.AdvanceTo(p.storeAt)
		return true
	} else {
		p.c.AdvanceTo(until)
	}
	return false
}

const us = time.Microsecond

func TestRun(t *testing.T) {
	flag := spend{word: true, park: 100 * us, backstop: 1000 * us}
	staged := spend{word: true, park: 10 * us, spin: 25 * us, nap: 50 * us, backstop: 120 * us}
	for _, c := range []struct {
		name  string
		p     spend
		sleep time.Duration
		port  scripted
		want  event.Report
		err   error
		log   []string
	}{
		{
			name: "block only blocks", p: spend{block: true}, sleep: 5 * us,
			port: scripted{doneAt: 70 * us},
			want: event.Report{Kind: event.Blocked, Wait: 70 * us},
			log:  []string{"block@0s"},
		}, {
			name: "immediate", p: flag, sleep: 5 * us,
			port: scripted{doneAt: 0, storeAt: 0},
			want: event.Report{Kind: event.Immediate, Outcome: event.Exact},
			log:  []string{"query@0s"},
		}, {
			name: "poll", p: spend{},
			port: scripted{doneAt: 70 * us},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 70 * us},
			log:  []string{"query@0s", "poll@0s"},
		}, {
			name: "poll after a sleep", p: spend{}, sleep: 40 * us,
			port: scripted{doneAt: 70 * us},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 70 * us, Slept: 40 * us},
			log:  []string{"query@0s", "query@40µs", "poll@40µs"},
		}, {
			name: "late", p: flag, sleep: 40 * us,
			port: scripted{doneAt: 30 * us, storeAt: 30 * us},
			want: event.Report{Kind: event.LateKind, Outcome: event.Late, Wait: 40 * us, Slept: 40 * us},
			log:  []string{"query@0s", "arm@0s", "query@40µs"},
		}, {
			name: "flag parks, then the status says done", p: flag, sleep: 40 * us,
			port: scripted{doneAt: 290 * us, storeAt: 280 * us},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 290 * us, Slept: 40 * us, Parks: 3},
			log:  []string{"query@0s", "arm@0s", "query@40µs", "park 100µs@40µs", "park 100µs@140µs", "park 100µs@240µs", "poll@280µs"},
		}, {
			name: "a store that never lands: the backstop finds it", p: spend{word: true, park: 100 * us, backstop: 250 * us},
			port: scripted{doneAt: 120 * us, storeAt: time.Hour},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 250 * us, Parks: 3, Queries: 1},
			log:  []string{"query@0s", "arm@0s", "park 100µs@0s", "park 100µs@100µs", "park 50µs@200µs", "query@250µs"},
		}, {
			name: "the first query's error", p: flag,
			port: scripted{failAt: 1, cost: 1, doneAt: time.Hour},
			want: event.Report{Wait: 1}, err: errWork,
			log: []string{"query@0s"},
		}, {
			name: "arming fails", p: flag,
			port: scripted{doneAt: time.Hour, armErr: errWork},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact}, err: errWork,
			log: []string{"query@0s", "arm@0s"},
		}, {
			name: "a fault found by the backstop", p: flag,
			port: scripted{failAt: 500 * us, doneAt: time.Hour, storeAt: time.Hour},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: time.Millisecond, Parks: 10, Queries: 1}, err: errWork,
		}, {
			name: "the word lies: success is still the status's to say", p: flag,
			port: scripted{storeAt: 0, failAt: 50 * us, doneAt: 100 * us},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 50 * us, Parks: 1}, err: errWork,
			log: []string{"query@0s", "arm@0s", "park 100µs@0s", "poll@0s"},
		}, {
			name: "staged spins, then naps, and asks at the backstop", p: staged,
			port: scripted{doneAt: 170 * us, storeAt: 160 * us},
			want: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 170 * us, Parks: 6, Queries: 1},
			log: []string{
				"query@0s", "arm@0s", "park 10µs@0s", "park 10µs@10µs", "park 5µs@20µs",
				"park 0s@75µs", "park 0s@120µs", "query@120µs", "park 0s@170µs", "poll@170µs",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := event.NewManualClock()
			c.port.c = clock
			got, err := run(c.p, c.sleep, &c.port, clock)
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if got != c.want {
				t.Errorf("report\n %+v, want\n %+v", got, c.want)
			}
			if c.log != nil && !slices.Equal(c.port.log, c.log) {
				t.Errorf("calls\n %v, want\n %v", c.port.log, c.log)
			}
		})
	}
}

// The plans' texts come down to what run is told.
func TestRunPlans(t *testing.T) {
	for text, want := range map[string][]string{
		"block":                            {"block@0s"},
		"poll":                             {"query@0s", "poll@0s"},
		"flag:park_us=100,backstop_us=150": {"query@0s", "arm@0s", "park 100µs@0s", "park 50µs@100µs", "query@150µs", "park 100µs@150µs", "poll@200µs"},
		"staged:spin_us=30,nap_us=70,backstop_us=150": {"query@0s", "arm@0s", "park 30µs@0s", "park 0s@100µs", "park 0s@150µs", "query@150µs", "park 0s@220µs", "poll@220µs"},
		"park:park_us=20,spin_us=30,nap_us=70,backstop_us=150": {
			"query@0s", "arm@0s", "park 20µs@0s", "park 10µs@20µs", "park 0s@100µs", "park 0s@150µs", "query@150µs", "park 0s@220µs", "poll@220µs"},
	} {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		clock := event.NewManualClock()
		port := &scripted{c: clock, doneAt: 200 * us, storeAt: 200 * us}
		if _, err := Run(p, 0, port, clock); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if !slices.Equal(port.log, want) {
			t.Errorf("%s: calls\n %v, want\n %v", text, port.log, want)
		}
	}
}

// The estimator's sleep, run after run: it comes down to the fastest wait less
// the margin, and a late wake lowers it.
func TestRunWithEstimator(t *testing.T) {
	p, err := plan.Parse("poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8")
	if err != nil {
		t.Fatal(err)
	}
	pr, _ := p.Prediction()
	point := plan.NewEstimator[string](pr).Point("decode")
	for i, c := range []struct{ takes, sleep time.Duration }{
		{1000 * us, 0}, {900 * us, 850 * us}, {1100 * us, 750 * us}, {500 * us, 750 * us}, {1000 * us, 225 * us}, // after a late wake at 750: min(750, 900)/2 - 150
	} {
		if got := point.Sleep(); got != c.sleep {
			t.Errorf("wait %d sleeps %v, want %v", i, got, c.sleep)
		}
		clock := event.NewManualClock()
		r, err := Run(p, point.Sleep(), &scripted{c: clock, doneAt: c.takes}, clock)
		if err != nil {
			t.Fatal(err)
		}
		if late := c.takes <= c.sleep; late != (r.Outcome == event.Late) {
			t.Errorf("wait %d: outcome %v", i, r.Outcome)
		}
		point.Observe(r)
	}
}
