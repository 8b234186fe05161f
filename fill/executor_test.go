package fill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
)

func TestParseExecutor(t *testing.T) {
	for text, want := range map[string]fill.Executor{
		"gpu-reactor": fill.GPUReactor, "naive": fill.Naive, "io-uring": fill.IOUring,
	} {
		got, err := fill.ParseExecutor(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "Naive", "io_uring", " naive", "naive ", "3", "Executor(3)"} {
		_, err := fill.ParseExecutor(text)
		if !errors.Is(err, event.InvalidExecutor) {
			t.Errorf("%q: %v, want InvalidExecutor", text, err)
			continue
		}
		var e *event.Error
		errors.As(err, &e)
		if e.Args[0] != fmt.Sprintf("%q", text) || e.Args[1] != "io-uring, gpu-reactor, naive" {
			t.Errorf("%q: arguments %q", text, e.Args)
		}
	}
}

func FuzzParseExecutor(f *testing.F) {
	for _, s := range []string{"naive", "gpu-reactor", "io-uring", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := fill.ParseExecutor(s)
		if err == nil && e.String() != s {
			t.Errorf("%q parses as %v", s, e)
		}
		if err != nil && !errors.Is(err, event.InvalidExecutor) {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestResolve(t *testing.T) {
	const noRing, noWords = "io_uring_setup: operation not permitted", "status 801"
	for _, c := range []struct {
		ask   fill.Executor
		caps  fill.Caps
		runs  fill.Executor
		why   string // of the fallback
		label string
	}{
		{fill.IOUring, fill.Caps{}, fill.IOUring, "", "io-uring"},
		{fill.IOUring, fill.Caps{NoRing: noRing}, fill.GPUReactor, noRing, "gpu-reactor (fallback from io-uring)"},
		{fill.IOUring, fill.Caps{NoWords: noWords}, fill.Naive, noWords, "naive (fallback from io-uring)"},
		{fill.IOUring, fill.Caps{NoRing: noRing, NoWords: noWords}, fill.Naive, noWords, "naive (fallback from io-uring)"},
		{fill.GPUReactor, fill.Caps{NoRing: noRing}, fill.GPUReactor, "", "gpu-reactor"},
		{fill.GPUReactor, fill.Caps{NoWords: noWords}, fill.Naive, noWords, "naive (fallback from gpu-reactor)"},
		{fill.Naive, fill.Caps{NoRing: noRing, NoWords: noWords}, fill.Naive, "", "naive"},
	} {
		got, err := c.ask.Resolve(c.caps, false)
		if err != nil || got.Requested != c.ask || got.Running != c.runs || got.Label() != c.label {
			t.Errorf("%v with %+v: %+v, %v", c.ask, c.caps, got, err)
		}
		strict, strictErr := c.ask.Resolve(c.caps, true)
		if c.why == "" {
			if got.Warning != nil || strictErr != nil || strict != got {
				t.Errorf("%v with %+v: warning %v, strict %v", c.ask, c.caps, got.Warning, strictErr)
			}
			continue
		}
		if !errors.Is(got.Warning, event.ExecutorFallback) || !errors.Is(strictErr, event.ExecutorRefused) {
			t.Errorf("%v with %+v: warning %v, strict %v", c.ask, c.caps, got.Warning, strictErr)
			continue
		}
		var w, e *event.Error
		errors.As(got.Warning, &w)
		errors.As(strictErr, &e)
		if a := strings.Join(w.Args, "|"); a != c.ask.String()+"|"+c.why+"|"+c.runs.String() {
			t.Errorf("%v with %+v: warning %q", c.ask, c.caps, a)
		}
		if a := strings.Join(e.Args, "|"); a != c.ask.String()+"|"+c.why {
			t.Errorf("%v with %+v: refusal %q", c.ask, c.caps, a)
		}
	}
	if _, err := fill.Executor(9).Resolve(fill.Caps{}, false); !errors.Is(err, event.InvalidExecutor) {
		t.Errorf("%v, want InvalidExecutor", err)
	}
	if s := (fill.Choice{}).Label(); s != "gpu-reactor" {
		t.Errorf("label of the zero choice %q", s)
	}
}

func ExampleExecutor_Resolve() {
	want, err := fill.ParseExecutor("io-uring")
	if err != nil {
		fmt.Println(err)
		return
	}
	choice, err := want.Resolve(fill.Caps{NoRing: "seccomp refuses io_uring_setup"}, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(choice.Label())
	fmt.Println(choice.Warning)
	_, err = fill.Run(context.Background(), fill.Options{Executor: choice.Running}, func(*fill.Task) error { return nil })
	fmt.Println(err)
	// Output:
	// gpu-reactor (fallback from io-uring)
	// gpuline: executor io-uring is not usable here (seccomp refuses io_uring_setup): running gpu-reactor
	// <nil>
}
