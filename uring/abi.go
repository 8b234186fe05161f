package uring

// The kernel's io_uring interface, as include/uapi/linux/io_uring.h states it. Only
// what this package uses is here.

// sqe is struct io_uring_sqe: one request. Memory that it points to is kept alive
// and in place by the request's slot.
type sqe struct {
	opcode      uint8
	flags       uint8
	ioprio      uint16
	fd          int32
	off         uint64
	addr        uint64
	len         uint32
	opFlags     uint32
	userData    uint64
	bufIndex    uint16
	personality uint16
	fileIndex   uint32
	addr3       uint64
	_           uint64
}

// cqe is struct io_uring_cqe: one completion.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
	_                                                           uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
	_                                                           uint64
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFd uint32
	_                                                                      [3]uint32
	sqOff                                                                  sqOffsets
	cqOff                                                                  cqOffsets
}

// timespec is struct __kernel_timespec, 64 bits wide on every architecture.
type timespec struct{ sec, nsec int64 }

// eventsArg is struct io_uring_getevents_arg.
type eventsArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	ts        uint64
}

// probeArg is struct io_uring_probe with room for every operation number.
type probeArg struct {
	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [256]struct {
		op, _ uint8
		flags uint16
		_     uint32
	}
}

const (
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupRDisabled    = 1 << 6
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featSingleMmap   = 1 << 0
	featNoDrop       = 1 << 1
	featSubmitStable = 1 << 2
	featExtArg       = 1 << 8
	featRsrcTags     = 1 << 10

	offRing = 0
	offSQEs = 0x10000000

	sqCQOverflow = 1 << 1
	sqTaskrun    = 1 << 2

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	registerProbe       = 8
	registerEnableRings = 12
	registerSendMsgRing = 31

	opSupported = 1 << 0

	opNop         = 0
	opPollAdd     = 6
	opTimeout     = 11
	opAccept      = 13
	opAsyncCancel = 14
	opRead        = 22
	opSend        = 26
	opRecv        = 27
	opMsgRing     = 40

	pollAddMulti    = 1 << 0
	acceptMultishot = 1 << 0
	timeoutAbs      = 1 << 0

	cqeMore = 1 << 1

	seccompFilter = 2  // SECCOMP_MODE_FILTER
	capSysAdmin   = 21 // CAP_SYS_ADMIN

	msgNoSignal = 0x4000
	sockCloexec = 0x80000
)

// What every ring here relies on; all three are there since Linux 5.5.
const needFeatures = featSingleMmap | featNoDrop | featSubmitStable
