// Package plan says how a wait for device work is spent. A plan is stated as
// text, parsed once, and never changes:
//
//	<park>                     wait this way
//	<park>+predict:<fields>    first sleep to shortly before the predicted completion
//
// The parks, and what they cost:
//
//	block    the vendor's blocking wait: no CPU, a thread per wait, no way out
//	poll     status queries without pause: a busy core, works everywhere
//	flag:park_us=<n>,backstop_us=<n>
//	         the processor's park on the word the device stores into
//	staged:spin_us=<n>,nap_us=<n>,backstop_us=<n>
//	         look at the word without pause for spin_us, then nap_us at a time
//	         asleep in the kernel between looks; needs no park instruction
//	park:park_us=<n>,spin_us=<n>,nap_us=<n>,backstop_us=<n>
//	         staged, with the processor's park instead of the first stage's loop
//
// park_us (1..10000) bounds one park, spin_us (0..10000) the first stage as
// a whole; nap_us (1..10000) is the length of a nap, which a waiter's long waits
// may exceed (poller.Config.Nap). Every backstop_us (1..1000000) the device's
// status is asked, which finds what the word can't tell: failed work, or a store
// that never lands; for the streams of package gpu, the health tick does that.
//
// The fields of a prediction are margin_us=<n>, min_sleep_us=<n>,
// max_sleep_us=<n> and window=<n> (1..16), with min_sleep_us <= max_sleep_us; see
// Estimator for what they do. Block takes none: there is nothing to sleep in
// front of.
//
// Every list of fields may be in any order, and states each field exactly once:
// none has a default. <n> is a decimal number; no value may overflow
// a time.Duration. A text that breaks a rule is refused with event.InvalidPlan,
// which quotes the text and says what is wrong. Faults of the prediction come
// before faults of the park.
//
// Which plan runs is settled at start by Resolve, which walks a fixed table (see
// Fallbacks) for what the machine and the driver can't do. Bands choose between
// plans by the size of the step at hand.
package plan

import (
	"strconv"
	"strings"
	"time"
)

// Kind is the park of a plan.
type Kind uint8

// The kinds; the package comment describes them.
const (
	Block Kind = iota
	Poll
	Flag
	Staged
	Park
)

// The parameters of parks.
const (
	parkUS = iota
	spinUS
	napUS
	backstopUS
	params
)

var paramTable = [params]struct {
	name     string
	min, max uint64
}{
	parkUS:     {"park_us", 1, 10_000},
	spinUS:     {"spin_us", 0, 10_000},
	napUS:      {"nap_us", 1, 10_000},
	backstopUS: {"backstop_us", 1, 1_000_000},
}

// kindTable lists the parks with their parameters in canonical order.
var kindTable = [...]struct {
	name   string
	params []int
}{
	Block:  {"block", nil},
	Poll:   {"poll", nil},
	Flag:   {"flag", []int{parkUS, backstopUS}},
	Staged: {"staged", []int{spinUS, napUS, backstopUS}},
	Park:   {"park", []int{parkUS, spinUS, napUS, backstopUS}},
}

// String returns the name that the kind has in a plan's text.
func (k Kind) String() string {
	if int(k) < len(kindTable) {
		return kindTable[k].name
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Plan says how a wait is spent. Plans are immutable and comparable: two are
// equal exactly when their texts are. The zero value is block.
type Plan struct {
	kind Kind
	v    [params]time.Duration // 0 where the kind has no such parameter
	pred Prediction
}

// Kind returns the plan's park.
func (p Plan) Kind() Kind { return p.kind }

// Park returns the longest single park (park_us), 0 where the kind has none.
func (p Plan) Park() time.Duration { return p.v[parkUS] }

// Spin returns the length of the first stage (spin_us), 0 where the kind has none.
func (p Plan) Spin() time.Duration { return p.v[spinUS] }

// Nap returns the length of a nap between two looks at the word (nap_us), 0
// where the kind has none.
func (p Plan) Nap() time.Duration { return p.v[napUS] }

// Backstop returns the time between two status queries (backstop_us), 0 where
// the kind has none.
func (p Plan) Backstop() time.Duration { return p.v[backstopUS] }

// Word reports whether the plan looks at the word, so that its store has to be
// queued.
func (p Plan) Word() bool { return p.kind == Flag || p.kind == Staged || p.kind == Park }

// Prediction returns the plan's prediction, and whether it has one.
func (p Plan) Prediction() (Prediction, bool) { return p.pred, p.pred.window > 0 }

// String returns the plan's label: the canonical text, with every field in the
// order of the package comment. Parsing it gives the same plan.
func (p Plan) String() string {
	if p.pred.window > 0 {
		return p.park() + "+" + p.pred.String()
	}
	return p.park()
}

func (p Plan) park() string {
	if int(p.kind) >= len(kindTable) {
		return p.kind.String()
	}
	var b strings.Builder
	b.WriteString(p.kind.String())
	sep := byte(':')
	for _, i := range kindTable[p.kind].params {
		writeField(&b, &sep, paramTable[i].name, micros(p.v[i]))
	}
	return b.String()
}

// MarshalText returns the label.
func (p Plan) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is Parse, for flag.TextVar and configuration files. A refused
// text leaves the plan as it is.
func (p *Plan) UnmarshalText(text []byte) error {
	q, err := Parse(string(text))
	if err == nil {
		*p = q
	}
	return err
}

// Prediction says how the estimator's sleep before a wait is cut: see Estimator.
// It is immutable and comparable. The zero value predicts nothing.
type Prediction struct {
	margin, minSleep, maxSleep time.Duration
	window                     int
}

// The fields of a prediction, in canonical order.
const (
	marginUS = iota
	minSleepUS
	maxSleepUS
	windowN
	predFields
)

var predNames = [predFields]string{marginUS: "margin_us", minSleepUS: "min_sleep_us", maxSleepUS: "max_sleep_us", windowN: "window"}

// maxWindow is the longest window.
const maxWindow = 16

// Margin is how long before the predicted completion the sleep ends.
func (p Prediction) Margin() time.Duration { return p.margin }

// MinSleep is the shortest sleep worth its system call.
func (p Prediction) MinSleep() time.Duration { return p.minSleep }

// MaxSleep is the longest sleep.
func (p Prediction) MaxSleep() time.Duration { return p.maxSleep }

// Window is the number of residuals that count, 0 for the zero value.
func (p Prediction) Window() int { return p.window }

// String returns the canonical text, "predict:<fields>", or "" for the zero
// value.
func (p Prediction) String() string {
	if p.window == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("predict")
	sep := byte(':')
	for i, v := range [predFields]uint64{micros(p.margin), micros(p.minSleep), micros(p.maxSleep), uint64(p.window)} {
		writeField(&b, &sep, predNames[i], v)
	}
	return b.String()
}

// sleep returns how long to sleep before work that is predicted to take d, d >= 0.
func (p Prediction) sleep(d time.Duration) time.Duration {
	d -= p.margin // neither is negative: no overflow
	if d < p.minSleep {
		return 0
	}
	return min(d, p.maxSleep)
}

func micros(d time.Duration) uint64 { return uint64(d / time.Microsecond) }

func writeField(b *strings.Builder, sep *byte, name string, v uint64) {
	b.WriteByte(*sep)
	*sep = ','
	b.WriteString(name)
	b.WriteByte('=')
	b.WriteString(strconv.FormatUint(v, 10))
}
