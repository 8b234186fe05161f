//go:build !linux

package rig

func rawFloors() []floor { return nil }
