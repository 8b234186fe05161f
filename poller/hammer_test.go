package poller

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/line"
)

// hammerTotal is the number of completions over all variants of one hammer:
// GPULINE_HAMMER, or enough for a quick look.
func hammerTotal(t testing.TB) int {
	if s := os.Getenv("GPULINE_HAMMER"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("GPULINE_HAMMER=%q: want a number of completions", s)
		}
		return n
	}
	return 200_000
}

// TestHammer looks for lost, early and doubled wake-ups: 64 streams, random
// delays at every step of register, re-check, sleep, with few and many Ps, under
// a storm of signals, and with every P busy.
func TestHammer(t *testing.T) {
	type variant struct {
		procs        int
		storm, busy  bool
		spin, nap    time.Duration
		withConfirms bool
		// sparse: few streams with one wait each, so that the waiter parks and
		// sleeps all the time instead of always finding something.
		sparse bool
		// adders is how many goroutines register on each stream at the same time, one
		// wait each; some want it handed back.
		adders int
		share  int // per mille of all completions
	}
	variants := []variant{
		{procs: 1, nap: 20 * time.Microsecond, share: 180},
		{procs: 2, nap: 100 * time.Microsecond, share: 260},
		{procs: 8, nap: 20 * time.Microsecond, share: 180},
		{procs: 2, storm: true, spin: -1, nap: 100 * time.Microsecond, share: 100},
		{procs: 8, storm: true, nap: 20 * time.Microsecond, withConfirms: true, share: 100},
		{procs: 1, busy: true, spin: 5 * time.Microsecond, nap: 20 * time.Microsecond, share: 10},
		{procs: 2, busy: true, nap: 50 * time.Microsecond, share: 40},
		{procs: 8, busy: true, storm: true, spin: -1, nap: 20 * time.Microsecond, share: 20},
		{procs: 2, adders: 4, nap: 50 * time.Microsecond, share: 40},
		{procs: 8, adders: 4, storm: true, spin: -1, nap: 20 * time.Microsecond, share: 30},
		{procs: 2, adders: 3, sparse: true, spin: -1, nap: 20 * time.Microsecond, share: 10},
		{procs: 8, adders: 2, sparse: true, nap: 20 * time.Microsecond, withConfirms: true, share: 10},
		{procs: 1, sparse: true, spin: -1, nap: 20 * time.Microsecond, share: 2},
		{procs: 2, sparse: true, nap: 50 * time.Microsecond, share: 10},
		{procs: 8, sparse: true, storm: true, spin: 2 * time.Microsecond, nap: 10 * time.Microsecond, share: 10},
	}
	n := hammerTotal(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("GPULINE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("GPULINE_SEED=%d", seed)
	var ticks, sleepy atomic.Uint64
	perturbation = func() {
		switch n := ticks.Add(1) * 0x9e3779b97f4a7c15 >> 54; {
		case n < 8:
			runtime.Gosched()
		case n < 16:
			for end := nanotime() + int64(n-8)*300; nanotime() < end; {
			}
		case n <= 16+sleepy.Load():
			time.Sleep(time.Microsecond)
		}
	}
	t.Cleanup(func() { perturbation = nil })
	for _, v := range variants {
		t.Run(fmt.Sprintf("procs=%d,storm=%v,busy=%v,sparse=%v,adders=%d", v.procs, v.storm, v.busy, v.sparse, v.adders), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(v.procs))
			quit := make(chan struct{})
			var side sync.WaitGroup
			if v.storm {
				side.Go(func() { signalStorm(quit) })
			}
			if v.busy {
				for range v.procs {
					side.Go(func() {
						for x := 1; ; x = x*5 + 1 {
							select {
							case <-quit:
								return
							default:
							}
							for range 10_000 {
								x ^= x << 1
							}
						}
					})
				}
			}
			w := testWaiter(t, Config{Spin: v.spin, Nap: v.nap})
			if v.sparse {
				w.ahead.without.Store(int64(time.Second)) // a wake-up of a thread is worth saving
			}
			var opt WatchOptions
			if v.withConfirms {
				opt.Confirm = func() error { perturb(); return nil }
			}
			streams, depth := 64, 32
			sleepy.Store(0)
			if v.sparse && v.adders > 0 {
				sleepy.Store(100) // long enough for the waiter to look and park
			}
			if v.sparse {
				streams, depth = 2, 1
			}
			if v.adders > 0 {
				depth = v.adders
				if v.sparse {
					streams = 1 // nobody else's wake-up makes up for a lost one
				}
			}
			h := newHammer(t, w, streams, depth, seed, opt)
			got := h.run(max(n*v.share/1000, streams*depth), v.adders > 0)
			close(quit)
			side.Wait()
			s := w.Stats()
			t.Logf("%d completions: %+v", got, s)
			if s.Pending != 0 {
				t.Errorf("%d registrations left", s.Pending)
			}
			if want := s.Completed + s.Immediate; want != uint64(got) {
				t.Errorf("counted %d completions, saw %d", want, got)
			}
		})
	}
}

type hammer struct {
	t       testing.TB
	seed    uint64
	streams []*hammerStream
	done    atomic.Bool
}

type hammerStream struct {
	h         *hammer
	word      *line.Word
	x         *Watch
	rnd       *rand.Rand
	submitted atomic.Uint64
	left      atomic.Int64
	round     chan struct{}
	waits     []Wait
	state     []atomic.Int32
	own       []chan error // per wait, where each has a goroutine of its own
}

const (
	handleFree = iota
	handleRegistered
)

