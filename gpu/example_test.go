package gpu_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

// launch stands for whatever queues work on the stream.
func launch(s *gpu.Stream, d time.Duration) {
	if ss, ok := soft.Of(s); ok {
		if err := ss.Work(d); err != nil {
			log.Fatal(err)
		}
	}
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	dev, err := gpu.Open(ctx, gpu.WithDriver("soft"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	stream, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	launch(stream, time.Millisecond)
	seq, err := stream.Mark()
	if err != nil {
		log.Fatal(err)
	}
	select {
	case <-gpu.Done(stream, seq):
		fmt.Println("done, error:", stream.Err())
	case <-ctx.Done():
		fmt.Println(ctx.Err())
	}
	// Output: done, error: <nil>
}

func ExampleStream_Wait() {
	dev, err := gpu.Open(context.Background(), gpu.WithDriver("soft"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	stream, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	launch(stream, time.Hour)
	seq, err := stream.Mark()
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err = stream.Wait(ctx, seq) // the work goes on, the wait does not
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	device, _ := soft.DeviceOf(dev)
	device.Lose("it fell off the bus")
	err = stream.Wait(context.Background(), seq)
	fmt.Println(errors.Is(err, event.DeviceLost))
	// Output:
	// true
	// true
}

func ExampleWaitAny() {
	dev, err := gpu.Open(context.Background(), gpu.WithDriver("soft"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	var points []gpu.Point
	for _, d := range []time.Duration{time.Hour, time.Millisecond} {
		s, err := dev.NewStream()
		if err != nil {
			log.Fatal(err)
		}
		launch(s, d)
		seq, err := s.Mark()
		if err != nil {
			log.Fatal(err)
		}
		points = append(points, gpu.Point{Stream: s, Seq: seq})
	}
	i, err := gpu.WaitAny(context.Background(), points...)
	fmt.Println(i, err)
	device, _ := soft.DeviceOf(dev)
	device.Lose("an hour is too long for an example")
	// Output: 1 <nil>
}

func ExampleStream_CopyToDevice() {
	ctx := context.Background()
	dev, err := gpu.Open(ctx, gpu.WithDriver("soft"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	stream, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	mem, err := dev.Alloc(5)
	if err != nil {
		log.Fatal(err)
	}
	// The source stays reachable and pinned until the device has read it.
	if _, err := stream.CopyToDevice(mem, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	back := make([]byte, 5)
	seq, err := stream.CopyToHost(back, mem)
	if err != nil {
		log.Fatal(err)
	}
	if err := stream.Wait(ctx, seq); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", back)
	// Output: hello
}

func ExampleDevice_Adopt() {
	ctx := context.Background()
	dev, err := gpu.Open(ctx, gpu.WithDriver("soft"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	// A stream that other code made, of which only the handle is known.
	other, err := dev.Driver().NewStream()
	if err != nil {
		log.Fatal(err)
	}
	stream, err := dev.Adopt(other.Handle())
	if err != nil {
		log.Fatal(err)
	}
	seq, err := stream.Mark()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stream.Wait(ctx, seq))
	// Output: <nil>
}

func ExampleOpen_plan() {
	dev, err := gpu.Open(context.Background(), gpu.WithDriver("soft"),
		gpu.WithPlan("staged:spin_us=50,nap_us=200,backstop_us=1000+predict:margin_us=100,min_sleep_us=20,max_sleep_us=50000,window=8"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	_, err = gpu.Open(context.Background(), gpu.WithPlan("naps"))
	fmt.Println(errors.Is(err, event.InvalidPlan))
	// Output: true
}

func ExampleDevice_Var() {
	dev, err := gpu.Open(context.Background(), gpu.WithDriver("soft"))
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	if expvar.Get("gpu") == nil { // a name can be published once per process
		expvar.Publish("gpu", dev.Var())
	}
	fmt.Println(expvar.Get("gpu").String()[:10])
	// Output: {"Waiter":
}
