// Command gpucheck finds out, on a machine with an NVIDIA GPU, what the stand-in
// library can't tell: whether the driver tests pass on the real driver, what a
// fault does to the word and the status, and how the library's waits compare with
// the driver's own. It writes JSON and takes a few minutes. Use run.sh.
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
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/standin"
)

// Step is the result of one part of the check.
type Step struct {
	Name    string  `json:"name"`
	OK      bool    `json:"ok"`
	Error   string  `json:"error,omitempty"`
	Seconds float64 `json:"seconds"`
	Data    any     `json:"data,omitempty"`
}

// Report is the JSON file.
type Report struct {
	Time    time.Time   `json:"time"`
	Go      string      `json:"go"`
	CPUs    int         `json:"cpus"`
	Library string      `json:"library"`
	Device  driver.Info `json:"device"`
	Label   string      `json:"label"`
	Steps   []Step      `json:"steps"`
}

var library = flag.String("library", "", "path of the driver library; empty for the system's. A stand-in is no GPU: the report names the path")

func main() {
	out := flag.String("out", "gpucheck.json", "where to write the report")
	test := flag.String("test", "", "test binary of this folder (go test -c), run over the same library")
	rounds := flag.Int("rounds", 300, "waits per measured method")
	child := flag.String("child", "", "run one part in this process and print its JSON")
	flag.Parse()
	if *child == "fault" {
		step := run("fault", fault)
		_ = json.NewEncoder(os.Stdout).Encode(step)
		return
	}
	r := Report{Time: time.Now().UTC(), Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Library: *library}
	if r.Library == "" {
		r.Library = "system"
	}
	add := func(s Step) {
		r.Steps = append(r.Steps, s)
		state := "ok"
		if !s.OK {
			state = "FAILED: " + s.Error
		}
		fmt.Printf("%-24s %6.1f s  %s\n", s.Name, s.Seconds, state)
	}
	var c *check
	add(run("open and self-test", func() (any, error) {
		var err error
		if c, err = open(); err != nil {
			return nil, err
		}
		r.Device, r.Label = c.dev.Info(), c.dev.Label()
		var warnings []string
		for _, w := range c.dev.Warnings() {
			warnings = append(warnings, w.Error())
		}
		return map[string]any{"caps": c.dev.Caps(), "warnings": warnings}, nil
	}))
	if c != nil {
		add(run("data behind a mark", c.copies))
		for _, n := range []int{1, 64, 1024} {
			rounds := *rounds
			if n > 1 {
				rounds = max(rounds/n, 3)
			}
			for _, m := range c.methods() {
				if n > 64 && m.few {
					continue
				}
				add(run(fmt.Sprintf("%d streams, %s", n, m.name), func() (any, error) { return c.measure(n, rounds, m.wait) }))
			}
		}
		add(run("close", func() (any, error) { return nil, c.close() }))
	}
	if *test != "" {
		add(run("driver tests", func() (any, error) {
			cmd := exec.Command(*test, "-test.v", "-test.timeout=120s")
			cmd.Env = append(os.Environ(), "GPUCHECK_LIBRARY="+*library)
			b, err := cmd.CombinedOutput()
			return tail(string(b), 60), err
		}))
	}
	// The fault comes last and in a process of its own: it spoils the context.
	add(run("fault", func() (any, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		b, err := exec.CommandContext(ctx, self, "-child", "fault", "-library", *library).Output()
		if err != nil {
			return string(b), err
		}
		var s Step
		if err := json.Unmarshal(b, &s); err != nil {
			return string(b), err
		}
		if !s.OK {
			return s.Data, errors.New(s.Error)
		}
		return s.Data, nil
	}))
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(*out, append(b, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, s := range r.Steps {
		if !s.OK {
			os.Exit(1)
		}
	}
}

func run(name string, f func() (any, error)) Step {
	start := time.Now()
	data, err := f()
	s := Step{Name: name, OK: err == nil, Seconds: time.Since(start).Seconds(), Data: data}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

func tail(s string, lines int) []string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return all[max(0, len(all)-lines):]
}

// check is an open device with the kernels loaded.
type check struct {
	dev  *gpu.Device
	cd   *cuda.Device
	mod  *cuda.Module
	fill *cuda.Function
	spin *cuda.Function
	bad  *cuda.Function
}

func open() (*check, error) {
	dev, err := gpu.Open(context.Background(), gpu.Using(cuda.New(cuda.Config{Library: *library})), gpu.WithHealth(20*time.Millisecond, 2*time.Second, time.Second))
	if err != nil {
		return nil, err
	}
	c := &check{dev: dev}
	var ok bool
	if c.cd, ok = dev.Driver().(*cuda.Device); !ok {
		return nil, errors.Join(errors.New("not a CUDA device"), dev.Close())
	}
	if c.mod, err = c.cd.LoadModule(standin.Kernels); err == nil {
		if c.fill, err = c.mod.Function("fill32"); err == nil {
			if c.spin, err = c.mod.Function("spin"); err == nil {
				c.bad, err = c.mod.Function("fault")
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return c, nil
}

func (c *check) close() error { return errors.Join(c.mod.Close(), c.dev.Close()) }

var one = [3]uint32{1, 1, 1}

func (c *check) work(s *gpu.Stream, d time.Duration) error {
	cs, _ := cuda.Of(s)
	return cs.Launch(c.spin, one, one, 0, uint64(d))
}

// copies marks behind a kernel and a large device-to-host copy into page-locked
// memory, and checks every byte each time the wait says that it is there.
func (c *check) copies() (any, error) {
	const size, rounds = 64 << 20, 10
	s, err := c.dev.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	mem, err := c.dev.Alloc(size)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.dev.Free(mem) }()
	host, err := c.dev.AllocPinned(size)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	cs, _ := cuda.Of(s)
	var took []time.Duration
	for i := range uint32(rounds) {
		value := 0x01010101 * (i + 1)
		start := time.Now()
		if err := cs.Launch(c.fill, [3]uint32{size / 4 / 256, 1, 1}, [3]uint32{256, 1, 1}, 0, mem, value, uint32(size/4)); err != nil {
			return nil, err
		}
		seq, err := s.CopyToHost(host.Bytes(), mem)
		if err != nil {
			return nil, err
		}
		if err := s.Wait(context.Background(), seq); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		if want := bytes.Repeat([]byte{byte(i + 1)}, 4096); !bytes.Equal(host.Bytes()[size-4096:], want) || bytes.Count(host.Bytes(), []byte{byte(i + 1)}) != size {
			return nil, fmt.Errorf("round %d: the wait ended before the data was there", i)
		}
	}
	slices.Sort(took)
	return map[string]any{"bytes": size, "rounds": rounds, "median_us": took[rounds/2].Microseconds()}, nil
}

type method struct {
	name string
	few  bool // a thread or a core per wait: not for a thousand of them
	wait func(s *gpu.Stream) error
}

func marked(f func(s *gpu.Stream, seq uint64) error) func(s *gpu.Stream) error {
	return func(s *gpu.Stream) error {
		seq, err := s.Mark()
		if err != nil {
			return err
		}
		return f(s, seq)
	}
}

func (c *check) methods() []method {
	return []method{
		{"Wait", false, marked(func(s *gpu.Stream, seq uint64) error { return s.Wait(context.Background(), seq) })},
		{"Done", false, marked(func(s *gpu.Stream, seq uint64) error { <-gpu.Done(s, seq); return s.Err() })},
		{"cuStreamSynchronize", true, func(s *gpu.Stream) error { return s.Driver().Sync() }},
		{"blocking event", true, c.blockingEvent},
		{"event polling", true, func(s *gpu.Stream) error {
			e, err := s.Driver().Record()
			if err != nil {
				return err
			}
			defer e.Release()
			for {
				if done, err := e.Query(); done || err != nil {
					return err
				}
				runtime.Gosched()
			}
		}},
		{"host function", false, c.hostFunction},
	}
}

// blockingEvent waits with cuEventSynchronize on an event made with
// CU_EVENT_BLOCKING_SYNC (1) and CU_EVENT_DISABLE_TIMING (2): the thread sleeps.
func (c *check) blockingEvent(s *gpu.Stream) error {
	e := new(uintptr)
	var pin runtime.Pinner
	pin.Pin(e)
	defer pin.Unpin()
	if err := c.cd.Call("cuEventCreate", addr(e), 1|2); err != nil {
		return err
	}
	defer func() { _ = c.cd.Call("cuEventDestroy_v2", *e) }()
	if err := c.cd.Call("cuEventRecord", *e, s.Handle()); err != nil {
		return err
	}
	return c.cd.Call("cuEventSynchronize", *e)
}

// One callback for all host functions: purego's table of callbacks is small and
// never freed. The library itself has none.
var (
	hostOnce sync.Once
	hostFn   uintptr
	hostMu   sync.Mutex
	hostNext uintptr
	hostWait = map[uintptr]chan struct{}{}
)

func (c *check) hostFunction(s *gpu.Stream) error {
	hostOnce.Do(func() {
		hostFn = purego.NewCallback(func(id uintptr) uintptr {
			hostMu.Lock()
			ch := hostWait[id]
			delete(hostWait, id)
			hostMu.Unlock()
			close(ch)
			return 0
		})
	})
	ch := make(chan struct{})
	hostMu.Lock()
	hostNext++
	id := hostNext
	hostWait[id] = ch
	hostMu.Unlock()
	if err := c.cd.Call("cuLaunchHostFunc", s.Handle(), hostFn, id); err != nil {
		return err
	}
	select {
	case <-ch:
		return nil
	case <-time.After(20 * time.Second):
		return errors.New("the host function was not called within 20 s")
	}
}

// measure runs rounds of 200 us of work on each of n streams and waits for each
// from a goroutine of its own. What is compared between methods is the time per
// round beyond the work, and the CPU time.
func (c *check) measure(n, rounds int, wait func(s *gpu.Stream) error) (any, error) {
	const work = 200 * time.Microsecond
	streams := make([]*gpu.Stream, n)
	for i := range streams {
		s, err := c.dev.NewStream()
		if err != nil {
			return nil, err
		}
		defer s.Close()
		streams[i] = s
	}
	var mu sync.Mutex
	var took []time.Duration
	var first error
	var wg sync.WaitGroup
	cpu, start := cpuTime(), time.Now()
	for _, s := range streams {
		wg.Go(func() {
			var mine []time.Duration
			var err error
			for range rounds {
				t0 := time.Now()
				if err = c.work(s, work); err == nil {
					err = wait(s)
				}
				if err != nil {
					break
				}
				mine = append(mine, time.Since(t0))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	wall := time.Since(start)
	used := cpuTime() - cpu
	if first != nil || len(took) == 0 {
		return nil, first
	}
	slices.Sort(took)
	return map[string]any{
		"rounds": len(took), "work_us": work.Microseconds(), "p50_us": us(took[len(took)/2]), "p99_us": us(took[len(took)*99/100]),
		"max_us": us(took[len(took)-1]), "cpu_us_per_wait": us(used) / float64(len(took)), "cpu_percent": 100 * float64(used) / float64(wall),
	}, nil
}

func us(d time.Duration) float64 { return float64(d) / 1000 }

func cpuTime() time.Duration {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// fault lets a kernel write through a bad pointer, marks behind it, and looks:
// is the word written, and what does the status say?
func fault() (any, error) {
	c, err := open()
	if err != nil {
		return nil, err
	}
	s, err := c.dev.NewStream()
	if err != nil {
		return nil, err
	}
	good, err := s.Mark()
	if err != nil {
		return nil, err
	}
	if err := s.Wait(context.Background(), good); err != nil {
		return nil, err
	}
	// A gate of work in front, so that the mark is queued before the fault shows.
	if err := c.work(s, 20*time.Millisecond); err != nil {
		return nil, err
	}
	cs, _ := cuda.Of(s)
	if err := cs.Launch(c.bad, one, one, 0); err != nil {
		return nil, err
	}
	seq, err := s.Mark()
	if err != nil {
		return nil, fmt.Errorf("the mark behind the fault was refused: %w", err)
	}
	d, err := s.Descriptor(seq)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	werr := s.Wait(ctx, seq)
	after := time.Since(start)
	time.Sleep(time.Second) // a late store would be seen
	data := map[string]any{
		"wait_error": fmt.Sprint(werr), "wait_ended_after_ms": after.Milliseconds(),
		"word_written_behind_failed_work": d.Reached(), "device_error": fmt.Sprint(c.dev.Err()),
	}
	_, qerr := s.Driver().Query()
	data["query"] = fmt.Sprint(qerr)
	if werr == nil {
		return data, errors.New("success was reported for failed work")
	}
	if errors.Is(werr, context.DeadlineExceeded) {
		return data, errors.New("the fault was not found within 20 s")
	}
	return data, nil
}
