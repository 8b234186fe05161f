//go:build !linux || !(amd64 || arm64)

package soft

import (
	"runtime"

	"github.com/gpuline/gpuline/event"
)

// startAsm would start the engine in assembly.
func startAsm(*memory, *bell, bool) (engine, error) {
	return nil, event.New(event.NotSupported, "a store engine that is no goroutine", "there is none for "+runtime.GOOS+"/"+runtime.GOARCH)
}
