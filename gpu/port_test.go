package gpu_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// One wait by every plan, through the port of every driver.
func TestPort(t *testing.T) {
	plans := []string{
		"block", "poll", "flag:park_us=100,backstop_us=1000", "staged:spin_us=50,nap_us=50,backstop_us=1000",
		"park:park_us=20,spin_us=50,nap_us=50,backstop_us=300",
	}
	for name, mk := range drivers {
		t.Run(name, func(t *testing.T) {
			d, err := gpu.Open(context.Background(), gpu.Using(mk(t)))
			must(t, err)
			defer d.Close()
			s, err := d.NewStream()
			must(t, err)
			ss, isSoft := soft.Of(s)
			for _, text := range plans {
				p, err := plan.Parse(text)
				must(t, err)
				for _, sleep := range []time.Duration{0, 100 * time.Microsecond, 3 * time.Millisecond} {
					if isSoft {
						must(t, ss.Work(time.Millisecond))
					}
					r, err := poller.Run(p, sleep, s.Port(), event.RealClock{})
					must(t, err)
					if done, err := s.Driver().Query(); !done || err != nil {
						t.Errorf("%s, sleep %v: ended before the work: %v, %v (%+v)", text, sleep, done, err, r)
					}
					if isSoft && (p.Kind() == plan.Block) != (r.Kind == event.Blocked) {
						t.Errorf("%s: report %+v", text, r)
					}
				}
			}
			if isSoft {
				must(t, ss.Fail(errors.New("bad pointer")))
				if _, err := poller.Run(plan.Default(plan.Caps{}), 0, s.Port(), event.RealClock{}); err == nil {
					t.Error("success for failed work")
				}
			}
		})
	}
	if _, err := (*gpu.Stream)(nil).Port().Query(); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
}
