package poller

import (
	"time"

	"github.com/gpuline/gpuline/line"
)

// perturbation, when set by a test before any use, runs at every step of
// register, re-check, sleep.
var perturbation func()

func perturb() {
	if perturbation != nil {
		perturbation()
	}
}

// spinOn looks at the word until it reaches target, for at most about d. It is
// the only loop that holds the P, so d must be short.
func spinOn(word *line.Word, target uint64, d time.Duration) bool {
	end := nanotime() + int64(d)
	for {
		for range 32 {
			if word.Reached(target) {
				return true
			}
		}
		if nanotime() >= end {
			return word.Reached(target)
		}
	}
}
