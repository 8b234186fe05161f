package fill_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
)

const (
	us       = time.Microsecond
	predict  = "predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=3"
	flagPlan = "flag:park_us=100,backstop_us=1000"
)

func mustParse(t testing.TB, text string) plan.Plan {
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newPoints(t testing.TB) *plan.Estimator[string] {
	p, _ := mustParse(t, "poll+"+predict).Prediction()
	return plan.NewEstimator[string](p)
}

// wantPoint checks what a point has learned.
func wantPoint(t *testing.T, p *plan.Point, prediction time.Duration, samples, late uint64) {
	t.Helper()
	e := p.Estimate()
	if e.Samples != samples || e.Late != late || samples > 0 && e.Prediction != prediction {
		t.Errorf("prediction %v of %d waits, %d late; want %v of %d, %d late", e.Prediction, e.Samples, e.Late, prediction, samples, late)
	}
}

// The run sleeps to the margin before the predicted completion and then parks.
func TestSleepsToPrediction(t *testing.T) {
	r := newRig(t, 1)
	p := newPoints(t).Point("decode")
	r.store(1*ms, 0, 0, 1)
	r.store(2*ms, 0, 0, 2)
	r.store(2500*us, 0, 0, 3)
	r.store(3500*us, 0, 0, 4)
	r.mustRun(func(t *fill.Task) error {
		for n := uint64(1); n <= 4; n++ {
			t.AwaitPoint(p, r.at(0, 0, n))
			r.log("%d: %v", n, p.Estimate().Prediction)
		}
		return nil
	})
	r.wantTrace(
		"0s park on [0] until 1ms", // cold
		"1ms 1: 1ms",
		"1ms sleep until 1.85ms",
		"1.85ms park on [0] until 2.85ms",
		"2ms 2: 1ms",
		"2ms sleep until 2.85ms",
		"2.85ms 3: 425µs", // late: it counts as half of 850 us
		"2.85ms sleep until 3.125ms",
		"3.125ms park on [0] until 4.125ms",
		"3.5ms 4: 425µs",
	)
	wantPoint(t, p, 425*us, 4, 1)
}

// A wait without a prediction, or one whose time has come, makes the run park, on
// its line alone; a deadline before the prediction is kept.
func TestPredictionAmongOtherWaits(t *testing.T) {
	r := newRig(t, 3)
	points := newPoints(t)
	points.Point("a").Exact(4150 * us)
	points.Point("b").Exact(2150 * us)
	r.store(5*ms, 0, 0, 1)
	r.store(4500*us, 1, 0, 1)
	r.store(1500*us, 2, 0, 1)
	r.mustRun(func(t *fill.Task) error {
		for i, name := range []string{"a", "b"} {
			t.Spawn(func(t *fill.Task) error {
				t.AwaitPoint(points.Point(name), r.at(i, 0, 1))
				r.log("%s", name)
				return nil
			})
		}
		t.Spawn(func(t *fill.Task) error {
			r.log("%v", t.AwaitPointUntil(points.Point("a"), r.at(0, 1, 1), 3*ms))
			return nil
		})
		t.Await(r.at(2, 0, 1))
		r.log("main")
		return nil
	})
	r.wantTrace(
		"0s park on [2] until 1ms",
		"1ms park on [2] until 2ms",
		"1.5ms main",
		"1.5ms sleep until 2ms", // to the prediction of b
		"2ms park on [1] until 3ms",
		"3ms false",
		"3ms park on [1] until 4ms",
		"4ms park on [1 0] until 5ms",
		"4.5ms b",
		"4.5ms park on [0] until 5.5ms",
		"5ms a",
	)
	wantPoint(t, points.Point("a"), 4150*us, 2, 0)
	wantPoint(t, points.Point("b"), 2150*us, 2, 0)
}

// A completion found after a long poll is an upper bound: it counts only where
// it lowers the prediction.
func TestCompletionDuringPoll(t *testing.T) {
	for _, c := range []struct {
		name       string
		known      time.Duration
		poll       time.Duration
		prediction time.Duration
		samples    uint64
	}{
		{"short poll", 0, 1200 * us, 10800 * us, 1},
		{"long poll, nothing known", 0, 7 * ms, 0, 0},
		{"long poll, less predicted", 9 * ms, 7 * ms, 9 * ms, 1},
		{"long poll, more predicted", 15 * ms, 7 * ms, 14 * ms, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1)
			p := newPoints(t).Point("p")
			if c.known > 0 {
				p.Exact(c.known)
			}
			r.store(10*ms, 0, 0, 1)
			r.mustRun(func(t *fill.Task) error {
				t.Spawn(func(t *fill.Task) error {
					for r.clock.Now() < 10*ms {
						r.work(c.poll)
						t.Yield()
					}
					return nil
				})
				t.AwaitPoint(p, r.at(0, 0, 1))
				return nil
			})
			wantPoint(t, p, c.prediction, c.samples, 0)
		})
	}
}

