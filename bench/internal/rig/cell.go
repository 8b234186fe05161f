package rig

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/line"
)

// run is one cell under one method: a closed loop on every lane, each with one
// piece of device work under way and somebody waiting for it.
type run struct {
	job    Job
	plan   string
	plant  float64
	procs  int // of the program, without the observer's
	dev    *gpu.Device
	worker worker
	pages  []*gpu.MappedLine
	lanes  []*lane
	buf    samples
	phase  atomic.Int32
	wg     sync.WaitGroup // the method's goroutines
	obs    *observer      // nil on the soft device, which notes its stores itself
	stop   context.CancelFunc
	ctx    context.Context
	note   string

	failMu sync.Mutex
	failed error
}

const (
	warming = iota
	measuring
	stopping
)

// lane is one stream and what its waiter needs.
type lane struct {
	r    *run
	i    int
	s    *gpu.Stream
	ds   driver.Stream
	soft *soft.Stream // nil for other drivers
	rnd  *rand.Rand
	word *line.Word
	addr uint64 // the device's, of word
	seq  uint64 // the newest value queued for word
	seen seen   // by the observer
	part []int64
	_    [64]byte
}

// samples takes latencies from many goroutines. It is not on the Go heap, so that
// it does not change how often the collector runs, and lanes take their share of
// it in blocks, so that they share nothing while measuring.
type samples struct {
	all  []int64
	next atomic.Int64
	lost atomic.Int64
}

const block = 32

func (s *samples) block() []int64 {
	n := s.next.Add(block)
	if n > int64(len(s.all)) {
		return nil
	}
	return s.all[n-block : n]
}

// launch queues the next piece of work.
func (l *lane) launch() error { return l.r.worker.work(l.ds, l.duration()) }

// duration is how long the next piece takes: as stated give or take 1 %, or, mixed,
// anything between 20 us and 20 ms, each order of magnitude as likely as any other.
func (l *lane) duration() time.Duration {
	if l.r.job.Work == "mixed" {
		return time.Duration(20e3 * math.Pow(1000, l.rnd.Float64()))
	}
	d, _ := time.ParseDuration(l.r.job.Work)
	return time.Duration(float64(d) * (0.99 + 0.02*l.rnd.Float64()))
}

// store queues a store of the next number into the lane's own word, for methods
// that do without the library.
func (l *lane) store() (uint64, error) {
	l.seq++
	return l.seq, l.ds.Store(l.word.Addr(), l.addr, l.seq)
}

// done notes that the waiter knows that value was stored, and reports whether to
// go on.
func (l *lane) done(value uint64) bool {
	now := soft.Now()
	phase := l.r.phase.Load()
	if phase != measuring {
		return phase != stopping
	}
	at := l.storeTime(value)
	if at == 0 {
		l.r.buf.lost.Add(1)
		return true
	}
	if l.r.plant > 0 {
		for end := now + time.Duration(l.r.plant*float64(now-at)); now < end; {
			now = soft.Now()
		}
	}
	if len(l.part) == 0 {
		if l.part = l.r.buf.block(); l.part == nil {
			l.r.buf.lost.Add(1)
			return true
		}
	}
	// One is added so that 0 stays the mark of an unused place.
	l.part[0] = max(0, int64(now-at)) + 1
	l.part = l.part[1:]
	return true
}

func (r *run) fail(err error) {
	r.failMu.Lock()
	defer r.failMu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	r.phase.Store(stopping)
}

// each runs turn in a loop on a goroutine per lane. turn launches a piece of work,
// waits for it, and returns the value whose store it waited for.
func (r *run) each(turn func(l *lane) (uint64, error)) {
	for _, l := range r.lanes {
		r.wg.Go(func() {
			for {
				v, err := turn(l)
				if err != nil {
					r.fail(err)
					return
				}
				if !l.done(v) {
					return
				}
			}
		})
	}
}

// start runs f on a goroutine of the method.
func (r *run) start(f func() error) {
	r.wg.Go(func() {
		if err := f(); err != nil {
			r.fail(err)
		}
	})
}

