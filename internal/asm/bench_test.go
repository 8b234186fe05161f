package asm

import (
	"math"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"
)

// benchParks returns the pause loop and the hardware parks of this processor.
func benchParks() []Park {
	ps := []Park{{}}
	for _, k := range native {
		if p, why := Lookup(k); why == "" {
			ps = append(ps, p, p.Light())
		}
	}
	return ps
}

func (p Park) name() string {
	if p.light {
		return p.String() + "-light"
	}
	return p.String()
}

func BenchmarkPause(b *testing.B) {
	for b.Loop() {
		Pause()
	}
}

func BenchmarkTicks(b *testing.B) {
	for b.Loop() {
		Ticks()
	}
}

// BenchmarkReached is a Wait for what is there.
func BenchmarkReached(b *testing.B) {
	var w atomic.Uint64
	p, _ := Probe()
	for b.Loop() {
		p.Wait(&w, 0, time.Second)
	}
}

// BenchmarkSlice is the least that one slice costs: armed, looked, timer over.
func BenchmarkSlice(b *testing.B) {
	for _, p := range benchParks() {
		b.Run(p.name(), func(b *testing.B) {
			m := measured()
			var w, seen uint64
			for b.Loop() {
				m.slice(p.kind, &w, &seen, 1, 1, p.light)
			}
		})
	}
}

// BenchmarkWaitBound is how exactly a Wait of 5 us and one of 50 us end.
func BenchmarkWaitBound(b *testing.B) {
	for _, p := range benchParks() {
		for _, d := range []time.Duration{5 * time.Microsecond, 50 * time.Microsecond} {
			b.Run(p.name()+"/"+d.String(), func(b *testing.B) {
				var w atomic.Uint64
				for b.Loop() {
					p.Wait(&w, 1, d)
				}
			})
		}
	}
}

// BenchmarkStoreToSeen is one way of a ping-pong between two threads: from the
// store to the return of the Wait for it. It needs two idle processors.
func BenchmarkStoreToSeen(b *testing.B) {
	for _, p := range benchParks() {
		b.Run(p.name(), func(b *testing.B) {
			ping, pong := block(), block()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for v := uint64(1); p.Wait(&ping[0], v, math.MaxInt64) && ping[7].Load() == 0; v++ {
					pong[0].Store(v)
				}
			}()
			v := uint64(0)
			for b.Loop() {
				v++
				ping[0].Store(v)
				p.Wait(&pong[0], v, math.MaxInt64)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/store")
			ping[7].Store(1)
			ping[0].Store(v + 1)
			<-done
		})
	}
}

// BenchmarkGC is a collection, alone and beside one wait, with the p99 of its
// stop-the-world pauses.
func BenchmarkGC(b *testing.B) {
	run := func(name string, p *Park) {
		b.Run(name, func(b *testing.B) {
			var w atomic.Uint64
			done := make(chan struct{})
			if p != nil {
				go func() { p.Wait(&w, 1, math.MaxInt64); close(done) }()
			} else {
				close(done)
			}
			before := pauses()
			for b.Loop() {
				runtime.GC()
			}
			b.ReportMetric(p99(before, pauses())*1e6, "p99-us/pause")
			w.Store(1)
			<-done
		})
	}
	run("alone", nil)
	for _, p := range benchParks() {
		run(p.name(), &p)
		long := p.WithSlice(MaxSlice)
		run(p.name()+"-100us", &long)
	}
}

func pauses() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}

// p99 returns the upper edge of the bucket that holds the 99th percentile of
// what was added between two readings.
func p99(a, b *metrics.Float64Histogram) float64 {
	var total, sum uint64
	for i := range b.Counts {
		total += b.Counts[i] - a.Counts[i]
	}
	for i := range b.Counts {
		if sum += b.Counts[i] - a.Counts[i]; sum*100 >= total*99 {
			return b.Buckets[i+1]
		}
	}
	return 0
}
