// Package asm waits for a store to a word with the processor's own means: its
// park instructions where it has them, a pause loop elsewhere.
//
//	target                       arm       wait     what ends a slice without a store
//	amd64, Intel WAITPKG         umonitor  umwait   TSC deadline, or the kernel's limit
//	amd64, AMD MONITORX          monitorx  mwaitx   timer at the TSC's rate
//	linux/arm64, FEAT_WFxT       ldaxr     wfet     counter deadline
//	linux/arm64                  ldaxr     wfe      the kernel's event stream (about 100 us)
//	amd64, arm64                 -         pause    TSC or counter
//	other                        -         loop     number of loads
//
// (Intel SDM volume 2, UMONITOR and UMWAIT; AMD APM volume 3, MONITORX and
// MWAITX; Arm ARM DDI 0487, "Wait for Event mechanism"; Linux,
// Documentation/arch/arm64/elf_hwcaps.rst.)
//
// Every wait is a loop in Go over slices, each one short call of assembly that
// arms the monitor, looks at the word again, and only then waits, so that no
// store is missed. The Go runtime can't preempt assembly: a slice holds up a
// stop-the-world for as long as it lasts, and so it is bounded. A hardware park
// also ends at an interrupt, such as the one that brings the runtime's
// preemption signal.
//
// All functions are safe for concurrent use. None of them allocates, makes a
// system call or gives up the caller's P.
package asm

