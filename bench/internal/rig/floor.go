package rig

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

// A floor is the fastest that something can be woken in one way on this machine,
// with nothing of Go's scheduler in it: what the methods are to be held against.
type floor struct {
	name, what string
	// run takes latencies until the time is over, each with the CPU time that the
	// threads spent on it.
	run func(j Job, note func(ns int64, cpu time.Duration)) error
}

func floors() []floor {
	return append([]floor{
		{"spinning reader", "a thread that does nothing but look at the word", spinningReader},
	}, rawFloors()...)
}

// Floors returns the names of the floors with what they are.
func Floors() (names, what []string) {
	for _, f := range floors() {
		names, what = append(names, f.name), append(what, f.what)
	}
	return names, what
}

func runFloor(j Job) (Answer, error) {
	for _, f := range floors() {
		if f.name != j.Name {
			continue
		}
		h := result.NewHist()
		start, spent := time.Now(), time.Duration(0)
		if err := f.run(j, func(ns int64, cpu time.Duration) {
			_ = h.RecordValue(max(1, ns))
			spent += cpu
		}); err != nil {
			return Answer{}, err
		}
		return Answer{Sample: result.Sample{
			Seconds: time.Since(start).Seconds(), N: h.TotalCount(),
			P50: float64(h.ValueAtQuantile(50)), P99: float64(h.ValueAtQuantile(99)),
			P999: float64(h.ValueAtQuantile(99.9)), Max: float64(h.Max()), Hist: result.Encode(h),
			PerWait: float64(spent) / float64(max(1, h.TotalCount())),
		}}, nil
	}
	return Answer{}, fmt.Errorf("no floor %q", j.Name)
}

// floorWork is the device time, or the sleep, before each wake: long enough for the
// other processors to fall idle.
const floorWork = 300 * time.Microsecond

func spinningReader(j Job, note func(int64, time.Duration)) error {
	d, err := gpu.Open(context.Background(), gpu.Using(soft.New(soft.Config{Process: true})))
	if err != nil {
		return err
	}
	defer d.Close()
	p, err := gpu.MapLine(d.Driver())
	if err != nil {
		return err
	}
	defer p.Close()
	if j.Realtime {
		if err := hurry(d); err != nil {
			return err
		}
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	ss, _ := soft.Of(s)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	word := p.Word(0)
	for v, end := uint64(1), time.Now().Add(j.Measure); time.Now().Before(end); v++ {
		if err := ss.Work(floorWork); err != nil {
			return err
		}
		if err := p.Store(ss, 0, v); err != nil {
			return err
		}
		cpu := sys.ThreadCPU()
		for word.Load() != v {
		}
		now := soft.Now()
		if v > 20 {
			note(int64(now-ss.StoreTime(v)), sys.ThreadCPU()-cpu)
		}
	}
	return nil
}
