//go:build linux && !amd64

package soft

import "errors"

const haveAsmEngine = false

func startAsm(*memory, int, bool) (engine, error) { return nil, errors.ErrUnsupported }
