package fill_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
)

// model is the executor's contract, stated with linear searches over what every
// task waits for. It is told of every step that a run takes and says whether the
// contract allows it.
type model struct {
	r      *rig
	bound  time.Duration
	tasks  []*modelTask
	ready  []*modelTask
	woken  [][]*modelTask // one batch per look
	quota  int            // -1: not set since the last ready task ran
	idle   bool
	since  time.Duration
	waited int
	steps  int
	faults []string

	points    *plan.Estimator[int]
	predicted int
}

const noDeadline = time.Duration(1 << 62)

type modelTask struct {
	id       int
	waiting  bool
	d        line.Descriptor
	deadline time.Duration
	look     time.Duration // no park for it before that
	order    int
	reached  bool // why it was woken
}

func (m *model) fault(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf("%v: ", m.r.clock.Now())+fmt.Sprintf(format, args...))
}

func (m *model) spawned() *modelTask {
	t := &modelTask{id: len(m.tasks)}
	m.tasks = append(m.tasks, t)
	m.ready = append(m.ready, t)
	return t
}

// wait is told that t is about to wait, and returns whether that takes no time.
func (m *model) wait(t *modelTask, d line.Descriptor, deadline time.Duration) (atOnce bool) {
	if d.Reached() || deadline <= m.r.clock.Now() {
		return true
	}
	m.waited++
	t.waiting, t.d, t.deadline, t.look, t.order = true, d, deadline, 0, m.waited
	return false
}

func (m *model) yield(t *modelTask) { m.ready = append(m.ready, t) }

// look makes one batch of what has happened.
func (m *model) look() {
	now := m.r.clock.Now()
	var batch []*modelTask
	for _, t := range m.tasks {
		if !t.waiting {
			continue
		}
		t.reached = t.d.Reached()
		if t.reached || t.deadline <= now {
			t.waiting = false
			batch = append(batch, t)
		}
	}
	if batch != nil {
		m.woken = append(m.woken, batch)
	}
}

func (m *model) wokenN() (n int) {
	for _, b := range m.woken {
		n += len(b)
	}
	return n
}

// polled is told that t runs.
func (m *model) polled(t *modelTask) {
	m.look()
	m.idle = false
	m.steps++
	n := m.wokenN()
	if m.quota < 0 {
		m.quota = n
	}
	if n == 0 || m.quota == 0 && len(m.ready) > 0 {
		m.quota = -1
		if len(m.ready) == 0 || m.ready[0] != t {
			m.fault("task %d runs, want the first of %v", t.id, ids(m.ready))
			return
		}
		m.ready = m.ready[1:]
		return
	}
	m.quota = max(0, m.quota-1)
	batch := m.woken[0]
	i := slices.Index(batch, t)
	if i < 0 {
		m.fault("task %d runs, want one of the woken %v", t.id, ids(batch))
		return
	}
	for _, o := range batch {
		if o != t && mustPrecede(o, t) {
			m.fault("task %d runs before task %d", t.id, o.id)
		}
	}
	if batch = slices.Delete(batch, i, i+1); len(batch) == 0 {
		m.woken = m.woken[1:]
	} else {
		m.woken[0] = batch
	}
}

// mustPrecede is the order within a batch. Between words there is none.
func mustPrecede(a, b *modelTask) bool {
	switch {
	case a.reached != b.reached:
		return a.reached // deadlines are looked at after the words
	case !a.reached:
		return a.deadline < b.deadline || a.deadline == b.deadline && a.order < b.order
	case a.d.Word() != b.d.Word():
		return false
	}
	return line.Before(a.d.Target, b.d.Target) || a.d.Target == b.d.Target && a.order < b.order
}

func ids(tasks []*modelTask) (out []int) {
	for _, t := range tasks {
		out = append(out, t.id)
	}
	return out
}

