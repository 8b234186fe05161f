package fill

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/uring"
)

// Executor is how the waits of a run are spent. The same program runs under each
// of them.
type Executor uint8

const (
	// GPUReactor fills waits with ready work and parks on the lines waited for.
	GPUReactor Executor = iota
	// Naive runs each wait to its end on the thread, one at a time: a baseline, and
	// the only choice for a device that can't store words. Waits on a Port go
	// through the vendor's blocking wait. Tasks run one after another, so that
	// a task that waits for what a later one does never ends.
	Naive
	// IOUring is GPUReactor with the sleeps and naps spent waiting on an io_uring
	// of the run's own. They are no shorter or more precise for it.
	IOUring
)

// executors is the declared chain as data: what an executor needs and which one
// runs instead.
var executors = [...]struct {
	name     string
	missing  func(Caps) string
	fallback Executor
}{
	GPUReactor: {"gpu-reactor", func(c Caps) string { return c.NoWords }, Naive},
	Naive:      {"naive", func(Caps) string { return "" }, Naive},
	IOUring:    {"io-uring", func(c Caps) string { return cmp.Or(c.NoWords, c.NoRing) }, GPUReactor},
}

// String returns "naive", "gpu-reactor" or "io-uring", or "Executor(n)".
func (e Executor) String() string {
	if int(e) >= len(executors) {
		return "Executor(" + strconv.Itoa(int(e)) + ")"
	}
	return executors[e].name
}

// ParseExecutor returns the executor that text names. The text of any other is
// event.InvalidExecutor, with the accepted names.
func ParseExecutor(text string) (Executor, error) {
	names := []string{IOUring.String(), GPUReactor.String(), Naive.String()}
	for e := range executors {
		if executors[e].name == text {
			return Executor(e), nil
		}
	}
	return 0, event.New(event.InvalidExecutor, strconv.Quote(text), strings.Join(names, ", "))
}

// Caps says what there is to run an executor with: each field is the reason why
// something is missing, empty where it is there.
type Caps struct {
	// NoWords: the device can't store words (driver.Caps.NoStore).
	NoWords string
	// NoRing: this process can't use io_uring.
	NoRing string
}

// ProbeCaps returns what this process has; the device's part, NoWords, is left to
// the caller. It tries io_uring out, once per process.
func ProbeCaps() Caps {
	if s := uring.Probe().Ring; s.Answer != uring.Works {
		return Caps{NoRing: s.Why}
	}
	return Caps{}
}

// Choice is an executor as it was resolved. The zero value is GPUReactor,
// requested and running.
type Choice struct {
	Requested, Running Executor
	// Warning is an event.ExecutorFallback when the two differ, else nil.
	Warning error
}

// Label says what runs: its name, and what was asked for when that is another.
func (c Choice) Label() string {
	if c.Requested == c.Running {
		return c.Running.String()
	}
	return c.Running.String() + " (fallback from " + c.Requested.String() + ")"
}

// Resolve walks the declared chain, io-uring to gpu-reactor to naive, to the first
// executor that caps allow, and says so with a warning. With strict set an
// executor that is not allowed is refused instead, with event.ExecutorRefused.
// Resolve is pure: it depends on its arguments alone.
func (e Executor) Resolve(caps Caps, strict bool) (Choice, error) {
	if int(e) >= len(executors) {
		return Choice{}, event.New(event.InvalidExecutor, e.String(), "those that ParseExecutor returns")
	}
	c := Choice{Requested: e, Running: e}
	var whys []string
	for {
		why := executors[c.Running].missing(caps)
		if why == "" {
			break
		}
		if strict {
			return Choice{}, event.New(event.ExecutorRefused, e.String(), why)
		}
		if !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
		c.Running = executors[c.Running].fallback
	}
	if whys != nil {
		c.Warning = event.New(event.ExecutorFallback, e.String(), strings.Join(whys, "; "), c.Running.String())
	}
	return c, nil
}
