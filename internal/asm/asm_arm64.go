package asm

// native lists the hardware parks of this architecture, best first.
var native = []Kind{WFET, WFE}

// The functions of asm_arm64.s. Those that wait do so while the n words at addr
// hold the n values at seen, and may return early for no reason. They read
// through the pointers during the call only.

// spin waits for at most about ticks of the counter.
//
//go:noescape
func spin(addr, seen *uint64, n int, ticks uint64)

// wfet waits for at most about ticks of the counter. An undefined instruction
// without FEAT_WFxT.
//
//go:noescape
func wfet(addr, seen *uint64, n int, ticks uint64)

// wfe waits until an event: without an event stream nothing bounds it.
//
//go:noescape
func wfe(addr, seen *uint64, n int)

// ctr returns CTR_EL0. Linux lets EL0 read it, or emulates the read.
func ctr() uint64

func counterRate() uint64

// Ticks returns the virtual counter CNTVCT_EL0.
//
//go:noescape
func Ticks() uint64

// Pause is one hint for the body of a loop that spins.
//
//go:noescape
func Pause()

func (m *machine) slice(k Kind, addr, seen *uint64, n int, ticks uint64, _ bool) {
	switch k {
	case WFET:
		wfet(addr, seen, n, ticks)
	case WFE:
		wfe(addr, seen, n)
	default:
		spin(addr, seen, n, ticks)
	}
}

func (m *machine) tickRate() (uint64, bool) { return counterRate(), true }
