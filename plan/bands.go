package plan

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpuline/gpuline/event"
)

// MaxBands is the largest number of bands.
const MaxBands = 4

// Band is one band of Bands: Plan holds from From rows on, From included.
type Band struct {
	From uint64
	Plan Plan
}

// Bands chooses a plan by the number of rows of the step at hand:
//
//	<plan>;rows>=<n>:<plan>;…
//
// The first band starts at 0 rows, the edges strictly increase, a band's edge
// row belongs to it, and there are at most four. A single plan is one band. Bands
// are immutable and comparable. The zero value is block for any number of rows.
type Bands struct {
	bands [MaxBands]Band
	more  int // bands after the first
}

// ParseBands reads the text of bands. A text that breaks a rule of bands, or one
// of plans in any band, is event.InvalidPlan.
func ParseBands(text string) (Bands, error) {
	b, fault := parseBands(text)
	if fault != "" {
		return Bands{}, invalid(text, fault)
	}
	return b, nil
}

func parseBands(text string) (b Bands, fault string) {
	if n := strings.Count(text, ";") + 1; n > MaxBands {
		return b, fmt.Sprintf("%d bands, want at most %d", n, MaxBands)
	}
	parts := strings.Split(text, ";")
	for i, part := range parts {
		if fault = b.parseBand(i, part); fault != "" {
			if len(parts) > 1 {
				fault = fmt.Sprintf("band %d: %s", i+1, fault)
			}
			return b, fault
		}
	}
	return b, ""
}

// parseBand reads band i; those before it have been read.
func (b *Bands) parseBand(i int, text string) (fault string) {
	band := &b.bands[i]
	if b.more = i; i > 0 {
		edge, ok := strings.CutPrefix(text, "rows>=")
		edge, plan, colon := strings.Cut(edge, ":")
		if !ok || !colon {
			return fmt.Sprintf("%q is not rows>=<n>:<plan>", text)
		}
		var err error
		if band.From, err = strconv.ParseUint(edge, 10, 64); err != nil {
			return fmt.Sprintf("rows>=%q is not an unsigned 64-bit number", edge)
		}
		if prev := b.bands[i-1].From; band.From <= prev {
			return fmt.Sprintf("rows>=%d is not above the previous edge %d", band.From, prev)
		}
		text = plan
	}
	band.Plan, fault = parse(text)
	return fault
}

// One returns bands that have the same plan for any number of rows.
func One(p Plan) Bands {
	var b Bands
	b.bands[0].Plan = p
	return b
}

// Len returns the number of bands, 1 to 4.
func (b Bands) Len() int { return b.more + 1 }

// All returns the bands in ascending order.
func (b Bands) All() []Band { return append([]Band(nil), b.bands[:b.Len()]...) }

// Index returns the index in All of the band that rows belongs to.
func (b Bands) Index(rows uint64) int {
	i := b.more
	for i > 0 && rows < b.bands[i].From {
		i--
	}
	return i
}

// At returns the plan for a step of that many rows.
func (b Bands) At(rows uint64) Plan { return b.bands[b.Index(rows)].Plan }

// String returns the label: the canonical text. Parsing it gives the same bands.
func (b Bands) String() string {
	var s strings.Builder
	for i, band := range b.bands[:b.Len()] {
		if i > 0 {
			fmt.Fprintf(&s, ";rows>=%d:", band.From)
		}
		s.WriteString(band.Plan.String())
	}
	return s.String()
}

// MarshalText returns the label.
func (b Bands) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is ParseBands, for flag.TextVar and configuration files.
// A refused text leaves the bands as they are.
func (b *Bands) UnmarshalText(text []byte) error {
	c, err := ParseBands(string(text))
	if err == nil {
		*b = c
	}
	return err
}

// ResolvedBands are the bands that were asked for and those that run.
type ResolvedBands struct {
	Requested, Running Bands
	// Warnings has one event.ParkFallback for each band whose plan fell back.
	Warnings []*event.Error
}

// String returns the label of what runs, and what it stands in for.
func (r ResolvedBands) String() string { return label(r.Running.String(), r.Requested.String()) }

// Resolve resolves each band's plan. It is pure.
func (b Bands) Resolve(caps Caps) ResolvedBands {
	r := ResolvedBands{Requested: b, Running: b}
	for i := range r.Running.bands[:b.Len()] {
		p := b.bands[i].Plan.Resolve(caps)
		r.Running.bands[i].Plan = p.Running
		if p.Warning != nil {
			r.Warnings = append(r.Warnings, p.Warning)
		}
	}
	return r
}

// Steps is the cell that says how many rows the step at hand has: whoever
// launches a step publishes it once, every wait reads it. The zero value says 0
// rows, and so does a nil *Steps. A Steps must not be copied. Its methods may be
// called from many goroutines.
type Steps struct {
	rows atomic.Uint64
	_    [56]byte // a cache line of its own: it is read by every wait
}

// Publish sets the number of rows.
func (s *Steps) Publish(rows uint64) { s.rows.Store(rows) }

// Load returns the number of rows last published.
func (s *Steps) Load() uint64 {
	if s == nil {
		return 0
	}
	return s.rows.Load()
}
