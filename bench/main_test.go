package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpuline/gpuline/bench/internal/report"
	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/rig"
	"github.com/gpuline/gpuline/bench/internal/sys"
)

func TestMain(m *testing.M) {
	rig.Child()
	os.Exit(m.Run())
}

func do(t testing.TB, j rig.Job) rig.Answer {
	t.Helper()
	a, err := rig.Do(context.Background(), j)
	if err != nil {
		t.Fatal(err)
	}
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	return a
}

// Every method waits for the device, and gets every wait it is given.
func TestMethods(t *testing.T) {
	for _, m := range rig.Methods() {
		for _, c := range []result.Cell{{Work: "200us", Streams: 1, Load: "idle"}, {Work: "mixed", Streams: 12, Load: "gc"}} {
			t.Run(m.Name+"/"+c.Work, func(t *testing.T) {
				a := do(t, rig.Job{Kind: "cell", Name: m.Name, Driver: "soft", Cell: c, Warm: 30 * time.Millisecond, Measure: 60 * time.Millisecond})
				if a.Skip != "" {
					t.Skip(a.Skip)
				}
				s := a.Sample
				if m.Name == report.Reference {
					if s.N != 0 || c.Load == "gc" && s.Neighbour == 0 {
						t.Errorf("nobody waits, but %+v", s)
					}
					return
				}
				h := result.Decode(s.Hist)
				if s.N == 0 || h == nil || h.TotalCount() > s.N || s.P50 > s.P99 || s.P99 > s.P999 || s.P999 > s.Max || s.Max > 10e9 {
					t.Errorf("%+v", s)
				}
				if s.CPU <= 0 || s.PerWait <= 0 || s.Threads == 0 || s.Memory == 0 || c.Load == "gc" && s.Neighbour == 0 {
					t.Errorf("usage: %+v", s)
				}
			})
		}
	}
}

func TestChildRefuses(t *testing.T) {
	for _, j := range []rig.Job{{Kind: "cell", Name: "no such method"}, {Kind: "floor", Name: "?"}, {Kind: "scale", Name: "?"}, {Kind: "?"}} {
		a, err := rig.Do(context.Background(), j)
		if err != nil || a.Err == "" {
			t.Errorf("%+v: %+v, %v", j, a, err)
		}
	}
	a, err := rig.Do(context.Background(), rig.Job{Kind: "cell", Name: "spin", Driver: "soft", Cell: result.Cell{Work: "20us", Streams: 4096, Load: "idle"}})
	if err != nil || a.Skip == "" {
		t.Errorf("4096 spinning threads were not refused: %+v, %v", a, err)
	}
}

