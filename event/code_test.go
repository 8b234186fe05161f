package event

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// golden is the published registry: append to it, never change or remove a row.
var golden = []struct {
	no   Code
	name string
	args int
}{
	{1, "InvalidPlan", 2},
	{2, "ParkFallback", 4},
	{3, "ExecutorFallback", 3},
	{4, "ExecutorRefused", 2},
	{5, "InvalidExecutor", 2},
	{6, "PendedInline", 1},
	{7, "Stalled", 1},
	{8, "Backend", 2},
	{9, "DeviceLost", 2},
	{10, "Closed", 1},
	{11, "CaptureRefused", 2},
	{12, "NotSupported", 2},
	{13, "SelfTestFailed", 3},
	{14, "InvalidArgument", 2},
	{15, "ForeignStream", 2},
	{16, "DriverMissing", 2},
	{17, "NoDevice", 2},
	{18, "StoreLost", 2},
	{19, "NotMarked", 3},
	{20, "HostFallback", 3},
	{21, "HostRefused", 2},
	{22, "DriverPassedOver", 2},
	{23, "Leaked", 2},
	{24, "Panicked", 2},
	{25, "WorkFailed", 2},
}

func TestRegistryIsAppendOnly(t *testing.T) {
	for i, g := range golden {
		if int(g.no) != i+1 {
			t.Errorf("row %d of the golden table has number %d", i+1, g.no)
		}
		if g.no.String() != g.name || g.no.Args() != g.args {
			t.Errorf("code %d is %v with %d arguments, published as %s with %d", g.no, g.no, g.no.Args(), g.name, g.args)
		}
	}
	all := Codes()
	if len(all) != len(codes) {
		t.Errorf("%d codes, but the numbers have gaps: %v", len(codes), all)
	}
	for _, c := range all[min(len(golden), len(all)):] {
		t.Errorf("code %d, %v, is new: append {%d, %q, %d} to the golden table", c, c, c, c.String(), c.Args())
	}
	names := map[string]Code{}
	for _, c := range all {
		if other, ok := names[c.String()]; ok {
			t.Errorf("codes %d and %d are both %v", other, c, c)
		}
		names[c.String()] = c
	}
}

var placeholder = regexp.MustCompile(`%.?`)

func TestTemplates(t *testing.T) {
	for c, info := range codes {
		used := map[string]bool{}
		for _, p := range placeholder.FindAllString(info.template, -1) {
			used[p] = true
		}
		for i := 1; i <= info.args; i++ {
			if !used[fmt.Sprintf("%%%d", i)] {
				t.Errorf("%v: argument %d is not in the template %q", c, i, info.template)
			}
		}
		if len(used) != info.args {
			t.Errorf("%v: the template %q uses %v, the code has %d arguments", c, info.template, used, info.args)
		}
		args := make([]string, info.args)
		for i := range args {
			args[i] = fmt.Sprintf("<%d%%1>", i+1) // a % in an argument means nothing
		}
		text := New(c, args...).Error()
		for _, a := range args {
			if strings.Count(text, a) != 1 {
				t.Errorf("%v reads %q, without %q", c, text, a)
			}
		}
		if !strings.HasPrefix(text, "gpuline: ") || strings.Contains(text, "?") {
			t.Errorf("%v reads %q", c, text)
		}
	}
}

func TestErrorText(t *testing.T) {
	base := New(Backend, "stream 3", "700")
	for _, c := range []struct {
		err  error
		want string
	}{
		{New(InvalidPlan, "completion wait plan", `"x": unknown`), `gpuline: invalid completion wait plan: "x": unknown`},
		{New(Stalled, "3"), "gpuline: stalled: 3 tasks left, and nothing that could wake one"},
		{New(ParkFallback, "a", "b", "c", "d"), "gpuline: wait plan a needs b (c): running d"},
		{New(ParkFallback, "a", "b"), "gpuline: wait plan a needs b (?): running ?"},
		{New(Closed), "gpuline: ? is closed"},
		{New(Closed, "x", "and more", "still"), "gpuline: x is closed; and more; still"},
		{New(DeviceLost, "cuda:0", "a fault").Wrap(base), "gpuline: device cuda:0 is lost: a fault: stream 3: status 700"},
		{New(Closed, "x").Wrap(fs.ErrInvalid), "gpuline: x is closed: invalid argument"},
		{base.WithStatus(700), "gpuline: stream 3: status 700"},
		{New(Code(9999), "a"), `gpuline: Code(9999) ["a"]`},
		{&Error{}, "gpuline: Code(0) []"},
		{(*Error)(nil), "<nil>"},
		{Stalled, "gpuline: Stalled"},
		{Code(0), "gpuline: Code(0)"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("reads\n %s, want\n %s", got, c.want)
		}
	}
}