// rest is told that the run is about to sleep or park until a time.
func (m *model) rest(park []*fill.Watch, since, until time.Duration) {
	m.look()
	m.steps++
	now := m.r.clock.Now()
	if n := m.wokenN() + len(m.ready); n > 0 {
		m.fault("idle with %d tasks ready", n)
	}
	m.quota = -1
	if !m.idle {
		m.idle, m.since = true, now
	}
	first := noDeadline
	lines := map[*line.Line]bool{}
	for _, t := range m.tasks {
		if t.waiting {
			first = min(first, t.deadline)
		}
		switch {
		case !t.waiting || !t.d.Valid():
		case t.look > now:
			first = min(first, t.look)
		default:
			lines[t.d.Line] = true
		}
	}
	if park == nil {
		if len(lines) > 0 || until != first {
			m.fault("sleep until %v with %d lines waited for and %v the earliest time", until, len(lines), first)
		}
		m.since = until
		return
	}
	if want := min(first, now+m.bound); until != want {
		m.fault("park until %v, want %v", until, want)
	}
	if since != m.since {
		m.fault("park of an idle stretch since %v, want %v", since, m.since)
	}
	if len(park) != len(lines) {
		m.fault("park on %d lines, want %d", len(park), len(lines))
	}
	for _, w := range park {
		if !lines[w.Line] {
			m.fault("park on line %d, which nobody waits for", m.r.index(w.Line))
		}
		delete(lines, w.Line)
		if w.Changed() {
			m.fault("what was seen of line %d is out of date before the park", m.r.index(w.Line))
		}
	}
}

type modelIdle struct {
	fill.ManualIdle
	m *model
}

func (i modelIdle) SleepUntil(t time.Duration) {
	i.m.rest(nil, 0, t)
	i.ManualIdle.SleepUntil(t)
}

func (i modelIdle) Park(lines []*fill.Watch, since, until time.Duration) {
	i.m.rest(lines, since, until)
	i.ManualIdle.Park(lines, since, until)
}

// program is a random task: a list of steps drawn beforehand.
type program []step

type step struct {
	op       int
	line     int
	slot     int
	ahead    uint64 // of the word's value at the start
	d        time.Duration
	children []program
}

const (
	opAwait = iota
	opAwaitUntil
	opAwaitPoint
	opAwaitNothing // a descriptor of no line, with a deadline
	opSleep
	opYield
	opWork
	opStore
	opSpawn
	ops
)

const (
	modelLines = 5
	modelAhead = 12
)

func randomProgram(rng *rand.Rand, depth int) program {
	p := make(program, rng.IntN(7))
	for i := range p {
		s := &p[i]
		s.op = rng.IntN(ops)
		s.line, s.slot = rng.IntN(modelLines), rng.IntN(2)
		s.ahead = 1 + rng.Uint64N(modelAhead)
		s.d = time.Duration(rng.IntN(20)) * ms / 4
		if s.op == opSpawn && depth < 3 {
			for range 1 + rng.IntN(3) {
				s.children = append(s.children, randomProgram(rng, depth+1))
			}
		}
	}
	return p
}

// play runs one task of a program and tells the model about each step.
func (m *model) play(t *fill.Task, mt *modelTask, start []uint64, p program) {
	m.polled(mt)
	r := m.r
	for _, s := range p {
		d := r.at(s.line, s.slot, start[s.line]+s.ahead)
		switch s.op {
		case opAwait:
			atOnce := m.wait(mt, d, noDeadline)
			t.Await(d)
			if !atOnce {
				m.polled(mt)
			}
			if !d.Reached() {
				m.fault("task %d resumed before its target", mt.id)
			}
		case opAwaitUntil, opAwaitPoint, opAwaitNothing:
			if s.op == opAwaitNothing {
				d = line.Descriptor{}
			}
			deadline := r.clock.Now() + s.d
			atOnce := m.wait(mt, d, deadline)
			mt.reached = d.Reached()
			var p *plan.Point
			if s.op == opAwaitPoint {
				p = m.points.Point(s.line)
				if sleep := p.Sleep(); sleep > 0 {
					m.predicted++
					mt.look = r.clock.Now() + sleep
				}
			}
			got := t.AwaitPointUntil(p, d, deadline)
			if !atOnce {
				m.polled(mt)
			}
			if got != mt.reached {
				m.fault("task %d: AwaitUntil is %v, want %v", mt.id, got, mt.reached)
			}
		case opSleep:
			deadline := r.clock.Now() + s.d
			atOnce := m.wait(mt, line.Descriptor{}, deadline)
			t.Sleep(s.d)
			if !atOnce {
				m.polled(mt)
			}
			if r.clock.Now() < deadline {
				m.fault("task %d slept until %v only", mt.id, deadline)
			}
		case opYield:
			m.yield(mt)
			t.Yield()
			m.polled(mt)
		case opWork:
			r.work(s.d / 8)
		case opStore:
			w := d.Word()
			w.Store(w.Load() + 1)
		case opSpawn:
			for _, c := range s.children {
				ct := m.spawned()
				t.Spawn(func(t *fill.Task) error {
					m.play(t, ct, start, c)
					return nil
				})
			}
		}
	}
}

