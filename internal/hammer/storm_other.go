//go:build !linux

package hammer

// storm has no per-thread signals to send here.
func storm(quit <-chan struct{}) { <-quit }
