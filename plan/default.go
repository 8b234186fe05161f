package plan

import "time"

// standard is the plan that Default resolves. The waiter makes up for what its sleeps
// oversleep on average, so that the margin has to cover the rest: on a virtual machine
// the 99th percentile is 20 to 40 us above the average. One late wake halves the
// prediction for a whole window. The spin outlasts the margin by far, so that work
// which takes about as long as predicted ends while the word is watched.
var standard = Plan{
	kind: Park,
	v: [params]time.Duration{
		parkUS:     100 * time.Microsecond,
		spinUS:     200 * time.Microsecond,
		napUS:      50 * time.Microsecond,
		backstopUS: time.Millisecond,
	},
	pred: Prediction{
		margin:   40 * time.Microsecond,
		minSleep: 20 * time.Microsecond,
		maxSleep: 50 * time.Millisecond,
		window:   8,
	},
}

// Default returns a plan that suits most programs where caps is all there is: the
// processor's park where it has one, else a short spin, then naps, behind
// a predicted sleep. Without words to look at it polls the status behind
// a predicted sleep.
func Default(caps Caps) Plan { return standard.Resolve(caps).Running }
