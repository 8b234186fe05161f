//go:build !linux

package hammer

// Storm has no per-thread signals to send here.
func Storm(quit <-chan struct{}) { <-quit }
