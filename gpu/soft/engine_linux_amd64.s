#include "textflag.h"

// System calls (linux/amd64).
#define SYS_write 1
#define SYS_clone 56
#define SYS_exit 60
#define SYS_getppid 110
#define SYS_prctl 157
#define SYS_futex 202
#define SYS_clock_gettime 228

// Offsets in control and entry (ring.go).
#define c_quit 0(R12)
#define c_fault 4(R12)
#define c_rings 8(R12)
#define c_heads 16(R12)
#define c_tails 24(R12)
#define c_entries 32(R12)
#define c_stamps 40(R12)
#define c_parent 48(R12)
#define c_bell 56(R12)
#define c_doorbell 64(R12)
#define c_sleeping 128(R12)
#define c_mult 240(R12)
#define c_limit 248(R12)
#define c_basetsc 256(R12)
#define c_basens 264(R12)
#define e_at 0(R9)
#define e_op 8(R9)
#define e_a 16(R9)
#define e_b 24(R9)
#define e_n 32(R9)

// now<> returns CLOCK_MONOTONIC in nanoseconds in AX: the TSC since the last
// system call, which is made again when that is a millisecond old (or each time,
// where the TSC is not constant and the limit is 0). R12 is the control block.
// Clobbers CX, DX, SI, DI, R11.
TEXT now<>(SB), NOSPLIT|NOFRAME, $0-0
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	SUBQ c_basetsc, AX
	CMPQ AX, c_limit
	JCC  anchor
	IMULQ c_mult, AX
	SHRQ $32, AX
	ADDQ c_basens, AX
	RET

anchor:
	MOVL  $SYS_clock_gettime, AX
	MOVL  $1, DI
	LEAQ  192(R12), SI
	SYSCALL
	RDTSC
	SHLQ  $32, DX
	ORQ   DX, AX
	MOVQ  AX, c_basetsc
	MOVQ  192(R12), AX
	IMULQ $1000000000, AX
	ADDQ  200(R12), AX
	MOVQ  AX, c_basens
	RET

// func startEngine(flags, stack, tid, ctl uintptr) (pid int)
//
// startEngine makes the engine's thread (or process) and returns its number, or
// a negative errno. The new thread starts after the system call on its own
// stack, with no g and with all signals blocked, and never returns to Go: from
// there on it touches registers, the control block and what that points to, and
// nothing of the Go runtime.
TEXT ·startEngine(SB), NOSPLIT, $0-40
	MOVQ flags+0(FP), DI
	MOVQ stack+8(FP), SI
	XORL DX, DX
	MOVQ tid+16(FP), R10
	XORL R8, R8
	MOVQ ctl+24(FP), R12
	MOVL $SYS_clone, AX
	SYSCALL
	TESTQ AX, AX
	JZ   engine
	MOVQ AX, pid+32(FP)
	RET

	// R12 control, R13 doorbell before the scan, R14 now, R15 earliest due time,
	// BX ring, R8 its head, R9 entry.
engine:
	MOVL $SYS_prctl, AX
	MOVL $29, DI // PR_SET_TIMERSLACK
	MOVL $1, SI
	XORL DX, DX
	XORL R10, R10
	XORL R8, R8
	SYSCALL

loop:
	CMPL c_quit, $0
	JNE  exit
	MOVL c_doorbell, R13
	CALL now<>(SB)
	MOVQ AX, R14
	MOVQ $0x7fffffffffffffff, R15
	XORL BX, BX

ring:
	CMPQ BX, c_rings
	JCC  scanned
	MOVQ c_heads, AX
	MOVQ (AX)(BX*8), R8

