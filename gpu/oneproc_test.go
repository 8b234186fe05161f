package gpu_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

// With one processor a wait that keeps looking does not keep it from others: without
// yields they would get a turn at each preemption tick, 10 ms.
func TestOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, text := range []string{"poll", "flag:park_us=100,backstop_us=1000"} {
		for name, wait := range map[string]func(*gpu.Stream, uint64){
			"Wait": func(s *gpu.Stream, seq uint64) { must(t, s.Wait(t.Context(), seq)) },
			"Done": func(s *gpu.Stream, seq uint64) { <-gpu.Done(s, seq) },
		} {
			d := openSoft(t, soft.Config{}, gpu.WithPlan(text))
			s, ss := newStream(t, d)
			must(t, ss.Work(50*time.Millisecond))
			seq := markOn(t, s)
			turns, quit, gone := 0, make(chan struct{}), make(chan struct{})
			go func() {
				defer close(gone)
				for {
					select {
					case <-quit:
						return
					default:
						turns++
						runtime.Gosched()
					}
				}
			}()
			wait(s, seq)
			close(quit)
			<-gone
			if turns < 50 {
				t.Errorf("%s, %s: a neighbour had %d turns in 50 ms", text, name, turns)
			}
		}
	}
}