func TestIsAndAs(t *testing.T) {
	for _, c := range Codes() {
		e := New(c, "one", "two", "three", "four")
		for name, err := range map[string]error{
			"bare":      e,
			"wrapped":   fmt.Errorf("wait: %w", fmt.Errorf("stream: %w", e)),
			"joined":    errors.Join(errors.New("other"), e),
			"as cause":  New(Code(9999), "x").Wrap(e),
			"two wraps": fmt.Errorf("%w and %w", os.ErrExist, e),
		} {
			if !errors.Is(err, c) {
				t.Errorf("%s %v is not its code", name, c)
			}
			if !errors.Is(err, New(c)) {
				t.Errorf("%s %v is not a plain error of its code", name, c)
			}
			for _, other := range Codes() {
				if other != c && (errors.Is(err, other) || errors.Is(err, New(other))) {
					t.Errorf("%s %v is also %v", name, c, other)
				}
			}
			if errors.Is(err, New(c, "one")) {
				t.Errorf("%s %v is an error with other arguments", name, c)
			}
			if got := errors.Is(err, errors.ErrUnsupported); got != (c == NotSupported) {
				t.Errorf("%s %v is ErrUnsupported: %v", name, c, got)
			}
			if got := errors.Is(err, os.ErrClosed); got != (c == Closed) {
				t.Errorf("%s %v is ErrClosed: %v", name, c, got)
			}
			var as *Error
			if !errors.As(err, &as) {
				t.Errorf("%s %v: no *Error", name, c)
			} else if name != "as cause" && as != e {
				t.Errorf("%s %v: As found %v", name, c, as)
			}
			want := c
			if name == "as cause" {
				want = 9999
			}
			if got := CodeOf(err); got != want {
				t.Errorf("%s %v: CodeOf is %v", name, c, got)
			}
		}
		if !errors.Is(fmt.Errorf("x: %w", c), c) || CodeOf(fmt.Errorf("x: %w", c)) != c {
			t.Errorf("a bare code %v is lost in wrapping", c)
		}
	}
	if CodeOf(nil) != 0 || CodeOf(os.ErrClosed) != 0 || CodeOf((*Error)(nil)) != 0 {
		t.Error("a code where there is none")
	}
	if errors.Is((*Error)(nil), Stalled) || errors.Unwrap((*Error)(nil)) != nil {
		t.Error("a nil *Error has a code or a cause")
	}
}

func TestErrorsAreImmutable(t *testing.T) {
	e := New(Backend, "stream", "1")
	cause := os.ErrPermission
	s, w := e.WithStatus(7), e.Wrap(cause)
	if e.Status != 0 || e.Err != nil {
		t.Errorf("WithStatus or Wrap changed the original: %+v", e)
	}
	if s.Status != 7 || s.Err != nil || w.Err != cause || w.Status != 0 || !errors.Is(w, cause) {
		t.Errorf("copies: %+v, %+v", s, w)
	}
}

func TestStatusOf(t *testing.T) {
	plain, seven, nine := New(Backend, "a", "b"), New(Backend, "a", "7").WithStatus(7), New(Backend, "a", "9").WithStatus(9)
	for name, c := range map[string]struct {
		err  error
		want int64
	}{
		"nil":               {nil, 0},
		"uncoded":           {os.ErrClosed, 0},
		"nil error":         {(*Error)(nil), 0},
		"none":              {plain, 0},
		"bare":              {seven, 7},
		"wrapped":           {fmt.Errorf("x: %w", seven), 7},
		"outer first":       {nine.Wrap(seven), 9},
		"in the cause":      {plain.Wrap(fmt.Errorf("x: %w", seven)), 7},
		"behind an uncoded": {errors.Join(os.ErrClosed, seven), 7},
		"behind a plain":    {errors.Join(plain, seven, nine), 7},
		"deep in a join":    {fmt.Errorf("%w, %w", errors.Join(plain.Wrap(os.ErrClosed)), plain.Wrap(nine)), 9},
		"missing":           {New(DriverMissing, "a", "b").WithStatus(StatusMissing), -1},
		"no context":        {New(Backend, "a", "b").WithStatus(StatusNoContext), -3},
		"foreign":           {New(ForeignStream, "a", "b").WithStatus(StatusForeign), -4},
	} {
		if got := StatusOf(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		NoOutcome.String(): "none", Exact.String(): "exact", Late.String(): "late",
		Blocked.String(): "blocked", Immediate.String(): "immediate", Parked.String(): "parked", Kind(9).String(): "unknown",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if LateKind.String() != "late" {
		t.Errorf("%q, want late", LateKind)
	}
}