next:
	MOVQ c_tails, AX
	CMPQ R8, (AX)(BX*8)
	JEQ  ringdone
	MOVQ R8, R9
	ANDQ $1023, R9
	SHLQ $6, R9
	MOVQ BX, AX
	SHLQ $16, AX
	ADDQ AX, R9
	ADDQ c_entries, R9
	MOVQ e_at, AX
	CMPQ AX, R14
	JGT  later
	MOVQ e_op, AX
	CMPQ AX, $7
	JEQ  wake
	CMPL c_fault, $0
	JNE  opdone
	CMPQ AX, $1
	JEQ  store
	CMPQ AX, $4
	JEQ  event
	CMPQ AX, $2
	JEQ  copy
	CMPQ AX, $3
	JEQ  fill
	CMPQ AX, $5
	JEQ  signal
	CMPQ AX, $6
	JEQ  fault
	CMPQ AX, $8
	JEQ  post

opdone:
	INCQ R8
	MOVQ c_heads, AX
	MOVQ R8, (AX)(BX*8)
	JMP  next

later:
	CMPQ AX, R15
	JGE  ringdone
	MOVQ AX, R15

ringdone:
	INCQ BX
	JMP  ring

store:
	CALL now<>(SB)
	MOVQ AX, R10
	MOVQ e_b, DX
	MOVQ DX, AX
	ANDQ $1023, AX
	MOVQ BX, DI
	SHLQ $10, DI
	ADDQ DI, AX
	MOVQ c_stamps, DI
	MOVQ R10, (DI)(AX*8)

event:
	MOVQ e_a, DI
	MOVQ e_b, DX
	MOVQ DX, (DI) // a release: stores are not reordered with earlier ones
	JMP  opdone

copy:
	MOVQ e_a, DI
	MOVQ e_b, SI
	MOVQ e_n, CX
	CLD
	REP; MOVSB
	JMP  opdone

fill:
	MOVQ e_a, DI
	MOVQ e_b, AX
	MOVQ e_n, CX
	CLD
	REP; STOSB
	JMP  opdone

signal:
	MOVQ e_a, DI
	MOVQ e_b, DX
	MOVQ DX, (DI)
	JMP  ringbell

post:
	MOVQ e_a, DI
	JMP  writeone

fault:
	MOVL $1, AX
	XCHGL AX, c_fault

ringbell:
	MOVQ c_bell, DI

writeone:
	MOVL $SYS_write, AX
	LEAQ 224(R12), SI
	MOVL $8, DX
	SYSCALL
	JMP  opdone

	// The head moves on first: whoever is woken finds the queue as it is after
	// the wait. From there on the entry is not the engine's any more.
wake:
	MOVQ e_a, DI
	MOVQ e_b, DX
	INCQ R8
	MOVQ c_heads, AX
	MOVQ R8, (AX)(BX*8)
	MOVQ DX, (DI)
	MOVL $SYS_futex, AX
	MOVL $1, SI // FUTEX_WAKE
	MOVL $0x7fffffff, DX
	XORL R10, R10
	MOVQ R8, R14 // the call's fifth argument goes into R8; now is read again next time
	XORL R8, R8
	SYSCALL
	MOVQ R14, R8
	JMP  loop

	// Nothing is due. Sleep to 60 us before the earliest entry, a second when
	// there is none; nearer than 100 us, look again.
scanned:
	MOVQ $999999999, AX
	MOVQ R15, DX
	SUBQ R14, DX
	CMPQ DX, $100000
	JLT  pause
	SUBQ $60000, DX
	CMPQ DX, AX
	JGT  sleep
	MOVQ DX, AX

sleep:
	MOVQ $0, 208(R12)
	MOVQ AX, 216(R12)
	MOVL $1, AX
	XCHGL AX, c_sleeping // a full barrier: the doorbell is compared after it
	MOVL $SYS_futex, AX
	LEAQ 64(R12), DI
	XORL SI, SI // FUTEX_WAIT
	MOVL R13, DX
	LEAQ 208(R12), R10
	SYSCALL
	MOVL $0, c_sleeping
	CMPQ c_parent, $0
	JEQ  loop
	MOVL $SYS_getppid, AX
	SYSCALL
	CMPQ AX, c_parent
	JNE  exit
	JMP  loop

pause:
	PAUSE
	JMP loop

exit:
	MOVL $SYS_exit, AX
	XORL DI, DI
	SYSCALL
	INT $3
