package gpu

import (
	"testing"
	"time"

	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// Of a wait that ended in a nap only the part before the nap counts: what follows
// is the nap's length as much as the work's.
func TestLearn(t *testing.T) {
	const ms = time.Millisecond
	p, err := plan.Parse("poll+predict:margin_us=100,min_sleep_us=20,max_sleep_us=50000,window=2")
	if err != nil {
		t.Fatal(err)
	}
	pred, _ := p.Prediction()
	for _, c := range []*struct {
		name string
		wt   poller.Wait // added at 0
		want time.Duration
	}{
		{"watched", poller.Wait{PendingAt: 2 * ms, DoneAt: 2*ms + 5000}, 2 * ms},
		{"napped", poller.Wait{PendingAt: 2 * ms, DoneAt: 2*ms + 200_000}, 2 * ms},
		{"found at once", poller.Wait{DoneAt: 2 * ms}, 2 * ms},
		{"late", poller.Wait{DoneAt: 4 * ms, Late: true}, 2 * ms},
		{"late after a second sleep", poller.Wait{PendingAt: 2 * ms, DoneAt: 4 * ms, LateAgain: true}, 2 * ms},
	} {
		point := plan.NewEstimator[string](pred).Point(c.name)
		learn(point, &c.wt, 0)
		if got := point.Estimate().Prediction; got != c.want {
			t.Errorf("%s: predicts %v, want %v", c.name, got, c.want)
		}
	}
}
