package poller

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/internal/sleep"
	"github.com/gpuline/gpuline/line"
)

// ErrLook is what a Wait with Early set completes with when its Look time has
// come and the word has not reached the target: no failure, a request to watch.
var ErrLook = errors.New("gpuline: time to look")

// Config sets how a Waiter spends its time. The zero value is useful.
type Config struct {
	// Name appears in errors, "waiter" by default.
	Name string
	// Spin is how long the waiter looks at a word without pause, from the time
	// on at which the completion is first to be expected. Default 50 us; negative
	// means not at all.
	Spin time.Duration
	// Nap is the length of the naps in the kernel between two looks once Spin is
	// over. In a long wait they grow to an eighth of the time napped so far, at
	// most 1 ms. Default 200 us; shorter than 1 us counts as 1 us.
	Nap time.Duration
	// Park makes the waiter spend Spin in the processor's park instruction, in
	// slices of some microseconds, where it has one (PlanCaps tells).
	Park bool
	// Busy, when set, is called on the waiter's goroutine each time it finds
	// something pending after it had nothing to watch. It must not block.
	Busy func()
}

const (
	defaultSpin = 50 * time.Microsecond
	defaultNap  = 200 * time.Microsecond
	// sliceLen bounds a stretch in assembly or in a loop that can't be preempted:
	// a stop-the-world waits for it (golang/go#10958).
	sliceLen = 5 * time.Microsecond
	// longestNap bounds the growth of naps: a nap costs tens of microseconds of CPU
	// time where a virtual processor has to be woken for it.
	longestNap = time.Millisecond
	// maxOversleep is the longest oversleep that counts: more is an accident.
	maxOversleep = 100 * time.Microsecond
	// maxHandover bounds what is taken off for waking the owner of a wait.
	maxHandover = 200 * time.Microsecond
	// closeBound is how long Close waits for the waiter's goroutine, which only a
	// driver that blocks in a status query can hold up.
	closeBound = 2 * time.Second
)

// CloseBound is the longest that Waiter.Close takes.
const CloseBound = closeBound

// Stats counts what a Waiter did since it was made.
type Stats struct {
	Completed uint64 // waits that ended with success
	Immediate uint64 // waits whose target was reached before they registered
	Late      uint64 // completions found by the first look after a predicted sleep
	Failed    uint64 // waits that ended with an error
	Cancelled uint64 // registrations removed by their owner
	Pending   uint64 // registrations pending now
	Batches   uint64 // wake-up batches
	Looks     uint64 // words looked at
	Spins     uint64 // slices spent spinning or parked on a word
	Naps      uint64 // short kernel sleeps between looks
	Sleeps    uint64 // kernel sleeps to a predicted completion
	Parks     uint64 // times there was nothing to watch
	Confirms  uint64 // status queries made before reporting success
	Spurious  uint64 // wake-ups after which there was nothing new
	Early     uint64 // waits handed back to their owner at their Look time
	Ahead     uint64 // goroutines started for a thread to be awake at the next completion
	// Oversleep is how much later than asked the latest sleeps ended, on average.
	// Sleeps are made that much shorter.
	Oversleep time.Duration
	// Delivery is what it took of late to complete a single wait that was looked for
	// without pause, all that its sink does included, on average (accidents count only in
	// part), and DeliveryAhead what it took when a thread was woken ahead. Zero: not seen
	// yet. Where the sink wakes a goroutine the difference is what the scheduler takes
	// to wake a thread.
	Delivery, DeliveryAhead time.Duration
	// LongestScan is the longest single pass over all busy words.
	LongestScan time.Duration
}

type counters struct {
	completed, late, failed, cancelled, batches, looks, spins, naps,
	sleeps, parks, confirms, spurious, early, ahead atomic.Uint64
	longestScan atomic.Int64
	_           [64]byte
}

