//go:build !race

package clib

const raceEnabled = false
