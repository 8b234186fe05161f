package event

import "time"

// Port is one wait on device work, as a back end offers it. A Port belongs to
// the goroutine that waits; its methods need not be safe for concurrent use.
// Errors pass through the wait unchanged.
type Port interface {
	// Query looks at the device's status at once, without blocking: done, still
	// pending (false, nil), or the work's error.
	Query() (done bool, err error)
	// Block is the vendor's own blocking wait.
	Block() error
	// Poll queries until the work is done or failed.
	Poll() error
	// Arm queues the store of the word's target behind the pending work.
	Arm() error
	// Park waits on the word for at most bound, and reports whether the word has
	// reached its target. It may return early.
	Park(bound time.Duration) bool
}

// Outcome says how well a wait's length is known.
type Outcome uint8

const (
	// NoOutcome: the wait was blocked inside the driver, nothing was observed.
	NoOutcome Outcome = iota
	// Exact: seen pending, then done. The residual is completion - wait start.
	// A wait found done by its very first query is exact too, with residual 0.
	Exact
	// Late: the first query after the sleep found it done. The wait's length is
	// an upper bound of the residual, no more.
	Late
)

// String returns "none", "exact" or "late".
func (o Outcome) String() string {
	switch o {
	case Exact:
		return "exact"
	case Late:
		return "late"
	}
	return "none"
}

// Kind says which way a wait went.
type Kind uint8

const (
	// Blocked: only the vendor's blocking wait ran.
	Blocked Kind = iota
	// Immediate: the first query found the work done.
	Immediate
	// LateKind: the first query after the predicted sleep found the work done.
	LateKind
	// Parked: the wait polled, parked or napped until completion.
	Parked
)

// String returns "blocked", "immediate", "late" or "parked".
func (k Kind) String() string {
	switch k {
	case Blocked:
		return "blocked"
	case Immediate:
		return "immediate"
	case LateKind:
		return "late"
	case Parked:
		return "parked"
	}
	return "unknown"
}

// Report is what one finished wait has to tell.
type Report struct {
	Kind    Kind
	Outcome Outcome
	// Wait is the whole length of the wait.
	Wait time.Duration
	// Slept is the time spent in the predicted sleep.
	Slept time.Duration
	// Parks counts bounded parks on the word, software naps included.
	Parks uint64
	// Queries counts the backstop's status queries: neither the first query nor
	// the one after the sleep is among them.
	Queries uint64
}
