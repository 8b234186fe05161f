// Package hammer drives a completion host hard and checks three promises for every
// single wait: it ends, it ends once, and not before its word was reached. It is
// for tests alone.
package hammer

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/poller"
)

// Total returns how many completions to go for: GPULINE_HAMMER, or def.
func Total(def int) int {
	if n, err := strconv.Atoi(os.Getenv("GPULINE_HAMMER")); err == nil && n > 0 {
		return n
	}
	return def
}

// Config says what to drive. At least one sink is required.
type Config struct {
	// Sinks are the hosts; the streams take turns. Each completion that a host's
	// consumers see goes to Rig.Done.
	Sinks []poller.Sink
	// Completions is about how many waits to complete.
	Completions int
	// Streams and Depth are the number of words and of waits on each at a time.
	Streams, Depth int
	// Poller configures the waiter.
	Poller poller.Config
	// Procs is GOMAXPROCS.
	Procs int
	// Storm sends SIGURG to all threads all the time; Busy keeps every P busy.
	Storm, Busy bool
	// Late makes the device store before the waits are registered: the host is
	// armed after the event.
	Late bool
}

// Rig is one run.
type Rig struct {
	t        testing.TB
	cfg      Config
	streams  []*stream
	seen     atomic.Int64
	running  atomic.Int64
	finished chan struct{}
	quit     chan struct{}
	side     sync.WaitGroup
	waiter   *poller.Waiter
	procs    int
}

type stream struct {
	rig       *Rig
	word      *line.Word
	watch     *poller.Watch
	rnd       *rand.Rand
	waits     []poller.Wait
	state     []atomic.Int32
	submitted atomic.Uint64
	left      atomic.Int64
	// Touched only by whoever ends a round.
	seq  uint64
	todo int
}

const (
	free = iota
	registered
)

