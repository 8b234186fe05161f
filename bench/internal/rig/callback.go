//go:build linux || darwin || windows

package rig

import (
	"sync"

	"github.com/ebitengine/purego"
)

// callback returns one C function for all host callbacks of the process: it sends
// on the channel whose number is its argument. The table of such functions is never
// freed, so one per wait would run out.
func callback() (uintptr, error) { return makeCallback(), nil }

var makeCallback = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(lane uintptr) uintptr {
		callbacks[lane] <- struct{}{}
		return 0
	})
})
