#include "go_asm.h"
#include "textflag.h"

// System calls of linux/arm64.
#define SYS_write 64
#define SYS_exit 93
#define SYS_futex 98
#define SYS_clock_gettime 113
#define SYS_prctl 167
#define SYS_getppid 173
#define SYS_clone 220

#define CALL_KERNEL(nr) \
	MOVD $nr, R8; \
	SVC  $0

// func startEngine(flags, stack, tid, ctl uintptr) (pid int)
//
// As on amd64.
TEXT ·startEngine(SB), NOSPLIT, $0-40
	MOVD flags+0(FP), R0
	MOVD stack+8(FP), R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD tid+16(FP), R4
	MOVD ctl+24(FP), R19
	CALL_KERNEL(SYS_clone)
	CBZ  R0, child
	MOVD R0, pid+32(FP)
	RET

child:
	B engine<>(SB)

// now<> returns CLOCK_MONOTONIC in ns in R0. It keeps R19 to R24.
TEXT now<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVD R30, R25
	MOVD $1, R0
	ADD  $control_ts, R19, R1
	MOVD control_vdso(R19), R2
	CBZ  R2, kernel
	BL   (R2)
	B    read

kernel:
	CALL_KERNEL(SYS_clock_gettime)

read:
	MOVD control_ts(R19), R0
	MOVD $1000000000, R1
	MUL  R1, R0
	MOVD (control_ts+8)(R19), R1
	ADD  R1, R0
	MOVD R25, R30
	RET

// ENTRY points R24 to the head entry.
#define ENTRY \
	MOVD slot_head(R23), R24; \
	AND  $(const_ringEntries-1), R24; \
	LSL  $5, R24; \
	MOVD slot_ring(R23), R0; \
	ADD  R0, R24

// NEXT moves the head on; what was done for the entry comes before it.
#define NEXT \
	MOVD slot_head(R23), R0; \
	ADD  $1, R0; \
	ADD  $slot_head, R23, R1; \
	STLR R0, (R1)

// BITADDR points R0 to the word of the ring's bit in the set at field, and makes
// the bit R1.
#define BITADDR(field) \
	MOVD field(R19), R0; \
	ADD  R21<<3, R0; \
	MOVD control_number(R19), R2; \
	MOVD $1, R1; \
	LSL  R2, R1

// R19 control block, R20 now, R21 group of 64 rings, R22 when the next entry is
// due, R23 slot of the ring, R24 its head entry.
TEXT engine<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVD $29, R0                 // PR_SET_TIMERSLACK
	MOVD $1, R1
	CALL_KERNEL(SYS_prctl)
	MOVD $15, R0                 // PR_SET_NAME
	ADD  $control_name, R19, R1
	CALL_KERNEL(SYS_prctl)
	MOVD control_parent(R19), R0
	CBZ  R0, loop
	MOVD $1, R0                  // PR_SET_PDEATHSIG
	MOVD $9, R1                  // SIGKILL
	CALL_KERNEL(SYS_prctl)
	B    parent

loop:
	ADD   $control_turns, R19, R0
	MOVD  (R0), R1
	ADD   $1, R1
	STLR  R1, (R0)
	DMB   $0xb                       // the looks of this turn come after its number
	ADD   $control_doorbell, R19, R0
	LDARW (R0), R1
	MOVD  R1, control_seen(R19)

	// After the doorbell, as all that it stands for: read before, it could be missed
	// and slept on.
	ADD   $control_quit, R19, R0
	LDARW (R0), R1
	CBNZ  R1, exit
	BL    now<>(SB)
	MOVD  R0, R20
	MOVD  $const_forever, R22
	MOVD  ZR, R21

	// Behind failed work all that is queued is dropped, whenever it was due.
	ADD   $control_fault, R19, R0
	LDAR  (R0), R1
	CBZ   R1, group
	MOVWU control_keep(R19), R1
	CBNZ  R1, group
	MOVD  R22, R20

group:
	ADD  $control_groups, R19, R0
	LDAR (R0), R1
	CMP  R1, R21
	BHS  looked
	MOVD control_active(R19), R0
	ADD  R21<<3, R0
	LDAR (R0), R1
	MOVD R1, control_bits(R19)

