// Command select is the smallest use of gpuline: queue work, mark it, and await
// the mark in a select beside a context and a channel of requests.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
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
	if device, ok := soft.Of(stream); ok {
		if err := device.Work(3 * time.Millisecond); err != nil { // what a kernel launch is elsewhere
			log.Fatal(err)
		}
	}
	seq, err := stream.Mark()
	if err != nil {
		log.Fatal(err)
	}
	requests := make(chan string, 1)
	requests <- "a request that arrives meanwhile"
	for {
		select {
		case <-gpu.Done(stream, seq):
			if err := stream.Err(); err != nil {
				log.Fatal(err)
			}
			fmt.Println("the device is done")
			return
		case req := <-requests:
			fmt.Println("served:", req)
		case <-ctx.Done():
			log.Fatal(ctx.Err())
		}
	}
}
