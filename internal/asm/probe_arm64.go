//go:build arm64 && !linux

package asm

// probe finds nothing: only Linux says whether something bounds wfe.
func (f *features) probe() {}
