package event

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Code identifies one kind of failure or warning. The registry is append-only:
// a number, once published, keeps its meaning and is never reused. The code,
// not the text, is the identity, and a Code is itself an error, so that
//
//	errors.Is(err, event.InvalidPlan)
//
// holds for every error of that kind, however deeply it is wrapped. Use
// errors.As with *Error to reach the arguments.
type Code uint16

// The registry. The comment of each code names its arguments in order.
const (
	// InvalidPlan: subject; the quoted text and what is wrong with it.
	InvalidPlan Code = 1
	// ParkFallback: requested plan; missing capability; why; plan that runs.
	ParkFallback Code = 2
	// ExecutorFallback: requested; why; what runs.
	ExecutorFallback Code = 3
	// ExecutorRefused: requested; why.
	ExecutorRefused Code = 4
	// InvalidExecutor: text; accepted names.
	InvalidExecutor Code = 5
	// PendedInline: site.
	PendedInline Code = 6
	// Stalled: tasks left.
	Stalled Code = 7
	// Backend: subject; status.
	Backend Code = 8

	// DeviceLost: device; what was seen. Sticky: every pending and later wait
	// on the device ends with it.
	DeviceLost Code = 9
	// Closed: what was closed. Also matches os.ErrClosed.
	Closed Code = 10
	// CaptureRefused: subject; why. A mark on a capturing stream would store a
	// stale number at every replay.
	CaptureRefused Code = 11
	// NotSupported: what; why. Also matches errors.ErrUnsupported.
	NotSupported Code = 12
	// SelfTestFailed: device; what was seen; what runs instead.
	SelfTestFailed Code = 13
	// InvalidArgument: subject; what is wrong and what would be right.
	InvalidArgument Code = 14
	// ForeignStream: subject; why.
	ForeignStream Code = 15
	// DriverMissing: library or entry point; why.
	DriverMissing Code = 16
	// NoDevice: driver; why.
	NoDevice Code = 17
	// StoreLost: stream; what was seen. The device reports the work behind a
	// mark as done, but the number never arrived.
	StoreLost Code = 18
	// NotMarked: stream; sequence number; newest mark.
	NotMarked Code = 19
	// HostFallback: requested; why; what runs.
	HostFallback Code = 20
	// HostRefused: requested; why.
	HostRefused Code = 21
	// DriverPassedOver: driver; why.
	DriverPassedOver Code = 22
	// Leaked: what; why it could not be freed.
	Leaked Code = 23
	// Panicked: subject; panic value and stack.
	Panicked Code = 24
	// WorkFailed: stream; what the driver said.
	WorkFailed Code = 25
)

type codeInfo struct {
	name     string
	template string
	args     int
}

// Templates use %1, %2, … for the arguments.
var codes = map[Code]codeInfo{
	InvalidPlan:      {"InvalidPlan", "invalid %1: %2", 2},
	ParkFallback:     {"ParkFallback", "wait plan %1 needs %2 (%3): running %4", 4},
	ExecutorFallback: {"ExecutorFallback", "executor %1 is not usable here (%2): running %3", 3},
	ExecutorRefused:  {"ExecutorRefused", "executor %1 is not usable here: %2", 2},
	InvalidExecutor:  {"InvalidExecutor", "unknown executor %1: want one of %2", 2},
	PendedInline:     {"PendedInline", "%1: pending work reached a call that must not wait", 1},
	Stalled:          {"Stalled", "stalled: %1 tasks left, and nothing that could wake one", 1},
	Backend:          {"Backend", "%1: status %2", 2},
	DeviceLost:       {"DeviceLost", "device %1 is lost: %2", 2},
	Closed:           {"Closed", "%1 is closed", 1},
	CaptureRefused:   {"CaptureRefused", "%1: refused while the stream is capturing: %2", 2},
	NotSupported:     {"NotSupported", "%1 is not supported here: %2", 2},
	SelfTestFailed:   {"SelfTestFailed", "device %1 failed its self-test (%2): running %3", 3},
	InvalidArgument:  {"InvalidArgument", "%1: %2", 2},
	ForeignStream:    {"ForeignStream", "%1: stream of another device context: %2", 2},
	DriverMissing:    {"DriverMissing", "driver part %1 is missing: %2", 2},
	NoDevice:         {"NoDevice", "%1: no device: %2", 2},
	StoreLost:        {"StoreLost", "%1: the device says done, but the store never arrived: %2", 2},
	NotMarked:        {"NotMarked", "%1: sequence number %2 was never marked (the newest mark is %3)", 3},
	HostFallback:     {"HostFallback", "host %1 is not usable here (%2): running %3", 3},
	HostRefused:      {"HostRefused", "host %1 is not usable here: %2", 2},
	DriverPassedOver: {"DriverPassedOver", "driver %1 passed over: %2", 2},
	Leaked:           {"Leaked", "%1 leaked: %2", 2},
	Panicked:         {"Panicked", "panic in %1: %2", 2},
	WorkFailed:       {"WorkFailed", "%1: device work failed: %2", 2},
}

