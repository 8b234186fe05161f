package poller_test

import (
	"fmt"
	"log"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// A word that something outside the Go scheduler stores into is awaited like
// a channel.
func ExampleWaiter() {
	page, err := line.Map(1, false)
	if err != nil {
		log.Fatal(err)
	}
	defer page.Close()
	word := &page.Lines[0][0]

	w := poller.NewWaiter(poller.Config{})
	defer w.Close()
	watch, err := w.Watch(word, poller.WatchOptions{Name: "example"})
	if err != nil {
		log.Fatal(err)
	}
	wait, done := poller.NewWait()
	pending, err := watch.Add(wait, 3)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pending:", pending)
	word.Store(3) // a device would do this
	fmt.Println("error:", <-done)
	pending, _ = watch.Add(wait, 2) // reached already: nothing is registered
	fmt.Println("pending:", pending)
	// Output:
	// pending: true
	// error: <nil>
	// pending: false
}

// simulated is a port on virtual time whose work takes 300 us.
type simulated struct{ clock *event.ManualClock }

const length = 300 * time.Microsecond

func (p simulated) Query() (bool, error) { return p.clock.Now() >= length, nil }
func (p simulated) Block() error         { p.clock.AdvanceTo(length); return nil }
func (p simulated) Poll() error          { p.clock.AdvanceTo(length); return nil }
func (p simulated) Arm() error           { return nil }
func (p simulated) Park(bound time.Duration) bool {
	p.clock.AdvanceTo(min(p.clock.Now()+bound, max(length, p.clock.Now())))
	return p.clock.Now() >= length
}

// One wait, spent as its plan says, reproducible to the nanosecond.
func ExampleRun() {
	p, err := plan.Parse("staged:spin_us=50,nap_us=100,backstop_us=1000")
	if err != nil {
		log.Fatal(err)
	}
	clock := event.NewManualClock()
	report, err := poller.Run(p, 0, simulated{clock}, clock)
	fmt.Println(report.Kind, report.Outcome, report.Wait, report.Parks, err)
	// Output: parked exact 350µs 4 <nil>
}
