//go:build !unix

package sys

import "time"

// Now returns the process's usage: nothing, on systems without getrusage.
func Now() Usage { return Usage{} }

// CPU returns the process's CPU time so far: 0, on systems without getrusage.
func CPU() time.Duration { return 0 }
