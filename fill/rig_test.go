package fill_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// rig is a run on virtual time with a scripted device, and a trace of what
// happened.
type rig struct {
	t     testing.TB
	clock *event.ManualClock
	lines []line.Line
	trace []string
	opt   fill.Options
}

func newRig(t testing.TB, lines int) *rig {
	m, err := line.Map(lines, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, clock: event.NewManualClock(), lines: m.Lines[:lines]}
	r.opt = fill.Options{Clock: r.clock, Idle: tracingIdle{fill.ManualIdle{Clock: r.clock}, r}}
	return r
}

func (r *rig) log(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf("%v ", r.clock.Now())+fmt.Sprintf(format, args...))
}

// at is the descriptor of a word.
func (r *rig) at(l, slot int, target uint64) line.Descriptor {
	s, err := line.NewSlot(slot)
	if err != nil {
		r.t.Fatal(err)
	}
	return line.Descriptor{Line: &r.lines[l], Slot: s, Target: target}
}

// store makes the device store v into a word at a stated time.
func (r *rig) store(at time.Duration, l, slot int, v uint64) {
	r.clock.At(at, func() { r.lines[l][slot].Store(v) })
}

// work is CPU work: the task keeps the thread.
func (r *rig) work(d time.Duration) { r.clock.Advance(d) }

func (r *rig) run(main func(*fill.Task) error) (fill.Stats, error) {
	return fill.Run(context.Background(), r.opt, main)
}

func (r *rig) mustRun(main func(*fill.Task) error) fill.Stats {
	r.t.Helper()
	s, err := r.run(main)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) wantTrace(want ...string) {
	r.t.Helper()
	if got, want := strings.Join(r.trace, "\n"), strings.Join(want, "\n"); got != want {
		r.t.Errorf("trace:\n%s\nwant:\n%s", got, want)
	}
}

func (r *rig) index(l *line.Line) int {
	for i := range r.lines {
		if &r.lines[i] == l {
			return i
		}
	}
	return -1
}

type tracingIdle struct {
	fill.ManualIdle
	r *rig
}

func (i tracingIdle) SleepUntil(t time.Duration) {
	i.r.log("sleep until %v", t)
	i.ManualIdle.SleepUntil(t)
}

func (i tracingIdle) Park(lines []*fill.Watch, since, until time.Duration) {
	var n []int
	for _, w := range lines {
		n = append(n, i.r.index(w.Line))
	}
	i.r.log("park on %v until %v", n, until)
	i.ManualIdle.Park(lines, since, until)
}
