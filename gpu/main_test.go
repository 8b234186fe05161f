package gpu

import (
	"testing"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
