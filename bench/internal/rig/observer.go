package rig

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/gpu/soft"
)

// observer tells when a store became visible, for devices that don't note it
// themselves: a thread that does nothing but look at the lanes' words. It has a P
// of its own besides the program's, and its CPU time is taken off the program's.
type observer struct {
	lanes []*lane
	quit  atomic.Bool
	done  chan struct{}
	cpu   atomic.Int64
}

// seen is the newest store that the observer saw on a lane.
type seen struct {
	value atomic.Uint64
	at    atomic.Int64
}

func newObserver(lanes []*lane) *observer {
	o := &observer{lanes: lanes, done: make(chan struct{})}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	go o.run()
	return o
}

func (o *observer) run() {
	defer close(o.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	last := make([]uint64, len(o.lanes))
	for n := 0; !o.quit.Load(); n++ {
		for i, l := range o.lanes {
			if v := l.word.Load(); v != last[i] {
				l.seen.at.Store(int64(soft.Now()))
				l.seen.value.Store(v)
				last[i] = v
			}
		}
		if n%256 == 0 {
			o.cpu.Store(int64(sys.ThreadCPU()))
		}
	}
}

// CPU is the observer's own CPU time so far.
func (o *observer) CPU() time.Duration {
	if o == nil {
		return 0
	}
	return time.Duration(o.cpu.Load())
}

func (o *observer) stop() {
	if o != nil {
		o.quit.Store(true)
		<-o.done
	}
}

// storeTime returns when the newest store of the lane's word, or that of value on
// the soft device, was made; 0 when that is not known.
func (l *lane) storeTime(value uint64) time.Duration {
	if l.soft != nil {
		return l.soft.StoreTime(value)
	}
	// The waiter may be faster than the observer, but not by much.
	for range 1 << 20 {
		if l.seen.value.Load() >= l.seq {
			return time.Duration(l.seen.at.Load())
		}
		runtime.Gosched()
	}
	return 0
}
