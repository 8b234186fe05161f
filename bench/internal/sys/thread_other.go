//go:build !linux

package sys

import (
	"errors"
	"time"
)

// ThreadCPU returns 0: the system does not tell.
func ThreadCPU() time.Duration { return 0 }

// Pin is not possible here.
func Pin(int) error { return errors.ErrUnsupported }

// Realtime is not possible here.
func Realtime(int) error { return errors.ErrUnsupported }

// TimerSlack returns 0: the system has none.
func TimerSlack() time.Duration { return 0 }

// SetTimerSlack does nothing.
func SetTimerSlack(time.Duration) {}
