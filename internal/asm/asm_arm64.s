#include "textflag.h"

#define WFET_R5 WORD $0xD5031005 // wfet x5

// COMPARE goes to out unless the R2 (> 0) words at R0 hold the values at R1.
#define COMPARE(out) \
	MOVD R2, R6; \
	MOVD R0, R7; \
	MOVD R1, R8; \
	MOVD.P 8(R7), R9; \
	MOVD.P 8(R8), R10; \
	CMP  R9, R10; \
	BNE  out; \
	SUBS $1, R6; \
	BNE  -5(PC)

// func spin(addr, seen *uint64, n int, ticks uint64)
TEXT ·spin(SB), NOSPLIT, $0-32
	MOVD addr+0(FP), R0
	MOVD seen+8(FP), R1
	MOVD n+16(FP), R2
	MOVD ticks+24(FP), R3
	MRS  CNTVCT_EL0, R4

look:
	COMPARE(done)

	// YIELD does nothing on a core without hardware threads; ISB lets a little
	// time pass everywhere and keeps the counter from being read ahead of it.
	ISB $15
	MRS CNTVCT_EL0, R5
	SUB R4, R5, R5
	CMP R3, R5
	BLO look

done:
	RET

// The exclusive load arms the monitor. Being an acquire, it stays before the
// other loads, so a store that they miss comes after it and is an event. The
// monitor is left armed: that a later event ends some later wait early does no
// harm.

// func wfet(addr, seen *uint64, n int, ticks uint64)
TEXT ·wfet(SB), NOSPLIT, $0-32
	MOVD  addr+0(FP), R0
	MOVD  seen+8(FP), R1
	MOVD  n+16(FP), R2
	MOVD  ticks+24(FP), R3
	LDAXR (R0), R4
	COMPARE(done)
	MRS   CNTVCT_EL0, R5
	ADD   R3, R5, R5
	WFET_R5

done:
	RET

// func wfe(addr, seen *uint64, n int)
TEXT ·wfe(SB), NOSPLIT, $0-24
	MOVD  addr+0(FP), R0
	MOVD  seen+8(FP), R1
	MOVD  n+16(FP), R2
	LDAXR (R0), R4
	COMPARE(done)
	WFE

done:
	RET

// func ctr() uint64
TEXT ·ctr(SB), NOSPLIT, $0-8
	MRS  CTR_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func counterRate() uint64
TEXT ·counterRate(SB), NOSPLIT, $0-8
	MRS  CNTFRQ_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func Ticks() uint64
TEXT ·Ticks(SB), NOSPLIT, $0-8
	ISB  $15
	MRS  CNTVCT_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	ISB $15
	RET