// Codes returns every registered code in ascending order.
func Codes() []Code {
	out := make([]Code, 0, len(codes))
	for c := Code(1); int(c) <= len(codes); c++ {
		out = append(out, c)
	}
	return out
}

// String returns the code's name, or "Code(n)" for a number that is not in the
// registry.
func (c Code) String() string {
	if i, ok := codes[c]; ok {
		return i.name
	}
	return "Code(" + strconv.Itoa(int(c)) + ")"
}

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string { return "gpuline: " + c.String() }

// Args returns how many arguments an error of this code carries, 0 for a
// number that is not in the registry.
func (c Code) Args() int { return codes[c].args }

// Stable integer statuses of line errors, for logs. A driver's own status is
// passed through as it is.
const (
	// StatusMissing: the driver, or an entry point of it, is missing.
	StatusMissing = -1
	// StatusNoContext: no context is current on the calling thread.
	StatusNoContext = -3
	// StatusForeign: the stream belongs to another context.
	StatusForeign = -4
)

// Error is a coded error or warning. The zero value is not useful; make one
// with New or Wrap. An Error is immutable once made and may be shared between
// goroutines.
type Error struct {
	// Code is the identity of the error.
	Code Code
	// Args are the arguments of the code's message template, in order.
	Args []string
	// Status is the stable integer for logs: the driver's own status, one of
	// the Status constants, or 0 where there is none.
	Status int64
	// Err is the cause, or nil.
	Err error
}

// New makes an error of the given code. Missing arguments read as "?"; extra
// ones are kept and appended to the text.
func New(code Code, args ...string) *Error { return &Error{Code: code, Args: args} }

// WithStatus returns a copy of e that carries a stable integer status.
func (e *Error) WithStatus(status int64) *Error {
	c := *e
	c.Status = status
	return &c
}

// Wrap returns a copy of e that carries a cause, reachable through errors.Is
// and errors.As.
func (e *Error) Wrap(cause error) *Error {
	c := *e
	c.Err = cause
	return &c
}

// Error returns the code's message with the arguments filled in.
func (e *Error) Error() string {
	if e == nil {
		return "<nil>"
	}
	info, ok := codes[e.Code]
	var b strings.Builder
	b.WriteString("gpuline: ")
	if !ok {
		fmt.Fprintf(&b, "%s %q", e.Code.String(), e.Args)
	} else {
		t := info.template
		for {
			i := strings.IndexByte(t, '%')
			if i < 0 || i+1 >= len(t) {
				b.WriteString(t)
				break
			}
			b.WriteString(t[:i])
			n := int(t[i+1] - '1')
			if n >= 0 && n < len(e.Args) {
				b.WriteString(e.Args[n])
			} else {
				b.WriteByte('?')
			}
			t = t[i+2:]
		}
		for _, a := range e.Args[min(info.args, len(e.Args)):] {
			b.WriteString("; ")
			b.WriteString(a)
		}
	}
	if e.Err != nil {
		// Arguments often quote the cause; once is enough.
		if cause := strings.TrimPrefix(e.Err.Error(), "gpuline: "); !strings.Contains(b.String(), cause) {
			b.WriteString(": ")
			b.WriteString(cause)
		}
	}
	return b.String()
}

// Is reports whether target is the error's code, or an *Error of the same
// code, or the standard sentinel that the code stands for (errors.ErrUnsupported
// for NotSupported, os.ErrClosed for Closed).
func (e *Error) Is(target error) bool {
	if e == nil {
		return false
	}
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return t != nil && e.Code == t.Code && t.Args == nil && t.Err == nil
	}
	return (e.Code == NotSupported && target == errors.ErrUnsupported) ||
		(e.Code == Closed && target == errClosed)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// CodeOf returns the code of the first coded error in err's tree, or 0.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) && e != nil {
		return e.Code
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return 0
}

// StatusOf returns the stable integer status of the first coded error in err's
// tree that has one, or 0.
func StatusOf(err error) int64 {
	if e, ok := err.(*Error); ok && e != nil && e.Status != 0 {
		return e.Status
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return StatusOf(x.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range x.Unwrap() {
			if s := StatusOf(err); s != 0 {
				return s
			}
		}
	}
	return 0
}
