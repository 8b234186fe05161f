//go:build !linux

package fill

func timerSlack() int { return 0 }
