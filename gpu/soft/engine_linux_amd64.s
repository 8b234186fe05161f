#include "go_asm.h"
#include "textflag.h"

// System calls of linux/amd64.
#define SYS_write 1
#define SYS_clone 56
#define SYS_exit 60
#define SYS_getppid 110
#define SYS_prctl 157
#define SYS_futex 202
#define SYS_clock_gettime 228

// func startEngine(flags, stack, tid, ctl uintptr) (pid int)
//
// startEngine makes the engine's thread or process and returns its number, or a
// negative errno. The new thread is on its own stack, has no g, and never returns
// to Go.
TEXT ·startEngine(SB), NOSPLIT, $0-40
	MOVQ  flags+0(FP), DI
	MOVQ  stack+8(FP), SI
	XORL  DX, DX
	MOVQ  tid+16(FP), R10
	XORL  R8, R8
	MOVQ  ctl+24(FP), R12
	MOVL  $SYS_clone, AX
	SYSCALL
	TESTQ AX, AX
	JZ    child
	MOVQ  AX, pid+32(FP)
	RET

child:
	JMP engine<>(SB)

// now<> returns CLOCK_MONOTONIC in ns in AX. It keeps BX and R12 to R15.
TEXT now<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVL  $1, DI
	LEAQ  control_ts(R12), SI
	MOVQ  control_vdso(R12), AX
	TESTQ AX, AX
	JZ    kernel
	SUBQ  $8, SP                // the C ABI wants 16-byte alignment
	CALL  AX
	ADDQ  $8, SP
	JMP   read

kernel:
	MOVL $SYS_clock_gettime, AX
	SYSCALL

read:
	MOVQ  control_ts(R12), AX
	IMULQ $1000000000, AX
	ADDQ  (control_ts+8)(R12), AX
	RET

// ENTRY points R9 to the head entry.
#define ENTRY \
	MOVQ slot_head(BX), R9; \
	ANDQ $(const_ringEntries-1), R9; \
	SHLQ $5, R9; \
	ADDQ slot_ring(BX), R9

// R12 control block, R13 now, R14 group of 64 rings, R15 when the next entry is
// due, BX slot of the ring, R9 its head entry.
TEXT engine<>(SB), NOSPLIT|NOFRAME, $0-0
	CLD
	MOVL $SYS_prctl, AX
	MOVL $29, DI        // PR_SET_TIMERSLACK
	MOVL $1, SI
	SYSCALL
	MOVL $SYS_prctl, AX
	MOVL $15, DI        // PR_SET_NAME
	LEAQ control_name(R12), SI
	SYSCALL
	CMPQ control_parent(R12), $0
	JEQ  loop
	MOVL $SYS_prctl, AX
	MOVL $1, DI         // PR_SET_PDEATHSIG
	MOVL $9, SI         // SIGKILL
	SYSCALL
	JMP  parent

loop:
	INCQ control_turns(R12)

	// The doorbell first: what is seen now ends the sleep unless all that comes
	// before it, quit and the entries, is seen as well.
	MOVL control_doorbell(R12), AX
	MOVQ AX, control_seen(R12)
	CMPL control_quit(R12), $0
	JNE  exit
	CALL now<>(SB)
	MOVQ AX, R13
	MOVQ $const_forever, R15
	XORL R14, R14

	// Behind failed work all that is queued is dropped, whenever it was due.
	CMPQ control_fault(R12), $0
	JEQ  group
	CMPL control_keep(R12), $0
	JNE  group
	MOVQ R15, R13

group:
	CMPQ R14, control_groups(R12)
	JCC  looked
	MOVQ control_active(R12), AX
	MOVQ (AX)(R14*8), DX
	MOVQ DX, control_bits(R12)

bit:
	MOVQ  control_bits(R12), DX
	TESTQ DX, DX
	JZ    nextgroup
	BSFQ  DX, BX
	LEAQ  -1(DX), AX
	ANDQ  AX, DX
	MOVQ  DX, control_bits(R12)
	MOVQ  R14, AX
	SHLQ  $6, AX
	ADDQ  AX, BX
	MOVQ  control_due(R12), AX
	MOVQ  (AX)(BX*8), CX
	CMPQ  CX, R13
	JGT   later
	MOVQ  BX, control_number(R12)
	IMULQ $slot__size, BX
	ADDQ  control_slots(R12), BX

head:
	MOVQ slot_head(BX), R8
	CMPQ R8, slot_tail(BX)
	JEQ  empty
	ENTRY
	MOVQ entry_at(R9), CX
	CMPQ CX, R13
	JGT  notdue
	MOVQ entry_op(R9), R10
	MOVL R10, AX
	ANDL $0xff, AX
	SHRQ $8, R10
	CMPL AX, $const_opCall
	JEQ  call
	CMPL AX, $const_opWake
	JEQ  wake
	CMPQ control_fault(R12), $0
	JEQ  perform
	CMPL AX, $const_opWord
	JEQ  drop
	CMPL control_keep(R12), $0
	JNE  perform

drop:
	MOVQ $0, slot_done(BX)
	JMP  done

perform:
	CMPL AX, $const_opStore
	JEQ  store
	CMPL AX, $const_opWord
	JEQ  word
	CMPL AX, $const_opCopy
	JEQ  copy
	CMPL AX, $const_opFill
	JEQ  fill
	CMPL AX, $const_opPost
	JEQ  post
	CMPL AX, $const_opFault
	JEQ  fault

done:
	INCQ slot_head(BX)
	JMP  head

