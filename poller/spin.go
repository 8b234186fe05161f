package poller

// perturbation, when set by a test before any use, runs at every step of
// register, re-check, sleep.
var perturbation func()

func perturb() {
	if perturbation != nil {
		perturbation()
	}
}
