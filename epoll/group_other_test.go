//go:build !unix

package epoll

import (
	"errors"
	"testing"
)

func TestNotSupported(t *testing.T) {
	if _, err := NewGroup(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NewGroup: %v", err)
	}
}
