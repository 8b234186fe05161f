package poller

import (
	"time"

	"github.com/gpuline/gpuline/internal/asm"
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

// spinOn looks at the word until it reaches target, for at most about d. It
// holds the P and can't be preempted, so d must be short.
func spinOn(word *line.Word, target uint64, d time.Duration) bool {
	return asm.SpinUntil(word.Atomic(), target, d)
}