func runCell(j Job) (Answer, error) {
	m := MethodNamed(j.Name)
	if m == nil {
		return Answer{}, fmt.Errorf("no method %q", j.Name)
	}
	if why := m.Skip(j.Driver, j.Cell); why != "" {
		return Answer{}, skipped(why)
	}
	r := &run{job: j}
	r.ctx, r.stop = context.WithCancel(context.Background())
	defer r.stop()
	r.plan = cmp.Or(m.plan, PlanText(m.Predicts))
	if m.Ours {
		r.plant = j.Plant
	}
	if err := r.open(m.sched); err != nil {
		return Answer{}, err
	}
	a, err := r.measure(m)
	return a, errors.Join(err, r.close())
}

func (r *run) open(sched uintptr) (err error) {
	if r.dev, err = openDevice(r.job.Driver, r.plan); err != nil {
		return err
	}
	if r.job.Realtime {
		if err := hurry(r.dev); err != nil {
			return errors.Join(err, r.dev.Close())
		}
	}
	if r.worker, err = newWorker(r.dev); err != nil {
		return errors.Join(err, r.dev.Close())
	}
	if cd, ok := r.dev.Driver().(*cuda.Device); ok && sched != 0 {
		if err := schedule(cd, sched); err != nil {
			r.note = "how the driver waits could not be set: " + err.Error()
		}
	}
	if r.buf.all, err = mapInts(4 << 20); err != nil {
		return err
	}
	for i := range r.job.Streams {
		l := &lane{r: r, i: i, rnd: rand.New(rand.NewPCG(uint64(i), 1))}
		if l.s, err = r.dev.NewStream(); err != nil {
			return err
		}
		l.ds = l.s.Driver()
		l.soft, _ = soft.Of(l.s)
		r.lanes = append(r.lanes, l)
	}
	if err := r.mapWords(); err != nil {
		return err
	}
	r.procs = runtime.GOMAXPROCS(0)
	if r.job.Driver != "soft" {
		r.obs = newObserver(r.lanes)
	}
	return nil
}

// mapWords gives every lane a word of its own, eight lanes to a line, in pages of
// whose device addresses the lanes keep note: a program that does without the
// library would call the driver, too.
func (r *run) mapWords() error {
	for i, l := range r.lanes {
		if len(r.pages) == 0 || i%r.pages[0].Words() == 0 {
			p, err := gpu.MapLine(r.dev.Driver())
			if err != nil {
				return err
			}
			r.pages = append(r.pages, p)
		}
		p := r.pages[len(r.pages)-1]
		dev, err := r.dev.Driver().DeviceAddr(p.Word(0).Addr())
		if err != nil {
			return err
		}
		l.word = p.Word(i % p.Words())
		l.addr = dev + uint64(l.word.Addr()-p.Word(0).Addr())
	}
	return nil
}

func (r *run) close() error {
	var errs []error
	for _, p := range r.pages {
		errs = append(errs, p.Close())
	}
	if r.worker != nil {
		errs = append(errs, r.worker.close())
	}
	return errors.Join(append(errs, r.dev.Close())...)
}

