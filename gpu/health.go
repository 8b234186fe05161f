package gpu

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/event"
)

// health is the slow tick that finds what the words can't tell: faults, hangs
// and stores that got lost. It runs only while something is pending. The status
// queries themselves run on a second goroutine, because on a broken device the
// query may be what hangs (FLR, a GPU off the bus): then the tick's own deadline
// ends the device.
type health struct {
	d     *Device
	busy  chan struct{} // something became pending
	quit  chan struct{}
	start sync.Once
	wg    sync.WaitGroup

	queries atomic.Uint64

	mu      sync.Mutex
	zombies []*Stream // closed with work under way
}

func newHealth(d *Device) *health {
	return &health{d: d, busy: make(chan struct{}, 1), quit: make(chan struct{})}
}

// wake tells the tick that something is pending. It does not block.
func (h *health) wake() {
	h.start.Do(func() {
		h.wg.Add(1)
		go h.run()
	})
	select {
	case h.busy <- struct{}{}:
	default:
	}
}

// adopt takes over a closed stream whose work is still under way.
func (h *health) adopt(s *Stream) {
	h.mu.Lock()
	h.zombies = append(h.zombies, s)
	h.mu.Unlock()
	h.wake()
}

// stop ends the tick soon. It is called once.
func (h *health) stop() { close(h.quit) }

// wait waits for the tick and its query to end, after stop.
func (h *health) wait() {
	h.start.Do(func() {}) // nothing starts any more
	h.wg.Wait()
}

func (h *health) run() {
	defer h.wg.Done()
	t := time.NewTicker(h.d.opt.healthTick)
	defer t.Stop()
	// Nothing pending at two ticks running: sleep until there is.
	for idle := 0; ; {
		if idle >= 2 {
			t.Stop()
			select {
			case <-h.busy:
				t.Reset(h.d.opt.healthTick)
				idle = 0
			case <-h.quit:
				return
			}
		}
		select {
		case <-t.C:
		case <-h.quit:
			return
		}
		if h.d.Err() != nil {
			return
		}
		if h.pending() {
			idle = 0
			h.tick()
		} else {
			idle++
		}
	}
}

func (h *health) streams() []*Stream {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	all := make([]*Stream, 0, len(h.d.streams))
	for s := range h.d.streams {
		all = append(all, s)
	}
	return all
}

func (h *health) pending() bool {
	h.mu.Lock()
	n := len(h.zombies)
	h.mu.Unlock()
	if n > 0 {
		return true
	}
	for _, s := range h.streams() {
		if s.underWay() {
			return true
		}
	}
	return !h.d.waiter.Parked()
}

// tick makes one round of status queries, with a deadline.
func (h *health) tick() {
	d := h.d
	result := make(chan error, 1)
	h.wg.Add(1)
	go func() {
		defer h.wg.Done()
		result <- h.round()
	}()
	t := time.NewTimer(d.opt.healthDeadline)
	defer t.Stop()
	select {
	case err := <-result:
		if err != nil {
			d.lost(err)
		}
	case <-h.quit:
	case <-d.failed:
	case <-t.C:
		d.fail(event.New(event.DeviceLost, d.name, "a status query has not returned within "+d.opt.healthDeadline.String()))
	}
	h.bury()
}

// round asks the device, then every stream with something pending. Streams that
// are capturing are left alone: a query would spoil the capture (pytorch pull
// request 104487).
func (h *health) round() error {
	h.queries.Add(1)
	if err := h.d.dev.Status(); err != nil {
		return err
	}
	for _, s := range h.streams() {
		if !s.underWay() {
			continue
		}
		if err := h.examine(s); err != nil {
			return err
		}
		s.sweepIfHeld()
	}
	return nil
}

func (h *health) examine(s *Stream) error {
	if !s.gate.enter() {
		return nil
	}
	defer s.gate.leave()
	if s.capture {
		if capturing, err := s.ds.Capturing(); err != nil || capturing {
			return nil
		}
	}
	marked := s.marked.Load()
	h.queries.Add(1)
	done, err := s.ds.Query()
	if err != nil {
		return err
	}
	now := time.Now()
	if !done || s.word.Reached(marked) || !h.d.byWord {
		s.lostSince = time.Time{}
		return nil
	}
	// Done, yet the number is not there. It may be on its way; it may not stay so.
	switch {
	case s.lostSince.IsZero() || s.lostAt != s.word.Load():
		s.lostSince, s.lostAt = now, s.word.Load()
	case now.Sub(s.lostSince) >= h.d.opt.storeGrace:
		return event.New(event.StoreLost, s.name, "word at "+utoa(s.word.Load())+", newest mark "+utoa(marked)+", for "+now.Sub(s.lostSince).String())
	}
	return nil
}

// bury has adopted streams destroyed whose work is done by now.
func (h *health) bury() {
	h.mu.Lock()
	defer h.mu.Unlock()
	keep := h.zombies[:0]
	for _, s := range h.zombies {
		mine, gone := s.retireIfIdle()
		if mine && gone == nil && !s.hopeless() {
			keep = append(keep, s)
		}
	}
	clear(h.zombies[len(keep):])
	h.zombies = keep
}

// confirmer runs status queries for goroutines that saw a word reached
// themselves, on drivers where that does not prove success. It is one goroutine,
// started on first use: a query that blocks holds up this goroutine, while the
// asker goes on when the health tick declares the device lost.
type confirmer struct {
	d    *Device
	asks chan confirmAsk
	quit chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

type confirmAsk struct {
	s     *Stream
	value uint64
	reply chan error
}

func newConfirmer(d *Device) *confirmer {
	return &confirmer{d: d, asks: make(chan confirmAsk), quit: make(chan struct{})}
}

var replies = sync.Pool{New: func() any { return make(chan error, 1) }}

func (c *confirmer) confirm(ctx context.Context, s *Stream, seq uint64) error {
	c.once.Do(func() {
		c.wg.Add(1)
		go c.run()
	})
	s.unwatched.Add(1)
	defer s.unwatched.Add(-1)
	c.d.health.wake()
	reply := replies.Get().(chan error)
	select {
	case c.asks <- confirmAsk{s, seq, reply}:
	case <-c.d.failed:
		return c.d.Err()
	case <-ctx.Done():
		return s.abandoned(seq, ctx.Err())
	}
	select {
	case err := <-reply:
		replies.Put(reply)
		return err
	case <-c.d.failed:
		return c.d.Err()
	case <-ctx.Done():
		return s.abandoned(seq, ctx.Err())
	}
}

func (c *confirmer) run() {
	defer c.wg.Done()
	for {
		select {
		case a := <-c.asks:
			var err error
			if !a.s.watch.Reached(a.value) {
				if err = a.s.confirm(); err == nil {
					a.s.watch.Confirmed(a.value)
				}
			}
			a.reply <- err
		case <-c.quit:
			return
		}
	}
}

// stop ends the goroutine soon. It is called once, when the device has failed, so
// that no asker waits any more.
func (c *confirmer) stop() { close(c.quit) }

// wait waits for the goroutine to end, after stop.
func (c *confirmer) wait() {
	c.once.Do(func() {})
	c.wg.Wait()
}
