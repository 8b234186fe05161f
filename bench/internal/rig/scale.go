package rig

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/poller"
)

// Scaled is a quantity that is measured at several sizes, or alone (X nil).
type Scaled struct {
	Name, What string
	XName      string
	X          []int
	Unit       string
	Lower      bool // less is better
	// Exec says that the value is how long the child process takes.
	Exec bool
	run  func(j Job) (Answer, error)
}

// Scales returns what is measured besides the grid.
func Scales() []Scaled {
	procs := runtime.GOMAXPROCS(0)
	return []Scaled{
		{Name: "look at a word", What: "CPU time of the waiter for one look at each of the words with pending waits, per word",
			XName: "words", X: []int{2, 8, 64, 512, 4096}, Unit: "ns", Lower: true, run: scanCost},
		{Name: "completion, one word", What: "CPU time of a completion and the registration of the next wait, with this many pending on one word",
			XName: "pending", X: []int{10, 1000, 100_000, 1_000_000}, Unit: "ns", Lower: true, run: oneWord},
		{Name: "completion, 1024 words", What: "the same, spread over 1024 words",
			XName: "pending", X: []int{1024, 10_240, 102_400, 1_024_000}, Unit: "ns", Lower: true, run: manyWords},
		{Name: "registrations", What: "registrations and their cancellations",
			XName: "goroutines", X: slices.Compact([]int{1, procs}), Unit: "/s", run: registrations},
		{Name: "CPU, nothing pending", What: "CPU time with an open device, 64 streams and nothing to wait for",
			Unit: "us/s", Lower: true, run: idleCPU},
		{Name: "CPU, one far wait", What: "CPU time with one wait pending about which nothing was learned",
			Unit: "us/s", Lower: true, run: farWait},
		{Name: "GC pause", What: "the median stop-the-world pause while garbage is made: 0 nothing waits, 1 the waiter spins, 2 a goroutine spins in Wait",
			XName: "spinning", X: []int{0, 1, 2}, Unit: "ns", Lower: true, run: gcPause},
		{Name: "start-up", What: "a process from exec to exit: 0 empty, 1 opens the soft device and waits once, 2 opens whatever device there is",
			XName: "opens", X: []int{0, 1, 2}, Unit: "us", Lower: true, Exec: true, run: startUp},
	}
}

func runScale(j Job) (Answer, error) {
	for _, s := range Scales() {
		if s.Name == j.Name {
			return s.run(j)
		}
	}
	return Answer{}, fmt.Errorf("no scale %q", j.Name)
}

func words(n int) ([]line.Line, error) {
	m, err := line.Map((n+line.Words-1)/line.Words, false)
	if err != nil {
		return nil, err
	}
	return m.Lines, nil // unmapped at the end of the process
}

// ignore is a sink for waits that are not expected to complete.
type ignore struct{}

func (ignore) Complete(*poller.Wait, error) {}
func (ignore) Flush()                       {}

// scanCost has a waiter look without pause at j.X words that nothing is stored to.
func scanCost(j Job) (Answer, error) {
	lines, err := words(j.X)
	if err != nil {
		return Answer{}, err
	}
	w := poller.NewWaiter(poller.Config{Spin: time.Hour})
	for i := range j.X {
		x, err := w.Watch(&lines[i/line.Words][i%line.Words], poller.WatchOptions{})
		if err != nil {
			return Answer{}, err
		}
		if _, err := x.Add(&poller.Wait{Sink: ignore{}}, 1); err != nil {
			return Answer{}, err
		}
	}
	time.Sleep(5 * time.Millisecond)
	before, cpu := w.Stats().Looks, sys.CPU()
	time.Sleep(j.Measure)
	cpu, looks := sys.CPU()-cpu, w.Stats().Looks-before
	if looks == 0 {
		return Answer{}, fmt.Errorf("no looks within %v", j.Measure)
	}
	return Answer{Values: []float64{float64(cpu) / float64(looks)}}, nil
}

