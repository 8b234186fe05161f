package fill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
)

const us = time.Microsecond

// rehearsed is a run on virtual time that rehearses, or does not.
func rehearsed(t *testing.T, clock *event.ManualClock, rehearses bool, main func(*Task) error) (Stats, error) {
	t.Helper()
	r, err := newRun(context.Background(), Options{Clock: clock}, main)
	if err != nil {
		t.Fatal(err)
	}
	r.rehearses = rehearses
	return r.run(GPUReactor, main)
}

// soon is a stream whose work is done when a function says so.
type soon struct {
	d      line.Descriptor
	asked  int
	asking func(asked int) error
}

func (s *soon) Descriptor(seq uint64) (line.Descriptor, error) {
	s.asked++
	return line.Descriptor{Line: s.d.Line, Slot: s.d.Slot, Target: seq}, s.asking(s.asked)
}

func (s *soon) Wait(context.Context, uint64) error {
	if !s.d.Line[s.d.Slot.Index()].Reached(1) {
		return errors.New("the wait ended before the work")
	}
	return nil
}

func points[K comparable](t *testing.T) *plan.Estimator[K] {
	t.Helper()
	p, err := plan.Parse("poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=3")
	if err != nil {
		t.Fatal(err)
	}
	prediction, _ := p.Prediction()
	return plan.NewEstimator[K](prediction)
}

func pointAt(t *testing.T, prediction time.Duration) *plan.Point {
	t.Helper()
	p := points[string](t).Point("p")
	p.Exact(prediction)
	if p.Sleep() == 0 {
		t.Fatal("the point does not sleep")
	}
	return p
}

// A store that comes while the end of its wait is rehearsed ends the wait, once; an error
// that the stream reports only to the rehearsal changes nothing.
func TestStoreDuringRehearsal(t *testing.T) {
	for _, failure := range []error{nil, errors.New("only when rehearsed")} {
		var l line.Line
		slot, err := line.NewSlot(3)
		if err != nil {
			t.Fatal(err)
		}
		clock := event.NewManualClock()
		p := pointAt(t, 5*time.Millisecond)
		sleep := p.Sleep()
		s := &soon{d: line.Descriptor{Line: &l, Slot: slot}}
		s.asking = func(asked int) error {
			if asked == 1 {
				return nil
			}
			if clock.Now() != sleep {
				t.Errorf("rehearsed at %v, want %v", clock.Now(), sleep)
			}
			l[3].Store(1)
			return failure
		}
		waits := 0
		stats, err := rehearsed(t, clock, true, func(task *Task) error {
			err := task.WaitPoint(p, s, 1)
			waits++
			return err
		})
		if err != nil || waits != 1 || s.asked != 2 || clock.Now() != sleep {
			t.Errorf("%v after %d waits and %d descriptors at %v", err, waits, s.asked, clock.Now())
		}
		if row := p.Estimate(); row.Samples != 2 || row.Late != 0 {
			t.Errorf("the point learned %+v, want a second sample that is not late", row)
		}
		stats.Looks = 0
		if want := (Stats{Spawned: 1, Polls: 2, Woke: 1, Slept: 1, Idle: sleep, Total: sleep}); stats != want {
			t.Errorf("%+v, want %+v", stats, want)
		}
	}
}

func TestPanicDuringRehearsal(t *testing.T) {
	var l line.Line
	s := &soon{d: line.Descriptor{Line: &l}, asking: func(asked int) error {
		if asked > 1 {
			panic("asked twice")
		}
		return nil
	}}
	p := pointAt(t, 5*time.Millisecond)
	if _, err := rehearsed(t, event.NewManualClock(), true, func(task *Task) error { return task.WaitPoint(p, s, 1) }); !errors.Is(err, event.Panicked) {
		t.Errorf("%v, want Panicked", err)
	}
}

// Waits of all kinds end at the same times, in the same order for each word and with the
// same statistics, whether their ends are rehearsed or not.
func TestRehearsalChangesNothing(t *testing.T) {
	rehearsals := 0
	for seed := range uint64(300) {
		var logs [2][]string
		var stats [2]Stats
		for i, rehearses := range []bool{false, true} {
			logs[i], stats[i], rehearsals = randomWaits(t, seed, rehearses, rehearsals)
			stats[i].Looks = 0
		}
		if !reflect.DeepEqual(logs[0], logs[1]) || stats[0] != stats[1] {
			t.Fatalf("seed %d: without rehearsals\n%q\n%+v, with\n%q\n%+v", seed, logs[0], stats[0], logs[1], stats[1])
		}
	}
	if rehearsals < 100 {
		t.Errorf("%d rehearsals", rehearsals)
	}
}

func randomWaits(t *testing.T, seed uint64, rehearses bool, rehearsals int) ([]string, Stats, int) {
	rnd := rand.New(rand.NewPCG(seed, 9))
	clock := event.NewManualClock()
	lines := make([]line.Line, 1+rnd.IntN(3))
	e := points[int](t)
	words := make([]line.Descriptor, 1+rnd.IntN(4))
	for i := range words {
		slot, err := line.NewSlot(i)
		if err != nil {
			t.Fatal(err)
		}
		words[i] = line.Descriptor{Line: &lines[rnd.IntN(len(lines))], Slot: slot}
		at := time.Duration(0)
		for v := range uint64(20) {
			at += time.Duration(1+rnd.IntN(20)) * 100 * us
			clock.At(at, func() { words[i].Line[i].Store(v + 1) })
		}
	}
	perWord := make([]string, len(words))
	stats, err := rehearsed(t, clock, rehearses, func(task *Task) error {
		for id := range 1 + rnd.IntN(6) {
			rnd := rand.New(rand.NewPCG(seed, uint64(id)))
			task.Spawn(func(task *Task) error {
				for range 8 {
					i := rnd.IntN(len(words))
					d, p := words[i], e.Point(i)
					d.Target = min(d.Line[i].Load()+uint64(1+rnd.IntN(2)), 20)
					reached := true
					switch rnd.IntN(4) {
					case 0:
						task.Sleep(time.Duration(rnd.IntN(10)) * 100 * us)
					case 1:
						reached = task.AwaitUntil(d, task.Now()+time.Duration(rnd.IntN(30))*100*us)
					case 2:
						reached = task.AwaitPointUntil(p, d, task.Now()+time.Duration(rnd.IntN(30))*100*us)
					case 3:
						s := &soon{d: d, asking: func(int) error { return nil }}
						err := task.WaitPoint(p, s, d.Target)
						if err != nil {
							return err
						}
						if rehearses {
							rehearsals += s.asked - 1
						}
					}
					perWord[i] += fmt.Sprintf("%v: task %d to %d %v %v\n", clock.Now(), id, d.Target, reached, p.Estimate().Prediction)
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return perWord, stats, rehearsals
}
