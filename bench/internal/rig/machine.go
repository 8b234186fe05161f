package rig

import (
	"runtime"
	"runtime/debug"

	"github.com/gpuline/gpuline/bench/internal/result"
	"github.com/gpuline/gpuline/bench/internal/sys"
)

// Machine says where a run is made.
func Machine() result.Machine {
	m := result.Machine{
		CPU: sys.CPUModel(), CPUs: runtime.NumCPU(), Procs: Procs(),
		OS: runtime.GOOS + "/" + runtime.GOARCH, Kernel: sys.Kernel(), Go: runtime.Version(),
	}
	m.Load, _ = sys.LoadAverage()
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				m.Revision = s.Value
			}
		}
	}
	return m
}