// mill is a sink that, at the end of a batch in which the last wait of a round has
// completed, makes the device's next stores itself: the waiter's goroutine is the
// only one at work, and its CPU time all there is.
type mill struct {
	words   []*line.Word
	watches []*poller.Watch
	depth   uint64
	next    uint64 // what is stored next
	left    int
	stop    atomic.Bool
	done    chan struct{}
	n       atomic.Int64
	failed  error
	plant   float64
	since   time.Duration // of the last stores
}

func (m *mill) Complete(wt *poller.Wait, err error) {
	if err != nil {
		return // closed
	}
	m.n.Add(1)
	m.left--
	if _, err := m.watches[wt.User].Add(wt, wt.Target()+m.depth); err != nil {
		m.failed = err
	}
}

func (m *mill) Flush() {
	if m.left > 0 {
		return
	}
	if m.stop.Load() {
		if m.done != nil {
			close(m.done)
			m.done = nil
		}
		return
	}
	if m.plant > 0 {
		now := soft.Now()
		for end := now + time.Duration(m.plant*float64(now-m.since)); now < end; {
			now = soft.Now()
		}
	}
	m.store()
}

func (m *mill) store() {
	if m.plant > 0 {
		m.since = soft.Now()
	}
	m.next++
	m.left = len(m.words)
	for _, w := range m.words {
		w.Store(m.next)
	}
}

func oneWord(j Job) (Answer, error)   { return completionCost(j, 1) }
func manyWords(j Job) (Answer, error) { return completionCost(j, 1024) }

func completionCost(j Job, n int) (Answer, error) {
	lines, err := words(n)
	if err != nil {
		return Answer{}, err
	}
	w := poller.NewWaiter(poller.Config{Spin: time.Hour})
	m := &mill{depth: uint64(j.X / n), done: make(chan struct{}), plant: j.Plant}
	done := m.done
	waits := make([]poller.Wait, j.X)
	for i := range n {
		word := &lines[i/line.Words][i%line.Words]
		x, err := w.Watch(word, poller.WatchOptions{})
		if err != nil {
			return Answer{}, err
		}
		m.words, m.watches = append(m.words, word), append(m.watches, x)
	}
	for i := range waits {
		wt := &waits[i]
		wt.Sink, wt.User = m, uint64(i%n)
		if _, err := m.watches[i%n].Add(wt, uint64(i/n)+1); err != nil {
			return Answer{}, err
		}
	}
	runtime.GC() // what setting up left behind is not to be swept meanwhile
	m.store()
	time.Sleep(j.Warm)
	before, from, cpu := readGo(), m.n.Load(), sys.CPU()
	time.Sleep(j.Measure)
	cpu, count, after := sys.CPU()-cpu, m.n.Load()-from, readGo()
	m.stop.Store(true)
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		return Answer{}, fmt.Errorf("the waiter did not finish its round")
	}
	if m.failed != nil || count == 0 {
		return Answer{}, fmt.Errorf("%d completions: %w", count, m.failed)
	}
	a := Answer{Values: []float64{float64(cpu) / float64(count)}}
	a.Note = fmt.Sprintf("%.2f allocations per wait", float64(after.allocs-before.allocs)/float64(count))
	return a, w.Close()
}

func registrations(j Job) (Answer, error) {
	lines, err := words(j.X)
	if err != nil {
		return Answer{}, err
	}
	w := poller.NewWaiter(poller.Config{})
	defer w.Close()
	var n atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(j.Measure)
	for g := range j.X {
		x, err := w.Watch(&lines[g/line.Words][g%line.Words], poller.WatchOptions{})
		if err != nil {
			return Answer{}, err
		}
		wg.Go(func() {
			// Not to be looked at before long: the waiter sleeps, as it does with
			// predictions.
			wt := &poller.Wait{Sink: ignore{}, Look: time.Hour}
			for time.Now().Before(end) {
				for range 256 {
					if _, err := x.Add(wt, 1); err != nil {
						return
					}
					x.Cancel(wt)
				}
				n.Add(256)
			}
		})
	}
	wg.Wait()
	return Answer{Values: []float64{float64(n.Load()) / j.Measure.Seconds()}}, nil
}