// A completion before its predicted time, while the run parks on another line, is
// seen when that park is over: an upper bound, which lowers the prediction.
func TestCompletionBeforePrediction(t *testing.T) {
	r := newRig(t, 2)
	p := newPoints(t).Point("p")
	p.Exact(5 * ms)
	r.store(1300*us, 0, 0, 1)
	r.store(2500*us, 1, 0, 1)
	r.mustRun(func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error { t.Await(r.at(1, 0, 1)); return nil })
		t.AwaitPoint(p, r.at(0, 0, 1))
		r.log("done")
		return nil
	})
	r.wantTrace("0s park on [1] until 1ms", "1ms park on [1] until 2ms", "2ms done", "2ms park on [1] until 3ms")
	wantPoint(t, p, 2*ms, 2, 0)
}

func TestPredictionNaive(t *testing.T) {
	r := newRig(t, 1)
	r.opt.Executor = fill.Naive
	p := newPoints(t).Point("p")
	r.store(1*ms, 0, 0, 1)
	r.store(2*ms, 0, 0, 2)
	r.store(2500*us, 0, 0, 3)
	r.mustRun(func(t *fill.Task) error {
		for n := uint64(1); n <= 3; n++ {
			t.AwaitPoint(p, r.at(0, 0, n))
		}
		return nil
	})
	r.wantTrace(
		"0s park on [0] until 1ms",
		"1ms sleep until 1.85ms",
		"1.85ms park on [0] until 2.85ms",
		"2ms sleep until 2.85ms",
	)
	wantPoint(t, p, 425*us, 3, 1)
}

func TestWritePoints(t *testing.T) {
	points := newPoints(t)
	points.Point("cold")
	points.Point("decode").Exact(2 * ms)
	points.Point("decode").Late(2 * ms)
	var b strings.Builder
	if err := fill.WritePoints(&b, points); err != nil {
		t.Fatal(err)
	}
	want := "   point  prediction  sleep  waits  late\n" +
		"    cold        none     0s      0     0\n" +
		"  decode         1ms  850µs      2     1\n"
	if b.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", b.String(), want)
	}
	if err := fill.WritePoints(badWriter{}, points); err == nil {
		t.Error("the writer's error is lost")
	}
}

type badWriter struct{}

