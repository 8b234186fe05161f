//go:build race

package fill_test

const raceEnabled = true
