// Command gpucheck looks at what this library needs from a CUDA driver, on a machine
// with an NVIDIA GPU, and writes what it found as JSON: the driver tests, the
// self-test, what becomes of a store behind a kernel that failed, how soon and at
// what cost a goroutine learns of a completion compared with what CUDA offers, and
// whether a mark behind a large copy is behind all of it. See run.sh.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gpuline/gpuline/bench/internal/report"
	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/rig"
)

// Report is what is written.
type Report struct {
	Started    time.Time    `json:"started"`
	Seconds    float64      `json:"seconds"`
	Library    string       `json:"library"`
	Tests      Tests        `json:"driver_tests"`
	SelfTest   *SelfTest    `json:"self_test"`
	Faults     []*Fault     `json:"faults"`
	Copies     []*Copy      `json:"copies"`
	Wakes      *result.File `json:"wakes"`
	Unfinished []string     `json:"unfinished,omitempty"`
}

// Tests is the outcome of the driver's conformance suite.
type Tests struct {
	Ran    bool     `json:"ran"`
	OK     bool     `json:"ok"`
	Why    string   `json:"why,omitempty"`
	Lines  []string `json:"lines,omitempty"` // passed, failed and skipped tests
	Output string   `json:"output,omitempty"`
}

func main() {
	rig.Child()
	child()
	budget := flag.Duration("budget", 330*time.Second, "how long all of it may take")
	out := flag.String("out", "gpucheck.json", "file to write")
	library := flag.String("library", "", "path of the driver library; empty for the system's. A stand-in is no GPU: the report names the path")
	tests := flag.String("test", "", "test binary of this folder (go test -c), run over the same library")
	flag.Parse()
	if *library != "" {
		os.Setenv(rig.EnvCUDA, *library)
	}
	if err := check(*budget, *out, *library, *tests); err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
}

func check(budget time.Duration, out, library, tests string) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	r := &Report{Started: start, Library: library}
	save := func() error {
		r.Seconds = time.Since(start).Seconds()
		b, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			return err
		}
		return os.WriteFile(out, append(b, '\n'), 0o644)
	}
	var errs []error // of the check itself: what the driver did wrong is in the report
	say := func(format string, args ...any) {
		fmt.Printf("%5.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}

	// What matters most comes first: a run that is cut short has it. The file is
	// written after each part.
	r.SelfTest = ask[SelfTest](ctx, Task{Kind: "selftest"}, &errs)
	if r.SelfTest == nil {
		return errors.Join(append(errs, save())...)
	}
	say("self-test: %s", r.SelfTest.Label)
	for _, w := range r.SelfTest.Warnings {
		say("  warning: %s", w)
	}
	for _, kind := range faultKinds {
		f := ask[Fault](ctx, Task{Kind: "fault", Fault: kind}, &errs)
		if f != nil {
			r.Faults = append(r.Faults, f)
			say("fault, %s: word written: %v; status %q; sync %q; Wait %q", kind, f.Written, f.Query, f.Sync, f.Wait)
		}
	}
	for _, size := range []int{64 << 20, 256 << 20} {
		c := ask[Copy](ctx, Task{Kind: "copy", Bytes: size}, &errs)
		if c != nil {
			r.Copies = append(r.Copies, c)
			say("mark behind a copy of %d MiB: %d rounds, %d words wrong, pending at first in %d", size>>20, c.Rounds, c.Wrong, c.Pending)
		}
	}
	errs = append(errs, save())
	if tests != "" {
		r.Tests = runTests(ctx, tests)
	}
	say("driver tests: ok %v %s", r.Tests.OK, r.Tests.Why)
	for _, l := range r.Tests.Lines {
		say("  %s", l)
	}
	errs = append(errs, save())
	r.Wakes = wakes(ctx, start.Add(budget), say)
	report.Text(os.Stdout, r.Wakes)
	if ctx.Err() != nil {
		r.Unfinished = append(r.Unfinished, "the time was over")
	}
	errs = append(errs, save())
	say("written to %s", out)
	return errors.Join(errs...)
}

// runTests runs the test binary.
func runTests(ctx context.Context, path string) (t Tests) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Second)
	defer cancel()
	var b bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "-test.v", "-test.run", "^TestDriver$", "-test.timeout", "95s")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &b, &b, time.Second
	err := cmd.Run()
	t.Ran, t.OK = true, err == nil
	for _, l := range strings.Split(b.String(), "\n") {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "--- ") || strings.Contains(l, "left out") {
			t.Lines = append(t.Lines, l)
		}
	}
	if err != nil {
		t.Why = err.Error()
		t.Output = b.String()
		t.Output = t.Output[max(0, len(t.Output)-20_000):]
	}
	return t
}

// wakes compares the ways to wait, in processes of their own.
func wakes(ctx context.Context, deadline time.Time, say func(string, ...any)) *result.File {
	start := time.Now()
	f := &result.File{Started: start, Mode: "gpucheck", Driver: "cuda", Rounds: 2, Plan: rig.PlanText(true), Machine: rig.Machine()}
	type step struct {
		row *result.Row
		job rig.Job
	}
	var steps []step
	for _, name := range []string{"spinning reader", "eventfd wake"} {
		row := &result.Row{Method: name}
		f.Floors = append(f.Floors, row)
		steps = append(steps, step{row, rig.Job{Kind: "floor", Name: name, Measure: 300 * time.Millisecond}})
	}
	for _, c := range []result.Cell{
		{Work: "2ms", Streams: 1, Load: "idle"}, {Work: "200us", Streams: 1, Load: "idle"}, {Work: "20us", Streams: 1, Load: "idle"},
		{Work: "2ms", Streams: 64, Load: "idle"}, {Work: "2ms", Streams: 1024, Load: "idle"}, {Work: "2ms", Streams: 1, Load: "busy"},
	} {
		for _, m := range rig.Methods() {
			if m.Name == report.Reference && c.Load == "idle" {
				continue
			}
			row := &result.Row{Cell: c, Method: m.Name, Ours: m.Ours, What: m.What, Skip: m.Skip("cuda", c)}
			f.Rows = append(f.Rows, row)
			if row.Skip == "" {
				steps = append(steps, step{row, rig.Job{Kind: "cell", Name: m.Name, Driver: "cuda", Cell: c, Warm: 100 * time.Millisecond, Measure: 250 * time.Millisecond}})
			}
		}
	}
	for round := range f.Rounds {
		for i, s := range steps {
			if s.row.Skip != "" {
				continue
			}
			if left := time.Until(deadline); left < 2*time.Second || ctx.Err() != nil {
				f.Cut = true
				break
			}
			if i%10 == 0 {
				say("waits, round %d: %d of %d: %s %s", round+1, i, len(steps), s.row.Cell, s.row.Method)
			}
			a, err := rig.Do(ctx, s.job)
			switch {
			case err != nil:
				s.row.Skip = "failed: " + err.Error()
			case a.Err != "":
				s.row.Skip = "failed: " + a.Err
			case a.Skip != "":
				s.row.Skip = a.Skip
			default:
				s.row.Add(a.Sample)
			}
		}
	}
	f.Seconds = time.Since(start).Seconds()
	return f
}