func (badWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

func ExampleWritePoints() {
	p, err := plan.Parse("poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8")
	if err != nil {
		fmt.Println(err)
		return
	}
	prediction, _ := p.Prediction()
	points := plan.NewEstimator[string](prediction)
	points.Point("prefill").Exact(12 * time.Millisecond)
	points.Point("decode").Exact(2 * time.Millisecond)
	if err := fill.WritePoints(os.Stdout, points); err != nil {
		fmt.Println(err)
	}
	// Output:
	//     point  prediction    sleep  waits  late
	//   prefill        12ms  11.85ms      1     0
	//    decode         2ms   1.85ms      1     0
}

// port is the scripted device's side of one wait.
type port struct {
	r      *rig
	d      line.Descriptor
	done   time.Duration // when the status says done
	fails  error         // what it says instead
	stores bool          // the store lands when the work is done
	calls  []string
}

func (p *port) call(name string) { p.calls = append(p.calls, fmt.Sprint(p.r.clock.Now(), " ", name)) }

func (p *port) Query() (bool, error) {
	p.call("query")
	if p.r.clock.Now() < p.done {
		return false, nil
	}
	return p.fails == nil, p.fails
}

func (p *port) Block() error {
	p.call("block")
	p.r.clock.AdvanceTo(p.done)
	return p.fails
}

func (p *port) Poll() error {
	p.call("poll")
	return p.fails
}

func (p *port) Arm() error {
	p.call("arm")
	if p.stores {
		p.r.clock.At(p.done, func() { p.d.Word().Store(p.d.Target) })
	}
	return nil
}

func (p *port) Park(time.Duration) bool { panic("the run parks, not the port") }

func TestWaitPlan(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name     string
		plan     string
		executor fill.Executor
		known    time.Duration // residual that the point knows
		port     port
		calls    string
		report   event.Report
		err      error
	}{
		{
			name: "block", plan: "block", port: port{done: 3 * ms},
			calls:  "0s block",
			report: event.Report{Kind: event.Blocked, Wait: 3 * ms},
		}, {
			name: "naive", plan: flagPlan + "+" + predict, executor: fill.Naive, port: port{done: 3 * ms},
			calls:  "0s block",
			report: event.Report{Kind: event.Blocked, Wait: 3 * ms},
		}, {
			name: "immediate", plan: flagPlan, port: port{},
			calls:  "0s query",
			report: event.Report{Kind: event.Immediate, Outcome: event.Exact},
		}, {
			name: "flag", plan: flagPlan, port: port{done: 2500 * us, stores: true},
			calls:  "0s query, 0s arm, 1ms query, 2ms query, 2.5ms poll",
			report: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 2500 * us, Parks: 3, Queries: 2},
		}, {
			name: "store lost", plan: flagPlan, port: port{done: 1500 * us},
			calls:  "0s query, 0s arm, 1ms query, 2ms query",
			report: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 2 * ms, Parks: 2, Queries: 2},
		}, {
			name: "work fails", plan: flagPlan, port: port{done: 1500 * us, fails: broken},
			calls:  "0s query, 0s arm, 1ms query, 2ms query",
			report: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 2 * ms, Parks: 2, Queries: 2}, err: broken,
		}, {
			name: "store lands but work failed", plan: flagPlan, port: port{done: 500 * us, fails: broken, stores: true},
			calls:  "0s query, 0s arm, 500µs poll",
			report: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 500 * us, Parks: 1}, err: broken,
		}, {
			name: "late", plan: flagPlan + "+" + predict, known: 2150 * us, port: port{done: 1 * ms, stores: true},
			calls:  "0s query, 0s arm, 2ms query",
			report: event.Report{Kind: event.LateKind, Outcome: event.Late, Wait: 2 * ms, Slept: 2 * ms},
		}, {
			name: "in time", plan: flagPlan + "+" + predict, known: 2150 * us, port: port{done: 2200 * us, stores: true},
			calls:  "0s query, 0s arm, 2ms query, 2.2ms poll",
			report: event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 2200 * us, Slept: 2 * ms, Parks: 1},
		}, {
			name: "poll, late", plan: "poll+" + predict, known: 2150 * us, port: port{done: 1 * ms},
			calls:  "0s query, 2ms query",
			report: event.Report{Kind: event.LateKind, Outcome: event.Late, Wait: 2 * ms, Slept: 2 * ms},
		}, {
			name: "query fails at once", plan: flagPlan, port: port{fails: broken},
			calls: "0s query", report: event.Report{}, err: broken,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.opt.Executor = c.executor
			c.port.r, c.port.d = r, r.at(0, 3, 7)
			p := newPoints(t).Point("p")
			if c.known > 0 {
				p.Exact(c.known)
			}
			s := r.mustRun(func(task *fill.Task) error {
				report, err := task.WaitPlan(mustParse(t, c.plan), p, &c.port, c.port.d)
				if err != c.err {
					t.Errorf("error %v, want %v", err, c.err)
				}
				if err == nil && report != c.report || err != nil && report.Wait != c.report.Wait {
					t.Errorf("report %+v, want %+v", report, c.report)
				}
				return nil
			})
			if s.Idle != r.clock.Now() || s.Blocked != uint64(strings.Count(c.calls, "block")) {
				t.Errorf("idle for %v of %v, %d waits blocked", s.Idle, r.clock.Now(), s.Blocked)
			}
			if got := strings.Join(c.port.calls, ", "); got != c.calls {
				t.Errorf("calls %s, want %s", got, c.calls)
			}
		})
	}
}

// A poll plan queries between the polls of other tasks.
func TestWaitPlanPolls(t *testing.T) {
	r := newRig(t, 1)
	pt := &port{r: r, done: 3 * ms}
	worked := 0
	r.mustRun(func(task *fill.Task) error {
		task.Spawn(func(task *fill.Task) error {
			for range 5 {
				r.work(ms)
				worked++
				task.Yield()
			}
			return nil
		})
		report, err := task.WaitPlan(mustParse(t, "poll"), nil, pt, line.Descriptor{})
		want := event.Report{Kind: event.Parked, Outcome: event.Exact, Wait: 3 * ms}
		if err != nil || report != want || worked != 3 {
			t.Errorf("%+v, %v after %d ms of work; want %+v after 3", report, err, worked, want)
		}
		return nil
	})
}

