package asm

import (
	"slices"
	"time"
)

// native lists the hardware parks of this architecture, best first.
var native = []Kind{UMWAIT, MWAITX}

// The functions of asm_amd64.s. Those that wait do so while the n words at addr
// hold the n values at seen, for at most about ticks of the TSC, and may return
// early for no reason. They read through the pointers during the call only.

// spin also returns after count looks.
//
//go:noescape
func spin(addr, seen *uint64, n int, ticks, count uint64)

// umwait executes UMONITOR and UMWAIT. state is UMWAIT's operand: 0 for C0.2, 1
// for C0.1. An undefined instruction without WAITPKG.
//
//go:noescape
func umwait(addr, seen *uint64, n int, ticks uint64, state uint32)

// mwaitx executes MONITORX and MWAITX with its timer. hint is MWAITX's EAX: bits
// 7:4 are the C-state less one, 0xF0 for C0. An undefined instruction without
// MONITORX.
//
//go:noescape
func mwaitx(addr, seen *uint64, n int, ticks, hint uint32)

func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)

// Ticks returns the time stamp counter.
//
//go:noescape
func Ticks() uint64

// Pause is one PAUSE instruction: a hint for the body of a loop that spins.
//
//go:noescape
func Pause()

func (f *features) probe() {
	top, _, _, _ := cpuid(0, 0)
	ext, _, _, _ := cpuid(0x80000000, 0)
	if _, _, c, _ := cpuid(1, 0); c&(1<<31) != 0 {
		f.usual = ", as is usual in virtual machines"
	}
	f.absent[UMWAIT] = "CPUID.(EAX=7,ECX=0):ECX bit 5 (WAITPKG) is clear"
	if top >= 7 {
		if _, _, c, _ := cpuid(7, 0); c&(1<<5) != 0 {
			f.absent[UMWAIT] = ""
		}
	}
	f.absent[MWAITX] = "CPUID.80000001H:ECX bit 29 (MONITORX) is clear"
	if ext >= 0x80000001 {
		if _, _, c, _ := cpuid(0x80000001, 0); c&(1<<29) != 0 {
			f.absent[MWAITX] = ""
		}
	}
	if top >= 5 && (f.absent[UMWAIT] == "" || f.absent[MWAITX] == "") {
		// Leaf 5 is MONITOR's; UMONITOR and MONITORX watch the same range.
		a, _, _, _ := cpuid(5, 0)
		f.granule = int(a & 0xffff)
	}
}

func (m *machine) slice(k Kind, addr, seen *uint64, n int, ticks uint64, light bool) {
	switch k {
	case UMWAIT:
		var state uint32
		if light {
			state = 1
		}
		umwait(addr, seen, n, ticks, state)
	case MWAITX:
		var hint uint32
		if light {
			hint = 0xF0
		}
		mwaitx(addr, seen, n, uint32(ticks), hint)
	default:
		count := uint64(1) << 62
		if !m.constant {
			count = 64 // the TSC is no measure of time here
		}
		spin(addr, seen, n, ticks, count)
	}
}

// tickRate returns the rate of the TSC and whether it is constant.
func (m *machine) tickRate() (uint64, bool) {
	hz, constant := m.measure(), invariant()
	if hz < 1e6 || hz > 1e11 {
		// No TSC counts like that: the clock was set or the machine stopped
		// throughout. Some length of a slice is needed all the same.
		return 1e9, false
	}
	if nominal := leaf15(); nominal > hz/100*99 && nominal < hz/100*101 {
		// The nominal rate is exact, but emulators and hypervisors have been seen
		// to report that of another machine.
		hz = nominal
	}
	return hz, constant
}

// invariant reports CPUID's invariant TSC bit.
func invariant() bool {
	if ext, _, _, _ := cpuid(0x80000000, 0); ext < 0x80000007 {
		return false
	}
	_, _, _, d := cpuid(0x80000007, 0)
	return d&(1<<8) != 0
}

// leaf15 returns the TSC rate that CPUID leaf 15H states, 0 when it states none.
func leaf15() uint64 {
	if top, _, _, _ := cpuid(0, 0); top < 0x15 {
		return 0
	}
	den, num, crystal, _ := cpuid(0x15, 0)
	if den == 0 {
		return 0
	}
	return uint64(crystal) * uint64(num) / uint64(den)
}

// measure returns the median of several short measurements of the TSC against
// the monotonic clock.
func (m *machine) measure() uint64 {
	var rates [5]uint64
	for i := range rates {
		t0, c0 := m.stamp()
		t1, c1 := m.stamp()
		for t1-t0 < 100*time.Microsecond {
			t1, c1 = m.stamp()
		}
		rates[i] = uint64(float64(c1-c0) / (t1 - t0).Seconds())
	}
	slices.Sort(rates[:])
	return rates[len(rates)/2]
}

// stamp reads the clock and the TSC at nearly the same time: the tightest of a
// few tries, so that a preemption in the middle of one does not count.
func (m *machine) stamp() (time.Duration, uint64) {
	var t time.Duration
	var c uint64
	best := ^uint64(0)
	for range 3 {
		before := Ticks()
		now := m.now()
		if d := Ticks() - before; d < best {
			best, t, c = d, now, before+d/2
		}
	}
	return t, c
}
