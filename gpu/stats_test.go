package gpu_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

// The health tick's queries and what was chosen instead of what was asked for are
// counted.
func TestStatsCountBackstopAndFallbacks(t *testing.T) {
	d := openSoft(t, soft.Config{}, gpu.WithHealth(time.Millisecond, time.Second, time.Second), gpu.WithPlan("flag:park_us=100,backstop_us=1000"))
	if n := d.Stats().Fallbacks; n != len(d.Warnings()) {
		t.Errorf("%d fallbacks, warnings %v", n, d.Warnings())
	}
	s, ss := newStream(t, d)
	open, err := ss.Gate()
	must(t, err)
	done := gpu.Done(s, markOn(t, s))
	for before := d.Stats().Backstop; d.Stats().Backstop < before+4; { // two rounds: the device and the stream
		runtime.Gosched()
	}
	open()
	<-done
	must(t, s.Err())
}
