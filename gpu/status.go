package gpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// statusPoller stands in for the device's stores where a device can't store
// words (CUDA's status 801 on vGPU and Tegra, a failed self-test): one goroutine
// asks for the oldest event of each stream and, when it is done, stores its
// number into a word that is the poller's own. Everything above goes on as if
// the device had stored it.
type statusPoller struct {
	d       *Device
	busy    chan struct{}
	quit    chan struct{}
	start   sync.Once
	wg      sync.WaitGroup
	queries atomic.Uint64

	mu     sync.Mutex
	closed bool // quit is closed
	queues map[*Stream]*statusQueue
}

type statusQueue struct {
	s    *Stream
	todo []statusMark
}

type statusMark struct {
	seq uint64
	ev  driver.Event
}

func newStatusPoller(d *Device) *statusPoller {
	return &statusPoller{d: d, busy: make(chan struct{}, 1), quit: make(chan struct{}), queues: make(map[*Stream]*statusQueue)}
}

// add queues the event of a mark.
func (p *statusPoller) add(s *Stream, seq uint64, ev driver.Event) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		ev.Release()
		return event.New(event.Closed, p.d.name)
	}
	q := p.queues[s]
	if q == nil {
		q = &statusQueue{s: s}
		p.queues[s] = q
	}
	q.todo = append(q.todo, statusMark{seq, ev})
	p.mu.Unlock()
	p.start.Do(func() {
		p.wg.Add(1)
		go p.run()
	})
	select {
	case p.busy <- struct{}{}:
	default:
	}
	return nil
}

// stop ends the goroutine soon and refuses what is still to be added.
func (p *statusPoller) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		close(p.quit)
	}
}

// wait waits for the goroutine to end, after stop, and releases what is left.
// Before that the words belong to the goroutine.
func (p *statusPoller) wait() {
	p.start.Do(func() {})
	p.wg.Wait()
	p.mu.Lock()
	left := p.queues
	p.queues = nil
	p.mu.Unlock()
	for _, q := range left {
		for _, m := range q.todo {
			m.ev.Release()
		}
	}
}

// A device that is asked by status is asked often at first and ever more rarely
// the longer nothing happens.
const (
	statusEager   = 50 * time.Microsecond
	statusLongest = 500 * time.Microsecond
)

func (p *statusPoller) run() {
	defer p.wg.Done()
	last := time.Now()
	for {
		select {
		case <-p.quit:
			return
		default:
		}
		moved, pending, err := p.round()
		if err != nil {
			p.d.lost(err)
			return
		}
		now := time.Now()
		switch waited := now.Sub(last); {
		case !pending:
			select {
			case <-p.busy:
				last = time.Now()
			case <-p.quit:
				return
			}
		case moved:
			last = now
		case waited < statusEager:
			runtime.Gosched()
		default:
			sleepFor(min(waited/8, statusLongest))
		}
	}
}

// round asks for the oldest event of every stream: one query per stream, more
// only where it was done.
func (p *statusPoller) round() (moved, pending bool, err error) {
	p.mu.Lock()
	qs := make([]*statusQueue, 0, len(p.queues))
	for _, q := range p.queues {
		if len(q.todo) > 0 {
			qs = append(qs, q)
		}
	}
	p.mu.Unlock()
	for _, q := range qs {
		for {
			p.mu.Lock()
			if len(q.todo) == 0 {
				delete(p.queues, q.s)
				p.mu.Unlock()
				break
			}
			m := q.todo[0]
			p.mu.Unlock()
			p.queries.Add(1)
			done, err := m.ev.Query()
			if err != nil {
				return moved, true, err
			}
			if !done {
				pending = true
				break
			}
			select {
			case <-p.quit: // while the query took its time
				return moved, true, nil
			default:
			}
			m.ev.Release()
			q.s.word.Store(m.seq)
			moved = true
			p.mu.Lock()
			q.todo = q.todo[1:]
			p.mu.Unlock()
		}
	}
	return moved, pending || moved, nil
}