bit:
	MOVD control_bits(R19), R1
	CBZ  R1, nextgroup
	RBIT R1, R2
	CLZ  R2, R2
	SUB  $1, R1, R3
	AND  R3, R1
	MOVD R1, control_bits(R19)
	ADD  R21<<6, R2
	MOVD control_due(R19), R0
	MOVD (R0)(R2<<3), R3
	CMP  R20, R3
	BGT  later
	MOVD R2, control_number(R19)
	MOVD $slot__size, R3
	MUL  R3, R2
	MOVD control_slots(R19), R23
	ADD  R2, R23

head:
	MOVD slot_head(R23), R0
	ADD  $slot_tail, R23, R1
	LDAR (R1), R2
	CMP  R0, R2
	BEQ  empty
	ENTRY
	MOVD entry_at(R24), R3
	CMP  R20, R3
	BGT  notdue
	MOVD entry_op(R24), R4
	LSR  $8, R4, R5                  // bytes
	AND  $0xff, R4
	CMP  $const_opCall, R4
	BEQ  call
	CMP  $const_opWake, R4
	BEQ  wake
	ADD  $control_fault, R19, R0
	LDAR (R0), R1
	CBZ  R1, perform
	CMP  $const_opWord, R4
	BEQ  drop
	MOVWU control_keep(R19), R1
	CBNZ R1, perform

drop:
	MOVD ZR, slot_done(R23)
	B    done

perform:
	CMP $const_opStore, R4
	BEQ store
	CMP $const_opWord, R4
	BEQ word
	CMP $const_opCopy, R4
	BEQ copy
	CMP $const_opFill, R4
	BEQ fill
	CMP $const_opPost, R4
	BEQ post
	CMP $const_opFault, R4
	BEQ fault

done:
	NEXT
	B head

nextgroup:
	ADD $1, R21
	B   group

notdue:
	MOVD control_due(R19), R0
	MOVD control_number(R19), R2
	MOVD R3, (R0)(R2<<3)

later:
	CMP  R22, R3
	CSEL LT, R3, R22, R22
	B    bit

	// The ring is empty. Its active bit goes first and the tail is looked at
	// again after it: see push.
empty:
	BITADDR(control_active)

clear:
	LDAXR (R0), R2
	BIC   R1, R2, R2
	STLXR R2, (R0), R3
	CBNZ  R3, clear
	DMB   $0xb
	MOVD  slot_head(R23), R3
	ADD   $slot_tail, R23, R2
	LDAR  (R2), R4
	CMP   R3, R4
	BEQ   bit

set:
	LDAXR (R0), R2
	ORR   R1, R2, R2
	STLXR R2, (R0), R3
	CBNZ  R3, set
	B     head

	// The stamp comes before the store, so that who sees the word finds it.
store:
	BL   now<>(SB)
	MOVD R0, R5
	ENTRY
	MOVD entry_b(R24), R1
	AND  $(const_ringEntries-1), R1, R2
	LSL  $4, R2
	MOVD slot_ring(R23), R3
	ADD  R3, R2
	ADD  $const_stampsOffset, R2
	ADD  $stamp_value, R2, R3
	STLR ZR, (R3)
	ADD  $stamp_at, R2, R4
	STLR R5, (R4)
	ADD  $1, R1, R4
	STLR R4, (R3)

word:
	MOVD entry_a(R24), R0
	MOVD entry_b(R24), R1
	STLR R1, (R0)
	B    done

copy:
	MOVD slot_done(R23), R2
	MOVD entry_a(R24), R0
	ADD  R2, R0
	MOVD entry_b(R24), R1
	ADD  R2, R1
	SUB  R2, R5
	MOVD $const_copyChunk, R6
	CMP  R6, R5
	CSEL HI, R6, R5, R7              // this part
	SUBS R7, R5                      // what is left after it

copy16:
	SUBS  $16, R7
	BLO   copyrest
	LDP.P 16(R1), (R8, R9)
	STP.P (R8, R9), 16(R0)
	B     copy16

copyrest:
	ADDS $16, R7
	BEQ  part