// TestModel runs random programs of tasks against random stores of a device and
// has the model judge every step.
func TestModel(t *testing.T) {
	runs := 1000
	if testing.Short() {
		runs = 200
	}
	seed := rand.Uint64()
	steps, stalled, predicted := 0, 0, 0
	for i := range runs {
		if t.Failed() {
			t.Fatalf("seed %d, run %d", seed, i-1)
		}
		m, err := modelRun(t, rand.New(rand.NewPCG(seed, uint64(i))))
		steps += m.steps
		predicted += m.predicted
		if err != nil {
			stalled++
		}
		for _, f := range m.faults[:min(len(m.faults), 10)] {
			t.Error(f)
		}
	}
	t.Logf("%d runs, %d steps, %d stalled, %d predictions", runs, steps, stalled, predicted)
	if steps < 10*runs || stalled == 0 || predicted < runs/10 {
		t.Error("the programs test too little")
	}
}

func modelRun(t *testing.T, rng *rand.Rand) (*model, error) {
	r := newRig(t, modelLines)
	m := &model{r: r, bound: time.Duration(1+rng.IntN(12)) * ms / 4, quota: -1}
	r.opt.ParkBound = m.bound
	r.opt.Idle = modelIdle{fill.ManualIdle{Clock: r.clock}, m}
	p, err := plan.Parse("poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=3")
	if err != nil {
		t.Fatal(err)
	}
	prediction, _ := p.Prediction()
	m.points = plan.NewEstimator[int](prediction)
	for l := range modelLines {
		for range 3 * rng.IntN(2) {
			m.points.Point(l).Exact(time.Duration(rng.IntN(40)) * ms / 4)
		}
	}
	start := make([]uint64, modelLines)
	for l := range start {
		if rng.IntN(3) == 0 {
			start[l] = -rng.Uint64N(modelAhead) // about to wrap around
		}
		for slot := range 2 {
			r.lines[l][slot].Store(start[l])
			for range rng.IntN(4) {
				at := time.Duration(rng.IntN(60)) * ms / 4
				r.clock.At(at, func() {
					w := &r.lines[l][slot]
					w.Store(w.Load() + 1)
				})
			}
			// In the end everything is reached.
			r.store(time.Duration(20+rng.IntN(20))*ms, l, slot, start[l]+modelAhead)
		}
	}
	wantStalled := rng.IntN(10) == 0
	m.spawned()
	s, err := r.run(func(t *fill.Task) error {
		if wantStalled {
			m.spawned()
			t.Spawn(func(t *fill.Task) error {
				m.polled(m.tasks[1])
				t.Await(line.Descriptor{})
				m.fault("resumed by nothing")
				return nil
			})
		}
		m.play(t, m.tasks[0], start, program{{op: opSpawn, children: []program{
			randomProgram(rng, 0), randomProgram(rng, 0), randomProgram(rng, 0), randomProgram(rng, 0),
		}}})
		return nil
	})
	if wantStalled != (err != nil) || err != nil && !errors.Is(err, event.Stalled) {
		m.fault("the run ended with %v", err)
	}
	for _, mt := range m.tasks {
		if mt.waiting {
			m.fault("task %d was left waiting", mt.id)
		}
	}
	if s.Spawned != uint64(len(m.tasks)) {
		m.fault("%d tasks, want %d", s.Spawned, len(m.tasks))
	}
	return m, err
}