nextgroup:
	INCQ R14
	JMP  group

notdue:
	MOVQ control_due(R12), AX
	MOVQ control_number(R12), DX
	MOVQ CX, (AX)(DX*8)

later:
	CMPQ    CX, R15
	CMOVQLT CX, R15
	JMP     bit

	// The ring is empty. Its active bit goes first and the tail is looked at
	// again after it: see push.
empty:
	MOVQ control_active(R12), AX
	MOVQ control_number(R12), DX
	LOCK
	BTRQ DX, (AX)
	CMPQ R8, slot_tail(BX)
	JEQ  bit
	LOCK
	BTSQ DX, (AX)
	JMP  head

	// The stamp comes before the store, so that who sees the word finds it. All
	// stores are releases on this processor.
store:
	CALL now<>(SB)
	ENTRY
	MOVQ entry_b(R9), DX
	MOVQ DX, CX
	ANDQ $(const_ringEntries-1), CX
	SHLQ $4, CX
	ADDQ slot_ring(BX), CX
	MOVQ $0, (const_stampsOffset+stamp_value)(CX)
	MOVQ AX, (const_stampsOffset+stamp_at)(CX)
	LEAQ 1(DX), AX
	MOVQ AX, (const_stampsOffset+stamp_value)(CX)

word:
	MOVQ entry_a(R9), DI
	MOVQ entry_b(R9), DX
	MOVQ DX, (DI)
	JMP  done

copy:
	MOVQ slot_done(BX), CX
	MOVQ entry_a(R9), DI
	ADDQ CX, DI
	MOVQ entry_b(R9), SI
	ADDQ CX, SI
	SUBQ CX, R10
	MOVQ R10, CX
	CMPQ CX, $const_copyChunk
	JHI  copypart
	REP
	MOVSB
	MOVQ $0, slot_done(BX)
	JMP  done

copypart:
	MOVQ $const_copyChunk, CX
	ADDQ CX, slot_done(BX)
	REP
	MOVSB
	MOVQ R13, R15
	JMP  bit

fill:
	MOVQ slot_done(BX), CX
	MOVQ entry_a(R9), DI
	ADDQ CX, DI
	MOVQ entry_b(R9), AX
	SUBQ CX, R10
	MOVQ R10, CX
	CMPQ CX, $const_copyChunk
	JHI  fillpart
	REP
	STOSB
	MOVQ $0, slot_done(BX)
	JMP  done

fillpart:
	MOVQ $const_copyChunk, CX
	ADDQ CX, slot_done(BX)
	REP
	STOSB
	MOVQ R13, R15
	JMP  bit

post:
	MOVQ entry_a(R9), DI
	MOVL $SYS_write, AX
	LEAQ control_one(R12), SI
	MOVL $8, DX
	SYSCALL
	JMP  done

fault:
	MOVQ     entry_b(R9), DX
	XORL     AX, AX
	LOCK
	CMPXCHGQ DX, control_fault(R12)
	INCQ     slot_head(BX)
	MOVQ     R13, R15                // no sleep before the rest is dropped
	JMP      ring

call:
	INCQ slot_head(BX)
	MOVQ control_called(R12), AX
	MOVQ control_number(R12), DX
	LOCK
	BTSQ DX, (AX)

ring:
	MOVL  $1, AX
	XCHGL AX, control_rung(R12)
	TESTL AX, AX
	JNZ   head
	MOVL  $SYS_write, AX
	MOVQ  control_bell(R12), DI
	LEAQ  control_one(R12), SI
	MOVL  $8, DX
	SYSCALL
	JMP   head

	// The head moves on first: whoever is woken finds the queue as it is after the
	// wait. The entry may be overwritten from then on.
wake:
	MOVQ entry_a(R9), DI
	MOVQ entry_b(R9), DX
	INCQ slot_head(BX)
	MOVQ DX, (DI)
	MOVL $SYS_futex, AX
	MOVL $129, SI        // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
	MOVL $0x7fffffff, DX
	SYSCALL
	JMP  head

looked:
	MOVQ    $const_forever, AX
	XORL    DX, DX
	CMPQ    R13, AX
	CMOVQEQ DX, R13
	SUBQ    R13, R15
	CMPQ    R15, control_near(R12)
	JLE     pause
	SUBQ    $const_early, R15
	CMPQ    R15, control_longest(R12)
	CMOVQGT control_longest(R12), R15
	MOVQ    R15, AX
	XORL    DX, DX
	MOVQ    $1000000000, CX
	DIVQ    CX
	MOVQ    AX, control_ts(R12)
	MOVQ    DX, (control_ts+8)(R12)
	MOVL    $1, AX
	XCHGL   AX, control_sleeping(R12)
	MOVL    $SYS_futex, AX
	LEAQ    control_doorbell(R12), DI
	MOVL    $128, SI                  // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	MOVQ    control_seen(R12), DX
	LEAQ    control_ts(R12), R10
	SYSCALL
	MOVL    $0, control_sleeping(R12)

	// A process ends with its parent.
parent:
	CMPQ control_parent(R12), $0
	JEQ  loop
	MOVL $SYS_getppid, AX
	SYSCALL
	CMPQ AX, control_parent(R12)
	JEQ  loop

exit:
	XORL DI, DI
	MOVL $SYS_exit, AX
	SYSCALL
	INT  $3

	// One that never sleeps looks for its parent now and then.
pause:
	PAUSE
	MOVQ  control_turns(R12), AX
	TESTQ $0xffff, AX
	JZ    parent
	JMP   loop
