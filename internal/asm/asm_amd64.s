#include "textflag.h"

// The monitor instructions that the Go assembler does not know.
#define UMONITOR_DI BYTE $0xF3; BYTE $0x0F; BYTE $0xAE; BYTE $0xF7 // umonitor rdi
#define UMWAIT_CX   BYTE $0xF2; BYTE $0x0F; BYTE $0xAE; BYTE $0xF1 // umwait ecx (deadline in edx:eax)
#define MONITORX    BYTE $0x0F; BYTE $0x01; BYTE $0xFA             // monitorx rax, ecx, edx
#define MWAITX      BYTE $0x0F; BYTE $0x01; BYTE $0xFB             // mwaitx eax, ecx (timer in ebx)

// COMPARE goes to out unless the R8 (> 0) words at DI hold the values at SI.
// UMONITOR and MONITORX are ordered as loads, and loads stay in program order:
// a store that COMPARE misses comes after the monitor was armed and triggers it.
#define COMPARE(out) \
	MOVQ R8, R10; \
	MOVQ -8(DI)(R10*8), R11; \
	CMPQ R11, -8(SI)(R10*8); \
	JNE  out; \
	DECQ R10; \
	JNZ  -4(PC)

// NOW puts the TSC into AX and clobbers DX.
#define NOW \
	RDTSC; \
	SHLQ $32, DX; \
	ORQ  DX, AX

// func spin(addr, seen *uint64, n int, ticks, count uint64)
TEXT ·spin(SB), NOSPLIT, $0-40
	MOVQ addr+0(FP), DI
	MOVQ seen+8(FP), SI
	MOVQ n+16(FP), R8
	MOVQ ticks+24(FP), R9
	MOVQ count+32(FP), CX
	NOW
	MOVQ AX, BX

look:
	// Twice: PAUSE and RDTSC take some twenty nanoseconds each.
	COMPARE(done)
	PAUSE
	COMPARE(done)
	DECQ CX
	JZ   done
	NOW

	// An unsigned difference: a TSC that went back, on another processor, ends
	// the slice.
	SUBQ BX, AX
	CMPQ AX, R9
	JCS  look

done:
	RET

// func umwait(addr, seen *uint64, n int, ticks uint64, state uint32)
TEXT ·umwait(SB), NOSPLIT, $0-36
	MOVQ addr+0(FP), DI
	MOVQ seen+8(FP), SI
	MOVQ n+16(FP), R8
	MOVQ ticks+24(FP), R9
	MOVL state+32(FP), CX
	UMONITOR_DI
	COMPARE(done)
	NOW
	ADDQ R9, AX
	MOVQ AX, DX
	SHRQ $32, DX
	UMWAIT_CX

done:
	RET

// func mwaitx(addr, seen *uint64, n int, ticks, hint uint32)
TEXT ·mwaitx(SB), NOSPLIT, $0-32
	MOVQ addr+0(FP), DI
	MOVQ seen+8(FP), SI
	MOVQ n+16(FP), R8
	MOVQ DI, AX
	XORL CX, CX
	XORL DX, DX
	MONITORX
	COMPARE(done)
	MOVL hint+28(FP), AX
	MOVL ticks+24(FP), BX
	MOVL $2, CX // bit 1: EBX bounds the wait
	MWAITX

done:
	RET

// func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	MOVL DX, edx+20(FP)
	RET

// func Ticks() uint64
TEXT ·Ticks(SB), NOSPLIT, $0-8
	NOW
	MOVQ AX, ret+0(FP)
	RET

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	PAUSE
	RET
