// Package usage reads what the process has used so far.
package usage

import "time"

// Usage is the process's CPU time and number of threads; zero where the system
// does not tell.
type Usage struct {
	CPU     time.Duration
	Threads int
}

// Now returns the usage so far.
func Now() Usage { return now() }

// Sub returns the CPU time spent since v, and the threads of u.
func (u Usage) Sub(v Usage) Usage { return Usage{u.CPU - v.CPU, u.Threads} }
