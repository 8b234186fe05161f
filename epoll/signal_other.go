//go:build !unix

package epoll

import (
	"os"
	"runtime"

	"github.com/gpuline/gpuline/event"
)

// signal is out of reach: there is no descriptor to poll.
type signal struct{ public int }

func unsupported() error {
	return event.New(event.NotSupported, "a pollable descriptor for completions", runtime.GOOS+" has no eventfd and no pollable pipe")
}

func newSignal() (*signal, error) { return nil, unsupported() }

func (*signal) set() error              { return unsupported() }
func (*signal) clear() (uint64, error)  { return 0, unsupported() }
func (*signal) file() (*os.File, error) { return nil, unsupported() }
func (*signal) close()                  {}