// With real-time priority a cell is measured, or says that it may not have it; it never goes on without.
func TestRealtime(t *testing.T) {
	c := result.Cell{Work: "200us", Streams: 1, Load: "idle"}
	for _, j := range []rig.Job{
		{Kind: "cell", Name: "wait", Driver: "soft", Cell: c, Warm: 10 * time.Millisecond, Measure: 30 * time.Millisecond, Realtime: true},
		{Kind: "floor", Name: "spinning reader", Measure: 30 * time.Millisecond, Realtime: true},
	} {
		a, err := rig.Do(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		if (a.Sample.N > 0) == strings.Contains(a.Err, "real-time priority") {
			t.Errorf("%s: %d waits, error %q", j.Name, a.Sample.N, a.Err)
		}
	}
	for _, c := range []result.Cell{{Work: "20us", Streams: 1, Load: "idle"}, {Work: "2ms", Streams: 64, Load: "idle"}, {Work: "2ms", Streams: 1, Load: "gc"}} {
		if rig.Hurries(c) {
			t.Errorf("%s: real-time priority beside other work for the processors", c)
		}
	}
	if _, err := run(context.Background(), options{driver: "opencl", realtime: true}, nil); err == nil || !strings.Contains(err.Error(), "-realtime") {
		t.Errorf("real-time priority for a driver without a process of its own: %v", err)
	}
}

// A small run from the plan to the reports.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	var shown bytes.Buffer
	out, err := os.Create(filepath.Join(t.TempDir(), "progress"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	f, err := run(context.Background(), options{quick: true, driver: "soft", budget: 2 * time.Second,
		only: "^(spin|wait|done|eventfd wake|completion, one word|start-up)"}, report.NewProgress(out))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Rows {
		if len(r.Samples) == 0 && r.Skip == "" {
			t.Errorf("%s: %s was neither measured nor skipped with a reason", r.Cell, r.Method)
		}
		if strings.HasPrefix(r.Skip, "failed") {
			t.Errorf("%s: %s: %s", r.Cell, r.Method, r.Skip)
		}
	}
	for _, s := range f.Scales {
		if len(s.Samples) == 0 {
			t.Errorf("%s %d: %s", s.Name, s.X, s.Skip)
		}
	}
	report.Text(&shown, f)
	for _, want := range []string{"floors", "eventfd wake", "work 2ms, 64 streams, idle", "start-up, opens 1", "spin: 1024 spinning waits"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("the tables lack %q", want)
		}
	}
	path := filepath.Join(t.TempDir(), "r.html")
	if err := report.HTML(path, f); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(page, []byte("<svg")); n < len(report.Cells(f)) {
		t.Errorf("%d plots for %d cells", n, len(report.Cells(f)))
	}
	// The page opens without a network: whatever looks like an address is an XML
	// name space.
	for _, m := range regexp.MustCompile(`(https?:)?//[a-z][^"'\s)]*|@import|src=|<link`).FindAll(page, -1) {
		if !bytes.HasPrefix(m, []byte("http://www.w3.org/")) {
			t.Errorf("the page refers to %q", m)
		}
	}
	same := result.Compare(f, f)
	if same.Compared > 0 && same.Same != same.Compared {
		t.Errorf("a run differs from itself: %+v", same.Changes)
	}
}

func TestFloorsAndScales(t *testing.T) {
	names, _ := rig.Floors()
	for _, name := range names {
		a := do(t, rig.Job{Kind: "floor", Name: name, Measure: 60 * time.Millisecond})
		if a.Skip == "" && (a.Sample.N == 0 || a.Sample.P50 <= 0) {
			t.Errorf("%s: %+v", name, a.Sample)
		}
	}
	for _, s := range rig.Scales() {
		x := 0
		if len(s.X) > 0 {
			x = s.X[0]
		}
		a := do(t, rig.Job{Kind: "scale", Name: s.Name, X: x, Warm: 5 * time.Millisecond, Measure: 100 * time.Millisecond})
		if a.Skip == "" && !s.Exec && len(a.Values) != 1 {
			t.Errorf("%s: %+v", s.Name, a)
		}
		if s.Exec && a.Wall <= 0 {
			t.Errorf("%s took %v", s.Name, a.Wall)
		}
	}
}

// Samples during which the hypervisor gave time to others are taken again.
func TestDisturbedSamples(t *testing.T) {
	var total, stolen float64
	reads := 0
	takes := func(disturbed func(sample int) bool) {
		total, stolen, reads = 0, 0, 0
		readStolen = func() (float64, float64) {
			if reads%2 == 1 {
				total += 200
				if disturbed(reads / 2) {
					stolen += 20
				}
			}
			reads++
			return stolen, total
		}
	}
	defer func() { readStolen = sys.Stolen }()
	o := options{driver: "soft", budget: time.Second, patience: 20 * time.Second, only: "^spin$", cell: "^20us/1/idle"}
	start := func() *result.File {
		f, err := run(context.Background(), o, report.NewProgress(os.Stderr))
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Rows) != 1 || len(f.Rows[0].Samples) != rounds {
			t.Fatalf("%d rows, %d samples in the first, want 1 and %d", len(f.Rows), len(f.Rows[0].Samples), rounds)
		}
		return f
	}
	takes(func(int) bool { return false })
	if f := start(); f.Again != 0 || f.Disturbed != 0 || f.Machine.Stolen != 0 {
		t.Errorf("undisturbed: %d taken again, %d disturbed, %v stolen", f.Again, f.Disturbed, f.Machine.Stolen)
	}
	takes(func(n int) bool { return n == 1 || n == 3 }) // the second, and its first repetition
	if f := start(); f.Again != 2 || f.Disturbed != 0 || f.Machine.Stolen != 0 {
		t.Errorf("one disturbed twice: %d taken again, %d disturbed, %v stolen", f.Again, f.Disturbed, f.Machine.Stolen)
	}
	takes(func(n int) bool { return true })
	o.patience = 2 * time.Second
	if f := start(); f.Again == 0 || f.Disturbed != rounds || f.Machine.Stolen != 0.1 {
		t.Errorf("all disturbed: %d taken again, %d disturbed, %v stolen", f.Again, f.Disturbed, f.Machine.Stolen)
	}
}
