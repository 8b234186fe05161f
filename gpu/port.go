package gpu

import (
	"runtime"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/poller"
)

// Port returns one wait for all that is queued on the stream now, as
// poller.Run spends it: with a plan of its own, on the calling goroutine. It works
// over every driver. A Port belongs to one goroutine and one wait.
//
// Its calls go to the driver on the caller's goroutine, so unlike Wait and Done
// they can be held up by a driver that hangs; use those where that matters.
func (s *Stream) Port() event.Port { return &port{s: s} }

type port struct {
	s   *Stream
	seq uint64 // what Arm marked, 0 before
}

// Query implements event.Port.
func (p *port) Query() (bool, error) {
	if p.s == nil {
		return false, errNilStream
	}
	if !p.s.gate.enter() {
		return false, p.s.closedErr()
	}
	defer p.s.gate.leave()
	if err := p.s.watch.Err(); err != nil {
		return false, err
	}
	if p.seq != 0 && !p.s.d.byWord {
		return p.s.word.Reached(p.seq), nil
	}
	return p.s.ds.Query()
}

// Block implements event.Port.
func (p *port) Block() error {
	if p.s == nil {
		return errNilStream
	}
	if !p.s.gate.enter() {
		return p.s.closedErr()
	}
	defer p.s.gate.leave()
	return p.s.ds.Sync()
}

// Poll implements event.Port.
func (p *port) Poll() error {
	for n := 0; ; n++ {
		done, err := p.Query()
		if done || err != nil {
			return err
		}
		if n%64 == 63 {
			runtime.Gosched()
		}
	}
}

// Arm implements event.Port: it marks the stream.
func (p *port) Arm() (err error) {
	p.seq, err = p.s.Mark()
	return err
}

// Park implements event.Port. It can't be preempted for more than a few
// microseconds at a time.
func (p *port) Park(bound time.Duration) bool {
	if p.seq == 0 {
		return false
	}
	park, _ := asm.Probe()
	for end := poller.Now() + bound; ; {
		if !p.s.gate.enter() {
			return false
		}
		ok := park.Wait(p.s.word.Atomic(), p.seq, min(spinSlice, max(0, end-poller.Now())))
		p.s.gate.leave()
		if ok || poller.Now() >= end || p.s.watch.Err() != nil {
			return ok
		}
	}
}