// Start builds the rig and registers the first waits. The caller's consumers call
// Done until Finished is closed, then the caller calls Stop.
func Start(t testing.TB, cfg Config) *Rig {
	r := &Rig{t: t, cfg: cfg, finished: make(chan struct{}), quit: make(chan struct{})}
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("GPULINE_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("GPULINE_SEED=%d", seed)
	r.procs = runtime.GOMAXPROCS(cfg.Procs)
	m, err := line.Map((cfg.Streams+line.Words-1)/line.Words, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	r.waiter = poller.NewWaiter(cfg.Poller)
	for i := range cfg.Streams {
		s := &stream{
			rig: r, word: &m.Lines[i/line.Words][i%line.Words], todo: cfg.Completions / cfg.Streams,
			rnd:   rand.New(rand.NewPCG(seed, uint64(i))),
			waits: make([]poller.Wait, cfg.Depth), state: make([]atomic.Int32, cfg.Depth),
		}
		for j := range s.waits {
			s.waits[j] = poller.Wait{Sink: cfg.Sinks[i%len(cfg.Sinks)], User: uint64(i)<<32 | uint64(j)}
		}
		if s.watch, err = r.waiter.Watch(s.word, poller.WatchOptions{}); err != nil {
			t.Fatal(err)
		}
		r.streams = append(r.streams, s)
	}
	if cfg.Storm {
		r.side.Go(func() { Storm(r.quit) })
	}
	if cfg.Busy {
		for range cfg.Procs {
			r.side.Go(func() { spin(r.quit) })
		}
	}
	for d := range 2 {
		r.side.Go(func() { r.device(d) })
	}
	r.running.Store(int64(len(r.streams)))
	for _, s := range r.streams {
		s.rounds()
	}
	return r
}

// Finished is closed when every wait has ended.
func (r *Rig) Finished() <-chan struct{} { return r.finished }

// Stop ends the disturbances and checks that nothing is left.
func (r *Rig) Stop() {
	close(r.quit)
	r.side.Wait()
	if n := r.waiter.Pending(); n != 0 {
		r.t.Errorf("%d registrations left", n)
	}
	s := r.waiter.Stats()
	if err := r.waiter.Close(); err != nil {
		r.t.Error(err)
	}
	runtime.GOMAXPROCS(r.procs)
	r.t.Logf("%d completions through the host, %d immediate, %d cancelled, %d batches, %d parks, %d naps",
		r.seen.Load(), s.Immediate, s.Cancelled, s.Batches, s.Parks, s.Naps)
	if got := uint64(r.seen.Load()); got != s.Completed {
		r.t.Errorf("the waiter completed %d waits, the consumers saw %d", s.Completed, got)
	}
}

// Seen returns the number of completions that came through the host.
func (r *Rig) Seen() int64 { return r.seen.Load() }

// Done takes one completion, and registers the next waits of its stream when it was
// the last one. Consumers may call it at the same time.
func (r *Rig) Done(user uint64, err error) {
	r.seen.Add(1)
	i, j := user>>32, uint32(user)
	if i >= uint64(len(r.streams)) || int(j) >= r.cfg.Depth {
		r.t.Errorf("completion of a stranger: user %#x", user)
		return
	}
	s := r.streams[i]
	target := s.waits[j].Target()
	if err != nil {
		r.t.Errorf("wait for %d ended with %v", target, err)
	}
	if !s.word.Reached(target) {
		r.t.Errorf("early: target %d, word %d", target, s.word.Load())
	}
	if !s.state[j].CompareAndSwap(registered, free) {
		r.t.Errorf("completed twice, or without being registered: target %d", target)
		return
	}
	if s.left.Add(-1) == 0 {
		s.rounds()
	}
}

// rounds registers rounds of waits until one stays pending, or the quota is done.
func (s *stream) rounds() {
	for s.todo > 0 {
		k := 1 + int(s.rnd.Uint32N(uint32(len(s.waits))))
		s.left.Store(int64(k) + 1)
		for j := range k {
			target := s.seq + 1 + uint64(s.rnd.Uint32N(4))
			late := s.rig.cfg.Late || s.rnd.Uint32()%2 == 0
			if late {
				s.submitted.Store(target)
			}
			w := &s.waits[j]
			w.Look = time.Duration(s.rnd.Uint32N(4)) * 20 * time.Microsecond * time.Duration(s.rnd.Uint32N(2))
			w.Again = w.Look * time.Duration(s.rnd.Uint32N(3))
			s.state[j].Store(registered)
			ok, err := s.watch.Add(w, target)
			if err != nil {
				s.rig.t.Errorf("Add: %v", err)
			}
			if !ok || s.rnd.Uint32()%32 == 0 && s.watch.Cancel(w) {
				s.state[j].Store(free)
				s.left.Add(-1)
			}
			if !late {
				s.submitted.Store(target)
			}
			s.seq = target
		}
		s.todo -= k
		if s.left.Add(-1) > 0 {
			return // whoever ends the round goes on
		}
	}
	if s.rig.running.Add(-1) == 0 {
		close(s.rig.finished)
	}
}

// device stores what was submitted, at random times and sometimes skipping numbers.
func (r *Rig) device(d int) {
	rnd := rand.New(rand.NewPCG(uint64(d), 99))
	for {
		select {
		case <-r.quit:
			return
		default:
		}
		idle := true
		for i := d; i < len(r.streams); i += 2 {
			s := r.streams[i]
			if sub, at := s.submitted.Load(), s.word.Load(); sub != at {
				idle = false
				s.word.Store(at + 1 + rnd.Uint64N(sub-at))
			}
			if rnd.Uint32()%64 == 0 {
				runtime.Gosched()
			}
		}
		switch {
		case rnd.Uint32()%256 == 0:
			time.Sleep(20 * time.Microsecond)
		case idle:
			runtime.Gosched()
		}
	}
}

func spin(quit <-chan struct{}) {
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
}

// Perturb returns a function that sometimes yields, dawdles or sleeps: called
// between two steps of a protocol it widens the window between them.
func Perturb() func() {
	var ticks atomic.Uint64
	return func() {
		switch n := ticks.Add(1) * 0x9e3779b97f4a7c15 >> 54; {
		case n < 8:
			runtime.Gosched()
		case n < 16:
			for end := time.Now().Add(time.Duration(n-8) * 300); time.Now().Before(end); {
			}
		case n == 16:
			time.Sleep(time.Microsecond)
		}
	}
}