func (r *run) measure(m *Method) (Answer, error) {
	var units []*counter
	quit := make(chan struct{})
	var neighbours sync.WaitGroup
	for range map[string]int{"busy": r.procs, "gc": 1}[r.job.Load] {
		c := new(counter)
		units = append(units, c)
		work := hashing
		if r.job.Load == "gc" {
			work = garbage
		}
		neighbours.Go(func() { work(c, quit) })
	}
	if err := m.start(r); err != nil {
		return Answer{}, err
	}
	time.Sleep(r.job.Warm)

	before, unitsBefore := readGo(), total(units)
	r.phase.CompareAndSwap(warming, measuring)
	start, cpu := time.Now(), sys.CPU()-r.obs.CPU()
	time.Sleep(r.job.Measure)
	cpu, wall := sys.CPU()-r.obs.CPU()-cpu, time.Since(start)
	r.phase.Store(stopping)
	unitsAfter, use, after := total(units), sys.Now(), readGo()
	close(quit)
	neighbours.Wait()
	if err := r.join(); err != nil {
		return Answer{}, err
	}
	r.obs.stop()
	if r.failed != nil {
		return Answer{}, r.failed
	}

	if r.buf.next.Load() == 0 && m.Name != "nobody" {
		return Answer{}, skipped(fmt.Sprintf("no wait ended within %v", r.job.Measure))
	}
	h := result.NewHist()
	for _, v := range r.buf.all[:min(r.buf.next.Load(), int64(len(r.buf.all)))] {
		if v > 0 {
			_ = h.RecordValue(max(1, v-1))
		}
	}
	lost := r.buf.lost.Load()
	n := h.TotalCount() + lost
	s := result.Sample{
		Seconds: wall.Seconds(), N: n,
		P50: float64(h.ValueAtQuantile(50)), P99: float64(h.ValueAtQuantile(99)),
		P999: float64(h.ValueAtQuantile(99.9)), Max: float64(h.Max()),
		CPU: float64(cpu) / float64(wall), Rate: float64(n) / wall.Seconds(),
		Threads: use.Threads, Memory: use.Memory,
		Neighbour: float64(unitsAfter-unitsBefore) / wall.Seconds(),
		Hist:      result.Encode(h),
	}
	if n > 0 {
		s.PerWait = float64(cpu) / float64(n)
		s.Allocs = float64(after.allocs-before.allocs) / float64(n)
	}
	s.GCs = after.gcs - before.gcs
	s.PauseP50, s.PauseMax = after.pausesSince(before)
	s.Note = r.note
	if lost > 0 {
		s.Note = fmt.Sprintf("%d latencies were not kept", lost)
	}
	return Answer{Sample: s}, nil
}

// join waits for the method's goroutines, which end with their next completion.
func (r *run) join() error {
	c := make(chan struct{})
	go func() { r.wg.Wait(); close(c) }()
	select {
	case <-c:
		return nil
	case <-time.After(5 * time.Second):
		return errors.New("waits did not end within 5s of the last launch")
	}
}

// counter counts units of a neighbour's work, on a cache line of its own.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

func total(cs []*counter) (n int64) {
	for _, c := range cs {
		n += c.n.Load()
	}
	return n
}

// hashing is Go work that keeps a processor busy: a unit is 4 KiB hashed.
func hashing(c *counter, quit <-chan struct{}) {
	var buf [4096]byte
	for {
		select {
		case <-quit:
			return
		default:
		}
		for range 16 {
			sum := sha256.Sum256(buf[:])
			copy(buf[:], sum[:])
			c.n.Add(1)
		}
	}
}

// garbage is Go work that keeps the collector busy: a unit is an allocation of 64
// to 1024 bytes, of which the last 32768 stay alive.
func garbage(c *counter, quit <-chan struct{}) {
	type node struct {
		next *node
		data []byte
	}
	var live [32768]*node
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := 0; ; i++ {
		if i%64 == 0 {
			select {
			case <-quit:
				return
			default:
			}
		}
		n := &node{data: make([]byte, 64+rnd.IntN(961))}
		n.next = live[rnd.IntN(len(live))]
		if n.next != nil {
			n.next.next = nil // no chains
		}
		live[i%len(live)] = n
		c.n.Add(1)
	}
}

// goState is what the Go runtime counts.
type goState struct {
	allocs, gcs uint64
	pauses      *metrics.Float64Histogram
}

func readGo() (g goState) {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/cycles/total:gc-cycles"}, {Name: "/sched/pauses/total/gc:seconds"},
	}
	metrics.Read(s)
	g.allocs, g.gcs, g.pauses = s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Float64Histogram()
	return g
}

// pausesSince returns the middle and the longest of the pauses since, as the upper
// ends of the runtime's buckets, in nanoseconds.
func (g goState) pausesSince(before goState) (p50, longest float64) {
	n := uint64(0)
	diff := make([]uint64, len(g.pauses.Counts))
	for i, c := range g.pauses.Counts {
		diff[i] = c - before.pauses.Counts[i]
		n += diff[i]
	}
	seen := uint64(0)
	for i, c := range diff {
		if c == 0 {
			continue
		}
		end := g.pauses.Buckets[i+1]
		if math.IsInf(end, 1) {
			end = g.pauses.Buckets[i]
		}
		if seen < (n+1)/2 && seen+c >= (n+1)/2 {
			p50 = end * 1e9
		}
		seen += c
		longest = end * 1e9
	}
	return p50, longest
}