func newHammer(t testing.TB, w *Waiter, streams, depth int, seed uint64, opt WatchOptions) *hammer {
	h := &hammer{t: t, seed: seed}
	lines := testLines(t, (streams+line.Words-1)/line.Words)
	for i := range streams {
		s := &hammerStream{
			h: h, word: &lines[i/line.Words][i%line.Words], round: make(chan struct{}, 1),
			rnd:   rand.New(rand.NewPCG(seed, uint64(i))),
			waits: make([]Wait, depth), state: make([]atomic.Int32, depth),
		}
		x, err := w.Watch(s.word, opt)
		if err != nil {
			t.Fatal(err)
		}
		s.x = x
		for j := range s.waits {
			s.waits[j] = Wait{Sink: s, User: uint64(j)}
		}
		h.streams = append(h.streams, s)
	}
	return h
}

// Complete checks the three promises.
func (s *hammerStream) Complete(wt *Wait, err error) {
	back := err == ErrLook && wt.Early
	if err != nil && !back {
		s.h.t.Errorf("wait for %d ended with %v", wt.Target(), err)
	}
	if !back && !s.word.Reached(wt.Target()) {
		s.h.t.Errorf("early: target %d, word %d", wt.Target(), s.word.Load())
	}
	if back && nanotime() < wt.lookAt {
		s.h.t.Errorf("handed back before its time: target %d", wt.Target())
	}
	if !s.state[wt.User].CompareAndSwap(handleRegistered, handleFree) {
		s.h.t.Errorf("completed without being registered, or twice: target %d", wt.Target())
	}
	if s.own != nil {
		s.own[wt.User] <- err
		return
	}
	s.finish()
}

func (s *hammerStream) Flush() {}

func (s *hammerStream) finish() {
	if s.left.Add(-1) == 0 {
		s.round <- struct{}{}
	}
}

// add registers the wait j for random targets until n have been reached, and returns
// how many were. Others do the same on the same word.
func (s *hammerStream) add(j, n int, rnd *rand.Rand) (got int) {
	wt := &s.waits[j]
	submit := func(target uint64) {
		for old := s.submitted.Load(); old < target && !s.submitted.CompareAndSwap(old, target); old = s.submitted.Load() {
		}
	}
	for got < n {
		target := s.submitted.Load() + uint64(rnd.Uint32N(4))
		before := rnd.Uint32()%2 == 0
		if !before {
			submit(target)
		}
		wt.Look = time.Duration(rnd.Uint32N(4)) * 20 * time.Microsecond * time.Duration(rnd.Uint32N(2))
		wt.Early = wt.Look > 0 && rnd.Uint32()%2 == 0
		s.state[j].Store(handleRegistered)
		ok, err := s.x.Add(wt, target)
		if err != nil {
			s.h.t.Errorf("Add: %v", err)
		}
		switch {
		case !ok:
			s.state[j].Store(handleFree)
			got++
		case before && rnd.Uint32()%8 == 0 && s.x.Cancel(wt):
			s.state[j].Store(handleFree)
		default:
			submit(target)
			if err := <-s.own[j]; err == nil {
				got++
			}
		}
		submit(target)
	}
	return got
}

// run completes about n waits and returns how many completed exactly.
func (h *hammer) run(n int, adders bool) int {
	var device, clients sync.WaitGroup
	var total atomic.Int64
	// Two "devices" store what was submitted, at random times, sometimes skipping
	// numbers.
	for d := range 2 {
		device.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(d), 99))
			for !h.done.Load() {
				for i := d; i < len(h.streams); i += 2 {
					s := h.streams[i]
					if sub, at := s.submitted.Load(), s.word.Load(); sub != at {
						s.word.Store(at + 1 + rnd.Uint64N(sub-at))
					}
					if rnd.Uint32()%64 == 0 {
						runtime.Gosched()
					}
				}
				if rnd.Uint32()%256 == 0 {
					time.Sleep(20 * time.Microsecond)
				}
			}
		})
	}
	for i, s := range h.streams {
		if adders {
			for range s.waits {
				s.own = append(s.own, make(chan error, 1))
			}
			for j := range s.waits {
				clients.Go(func() {
					total.Add(int64(s.add(j, n/len(h.streams)/len(s.waits), rand.New(rand.NewPCG(h.seed, uint64(i*100+j))))))
				})
			}
			continue
		}
		clients.Go(func() {
			seq := uint64(0)
			for mine := 0; mine < n/len(h.streams); {
				k := 1 + int(s.rnd.Uint32N(uint32(len(s.waits))))
				s.left.Store(int64(k) + 1)
				cancelled := 0
				for j := range k {
					// Sometimes register before the work is submitted, sometimes after.
					target := seq + 1 + uint64(s.rnd.Uint32N(4))
					before := s.rnd.Uint32()%2 == 0
					if !before {
						s.submitted.Store(max(seq, target))
					}
					s.waits[j].Look = time.Duration(s.rnd.Uint32N(4)) * 20 * time.Microsecond * time.Duration(s.rnd.Uint32N(2))
					s.state[j].Store(handleRegistered)
					ok, err := s.x.Add(&s.waits[j], target)
					if err != nil {
						h.t.Errorf("Add: %v", err)
					}
					if !ok {
						s.state[j].Store(handleFree)
						s.finish()
					} else if s.rnd.Uint32()%16 == 0 && s.x.Cancel(&s.waits[j]) {
						s.state[j].Store(handleFree)
						cancelled++
						s.finish()
					}
					if before {
						s.submitted.Store(max(seq, target))
					}
					seq = max(seq, target)
				}
				s.finish()
				<-s.round
				mine += k - cancelled
				total.Add(int64(k - cancelled))
			}
		})
	}
	clients.Wait()
	h.done.Store(true)
	device.Wait()
	return int(total.Load())
}