copy1:
	MOVBU.P 1(R1), R8
	MOVB.P  R8, 1(R0)
	SUBS    $1, R7
	BNE     copy1

	// R5 is left, R2 was done before, R6 is a chunk.
part:
	CBZ  R5, whole
	ADD  R6, R2
	MOVD R2, slot_done(R23)
	MOVD R20, R22
	B    bit

whole:
	MOVD ZR, slot_done(R23)
	B    done

fill:
	MOVD  slot_done(R23), R2
	MOVD  entry_a(R24), R0
	ADD   R2, R0
	MOVBU entry_b(R24), R1
	MOVD  $0x0101010101010101, R3
	MUL   R3, R1
	SUB   R2, R5
	MOVD  $const_copyChunk, R6
	CMP   R6, R5
	CSEL  HI, R6, R5, R7
	SUBS  R7, R5

fill16:
	SUBS  $16, R7
	BLO   fillrest
	STP.P (R1, R1), 16(R0)
	B     fill16

fillrest:
	ADDS $16, R7
	BEQ  part

fill1:
	MOVB.P R1, 1(R0)
	SUBS   $1, R7
	BNE    fill1
	B      part

post:
	MOVD entry_a(R24), R0
	ADD  $control_one, R19, R1
	MOVD $8, R2
	CALL_KERNEL(SYS_write)
	B    done

fault:
	MOVD entry_b(R24), R1
	ADD  $control_fault, R19, R0

first:
	LDAXR (R0), R2
	CBNZ  R2, second
	STLXR R1, (R0), R3
	CBNZ  R3, first

second:
	NEXT
	MOVD R20, R22 // no sleep before the rest is dropped
	B    ring

call:
	NEXT
	BITADDR(control_called)

setcalled:
	LDAXR (R0), R2
	ORR   R1, R2, R2
	STLXR R2, (R0), R3
	CBNZ  R3, setcalled

ring:
	ADD  $control_rung, R19, R0
	MOVD $1, R1

swap:
	LDAXRW (R0), R2
	STLXRW R1, (R0), R3
	CBNZ   R3, swap
	CBNZ   R2, head
	MOVD   control_bell(R19), R0
	ADD    $control_one, R19, R1
	MOVD   $8, R2
	CALL_KERNEL(SYS_write)
	B      head

	// The head moves on first: whoever is woken finds the queue as it is after the
	// wait. The entry may be overwritten from then on.
wake:
	MOVD entry_a(R24), R5
	MOVD entry_b(R24), R6
	NEXT
	STLR R6, (R5)
	MOVD R5, R0
	MOVD $129, R1                // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
	MOVD $0x7fffffff, R2
	CALL_KERNEL(SYS_futex)
	B    head

looked:
	MOVD  $const_forever, R0
	CMP   R0, R20
	CSEL  EQ, ZR, R20, R20
	SUB   R20, R22
	MOVD  control_near(R19), R0
	CMP   R0, R22
	BLE   pause
	MOVD  $const_early, R0
	SUB   R0, R22
	MOVD  control_longest(R19), R0
	CMP   R0, R22
	CSEL  GT, R0, R22, R22
	MOVD  $1000000000, R1
	UDIV  R1, R22, R0
	MSUB  R1, R22, R0, R2
	MOVD  R0, control_ts(R19)
	MOVD  R2, (control_ts+8)(R19)
	ADD   $control_sleeping, R19, R0
	MOVD  $1, R1
	STLRW R1, (R0)
	DMB   $0xb
	ADD   $control_doorbell, R19, R0
	MOVD  $128, R1                        // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	MOVD  control_seen(R19), R2
	ADD   $control_ts, R19, R3
	CALL_KERNEL(SYS_futex)
	ADD   $control_sleeping, R19, R0
	STLRW ZR, (R0)

	// A process ends with its parent.
parent:
	MOVD control_parent(R19), R9
	CBZ  R9, loop
	CALL_KERNEL(SYS_getppid)
	CMP  R9, R0
	BEQ  loop

exit:
	MOVD ZR, R0
	CALL_KERNEL(SYS_exit)
	BRK  $1

	// One that never sleeps looks for its parent now and then.
pause:
	YIELD
	MOVD control_turns(R19), R0
	AND  $0xffff, R0
	CBZ  R0, parent
	B    loop
