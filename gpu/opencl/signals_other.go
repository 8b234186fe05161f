//go:build !linux || !(amd64 || arm64)

package opencl

// keepSignals runs f. No OpenCL implementation of these systems is known to
// replace a process's signal handlers.
func keepSignals(f func()) { f() }
