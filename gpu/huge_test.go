package gpu_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/poller"
)

func TestHugeDurations(t *testing.T) {
	d := openSoft(t, soft.Config{})
	s, ss := newStream(t, d)
	must(t, ss.Work(math.MaxInt64))
	seq := markOn(t, s)
	wt, c := poller.NewWait()
	wt.Look = math.MaxInt64
	if ok, err := s.Notify(wt, seq); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx, seq); err == nil {
		t.Error("work of 292 years is done")
	}
	if !wt.Cancel() || len(c) != 0 {
		t.Error("a look in 292 years has come")
	}
	sd, _ := soft.DeviceOf(d)
	sd.Lose("the test is over")
}
