//go:build !linux

package event

import "time"

func sleep(d time.Duration) { time.Sleep(d) }
