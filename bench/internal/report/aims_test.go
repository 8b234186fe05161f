package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpuline/gpuline/bench/internal/result"
)

func TestAims(t *testing.T) {
	row := func(method, work string, p50, perWait float64) *result.Row {
		return &result.Row{
			Cell: result.Cell{Work: work, Streams: 1, Load: "idle"}, Method: method,
			Samples: []result.Sample{{P50: p50, PerWait: perWait}, {P50: 3 * p50, PerWait: 3 * perWait}, {P50: p50, PerWait: perWait}},
		}
	}
	floor := func(name string, p50 float64) *result.Row {
		return &result.Row{Method: name, Samples: []result.Sample{{P50: p50}}}
	}
	// What a machine shows on which all holds, just so.
	file := func() *result.File {
		return &result.File{
			Floors: []*result.Row{
				floor("spinning reader", 500), floor(result.EventfdWake("20us"), 10e3),
				floor(result.EventfdWake("200us"), 20e3), floor(result.EventfdWake("2ms"), 40e3),
			},
			Rows: []*result.Row{
				row("wait", "20us", 750, 0), row("wait", "200us", 1e9, 0), row("wait+predict", "200us", 750, 0),
				row("done", "20us", 4e3, 0), row("done+predict", "200us", 8e3, 0), row("done+predict", "2ms", 16e3, 0),
				row("fill", "20us", 1500, 0), row("fill+predict", "200us", 1500, 0),
				row("spin", "2ms", 1e3, 2e6), row("wait+predict", "2ms", 11e3, 100e3),
				{Cell: result.Cell{Work: "2ms", Streams: 64, Load: "idle"}, Method: "wait+predict", Samples: []result.Sample{{P50: 1e9, PerWait: 1e9}}},
			},
			Scales: []*result.Scale{
				{Name: "completion, 1024 words", X: 102_400, Samples: []float64{300}},
				{Name: "completion, 1024 words", X: 1024, Samples: []float64{900}},
			},
		}
	}
	list := Aims(file())
	if len(list) != 10 {
		t.Fatalf("%d aims, want 10: %+v", len(list), list)
	}
	for _, a := range list {
		if !a.Holds {
			t.Errorf("%s: %s does not hold, with %s", a.What, a.Aim, a.Got)
		}
	}
	// Each number a little worse misses its aim, and no other.
	for i, f := range []func(f *result.File){
		func(f *result.File) { f.Rows[0] = row("wait", "20us", 751, 0) },
		func(f *result.File) { f.Rows[2] = row("wait+predict", "200us", 751, 0) },
		func(f *result.File) { f.Rows[3] = row("done", "20us", 4001, 0) },
		func(f *result.File) { f.Rows[4] = row("done+predict", "200us", 8001, 0) },
		func(f *result.File) { f.Rows[5] = row("done+predict", "2ms", 16001, 0) },
		func(f *result.File) { f.Rows[6] = row("fill", "20us", 1501, 0) },
		func(f *result.File) { f.Rows[7] = row("fill+predict", "200us", 1501, 0) },
		func(f *result.File) { f.Rows[9] = row("wait+predict", "2ms", 11e3, 100001) },
		func(f *result.File) { f.Rows[9] = row("wait+predict", "2ms", 11001, 100e3) },
		func(f *result.File) { f.Scales[0].Samples[0] = 301 },
	} {
		worse := file()
		f(worse)
		for k, a := range Aims(worse) {
			if a.Holds == (k == i) {
				t.Errorf("with number %d a little worse, %q holds: %v", i, a.What, a.Holds)
			}
		}
	}
	if list := Aims(&result.File{}); len(list) != 0 {
		t.Errorf("aims of a run without numbers: %+v", list)
	}
	var out bytes.Buffer
	Text(&out, file())
	if n := strings.Count(out.String(), "  holds  "); n != 10 {
		t.Errorf("the text shows %d aims that hold, want 10:\n%s", n, &out)
	}
}
