package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuline/gpuline/bench/internal/rig"
	"github.com/gpuline/gpuline/bench/internal/sys"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/internal/asm"
	"github.com/gpuline/gpuline/uring"
)

// probeMain says in about ten lines what this machine has, and what would run.
func probeMain([]string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
	}
	m := rig.Machine()
	line("machine", "%d x %s, %s, kernel %s, %s, GOMAXPROCS %d", m.CPUs, m.CPU, m.OS, m.Kernel, m.Go, runtime.GOMAXPROCS(0))
	found, err := gpu.Devices()
	if err != nil {
		return err
	}
	for _, f := range found {
		line(f.Driver, "%s", devices(f))
	}
	line("park", "%s", park())
	line("sleep", "%s", sleep())
	u := uring.Probe()
	line("io_uring", "%s", ringSupport(u))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	line("Open", "%s", opens(ctx))
	line("hosts", "%s", hosts())
	return w.Flush()
}

func devices(f gpu.Found) string {
	if f.Err != nil {
		return "not usable: " + reason(f.Err)
	}
	var out []string
	for _, d := range f.Devices {
		out = append(out, fmt.Sprintf("%d: %s, version %s", d.Ordinal, d.Name, d.Version))
	}
	return "usable: " + strings.Join(out, "; ")
}

// reason is an error's text without the name that every line would begin with. Of
// a missing library it names the first place that was looked in.
func reason(err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "gpuline: "), "\n", "; ")
	first, rest, more := strings.Cut(text, "; ")
	if more && errors.Is(err, event.DriverMissing) {
		return fmt.Sprintf("%s (nor in %d other places)", first, 1+strings.Count(rest, "; "))
	}
	return text
}

func park() string {
	p, why := asm.Probe()
	if !p.Hardware() {
		return "none, a pause loop instead: " + why
	}
	text := fmt.Sprintf("%s, slices of %v, watches %d bytes", p, p.Slice(), asm.Granule())
	if l, err := asm.UmwaitLimits(); err == nil {
		hz, _ := asm.TickRate()
		state := "C0.1"
		if l.C02 {
			state = "C0.2"
		}
		cap := "no cap"
		if l.MaxTicks > 0 && hz > 0 {
			cap = fmt.Sprintf("capped by the kernel at %v", time.Duration(float64(l.MaxTicks)/float64(hz)*1e9).Round(100*time.Nanosecond))
		}
		text += ", " + state + ", " + cap
	}
	return text
}

func sleep() string {
	hz, constant := asm.TickRate()
	clock := fmt.Sprintf("counter of %.0f MHz", float64(hz)/1e6)
	if !constant {
		clock += " that is not constant"
	}
	if runtime.GOOS != "linux" {
		return clock + "; no timer slack on this system"
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := sys.TimerSlack()
	sys.SetTimerSlack(1)
	after := sys.TimerSlack()
	sys.SetTimerSlack(before)
	text := fmt.Sprintf("timer slack %v, lowered to %v for the library's own sleeps", before, after)
	if after > time.Microsecond {
		text = fmt.Sprintf("timer slack %v, which can't be lowered here: naps are that much longer", before)
	}
	return text + "; " + clock
}

func ringSupport(u uring.Report) string {
	if u.Ring.Answer != uring.Works {
		return u.Ring.String()
	}
	has := []string{"works"}
	for _, s := range []uring.Support{u.Message, u.RinglessMessage, u.MultishotPoll} {
		has = append(has, s.String())
	}
	return strings.Join(has, "; ")
}

// opens says what Open would choose, and what would run on it.
func opens(ctx context.Context) string {
	d, err := gpu.Open(ctx, gpu.WithSoftFallback())
	if err != nil {
		return "nothing: " + reason(err)
	}
	defer d.Close()
	text := d.Label()
	for _, w := range d.Warnings() {
		if !errors.Is(w, event.DriverPassedOver) { // each has its own line
			text += "; " + reason(w)
		}
	}
	return text
}

// hosts says what the completions can be delivered through, and what would run for a
// program that prefers io_uring.
func hosts() string {
	caps := gpu.ProbeHosts()
	var out []string
	for _, h := range []gpu.Host{gpu.ChannelHost, gpu.EpollHost, gpu.IOUringHost, gpu.IOUringEventfdHost} {
		if _, err := h.Resolve(caps, true); err == nil {
			out = append(out, h.String())
		}
	}
	text := strings.Join(out, ", ")
	if c, err := gpu.IOUringHost.Resolve(caps, false); err == nil {
		text += "; of io-uring runs " + c.Label()
	}
	if c, err := fill.IOUring.Resolve(fill.Caps{NoRing: caps.NoRing}, false); err == nil {
		text += "; FILL with " + c.Label()
	}
	return text
}
