package gpu_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
)

func TestParseHost(t *testing.T) {
	for text, want := range map[string]gpu.Host{
		"channel": gpu.ChannelHost, "epoll": gpu.EpollHost, "io-uring": gpu.IOUringHost, "io-uring-eventfd": gpu.IOUringEventfdHost,
	} {
		got, err := gpu.ParseHost(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "Epoll", "io_uring", "uring", " epoll", "epoll ", "1", "Host(1)"} {
		_, err := gpu.ParseHost(text)
		if !errors.Is(err, event.InvalidArgument) || !strings.Contains(err.Error(), "channel, epoll, io-uring, io-uring-eventfd") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"channel", "epoll", "io-uring", "io-uring-eventfd", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := gpu.ParseHost(s)
		if err == nil && h.String() != s {
			t.Errorf("%q parses as %v", s, h)
		}
		if err != nil && !errors.Is(err, event.InvalidArgument) {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestResolveHost(t *testing.T) {
	const noRing, noMessage, noFD = "seccomp refuses io_uring_setup", "kernel 5.15 has no messages", "windows has no eventfd"
	for _, c := range []struct {
		ask   gpu.Host
		caps  gpu.HostCaps
		runs  gpu.Host
		why   string // of the fallback
		first string // of the refusal
	}{
		{gpu.IOUringHost, gpu.HostCaps{}, gpu.IOUringHost, "", ""},
		{gpu.IOUringHost, gpu.HostCaps{NoMessage: noMessage}, gpu.IOUringEventfdHost, noMessage, noMessage},
		{gpu.IOUringHost, gpu.HostCaps{NoRing: noRing, NoMessage: noRing}, gpu.EpollHost, noRing, noRing},
		{gpu.IOUringHost, gpu.HostCaps{NoRing: noRing, NoMessage: noMessage, NoDescriptor: noFD}, gpu.ChannelHost, noRing + "; " + noFD, noRing},
		{gpu.IOUringHost, gpu.HostCaps{NoDescriptor: noFD}, gpu.IOUringHost, "", ""},
		{gpu.IOUringEventfdHost, gpu.HostCaps{NoMessage: noMessage}, gpu.IOUringEventfdHost, "", ""},
		{gpu.IOUringEventfdHost, gpu.HostCaps{NoDescriptor: noFD}, gpu.ChannelHost, noFD, noFD},
		{gpu.EpollHost, gpu.HostCaps{NoRing: noRing, NoMessage: noRing}, gpu.EpollHost, "", ""},
		{gpu.EpollHost, gpu.HostCaps{NoDescriptor: noFD}, gpu.ChannelHost, noFD, noFD},
		{gpu.ChannelHost, gpu.HostCaps{noFD, noRing, noMessage}, gpu.ChannelHost, "", ""},
	} {
		got, err := c.ask.Resolve(c.caps, false)
		label := c.runs.String()
		if c.runs != c.ask {
			label += " (fallback from " + c.ask.String() + ")"
		}
		if err != nil || got.Requested != c.ask || got.Running != c.runs || got.Label() != label {
			t.Errorf("%v with %+v: %+v, %v", c.ask, c.caps, got, err)
		}
		strict, strictErr := c.ask.Resolve(c.caps, true)
		if c.why == "" {
			if got.Warning != nil || strictErr != nil || strict != got {
				t.Errorf("%v with %+v: warning %v, strict %v", c.ask, c.caps, got.Warning, strictErr)
			}
			continue
		}
		var w, e *event.Error
		if !errors.Is(got.Warning, event.HostFallback) || !errors.As(got.Warning, &w) ||
			strings.Join(w.Args, "|") != c.ask.String()+"|"+c.why+"|"+c.runs.String() {
			t.Errorf("%v with %+v: warning %v", c.ask, c.caps, got.Warning)
		}
		if !errors.Is(strictErr, event.HostRefused) || !errors.As(strictErr, &e) || strings.Join(e.Args, "|") != c.ask.String()+"|"+c.first {
			t.Errorf("%v with %+v: refusal %v", c.ask, c.caps, strictErr)
		}
	}
	if _, err := gpu.Host(9).Resolve(gpu.HostCaps{}, false); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("%v, want InvalidArgument", err)
	}
	if s := (gpu.HostChoice{}).Label(); s != "channel" {
		t.Errorf("label of the zero choice %q", s)
	}
}

func ExampleHost_Resolve() {
	want, err := gpu.ParseHost("io-uring") // from a flag
	if err != nil {
		fmt.Println(err)
		return
	}
	// A program takes gpu.ProbeHosts() here.
	choice, err := want.Resolve(gpu.HostCaps{NoRing: "seccomp refuses io_uring_setup"}, false)
	if err != nil {
		fmt.Println(err) // with strict set
		return
	}
	fmt.Println(choice.Label())
	fmt.Println(choice.Warning)
	// Output:
	// epoll (fallback from io-uring)
	// gpuline: host io-uring is not usable here (seccomp refuses io_uring_setup): running epoll
}
