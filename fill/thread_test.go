package fill

import (
	"testing"
	"time"
)

// countingSleeper does not sleep.
type countingSleeper int

func (*countingSleeper) enter() error          { return nil }
func (*countingSleeper) leave()                {}
func (*countingSleeper) wake()                 {}
func (n *countingSleeper) sleep(time.Duration) { *n++ }

// What sleeps were late by once is forgotten when it keeps short ones from being slept
// at all: else they would spin for ever after a noisy moment.
func TestOversleepIsForgotten(t *testing.T) {
	n := new(countingSleeper)
	i := newThreadIdle(n, 0, 0)
	i.oversleep = maxOversleep
	for turns := 0; *n == 0; turns++ {
		if turns > 1000 {
			t.Fatalf("never slept; oversleep %v", i.oversleep)
		}
		i.SleepUntil(i.clock.Now() + 80*time.Microsecond)
	}
}
