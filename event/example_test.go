package event_test

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpuline/gpuline/event"
)

func ExampleError() {
	err := fmt.Errorf("serving: %w", event.New(event.Closed, "cuda:0/stream1"))
	fmt.Println(err)
	fmt.Println(errors.Is(err, event.Closed), errors.Is(err, os.ErrClosed))
	var e *event.Error
	if errors.As(err, &e) {
		fmt.Println(e.Code.String(), uint16(e.Code), e.Args)
	}
	// Output:
	// serving: gpuline: cuda:0/stream1 is closed
	// true true
	// Closed 10 [cuda:0/stream1]
}

func ExampleManualClock() {
	c := event.NewManualClock()
	say := func(what string) func() { return func() { fmt.Println(c.Now(), what) } }
	c.At(2*time.Millisecond, say("second"))
	c.At(time.Millisecond, say("first"))
	c.At(2*time.Millisecond, say("third"))
	cancel := c.At(3*time.Millisecond, say("never"))
	c.Advance(2 * time.Millisecond)
	fmt.Println(cancel())
	c.SleepUntil(time.Second)
	fmt.Println(c.Now())
	// Output:
	// 1ms first
	// 2ms second
	// 2ms third
	// true
	// 1s
}
