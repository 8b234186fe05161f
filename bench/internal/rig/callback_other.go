//go:build !linux && !darwin && !windows

package rig

func callback() (uintptr, error) { return 0, skipped("no callbacks into Go on this system") }
