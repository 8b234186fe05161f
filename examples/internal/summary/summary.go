// Package summary prints what a load cost, alike for all example servers.
package summary

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gpuline/gpuline/examples/internal/load"
	"github.com/gpuline/gpuline/examples/internal/usage"
	"github.com/gpuline/gpuline/gpu"
)

// Print writes what the clients saw, what the process used, and what the waiter
// did between two readings of the device's counters.
func Print(w io.Writer, r *load.Result, cpu usage.Usage, a, b gpu.Stats) {
	fmt.Fprintf(w, "\nanswers    %d checked, %d wrong, %d failed, %d vanished\n", r.Answered, r.Wrong, r.Failed, r.Vanished)
	fmt.Fprintf(w, "throughput %.0f/s\n", r.PerSecond())
	fmt.Fprintf(w, "latency    p50 %v  p99 %v  max %v\n", r.Quantile(0.5).Round(time.Microsecond), r.Quantile(0.99).Round(time.Microsecond), r.Quantile(1).Round(time.Microsecond))
	fmt.Fprintf(w, "process    %.2f s CPU in %.2f s (clients, server and the device's functions together), %d goroutines, %d threads\n",
		cpu.CPU.Seconds(), r.Elapsed.Seconds(), runtime.NumGoroutine(), cpu.Threads)
	wa, wb := a.Waiter, b.Waiter
	fmt.Fprintf(w, "waiter     %d completed, %d immediate, %d late; %d batches, %d looks, %d spins, %d naps, %d sleeps, %d parks; longest scan %v\n",
		wb.Completed-wa.Completed, wb.Immediate-wa.Immediate, wb.Late-wa.Late, wb.Batches-wa.Batches, wb.Looks-wa.Looks,
		wb.Spins-wa.Spins, wb.Naps-wa.Naps, wb.Sleeps-wa.Sleeps, wb.Parks-wa.Parks, wb.LongestScan)
	fmt.Fprintf(w, "left over  %d registrations, %d retained buffers, %d leaks\n", wb.Pending, b.Retained, gpu.Leaks())
}
