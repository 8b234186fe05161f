package fill_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
)

// One task waits for a device while another works. The run is on virtual time, so
// that its result is the same every time; with the zero Options it is real.
func ExampleRun() {
	page, err := line.Map(1, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer page.Close()
	clock := event.NewManualClock()
	word := &page.Lines[0][0]
	// The device stores 1 behind its work, which takes 6 ms.
	clock.At(6*time.Millisecond, func() { word.Store(1) })

	stats, err := fill.Run(context.Background(), fill.Options{Clock: clock}, func(t *fill.Task) error {
		t.Spawn(func(t *fill.Task) error {
			t.Await(line.Descriptor{Line: &page.Lines[0], Target: 1})
			fmt.Println("device done at", t.Now())
			return nil
		})
		for range 5 {
			clock.Advance(time.Millisecond) // a slice of work on the CPU
			t.Yield()
		}
		fmt.Println("host done at", t.Now())
		return nil
	})
	fmt.Println("idle", stats.Idle, "of", stats.Total, err)
	// Output:
	// host done at 5ms
	// device done at 6ms
	// idle 1ms of 6ms <nil>
}

// A goroutine does what would block the run, and wakes a task through a word.
func ExampleTask_Await() {
	page, err := line.Map(1, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer page.Close()
	ready := line.Descriptor{Line: &page.Lines[0], Target: 1}
	var answer string
	_, err = fill.Run(context.Background(), fill.Options{}, func(t *fill.Task) error {
		go func() {
			answer = "read from a file" // or a channel, or a socket
			ready.Word().Store(1)
		}()
		t.Await(ready)
		fmt.Println(answer)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: read from a file
}

// A wait with a deadline, which is a time of the run's clock.
func ExampleTask_AwaitUntil() {
	page, err := line.Map(1, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer page.Close()
	_, err = fill.Run(context.Background(), fill.Options{}, func(t *fill.Task) error {
		d := line.Descriptor{Line: &page.Lines[0], Target: 1}
		fmt.Println(t.AwaitUntil(d, t.Now()+time.Millisecond))
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: false
}
