//go:build race

package sleep

func init() { raceEnabled = true }