// Waiter watches any number of words on one goroutine, and completes the waits
// registered for them. The goroutine starts with the first registration and is
// gone after Close, and so are those that it may start (see below). Make one with
// NewWaiter. All methods may be called from many goroutines.
//
// The goroutine keeps its thread while it looks at words, and gives it up around
// wake-ups, so that the thread that saw the completion can run
// the woken goroutine itself: waking another CPU for it would cost more than all
// the rest. It sleeps behind the netpoller, for a timerfd, or, where all P are busy
// or there is none to be had, in the kernel together with its thread, with the thread's timer
// slack lowered. Where a wake-up of a goroutine costs microseconds, another goroutine is
// started shortly before one is due, which does nothing (Stats.Ahead).
type Waiter struct {
	cfg      Config
	instr    asm.Park
	state    atomic.Int64 // running, parked, or the end of the sleep it is in
	incoming atomic.Pointer[Watch]
	stats    counters
	sleeper  sleep.Timer
	// oversleep is how much later than asked a sleep ended of late, on average:
	// sleeps are made that much shorter. Microseconds on bare metal, tens of them
	// where a virtual processor has to be woken.
	oversleep atomic.Int64
	// handover is by how much sooner a wait with Early set is to be handed back for
	// its owner to run in time: it has to be woken as well.
	handover atomic.Int64
	unpark   chan struct{}
	done     chan struct{}
	started  atomic.Bool
	stop     atomic.Bool

	mu      sync.Mutex
	closed  bool
	watches map[*Watch]struct{}
	// Of watches that were closed.
	pastImmediate uint64

	// scanMu is held while the waiter touches words, so that a Watch can be
	// closed and its memory freed. It is taken once per scan and never contended
	// but by a Close.
	scanMu sync.Mutex
	active []*Watch

	// Touched by the waiter's goroutine alone.
	reached []seen
	early   []*Watch
	batch   batch
	ahead   ahead
}

type seen struct {
	x     *Watch
	value uint64
}

const (
	running = 0
	parked  = -1
)

// NewWaiter makes a Waiter. It starts nothing.
func NewWaiter(cfg Config) *Waiter {
	if cfg.Name == "" {
		cfg.Name = "waiter"
	}
	if cfg.Spin == 0 {
		cfg.Spin = defaultSpin
	}
	cfg.Spin = max(cfg.Spin, 0)
	if cfg.Nap == 0 {
		cfg.Nap = defaultNap
	}
	cfg.Nap = max(cfg.Nap, time.Microsecond)
	var instr asm.Park
	if cfg.Park {
		instr, _ = asm.Probe()
	}
	return &Waiter{
		cfg:     cfg,
		instr:   instr,
		unpark:  make(chan struct{}, 1),
		done:    make(chan struct{}),
		watches: make(map[*Watch]struct{}),
	}
}

// Now is the clock of Wait.DoneAt and Wait.AddedAt.
func Now() time.Duration { return event.RealClock{}.Now() }

func nanotime() int64 { return int64(Now()) }

// Watch puts a word under the waiter's eyes. The word's memory must stay mapped
// until the Watch is closed. A closed waiter answers event.Closed.
func (w *Waiter) Watch(word *line.Word, opt WatchOptions) (*Watch, error) {
	if word == nil {
		return nil, event.New(event.InvalidArgument, "watch", "nil word")
	}
	if opt.Name == "" {
		opt.Name = "word"
	}
	x := &Watch{word: word, w: w, opt: opt}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, event.New(event.Closed, w.cfg.Name)
	}
	w.watches[x] = struct{}{}
	return x, nil
}

// forget waits until no scan is under way and takes the watch off the books. A
// failed watch never gets a registration again, and words without one are not
// looked at.
func (w *Waiter) forget(x *Watch) {
	w.scanMu.Lock()
	//lint:ignore SA2001 the lock is the fence: a scan that saw the watch busy is over
	w.scanMu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.watches[x]; ok {
		delete(w.watches, x)
		w.pastImmediate += x.immediate.Load()
	}
}

// Close ends every pending wait with event.Closed and stops the goroutine. It
// takes at most CloseBound, is idempotent, and returns an error only when the
// goroutine could not be stopped in time because a status query blocks.
func (w *Waiter) Close() error { return w.CloseWithin(closeBound) }

