package asm

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Limits is what the Linux kernel allows umwait (IA32_UMWAIT_CONTROL), for
// reports. See Documentation/ABI/testing/sysfs-devices-system-cpu.
type Limits struct {
	// MaxTicks is the longest umwait in TSC ticks, 0 without limit.
	MaxTicks uint32
	// C02 tells whether umwait may enter C0.2; where not, it enters C0.1.
	C02 bool
}

// UmwaitLimits reads the kernel's limits. Where there are none to read (no
// WAITPKG, not Linux) the error matches fs.ErrNotExist.
func UmwaitLimits() (Limits, error) {
	return readLimits(os.DirFS("/sys/devices/system/cpu/umwait_control"))
}

func readLimits(dir fs.FS) (Limits, error) {
	var n [2]uint64
	for i, name := range []string{"max_time", "enable_c02"} {
		b, err := fs.ReadFile(dir, name)
		if err == nil {
			n[i], err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
		}
		if err != nil {
			return Limits{}, fmt.Errorf("umwait_control: %w", err)
		}
	}
	return Limits{MaxTicks: uint32(n[0]), C02: n[1] != 0}, nil
}
