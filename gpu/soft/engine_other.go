//go:build !linux

package soft

import "time"

const haveAsmEngine = false

// Off Linux the entries are due on the process's own monotonic clock.
func monotonicOffset() int64 { return 0 }

func futexWakeAll(uint64) {}

func post(int) {}

const canPost = false

// waitWord has no futex to wait on: it sleeps for a moment.
func waitWord(_ uint64, _ uint32, d time.Duration) { time.Sleep(min(d, time.Millisecond)) }
