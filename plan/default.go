package plan

import "time"

// standard is the plan that Default resolves. It spins longer than the margin, so
// that work which takes as long as predicted ends while the word is watched.
var standard = Plan{
	kind: Park,
	v: [params]time.Duration{
		parkUS:     50 * time.Microsecond,
		spinUS:     200 * time.Microsecond,
		napUS:      100 * time.Microsecond,
		backstopUS: time.Millisecond,
	},
	pred: Prediction{
		margin:   100 * time.Microsecond,
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
