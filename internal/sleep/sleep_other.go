//go:build !linux

package sleep

import "sync/atomic"

// Thread is a sleep on the calling thread where the system has that; see sleep_linux.go.
type Thread struct{ t goTimer }

// Sleep sleeps until the given time of event.RealClock, or until Wake.
func (s *Thread) Sleep(until int64, state *atomic.Int64) { s.t.sleep(until, state) }

// Wake ends a sleep whose state the caller has changed.
func (s *Thread) Wake() { s.t.wake() }

// Timer is a sleep that keeps no thread.
type Timer struct{ t goTimer }

// Sleep sleeps until the given time of event.RealClock, or until Wake.
func (s *Timer) Sleep(until int64, state *atomic.Int64) { s.t.sleep(until, state) }

// Wake ends a sleep whose state the caller has changed.
func (s *Timer) Wake() { s.t.wake() }

// Ready does nothing.
func (s *Timer) Ready() {}

// Close frees what the Timer holds.
func (s *Timer) Close() {}

type noMonitor struct{}

// Sleepers enter the scheduler like any goroutine here, which keeps the runtime's monitor going.
var theMonitor noMonitor

func (noMonitor) rouse() {}