// CloseWithin is Close with a bound of one's own. It may be called again after the
// bound was too short, to wait longer.
func (w *Waiter) CloseWithin(bound time.Duration) error {
	w.mu.Lock()
	w.closed = true
	all := make([]*Watch, 0, len(w.watches))
	for x := range w.watches {
		all = append(all, x)
	}
	started := w.started.Load()
	w.mu.Unlock()
	for _, x := range all {
		x.Fail(event.New(event.Closed, x.opt.Name))
	}
	if !started {
		return nil
	}
	w.stop.Store(true)
	w.wake()
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-w.done:
		return nil
	case <-t.C:
	}
	select {
	case <-w.done:
		return nil
	default:
		return event.New(event.Leaked, w.cfg.Name+"'s goroutine", "a status query has not returned within "+bound.String())
	}
}

// Pending returns the number of registrations pending on all words.
func (w *Waiter) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for x := range w.watches {
		n += x.Pending()
	}
	return n
}

// Stats returns the counters. Each is exact; together they are not a snapshot
// of one instant.
func (w *Waiter) Stats() Stats {
	c := &w.stats
	s := Stats{
		Completed: c.completed.Load(), Late: c.late.Load(), Failed: c.failed.Load(),
		Cancelled: c.cancelled.Load(), Batches: c.batches.Load(), Looks: c.looks.Load(),
		Spins: c.spins.Load(), Naps: c.naps.Load(), Sleeps: c.sleeps.Load(), Parks: c.parks.Load(),
		Confirms: c.confirms.Load(), Spurious: c.spurious.Load(), Early: c.early.Load(), Ahead: c.ahead.Load(),
		Delivery: time.Duration(w.ahead.without.Load()), DeliveryAhead: time.Duration(w.ahead.with.Load()),
		LongestScan: time.Duration(c.longestScan.Load()), Oversleep: time.Duration(w.oversleep.Load()),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Immediate = w.pastImmediate
	for x := range w.watches {
		s.Immediate += x.immediate.Load()
		s.Pending += uint64(x.Pending())
	}
	return s
}

// Parked reports whether the waiter has nothing to watch and sleeps.
func (w *Waiter) Parked() bool { return !w.started.Load() || w.state.Load() == parked }

// admitLater puts a watch that became busy on the waiter's list.
func (w *Waiter) admitLater(x *Watch) {
	for {
		h := w.incoming.Load()
		x.nextIn = h
		if w.incoming.CompareAndSwap(h, x) {
			break
		}
	}
	if !w.started.Load() {
		w.start()
	}
}

func (w *Waiter) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	// After Close nothing can be pending: every watch has failed.
	if !w.closed && w.started.CompareAndSwap(false, true) {
		go w.run()
	}
}

// notify ends a sleep that would last beyond lookAt.
func (w *Waiter) notify(lookAt int64) {
	s := w.state.Load()
	if s == running || s != parked && s <= lookAt {
		return
	}
	w.wakeFrom(s)
}

func (w *Waiter) wake() {
	for {
		s := w.state.Load()
		if s == running || w.wakeFrom(s) {
			return
		}
	}
}

func (w *Waiter) wakeFrom(s int64) bool {
	if !w.state.CompareAndSwap(s, running) {
		return false
	}
	perturb()
	if s == parked {
		w.unpark <- struct{}{} // never blocks: one token per change from parked
	} else {
		w.sleeper.Wake()
	}
	return true
}

