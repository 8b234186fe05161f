//go:build !race

package uring

func raceRelease() {}

func raceAcquire() {}
