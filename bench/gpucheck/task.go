package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/bench/internal/rig"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Task is one part of the check that runs in a process of its own: a fault ends the
// process's context for good.
type Task struct {
	Kind  string `json:"kind"` // selftest, fault, copy
	Fault string `json:"fault,omitempty"`
	Bytes int    `json:"bytes,omitempty"`
}

// envTask is the variable that makes a process run a task.
const envTask = "GPULINE_CHECK_TASK"

// ask runs a task and returns what it found, nil with an error noted otherwise.
func ask[T any](ctx context.Context, t Task, errs *[]error) *T {
	v := new(T)
	if err := inChild(ctx, t, v); err != nil {
		*errs = append(*errs, fmt.Errorf("%s %s: %w", t.Kind, t.Fault, err))
		fmt.Fprintln(os.Stderr, "gpucheck:", (*errs)[len(*errs)-1])
		return nil
	}
	return v
}

func inChild(ctx context.Context, t Task, v any) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), envTask+"="+string(text))
	cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
	b, err := cmd.Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// child runs the task in the environment, if there is one, and ends the process.
func child() {
	text := os.Getenv(envTask)
	if text == "" {
		return
	}
	var t Task
	err := json.Unmarshal([]byte(text), &t)
	var v any
	if err == nil {
		switch t.Kind {
		case "selftest":
			v, err = selfTest()
		case "fault":
			v, err = fault(t.Fault)
		case "copy":
			v, err = bigCopy(t.Bytes)
		default:
			err = fmt.Errorf("no task %q", t.Kind)
		}
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(v)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// SelfTest is what opening the device says.
type SelfTest struct {
	Label    string      `json:"label"`
	Info     driver.Info `json:"info"`
	Caps     driver.Caps `json:"caps"`
	Warnings []string    `json:"warnings,omitempty"`
	OpenMS   float64     `json:"open_ms"`
	Flags    int         `json:"context_flags"`
}

func selfTest() (*SelfTest, error) {
	start := time.Now()
	d, err := gpu.Open(context.Background(), gpu.Using(rig.CUDA()))
	if err != nil {
		return nil, err
	}
	s := &SelfTest{Label: d.Label(), Info: d.Info(), Caps: d.Caps(), OpenMS: float64(time.Since(start)) / 1e6, Flags: rig.ContextFlags(d)}
	for _, w := range d.Warnings() {
		s.Warnings = append(s.Warnings, w.Error())
	}
	return s, d.Close()
}

// faultKinds are the orders in which a store can be queued and a kernel fail. Each
// store is of 1 into a fresh word.
var faultKinds = []string{
	"behind, same stream",                 // fault, store
	"behind, queued after the failure",    // fault, (failed by then), store
	"another stream, queued before",       // store behind 50 ms of work on B; fault on A
	"ahead, same stream",                  // store, fault: must be written
	"library: Mark and Wait behind fault", // what a user of the library sees
}

// Fault is what became of a store in the company of a kernel that writes through
// a bad pointer. Statuses are texts, "" for success.
type Fault struct {
	Kind string `json:"kind"`
	// Enqueue is what queueing the store said.
	Enqueue string `json:"enqueue"`
	Written bool   `json:"written"`
	// WrittenAfterMS is how long that took, from the store's queueing.
	WrittenAfterMS float64 `json:"written_after_ms"`
	// Query is what the stream's status said a second later, or at once when it
	// had failed; QueryAtWrite what it said as soon as the word was seen.
	Query        string `json:"query"`
	QueryAtWrite string `json:"query_at_write"`
	Sync         string `json:"sync"`
	// Wait is what the library's own wait said, where it was used.
	Wait   string  `json:"wait"`
	WaitMS float64 `json:"wait_ms"`
}

func text(err error) string {
	if err == nil {
		return ""
	}
	if s := event.StatusOf(err); s != 0 {
		return fmt.Sprintf("%v (status %d)", err, s)
	}
	return err.Error()
}

func state(s driver.Stream) string {
	done, err := s.Query()
	switch {
	case err != nil:
		return text(err)
	case done:
		return "done"
	}
	return "pending"
}

func launch(s driver.Stream, f *cuda.Function, args ...any) error {
	cs, ok := cuda.Of(s)
	if !ok {
		return fmt.Errorf("%T is no CUDA stream", s)
	}
	return cs.Launch(f, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, args...)
}

func fault(kind string) (*Fault, error) {
	f := &Fault{Kind: kind}
	if strings.HasPrefix(kind, "library") {
		return f, f.library()
	}
	dd, err := rig.CUDA().Open(0)
	if err != nil {
		return nil, err
	}
	d := dd.(*cuda.Device)
	mod, err := d.LoadModule(rig.Kernels)
	if err != nil {
		return nil, err
	}
	bad, err := mod.Function("fault")
	if err != nil {
		return nil, err
	}
	spin, err := mod.Function("spin")
	if err != nil {
		return nil, err
	}
	page, err := gpu.MapLine(d)
	if err != nil {
		return nil, err
	}
	var s [2]driver.Stream
	for i := range s {
		if s[i], err = d.NewStream(); err != nil {
			return nil, err
		}
	}
	on := s[0]
	start := time.Now()
	store := func() {
		start = time.Now()
		f.Enqueue = text(page.Store(on, 0, 1))
	}
	switch kind {
	case faultKinds[0]:
		err = launch(on, bad)
		store()
	case faultKinds[1]:
		err = launch(on, bad)
		for end := time.Now().Add(2 * time.Second); state(on) == "pending" && time.Now().Before(end); {
		}
		store()
	case faultKinds[2]:
		on = s[1]
		err = launch(on, spin, uint64(50e6))
		store()
		err = errors.Join(err, launch(s[0], bad))
	case faultKinds[3]:
		store()
		err = launch(on, bad)
	}
	if err != nil {
		return nil, err
	}
	word := page.Word(0)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		if word.Load() == 1 {
			f.QueryAtWrite = state(on)
			f.Written, f.WrittenAfterMS = true, float64(time.Since(start))/1e6
			break
		}
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f.Query = state(on); f.Query != "pending" && f.Query != "done" {
			break
		}
	}
	f.Sync = text(on.Sync())
	return f, nil // the context is broken: the end of the process cleans up
}

// library is the same as a user of the library sees it.
func (f *Fault) library() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := gpu.Open(ctx, gpu.Using(rig.CUDA()))
	if err != nil {
		return err
	}
	mod, err := d.Driver().(*cuda.Device).LoadModule(rig.Kernels)
	if err != nil {
		return err
	}
	bad, err := mod.Function("fault")
	if err != nil {
		return err
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	if err := launch(s.Driver(), bad); err != nil {
		return err
	}
	start := time.Now()
	seq, err := s.Mark()
	f.Enqueue = text(err)
	if err == nil {
		f.Wait = text(s.Wait(ctx, seq))
		f.WaitMS = float64(time.Since(start)) / 1e6
		if d, derr := s.Descriptor(seq); derr == nil {
			f.Written = d.Reached()
		}
	}
	_, err = s.Mark()
	f.Query = text(err)
	f.Sync = text(s.Driver().Sync())
	return nil
}

// Copy is what was found behind a mark behind a large copy to page-locked memory.
type Copy struct {
	Bytes  int `json:"bytes"`
	Rounds int `json:"rounds"`
	// Wrong counts 32-bit words that were not what the device held, over all rounds.
	Wrong int `json:"wrong"`
	// Pending counts rounds whose word was not there yet when it was first looked at:
	// the others prove nothing.
	Pending int     `json:"pending"`
	GBs     float64 `json:"gigabytes_per_second"`
}

func bigCopy(n int) (*Copy, error) {
	const rounds = 6
	d, err := gpu.Open(context.Background(), gpu.Using(rig.CUDA()))
	if err != nil {
		return nil, err
	}
	mod, err := d.Driver().(*cuda.Device).LoadModule(rig.Kernels)
	if err != nil {
		return nil, err
	}
	fill, err := mod.Function("fill32")
	if err != nil {
		return nil, err
	}
	mem, err := d.Alloc(n)
	if err != nil {
		return nil, err
	}
	buf, err := d.AllocPinned(n)
	if err != nil {
		return nil, err
	}
	s, err := d.NewStream()
	if err != nil {
		return nil, err
	}
	cs, _ := cuda.Of(s)
	host := buf.Bytes()
	// The pinned buffer is page-aligned and n is a multiple of 4.
	words := unsafe.Slice((*uint32)(unsafe.Pointer(&host[0])), n/4)
	c := &Copy{Bytes: n, Rounds: rounds}
	var spent time.Duration
	for round := range rounds {
		value := uint32(0xa0000001 + 0x01010101*uint32(round))
		clear(words)
		const threads = 256
		if err := cs.Launch(fill, [3]uint32{uint32((n/4 + threads - 1) / threads), 1, 1}, [3]uint32{threads, 1, 1}, 0, mem, value, uint32(n/4)); err != nil {
			return nil, err
		}
		if err := s.Driver().Sync(); err != nil {
			return nil, err
		}
		start := time.Now()
		seq, err := s.CopyToHost(host, mem)
		if err != nil {
			return nil, err
		}
		if !s.Reached(seq) {
			c.Pending++
		}
		if err := s.Wait(context.Background(), seq); err != nil {
			return nil, err
		}
		spent += time.Since(start)
		for _, w := range words {
			if w != value {
				c.Wrong++
			}
		}
	}
	c.GBs = float64(n) * rounds / 1e9 / spent.Seconds()
	return c, errors.Join(s.Close(), buf.Close(), d.Free(mem), mod.Close(), d.Close())
}