// stream is a gpu.Stream as a test needs it.
type stream struct {
	r       *rig
	failAt  time.Duration
	failure error
	waits   int
}

func (s *stream) Descriptor(seq uint64) (line.Descriptor, error) {
	if seq == 0 {
		return line.Descriptor{}, event.New(event.NotMarked, "stream", "0", "9")
	}
	return s.r.at(0, 0, seq), s.broken()
}

func (s *stream) broken() error {
	if s.failure != nil && s.r.clock.Now() >= s.failAt {
		return s.failure
	}
	return nil
}

func (s *stream) Wait(_ context.Context, seq uint64) error {
	s.waits++
	for !s.r.lines[0][0].Reached(seq) {
		next, ok := s.r.clock.Next()
		if !ok {
			return errors.New("nothing will happen")
		}
		s.r.clock.AdvanceTo(next)
	}
	return s.broken()
}

func TestWaitStream(t *testing.T) {
	for _, e := range []fill.Executor{fill.GPUReactor, fill.Naive} {
		r := newRig(t, 1)
		r.opt.Executor = e
		s := &stream{r: r}
		p := newPoints(t).Point("p")
		r.store(25*ms, 0, 0, 5)
		other := 0
		r.mustRun(func(task *fill.Task) error {
			task.Spawn(func(task *fill.Task) error {
				for range 10 {
					task.Sleep(ms)
					if !r.lines[0][0].Reached(5) {
						other++
					}
				}
				return nil
			})
			if err := task.WaitPoint(p, s, 5); err != nil || r.clock.Now() != 25*ms || s.waits != 1 {
				t.Errorf("%v: %v at %v after %d waits", e, err, r.clock.Now(), s.waits)
			}
			if err := task.Wait(s, 3); err != nil {
				t.Error(err)
			}
			if e == fill.GPUReactor {
				if err := task.Wait(s, 0); !errors.Is(err, event.NotMarked) {
					t.Errorf("%v, want NotMarked", err)
				}
			}
			return nil
		})
		if want := map[fill.Executor]int{fill.GPUReactor: 10, fill.Naive: 0}[e]; other != want {
			t.Errorf("%v: %d turns of the other task during the wait, want %d", e, other, want)
		}
		if e == fill.GPUReactor {
			wantPoint(t, p, 25*ms, 1, 0)
		}
	}
}

// A failure of the device ends the wait although the word never moves, and a
// reached word is not success when the stream says otherwise.
func TestWaitStreamFails(t *testing.T) {
	r := newRig(t, 1)
	lost := event.New(event.DeviceLost, "soft 0", "pulled out")
	s := &stream{r: r, failAt: 15 * ms, failure: lost}
	r.mustRun(func(task *fill.Task) error {
		if err := task.Wait(s, 1); err != error(lost) || r.clock.Now() != 30*ms {
			t.Errorf("%v at %v, want the device lost, seen at 30ms", err, r.clock.Now())
		}
		r.lines[0][0].Store(1)
		if err := task.Wait(s, 1); err != error(lost) {
			t.Errorf("%v, want the device lost", err)
		}
		return nil
	})
}

// nappingIdle says when its parks last saw the words unchanged.
type nappingIdle struct {
	fill.Idle
	looked time.Duration
}

func (i nappingIdle) Looked() time.Duration { return i.looked }

// Of a wait whose end a nap found only the part up to the look before the nap
// counts; a look from before the wait says nothing.
func TestNapsDoNotLengthenPredictions(t *testing.T) {
	for looked, want := range map[time.Duration]time.Duration{2500 * us: 1500 * us, 500 * us: 2 * ms} {
		r := newRig(t, 1)
		r.opt.Idle = nappingIdle{r.opt.Idle, looked}
		p := newPoints(t).Point("p")
		r.store(3*ms, 0, 0, 1)
		r.mustRun(func(t *fill.Task) error {
			t.Sleep(1 * ms)
			t.AwaitPoint(p, r.at(0, 0, 1))
			return nil
		})
		wantPoint(t, p, want, 1, 0)
	}
}