import (
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// Kind names a way to wait.
type Kind uint8

// The kinds. Spin needs nothing and is there on every processor.
const (
	Spin Kind = iota
	UMWAIT
	MWAITX
	WFET
	WFE
	kinds // the number of kinds
)

// String returns the kind's name: "spin", or the instruction's in lower case.
func (k Kind) String() string {
	if k >= kinds {
		return "unknown"
	}
	return [kinds]string{"spin", "umwait", "mwaitx", "wfet", "wfe"}[k]
}

const (
	// SpinSlice is how long a slice of the pause loop lasts by default.
	SpinSlice = 5 * time.Microsecond
	// ParkSlice is how long a slice of a hardware park lasts by default.
	ParkSlice = 10 * time.Microsecond
	// MaxSlice is the longest slice that can be asked for.
	MaxSlice = 100 * time.Microsecond
)

// Park is the capability to wait in one way. The zero value is the pause loop; a
// Park of another kind comes only from Probe or Lookup, so that to hold one proves
// that the processor has the instruction. A Park is comparable and may be copied.
type Park struct {
	kind  Kind
	light bool
	slice time.Duration // 0: the kind's default
}

// Probe returns the best park of this processor. Where that is the pause loop,
// why says which instruction was looked for, where, and what was found. The
// processor is asked once per process.
func Probe() (p Park, why string) {
	f := probed()
	var whys []string
	for _, k := range native {
		if f.absent[k] == "" {
			return Park{kind: k}, ""
		}
		whys = append(whys, f.absent[k])
	}
	if len(whys) == 0 {
		return Park{}, "no park instruction is known for " + runtime.GOOS + "/" + runtime.GOARCH
	}
	return Park{}, strings.Join(whys, "; ") + f.usual
}

// Lookup returns the park of one kind. Where the processor lacks it, why says so
// and p is the pause loop.
func Lookup(k Kind) (p Park, why string) {
	if k >= kinds {
		return Park{}, "unknown kind of park"
	}
	if f := probed(); f.absent[k] != "" {
		return Park{}, f.absent[k] + f.usual
	}
	return Park{kind: k}, ""
}

// Kind returns the kind of the park.
func (p Park) Kind() Kind { return p.kind }

// Hardware reports whether the park is a processor's park instruction.
func (p Park) Hardware() bool { return p.kind != Spin }

// String returns the name of the park's kind.
func (p Park) String() string { return p.kind.String() }

// Light returns the same park in the lighter of the processor's wait states,
// which wakes faster and saves less: C0.1 rather than C0.2 for umwait, C0 rather
// than C1 for mwaitx. Others have one state only.
func (p Park) Light() Park { p.light = true; return p }

// WithSlice returns the same park with slices of d, at most MaxSlice. d <= 0 is
// the kind's default. The kernel may end umwait sooner (see UmwaitLimits), and
// wfe takes no bound at all: its slices end with the event stream.
func (p Park) WithSlice(d time.Duration) Park {
	p.slice = max(0, min(d, MaxSlice))
	return p
}

// Slice returns the length of the park's slices.
func (p Park) Slice() time.Duration {
	switch {
	case p.slice > 0:
		return p.slice
	case p.kind == Spin:
		return SpinSlice
	}
	return ParkSlice
}

// Wait waits until the word has reached target in wrapping order (the signed
// difference word - target is >= 0), for at most about bound, and reports whether
// it has. It looks at the word at least once, whatever the bound. When it returns
// true, a load with acquire ordering has seen the word.
func (p Park) Wait(word *atomic.Uint64, target uint64, bound time.Duration) bool {
	reached, _ := p.wait(word, target, bound)
	return reached
}

// wait is Wait; it also returns the number of slices.
func (p Park) wait(word *atomic.Uint64, target uint64, bound time.Duration) (bool, int) {
	seen := word.Load()
	if int64(seen-target) >= 0 {
		return true, 0
	}
	m := measured()
	end := m.until(bound)
	for n := 0; ; n++ {
		left := end - m.now()
		if left <= 0 {
			return false, n
		}
		p.waitSlice(m, (*uint64)(unsafe.Pointer(word)), &seen, 1, left)
		if seen = word.Load(); int64(seen-target) >= 0 {
			return true, n + 1
		}
	}
}

// WaitLine waits until any of the eight words differs from the value in seen,
// for at most about bound, and reports whether one does. A store since seen was
// taken ends the wait at once, so a caller that loads the words into seen, acts
// on them, and then calls WaitLine misses nothing. It looks at the words at least
// once, whatever the bound.
//
// The hardware park serves only where one monitor covers the line: line must be
// 64-byte aligned and Granule at least 64. Elsewhere the pause loop does.
func (p Park) WaitLine(line *[8]atomic.Uint64, seen *[8]uint64, bound time.Duration) bool {
	changed, _ := p.waitLine(line, seen, bound)
	return changed
}

// waitLine is WaitLine; it also returns the number of slices.
func (p Park) waitLine(line *[8]atomic.Uint64, seen *[8]uint64, bound time.Duration) (bool, int) {
	if differ(line, seen) {
		return true, 0
	}
	if p.kind != Spin && (uintptr(unsafe.Pointer(line))%64 != 0 || probed().granule < 64) {
		p = Park{}
	}
	m := measured()
	end := m.until(bound)
	for n := 0; ; n++ {
		left := end - m.now()
		if left <= 0 {
			return false, n
		}
		p.waitSlice(m, (*uint64)(unsafe.Pointer(line)), &seen[0], len(seen), left)
		if differ(line, seen) {
			return true, n + 1
		}
	}
}

func differ(line *[8]atomic.Uint64, seen *[8]uint64) bool {
	for i := range line {
		if line[i].Load() != seen[i] {
			return true
		}
	}
	return false
}

// waitSlice waits one slice, or left if that is shorter, while the n words at addr
// hold the n values at seen.
//
// The assembly reads the words with plain loads that the race detector does not
// see; what the caller reports rests on his own atomic loads after it.
func (p Park) waitSlice(m *machine, addr, seen *uint64, n int, left time.Duration) {
	m.slice(p.kind, addr, seen, n, m.ticks(min(left, p.Slice())), p.light)
}

// SpinUntil is Wait with the pause loop: it returns as soon as possible after the
// store, and keeps the processor busy.
func SpinUntil(word *atomic.Uint64, target uint64, bound time.Duration) bool {
	return Park{}.Wait(word, target, bound)
}

// Granule returns the size in bytes of the aligned block that one hardware park
// watches for stores, 0 where there is no hardware park or the processor does not
// tell.
func Granule() int { return probed().granule }

// TickRate returns how often per second Ticks counts, and whether at a constant
// rate, on all processors alike. On amd64 the rate is CPUID leaf 15H's where a
// measurement agrees with it, else that of the measurement (half a millisecond,
// once per process); on arm64 it is CNTFRQ_EL0.
func TickRate() (hz uint64, constant bool) {
	m := measured()
	return m.hz, m.constant
}