func idleCPU(j Job) (Answer, error) {
	d, err := openDevice("soft", PlanText(true))
	if err != nil {
		return Answer{}, err
	}
	for range 64 {
		if err := waitOnce(d, 50*time.Microsecond); err != nil {
			return Answer{}, err
		}
	}
	time.Sleep(200 * time.Millisecond) // the start of the process is not idle
	return Answer{Values: []float64{cpuPerSecond(j.Measure)}}, d.Close()
}

// waitOnce makes a stream, and waits for a piece of work on it.
func waitOnce(d *gpu.Device, work time.Duration) error {
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	if ss, ok := soft.Of(s); ok {
		if err := ss.Work(work); err != nil {
			return err
		}
	}
	seq, err := s.Mark()
	if err != nil {
		return err
	}
	return s.Wait(context.Background(), seq)
}

// cpuPerSecond sleeps, and returns the microseconds of CPU time per second that
// were used meanwhile.
func cpuPerSecond(d time.Duration) float64 {
	cpu, start := sys.CPU(), time.Now()
	time.Sleep(d)
	return float64(sys.CPU()-cpu) / 1e3 / time.Since(start).Seconds()
}

func farWait(j Job) (Answer, error) {
	d, err := openDevice("soft", PlanText(true))
	if err != nil {
		return Answer{}, err
	}
	s, seq, err := farWork(d)
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error)
	go func() { done <- s.Wait(ctx, seq) }()
	time.Sleep(20 * time.Millisecond)
	v := cpuPerSecond(j.Measure)
	cancel()
	<-done
	return Answer{Values: []float64{v}}, nil
}

// farWork queues work of an hour, which the end of the process ends, and a mark
// behind it.
func farWork(d *gpu.Device) (*gpu.Stream, uint64, error) {
	s, err := d.NewStream()
	if err != nil {
		return nil, 0, err
	}
	ss, _ := soft.Of(s)
	if err := ss.Work(time.Hour); err != nil {
		return nil, 0, err
	}
	seq, err := s.Mark()
	return s, seq, err
}

func gcPause(j Job) (Answer, error) {
	switch j.X {
	case 1:
		lines, err := words(1)
		if err != nil {
			return Answer{}, err
		}
		w := poller.NewWaiter(poller.Config{Spin: time.Hour})
		x, err := w.Watch(&lines[0][0], poller.WatchOptions{})
		if err != nil {
			return Answer{}, err
		}
		if _, err := x.Add(&poller.Wait{Sink: ignore{}}, 1); err != nil {
			return Answer{}, err
		}
	case 2:
		d, err := openDevice("soft", "poll")
		if err != nil {
			return Answer{}, err
		}
		s, seq, err := farWork(d)
		if err != nil {
			return Answer{}, err
		}
		go func() { _ = s.Wait(context.Background(), seq) }()
	}
	quit := make(chan struct{})
	defer close(quit)
	go garbage(new(counter), quit)
	time.Sleep(j.Warm)
	before := readGo()
	time.Sleep(j.Measure)
	after := readGo()
	p50, longest := after.pausesSince(before)
	if after.gcs == before.gcs {
		return Answer{}, fmt.Errorf("no collection within %v", j.Measure)
	}
	return Answer{Values: []float64{p50}, Note: "longest " + time.Duration(longest).String()}, nil
}

// startUp is timed by the parent.
func startUp(j Job) (Answer, error) {
	switch j.X {
	case 1:
		d, err := openDevice("soft", "")
		if err != nil {
			return Answer{}, err
		}
		return Answer{}, waitOnce(d, 0)
	case 2:
		d, err := gpu.Open(context.Background())
		if err != nil {
			return Answer{Note: "opened nothing, and said why"}, nil
		}
		a := Answer{Note: "opened " + d.Info().Driver + ":" + strconv.Itoa(d.Info().Ordinal)}
		return a, waitOnce(d, 0)
	}
	return Answer{}, nil
}
