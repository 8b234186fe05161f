package rig

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/line"
)

// Method is one way for a Go program to wait for a device.
type Method struct {
	Name string
	// What says what it does, in a line.
	What string
	// Ours tells the library's from what a user would do instead.
	Ours bool
	// Predicts says whether it sleeps to a predicted completion first.
	Predicts bool
	// plan is what it asks for instead of the default plan.
	plan  string
	skip  func(driver string, c result.Cell) string
	start func(r *run) error
	sched uintptr // how a CUDA context is to wait in blocking calls, 0 for its default
}

// Skip returns why the method makes no sense in a cell, "" when it does.
func (m *Method) Skip(driver string, c result.Cell) string {
	if m.skip != nil {
		return m.skip(driver, c)
	}
	return ""
}

// MethodNamed returns the method of that name, or nil.
func MethodNamed(name string) *Method {
	for _, m := range Methods() {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Methods returns all methods, what users do today first.
func Methods() []*Method { return append(baselines(), ours()...) }

func baselines() []*Method {
	return []*Method{
		{
			Name: "nobody", What: "no device work and nobody waiting, for comparison",
			start: func(*run) error { return nil },
		},
		{
			Name: "thread", What: "an OS thread per wait, blocked in the vendor's blocking sync",
			sched: schedBlocking,
			start: startThread,
		},
		{
			Name: "spin", What: "the vendor's spinning sync, on the goroutine that waits",
			sched: schedSpin,
			skip:  tooManySpinners,
			start: startSpin,
		},
		{
			Name: "poll", What: "status query and runtime.Gosched in turn, on the goroutine that waits",
			start: startPoll,
		},
		{
			Name: "sleep", What: "status query and time.Sleep(50 us) in turn, on the goroutine that waits",
			start: startSleepPoll,
		},
		{
			Name: "callback", What: "a host callback behind the work that sends on a channel",
			skip: func(driver string, _ result.Cell) string {
				if driver != "soft" && driver != "cuda" {
					return "no callbacks into Go for this driver"
				}
				return ""
			},
			start: startCallback,
		},
		{
			Name: "events", What: "an event recorded behind the work, its query and runtime.Gosched in turn",
			skip: func(driver string, _ result.Cell) string {
				if driver == "soft" {
					return "an event's query costs what the stream's does here: see poll"
				}
				return ""
			},
			start: startEvents,
		},
		{
			Name: "event-sync", What: "an event recorded behind the work and a thread blocked in cuEventSynchronize (CU_EVENT_BLOCKING_SYNC)",
			skip: func(driver string, _ result.Cell) string {
				if driver != "cuda" {
					return "CUDA only"
				}
				return ""
			},
			start: startEventSync,
		},
		{
			Name: "eventfd", What: "an eventfd per stream, read through the netpoller; the device writes it, as if it had fence descriptors",
			skip: func(driver string, _ result.Cell) string {
				if driver != "soft" {
					return "the driver signals no descriptors"
				}
				return ""
			},
			start: startEventfd,
		},
		{
			Name: "watcher", What: "one goroutine that looks at all words and closes a channel per wait",
			start: startWatcher,
		},
	}
}

// tooManySpinners: sharing a processor among more spinners than this only measures
// how long a turn is.
func tooManySpinners(_ string, c result.Cell) string {
	if most := 32 * runtime.GOMAXPROCS(0); c.Streams > most {
		return fmt.Sprintf("%d spinning waits on %d processors", c.Streams, runtime.GOMAXPROCS(0))
	}
	return ""
}

func startThread(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		return v, l.ds.Sync()
	})
	return nil
}

func startSpin(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		switch {
		case l.soft != nil:
			return v, l.soft.SyncSpin()
		case r.job.Driver == "cuda":
			return v, l.ds.Sync() // scheduled to spin
		}
		for n := 1; ; n++ {
			if done, err := l.ds.Query(); done || err != nil {
				return v, err
			}
			if n%64 == 0 {
				runtime.Gosched()
			}
		}
	})
	return nil
}

func startPoll(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		for {
			if done, err := l.ds.Query(); done || err != nil {
				return v, err
			}
			runtime.Gosched()
		}
	})
	return nil
}

func startSleepPoll(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		for {
			if done, err := l.ds.Query(); done || err != nil {
				return v, err
			}
			time.Sleep(50 * time.Microsecond)
		}
	})
	return nil
}

// next launches a piece of work with a store behind it.
func (l *lane) next() (uint64, error) {
	if err := l.launch(); err != nil {
		return 0, err
	}
	return l.store()
}

func startCallback(r *run) error {
	channels := make([]chan struct{}, len(r.lanes))
	for i := range channels {
		channels[i] = make(chan struct{}, 1)
	}
	callbacks = channels
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		c := channels[l.i]
		if l.soft != nil {
			err = l.soft.HostFunc(func() { c <- struct{}{} })
		} else {
			err = hostFunc(l)
		}
		if err != nil {
			return 0, err
		}
		<-c
		return v, nil
	})
	return nil
}

