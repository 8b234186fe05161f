package gpu_test

import (
	"errors"
	"testing"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

// The failure of one device ends the wait for all, also while another device is
// waited for.
func TestWaitAllSeesEveryDevice(t *testing.T) {
	a, b := openSoft(t, soft.Config{}), openSoft(t, soft.Config{})
	sa, ssa := newStream(t, a)
	sb, ssb := newStream(t, b)
	openA, err := ssa.Gate()
	must(t, err)
	openB, err := ssb.Gate()
	must(t, err)
	points := []gpu.Point{{Stream: sa, Seq: markOn(t, sa)}, {Stream: sb, Seq: markOn(t, sb)}}
	done := make(chan error, 1)
	go func() { done <- gpu.WaitAll(t.Context(), points...) }()
	lost, _ := b.Driver().(*soft.Device)
	lost.Lose("")
	if err := <-done; !errors.Is(err, event.DeviceLost) {
		t.Errorf("%v, want DeviceLost", err)
	}
	openB()
	openA()
	must(t, gpu.WaitAll(t.Context(), points[0]))
}