func (w *Waiter) run() {
	defer close(w.done)
	defer w.ahead.end()
	defer w.sleeper.Close()
	w.sleeper.Ready() // here: a program's descriptors are to be the same before its load and after
	fresh := true
	var turn sleep.Turn // what is done with the completions
	yielded := int64(0)
	for !w.stop.Load() {
		w.admit()
		now := nanotime()
		s := w.scan(now, true)
		if fresh && s.busy > 0 {
			fresh = false
			if w.cfg.Busy != nil {
				w.cfg.Busy()
			}
		}
		if s.work {
			// The scan may have been held up: what it saw, it saw before now.
			w.deliver(nanotime())
			turn.Begin()
			// The woken goroutine is next on this thread's P: let it run here, at
			// once. With nothing left to watch, parking does that for less than
			// a yield, which would first start another thread for the waiter itself.
			if w.anyPending() {
				runtime.Gosched()
			} else {
				fresh = true
				w.park()
				turn.Next()
			}
			w.ahead.learn()
			continue
		}
		switch {
		case s.busy == 0:
			fresh = true
			w.ahead.x = nil
			w.park()
			turn.Next()
		case s.hot != nil:
			if now-yielded > int64(yieldEvery) {
				yielded = now
				Yield()
			}
			// With more to watch the waiter is soon wanted again: it must be able to go on
			// in another thread while the goroutine that it has woken runs in this one.
			if s.busy == 1 && s.hot.n.Load() == 1 && w.ahead.looking(s.hot, s.hot.min.Load(), now) {
				w.stats.ahead.Add(1)
			}
			turn.Watch()
			w.spin(s)
		default:
			w.sleep(s.next, now)
		}
	}
}

// admit takes over newly busy watches.
func (w *Waiter) admit() {
	if w.incoming.Load() == nil {
		return
	}
	x := w.incoming.Swap(nil)
	w.scanMu.Lock()
	for x != nil {
		next := x.nextIn
		x.nextIn = nil
		w.active = append(w.active, x)
		x = next
	}
	w.scanMu.Unlock()
}

// yieldEvery is how often a loop that looks at words lets others run when there is
// but one processor.
const yieldEvery = 50 * time.Microsecond

// Yield lets other goroutines run where the caller keeps the only processor from
// them (GOMAXPROCS is 1): they would otherwise wait for the preemption tick, 10 ms,
// and the one that is to start the awaited work may be among them. With more
// processors it does nothing: a yield there wakes another thread, which costs more
// than it gives.
func Yield() {
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
	}
}

// sight is what one scan found.
type sight struct {
	work bool   // something to deliver
	busy int    // words with pending waits
	hot  *Watch // the one word to spin on, or any of several
	hots int
	next int64 // the next time to look when nothing is hot
	naps bool  // next is the end of a nap, not of a predicted sleep
}

// scan looks at every busy word once. With collect unset it only answers
// whether there is a reason not to sleep.
func (w *Waiter) scan(now int64, collect bool) (s sight) {
	s.next = 1<<63 - 1
	w.scanMu.Lock()
	defer w.scanMu.Unlock()
	keep := w.active[:0]
	for _, x := range w.active {
		if x.n.Load() == 0 && x.drop() {
			continue
		}
		keep = append(keep, x)
		if x.n.Load() == 0 {
			continue // between two registrations; counts as idle for this pass
		}
		s.busy++
		v := x.word.Load()
		m := x.min.Load()
		look := x.look.Load()
		switch {
		case line.Reached(v, m):
			s.work = true
			if collect {
				w.reached = append(w.reached, seen{x, v})
			}
		case look > now:
			if look < s.next {
				s.next, s.naps = look, false
			}
		default:
			x.pendingAt = now
			if collect && x.sleepAgain(now) {
				s.next, s.naps = min(s.next, x.look.Load()), false
				continue
			}
			if x.early.Load() <= now {
				s.work = true
				if collect {
					w.early = append(w.early, x)
				}
				continue
			}
			if x.spinFor != m || x.spinUntil == 0 {
				x.spinFor, x.spinUntil = m, satAdd(now, w.cfg.Spin)
				if x.spun.Load() {
					x.spinUntil = now
				}
			}
			if now < x.spinUntil {
				s.hots++
				s.hot = x
			} else if nap := satAdd(now, max(w.cfg.Nap, min(time.Duration(now-x.spinUntil)/8, longestNap))); nap < s.next {
				s.next, s.naps = nap, true
			}
		}
	}
	clear(w.active[len(keep):])
	w.active = keep
	if collect {
		w.stats.looks.Add(uint64(s.busy))
		if s.busy > 1 {
			if d := nanotime() - now; d > w.stats.longestScan.Load() {
				w.stats.longestScan.Store(d)
			}
		}
	}
	return s
}

// drop takes an idle watch off the list; false when it has just become busy.
func (x *Watch) drop() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.q.n > 0 {
		return false
	}
	x.listed = false
	x.spinUntil = 0
	return true
}