func startEvents(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		e, err := l.ds.Record()
		if err != nil {
			return 0, err
		}
		defer e.Release()
		for {
			if done, err := e.Query(); done || err != nil {
				return v, err
			}
			runtime.Gosched()
		}
	})
	return nil
}

func startEventSync(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		return v, eventSync(l)
	})
	return nil
}

func startEventfd(r *run) error {
	files := make([]*os.File, len(r.lanes))
	fds := make([]int, len(r.lanes))
	for i := range files {
		var err error
		if files[i], fds[i], err = eventFile(); err != nil {
			return err
		}
	}
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		if err := l.soft.Signal(fds[l.i]); err != nil {
			return 0, err
		}
		var buf [8]byte
		_, err = files[l.i].Read(buf[:])
		return v, err
	})
	return nil
}

// watcher is the hand-made alternative to the library: a goroutine that looks at
// the words that somebody waits for, yields after every pass, and blocks when there
// are none.
type watcher struct {
	mu       sync.Mutex
	incoming []*watched
	asleep   bool
	wake     chan struct{}
	stopped  atomic.Bool
}

type watched struct {
	word   *line.Word
	target uint64
	c      chan struct{}
}

func (w *watcher) wait(x *watched) {
	w.mu.Lock()
	w.incoming = append(w.incoming, x)
	wake := w.asleep
	w.asleep = false
	w.mu.Unlock()
	if wake {
		w.wake <- struct{}{}
	}
	<-x.c
}

func (w *watcher) run() {
	var active, fresh []*watched
	for {
		w.mu.Lock()
		fresh, w.incoming = w.incoming, fresh[:0]
		if len(active)+len(fresh) == 0 {
			w.asleep = true
			w.mu.Unlock()
			<-w.wake
			if w.stopped.Load() {
				return
			}
			continue
		}
		w.mu.Unlock()
		active = append(active, fresh...)
		for i := 0; i < len(active); {
			if x := active[i]; x.word.Reached(x.target) {
				close(x.c)
				active[i] = active[len(active)-1]
				active = active[:len(active)-1]
				continue
			}
			i++
		}
		runtime.Gosched()
	}
}

func startWatcher(r *run) error {
	w := &watcher{wake: make(chan struct{}, 1)}
	go w.run()
	waits := make([]watched, len(r.lanes))
	r.each(func(l *lane) (uint64, error) {
		v, err := l.next()
		if err != nil {
			return 0, err
		}
		x := &waits[l.i]
		x.word, x.target, x.c = l.word, v, make(chan struct{})
		w.wait(x)
		return v, nil
	})
	return nil
}

func ours() []*Method {
	var ms []*Method
	for _, m := range slices.Concat([]*Method{
		{Name: "wait", What: "Stream.Wait", start: startWait},
		{Name: "done", What: "a select on gpu.Done", start: startDone},
	}, loops(), []*Method{
		{Name: "fill", What: "a task per stream in one run of the FILL executor", start: startFill},
	}) {
		m.Ours = true
		plain, predict := *m, *m
		predict.Predicts = true
		predict.Name += "+predict"
		predict.What += ", with prediction"
		predict.skip = func(driver string, c result.Cell) string {
			if c.Work == "20us" {
				return "shorter than the prediction's margin: the same as without"
			}
			if m.skip != nil {
				return m.skip(driver, c)
			}
			return ""
		}
		ms = append(ms, &plain, &predict)
		if m.Name == "wait" {
			steady := predict
			steady.Name, steady.plan = "wait+steady", Steady()
			steady.What = "Stream.Wait, with a plan for work that always takes as long: " + steady.plan
			steady.skip = func(driver string, c result.Cell) string {
				if c.Work == "mixed" {
					return "for work of one length"
				}
				return predict.skip(driver, c)
			}
			frugal := predict
			frugal.Name, frugal.plan = "wait+frugal", frugalPlan
			frugal.What = "Stream.Wait, with a plan that costs little however long it takes: " + frugal.plan
			frugal.skip = func(driver string, c result.Cell) string {
				if c.Work == "20us" || c.Work == "200us" {
					return "for long work"
				}
				return predict.skip(driver, c)
			}
			ms = append(ms, &steady, &frugal)
		}
	}
	return ms
}

// marked launches a piece of work with a mark behind it; for the observer, where
// there is one, a store of the lane's own goes before.
func (l *lane) marked() (uint64, error) {
	if err := l.launch(); err != nil {
		return 0, err
	}
	if l.soft == nil {
		if _, err := l.store(); err != nil {
			return 0, err
		}
	}
	return l.s.Mark()
}

func startWait(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		seq, err := l.marked()
		if err != nil {
			return 0, err
		}
		return seq, l.s.Wait(r.ctx, seq)
	})
	return nil
}

func startDone(r *run) error {
	r.each(func(l *lane) (uint64, error) {
		seq, err := l.marked()
		if err != nil {
			return 0, err
		}
		select {
		case <-gpu.Done(l.s, seq):
			return seq, l.s.Err()
		case <-r.ctx.Done():
			return seq, r.ctx.Err()
		}
	})
	return nil
}
