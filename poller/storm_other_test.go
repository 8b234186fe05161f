//go:build !linux

package poller

// signalStorm has no per-thread signals to send here.
func signalStorm(quit <-chan struct{}) { <-quit }
