package gpu

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/poller"
)

// Stats counts what a Device did since it was opened.
type Stats struct {
	Waiter   poller.Stats
	Streams  int    // open streams, closed ones with work under way included
	Marks    uint64 // sequence numbers handed out
	Confirms uint64 // status queries made before a success was reported
	Blocked  uint64 // waits spent in the vendor's blocking wait
	Queries  uint64 // event queries of the status poller
	Backstop uint64 // status queries of the health tick, of the device and of streams
	// Fallbacks is how often something else was chosen at open than was asked for: status
	// polling instead of words, another wait plan. Drivers passed over do not count.
	Fallbacks int
	Retained  int // buffers that device work may still use
}

// Stats returns the counters. Each is exact; together they are not a snapshot
// of one instant.
func (d *Device) Stats() Stats {
	if d == nil {
		return Stats{}
	}
	st := Stats{
		Waiter: d.waiter.Stats(), Marks: d.marks.Load(), Confirms: d.confirms.Load(), Blocked: d.blocked.Load(),
	}
	if d.status != nil {
		st.Queries = d.status.queries.Load()
	}
	st.Backstop = d.health.queries.Load()
	for _, w := range d.warns {
		if errors.Is(w, event.ParkFallback) || errors.Is(w, event.SelfTestFailed) {
			st.Fallbacks++
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st.Streams = len(d.streams)
	for s := range d.streams {
		st.Retained += int(s.holds.Load())
	}
	return st
}

// Var returns the counters as an expvar.Var, which is anything with a String
// method that returns JSON:
//
//	expvar.Publish("gpu", dev.Var())
//
// The library does not import expvar itself, because that brings net/http and
// a handler on its default mux into every program.
func (d *Device) Var() fmt.Stringer { return statsVar{d} }

type statsVar struct{ d *Device }

func (v statsVar) String() string {
	b, err := json.Marshal(v.d.Stats())
	if err != nil {
		return "{}"
	}
	return string(b)
}
