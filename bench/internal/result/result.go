// Package result is what a run of the benchmark leaves behind, as a JSON file, and
// the comparison of two of them.
package result

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Format is the version of the file's format.
const Format = 1

// File is one run.
type File struct {
	Format  int       `json:"format"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Mode is "quick", "aims" or "full".
	Mode   string `json:"mode"`
	Driver string `json:"driver"`
	// Plan is the wait plan of the methods that predict.
	Plan   string `json:"plan"`
	Rounds int    `json:"rounds"`
	// Realtime says that the soft device's process had real-time priority where one stream
	// waited and nothing else ran.
	Realtime bool `json:"realtime,omitempty"`
	// Cut says that the time was over before all rounds were.
	Cut bool `json:"cut,omitempty"`
	// Again is how many samples were taken once more because the hypervisor gave some of
	// the time to others meanwhile, Disturbed in how many of those kept it did.
	Again     int `json:"again,omitempty"`
	Disturbed int `json:"disturbed,omitempty"`

	Machine Machine  `json:"machine"`
	Rows    []*Row   `json:"rows"`
	Floors  []*Row   `json:"floors"`
	Scales  []*Scale `json:"scales"`
}

// Machine is where a run was made.
type Machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	Procs    int    `json:"gomaxprocs"`
	OS       string `json:"os"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"`
	// Load is the load average when the run began, Stolen the share of CPU time
	// that the hypervisor gave to others during the samples that were kept. Either
	// makes a run noisy.
	Load   float64 `json:"load"`
	Stolen float64 `json:"stolen"`
}

// Cell is what was done while waiting was measured.
type Cell struct {
	// Work is the device time of a wait: a duration, or "mixed".
	Work    string `json:"work"`
	Streams int    `json:"streams"`
	// Load is what else the program did: "idle", "busy" or "gc".
	Load string `json:"load"`
}

func (c Cell) String() string {
	return fmt.Sprintf("work %s, %s, %s", c.Work, plural(c.Streams), c.Load)
}

func plural(n int) string {
	if n == 1 {
		return "1 stream"
	}
	return fmt.Sprintf("%d streams", n)
}

// Row is one method in one cell.
type Row struct {
	Cell
	Method  string   `json:"method"`
	What    string   `json:"what"`
	Ours    bool     `json:"ours"`
	Samples []Sample `json:"samples,omitempty"`
	// Skip is why there are no samples.
	Skip string `json:"skip,omitempty"`
	// Hist is the latency histogram of all samples together (HdrHistogram V2,
	// compressed), in nanoseconds.
	Hist []byte `json:"hist,omitempty"`
}

// EventfdIdle is how long the processor has been idle on which a thread is woken through
// an eventfd, in the floors that EventfdWake names: as long as the works of cells take.
var EventfdIdle = []string{"20us", "200us", "2ms"}

// EventfdWake names the floor.
func EventfdWake(idle string) string { return "eventfd wake, " + idle + " idle" }

// Sample is one process's measurement. Latencies are from the device's store to the
// goroutine that waited for it, in nanoseconds.
type Sample struct {
	Seconds float64 `json:"seconds"`
	N       int64   `json:"n"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
	Max     float64 `json:"max"`
	// CPU is the process's CPU time per wall time, without the device's; PerWait
	// is nanoseconds of it per completion, Rate is completions per second.
	CPU     float64 `json:"cpu"`
	PerWait float64 `json:"cpu_per_wait"`
	Rate    float64 `json:"rate"`
	Threads int     `json:"threads"`
	Memory  int64   `json:"memory"`
	// Neighbour is the units of other Go work done per second.
	Neighbour float64 `json:"neighbour,omitempty"`
	// Allocs is heap objects made per completion, by the whole program.
	Allocs float64 `json:"allocs"`
	// Stop-the-world pauses for garbage collection in nanoseconds.
	GCs      uint64  `json:"gcs,omitempty"`
	PauseP50 float64 `json:"gc_pause_p50,omitempty"`
	PauseMax float64 `json:"gc_pause_max,omitempty"`
	// Note says what else there is to know.
	Note string `json:"note,omitempty"`

	// Latencies as they travel from the child process.
	Hist []byte `json:"hist,omitempty"`
}

// Scale is one quantity measured as something grows, or alone.
type Scale struct {
	Name string `json:"name"`
	What string `json:"what"`
	// X is what grew, a number of XName; a quantity on its own has no XName.
	X     int    `json:"x"`
	XName string `json:"x_name,omitempty"`
	Unit  string `json:"unit"`
	// Lower tells whether less is better.
	Lower   bool      `json:"lower"`
	Samples []float64 `json:"samples"`
	Skip    string    `json:"skip,omitempty"`
	Note    string    `json:"note,omitempty"`
}

// NewHist returns an empty latency histogram: 1 ns to 100 s with 3 digits.
func NewHist() *hdrhistogram.Histogram { return hdrhistogram.New(1, 100e9, 3) }

// Encode packs a histogram.
func Encode(h *hdrhistogram.Histogram) []byte {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil
	}
	return b
}

// Decode unpacks what Encode packed; nil for anything else.
func Decode(b []byte) *hdrhistogram.Histogram {
	if len(b) == 0 {
		return nil
	}
	h, err := hdrhistogram.Decode(b)
	if err != nil {
		return nil
	}
	return h
}

// Add appends a sample and merges its histogram into the row's.
func (r *Row) Add(s Sample) {
	if h := Decode(s.Hist); h != nil {
		if all := Decode(r.Hist); all != nil {
			all.Merge(h)
			h = all
		}
		r.Hist = Encode(h)
	}
	s.Hist = nil
	r.Samples = append(r.Samples, s)
}

// Median is the middle of f over the row's samples, 0 when there are none.
func (r *Row) Median(f func(Sample) float64) float64 { return median(r.values(f)) }

func (r *Row) values(f func(Sample) float64) []float64 {
	v := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		v[i] = f(s)
	}
	return v
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// Quantile is a quantile of all latencies together, 0 < q <= 1, and whether there
// are enough of them to tell: at least ten beyond it.
func (r *Row) Quantile(q float64) (ns float64, ok bool) {
	h := Decode(r.Hist)
	if h == nil {
		return 0, false
	}
	return float64(h.ValueAtQuantile(100 * q)), float64(h.TotalCount())*(1-q) >= 10
}

// Load reads a file.
func Load(path string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f File
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if f.Format != Format {
		return nil, fmt.Errorf("%s: format %d, want %d", path, f.Format, Format)
	}
	return &f, nil
}

// Save writes a file.
func (f *File) Save(path string) error {
	f.Format = Format
	b, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
