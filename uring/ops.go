package uring

import (
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// The requests. Each is queued by its call, handed over by the next Submit or Wait,
// and completes with the user number that it was given. Queueing fails when the
// Ring is closed, or when the full submission queue could not be submitted.

// Nop queues a request that completes at once, with result 0.
func (r *Ring) Nop(user uint64) (Op, error) {
	_, _, op, err := r.next(user, opNop, -1)
	return op, err
}

// Read queues a read of fd at offset off (-1: at the file's own position) into buf,
// which the Ring keeps alive and in place until the completion.
func (r *Ring) Read(user uint64, fd int, buf []byte, off int64) (Op, error) {
	s, sl, op, err := r.next(user, opRead, fd)
	if err != nil {
		return 0, err
	}
	s.addr, s.len, s.off = sl.hold(buf), length(buf), uint64(off)
	return op, nil
}

// Recv queues a receive from the socket fd into buf, which the Ring keeps alive and
// in place until the completion.
func (r *Ring) Recv(user uint64, fd int, buf []byte) (Op, error) {
	s, sl, op, err := r.next(user, opRecv, fd)
	if err != nil {
		return 0, err
	}
	s.addr, s.len = sl.hold(buf), length(buf)
	return op, nil
}

// Send queues a send of buf on the socket fd. The Ring keeps buf alive and in place
// until the completion; the caller must not change it before. The result may be
// less than len(buf). A peer that is gone is EPIPE, never a signal.
func (r *Ring) Send(user uint64, fd int, buf []byte) (Op, error) {
	s, sl, op, err := r.next(user, opSend, fd)
	if err != nil {
		return 0, err
	}
	s.addr, s.len, s.opFlags = sl.hold(buf), length(buf), msgNoSignal
	return op, nil
}

// Accept queues an accept on the listening socket fd. Its result is the new
// descriptor, which is close-on-exec. With many set it completes again and again
// (Completion.More), which needs Linux 5.19.
func (r *Ring) Accept(user uint64, fd int, many bool) (Op, error) {
	s, _, op, err := r.next(user, opAccept, fd)
	if err != nil {
		return 0, err
	}
	s.opFlags = sockCloexec
	if many {
		s.ioprio = acceptMultishot
	}
	return op, nil
}

// Poll queues a wait for the poll(2) events on fd; the result has those that are
// there. With many set it completes at each new readiness (Completion.More), which
// needs Linux 5.13; it is edge-triggered then, and ends by itself when the
// completion queue has overflown, with a completion that has no More.
func (r *Ring) Poll(user uint64, fd int, events uint16, many bool) (Op, error) {
	s, _, op, err := r.next(user, opPollAdd, fd)
	if err != nil {
		return 0, err
	}
	s.opFlags = uint32(events)
	if many {
		s.len = pollAddMulti
	}
	return op, nil
}

// Timeout queues a wait of d, to the nanosecond on the monotonic clock and with no
// timer slack. It completes with -ETIME.
func (r *Ring) Timeout(user uint64, d time.Duration) (Op, error) {
	s, sl, op, err := r.next(user, opTimeout, -1)
	if err != nil {
		return 0, err
	}
	sl.ts = spec(max(d, 0))
	s.addr, s.len = address(unsafe.Pointer(&sl.ts)), 1
	return op, nil
}

// Message queues a message to another ring, by its descriptor and whichever library
// made it: a completion with the given user number and result appears there. It
// needs Linux 5.18. The request itself completes here, with result 0 when the
// message was posted.
func (r *Ring) Message(user uint64, ringFD int, targetUser uint64, res int32) (Op, error) {
	s, _, op, err := r.next(user, opMsgRing, ringFD)
	if err != nil {
		return 0, err
	}
	message(s, ringFD, targetUser, res)
	return op, nil
}

// message makes s a message, all but its own user_data.
func message(s *sqe, ringFD int, targetUser uint64, res int32) {
	s.opcode, s.fd, s.off, s.len = opMsgRing, int32(ringFD), targetUser, uint32(res)
}

// Cancel queues the cancellation of a request in flight. The request completes with
// -ECANCELED, unless it is too late; the cancellation completes with 0, or with
// -ENOENT or -EALREADY when it was too late.
func (r *Ring) Cancel(user uint64, target Op) (Op, error) {
	if uint64(target)&opBit == 0 {
		return 0, event.New(event.InvalidArgument, "cancel", "not a request of a ring")
	}
	s, _, op, err := r.next(user, opAsyncCancel, -1)
	if err != nil {
		return 0, err
	}
	s.addr = uint64(target)
	return op, nil
}

// length is what fits the kernel's 32-bit field; a longer buffer is used in part,
// as read(2) does.
func length(buf []byte) uint32 { return uint32(min(len(buf), 1<<31-1)) }
