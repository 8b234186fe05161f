//go:build race

package clib

const raceEnabled = true
