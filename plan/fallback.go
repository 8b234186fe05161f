package plan

import (
	"strings"

	"github.com/gpuline/gpuline/event"
)

// Capability is one thing that a machine or driver can or can't do. The zero
// value can't, for an unknown reason.
type Capability struct {
	OK bool
	// Why says why not; it is not looked at when OK.
	Why string
}

// Caps is what plans can need. The zero value has nothing.
type Caps struct {
	// DeviceWordStore: the driver stores into the word behind the device's work.
	DeviceWordStore Capability
	// ProcessorPark: the processor has a park that a store to the word ends.
	ProcessorPark Capability
}

// Need is a set of capabilities under one name.
type Need uint8

const (
	// DeviceWordStore is a driver that stores into the word.
	DeviceWordStore Need = 1 << iota
	processorPark
	// DeviceWordWait is a processor park on a device-written word, and a driver
	// that stores into it.
	DeviceWordWait = DeviceWordStore | processorPark
)

// String returns the name that the need has in warnings.
func (n Need) String() string {
	if n == DeviceWordWait {
		return "device word wait"
	}
	return "device word store"
}

// missing returns what of the need c lacks, and why; "" when nothing.
func (n Need) missing(c Caps) string {
	var whys []string
	for _, part := range []struct {
		need Need
		name string
		have Capability
	}{
		{DeviceWordStore, "no device word store", c.DeviceWordStore},
		{processorPark, "no processor park", c.ProcessorPark},
	} {
		if n&part.need == 0 || part.have.OK {
			continue
		}
		why := part.name
		if part.have.Why != "" {
			why += ": " + part.have.Why
		}
		whys = append(whys, why)
	}
	return strings.Join(whys, "; ")
}

// Fallback is a row of the fallback table: a plan of kind From needs Needs, and
// where that is missing it becomes one of kind To, with the parameters that the
// two have in common and with its prediction.
type Fallback struct {
	From  Kind
	Needs Need
	To    Kind
}

// A row's target has its own row, if any, further down, so that one pass is
// enough. Block and poll need nothing.
var fallbacks = [...]Fallback{
	{Flag, DeviceWordWait, Poll},
	{Park, DeviceWordWait, Staged},
	{Staged, DeviceWordStore, Poll},
}

// Fallbacks returns the fallback table, in the order in which Resolve walks it.
func Fallbacks() []Fallback { return append([]Fallback(nil), fallbacks[:]...) }

// Resolved is a plan that was asked for and the one that runs.
type Resolved struct {
	Requested, Running Plan
	// Warning is event.ParkFallback when the two differ, else nil.
	Warning *event.Error
}

// String returns the label of what runs, and what it stands in for.
func (r Resolved) String() string { return label(r.Running.String(), r.Requested.String()) }

func label(running, requested string) string {
	if running == requested {
		return running
	}
	return running + " (fallback from " + requested + ")"
}

// Resolve walks the fallback table once and returns the plan that runs where
// caps is all there is. It is pure.
func (p Plan) Resolve(caps Caps) Resolved {
	r := Resolved{Requested: p, Running: p}
	var need Need
	var why string
	for _, row := range fallbacks {
		if row.From != r.Running.kind {
			continue
		}
		m := row.Needs.missing(caps)
		if m == "" {
			break
		}
		if why == "" {
			need, why = row.Needs, m
		}
		r.Running = r.Running.as(row.To)
	}
	if why != "" {
		r.Warning = event.New(event.ParkFallback, p.String(), need.String(), why, r.Running.String())
	}
	return r
}

// as returns p with another park that has a subset of p's parameters.
func (p Plan) as(k Kind) Plan {
	q := Plan{kind: k, pred: p.pred}
	for _, i := range kindTable[k].params {
		q.v[i] = p.v[i]
	}
	return q
}
