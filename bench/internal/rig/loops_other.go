//go:build !linux

package rig

func loops() []*Method { return nil }
