//go:build unix && !linux

package epoll

func newSignal() (*signal, error) { return newPipe() }
