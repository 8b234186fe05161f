// Package rig makes the measurements. Each runs in a child process with a device of
// its own, so that neither the threads that one method leaves behind nor its heap
// colour the next.
package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/gpuline/gpuline/bench/internal/result"
)

// Job is one measurement.
type Job struct {
	// Kind is "cell", "floor" or "scale".
	Kind string `json:"kind"`
	// Name is the method of a cell, or which floor or scale.
	Name   string `json:"name"`
	Driver string `json:"driver"`
	result.Cell
	// X is the number that a scale grows with.
	X int `json:"x,omitempty"`
	// Warm is not measured, Measure is.
	Warm    time.Duration `json:"warm"`
	Measure time.Duration `json:"measure"`
	// Plant burns this part of the time that a wake took, after each, in our methods
	// and in the waiter's cost: to see that a comparison finds it.
	Plant float64 `json:"plant,omitempty"`
	// Realtime gives the soft device's process real-time priority.
	Realtime bool `json:"realtime,omitempty"`
}

// Answer is what a child process reports.
type Answer struct {
	Sample result.Sample `json:"sample"`
	Values []float64     `json:"values,omitempty"` // of a scale
	Skip   string        `json:"skip,omitempty"`
	Note   string        `json:"note,omitempty"`
	Err    string        `json:"err,omitempty"`
	// Wall is how long the child process took, from its start to its end.
	Wall time.Duration `json:"-"`
}

// Env is the variable that makes a process a child: its value is the job.
const Env = "GPULINE_BENCH_JOB"

// skipped is the reason why a measurement makes no sense here.
type skipped string

func (s skipped) Error() string { return string(s) }

// Child runs the job in the environment, if there is one, and ends the process.
// Programs that start measurements call it first thing.
func Child() {
	text := os.Getenv(Env)
	if text == "" {
		return
	}
	runtime.GOMAXPROCS(Procs())
	os.Exit(child(text, os.Stdout))
}

// Procs is how many processors a measured program may use. A device leaves the
// program all of them; the soft device is a process of its own and gets one, where
// there are enough.
func Procs() int {
	n := runtime.GOMAXPROCS(0)
	if n == runtime.NumCPU() && n >= 4 {
		n--
	}
	return n
}

func child(text string, w io.Writer) int {
	var j Job
	var a Answer
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		a, err = j.run()
	}
	var why skipped
	switch {
	case errors.As(err, &why):
		a = Answer{Skip: string(why)}
	case err != nil:
		a = Answer{Err: err.Error()}
	}
	if err := json.NewEncoder(w).Encode(a); err != nil {
		return 1
	}
	return 0
}

func (j Job) run() (Answer, error) {
	switch j.Kind {
	case "cell":
		return runCell(j)
	case "floor":
		return runFloor(j)
	case "scale":
		return runScale(j)
	}
	return Answer{}, fmt.Errorf("no measurement of kind %q", j.Kind)
}