// deliver completes what the scan collected. Nothing is locked while a status
// query or a sink runs.
func (w *Waiter) deliver(now int64) {
	w.stats.batches.Add(1)
	looked := len(w.reached) == 1 && w.reached[0].x == w.ahead.x
	for i, r := range w.reached {
		w.reached[i] = seen{}
		if r.x.opt.Confirm != nil {
			w.stats.confirms.Add(1)
			if err := r.x.opt.Confirm(); err != nil {
				r.x.Fail(err)
				continue
			}
			r.x.Confirmed(r.value)
			now = nanotime()
		}
		if late := r.x.collect(r.value, &w.batch); late > 0 {
			w.stats.late.Add(late)
		}
	}
	w.reached = w.reached[:0]
	w.stats.completed.Add(uint64(len(w.batch.waits)))
	if len(w.batch.waits) == 1 && looked {
		out, start := w.ahead.out.Load(), nanotime()
		w.batch.deliver(now, nil)
		w.ahead.delivered(out, start, nanotime())
	} else {
		w.ahead.x = nil
		w.batch.deliver(now, nil)
	}

	for i, x := range w.early {
		w.early[i] = nil
		x.mu.Lock()
		for h := x.q.earlies.top(); h != nil && h.lookAt <= now; h = x.q.earlies.top() {
			x.take(h)
			w.batch.add(h)
		}
		x.mu.Unlock()
	}
	w.early = w.early[:0]
	if n := len(w.batch.waits); n > 0 {
		w.stats.early.Add(uint64(n))
		w.batch.deliver(now, ErrLook)
	}
}

// spin looks at the hot words for one slice. With a single busy word the slice
// is one loop on it; with several, the scan itself is the loop. A hardware park
// watches the line of one hot word; stores to other lines are seen at its end.
func (w *Waiter) spin(s sight) {
	w.stats.spins.Add(1)
	if s.busy > 1 && !w.instr.Hardware() {
		return
	}
	w.scanMu.Lock()
	defer w.scanMu.Unlock()
	if s.hot.n.Load() > 0 {
		w.instr.Wait(s.hot.word.Atomic(), s.hot.min.Load(), sliceLen)
	}
}

// park waits until something becomes pending. The goroutine blocks in the
// scheduler and uses no CPU and no thread; the goroutine that registers next
// makes it runnable on its own P, without waking a CPU.
func (w *Waiter) park() {
	w.state.Store(parked)
	perturb()
	if w.incoming.Load() != nil || w.anyPending() || w.stop.Load() {
		if !w.state.CompareAndSwap(parked, running) {
			<-w.unpark // somebody has just made it running: take the token
		}
		return
	}
	w.stats.parks.Add(1)
	<-w.unpark
}

// anyPending tells whether a watch that stayed on the list became busy again.
func (w *Waiter) anyPending() bool {
	w.scanMu.Lock()
	defer w.scanMu.Unlock()
	for _, x := range w.active {
		if x.n.Load() > 0 {
			return true
		}
	}
	return false
}

// sleep sleeps in the kernel until the given time, or until a registration
// wants an earlier look.
func (w *Waiter) sleep(until, now int64) {
	until = min(until, now+int64(time.Hour)) // a look an hour costs nothing, and no sum overflows
	w.state.Store(until)
	perturb()
	// The last look, after the state was published: see Watch.Add.
	if w.incoming.Load() == nil && !w.stop.Load() {
		if s := w.scan(now, false); !s.work && s.hots == 0 && s.next >= until {
			if s.naps {
				w.stats.naps.Add(1)
			} else {
				w.stats.sleeps.Add(1)
			}
			w.sleeper.Sleep(until, &w.state)
			if w.state.Load() != running { // nobody ended it
				if over := nanotime() - until; over < 0 {
					w.stats.spurious.Add(1)
				} else if !s.naps {
					old := w.oversleep.Load()
					w.oversleep.Store(old + (min(over, int64(maxOversleep))-old)/8)
				}
			}
		}
	}
	w.state.Store(running)
}
