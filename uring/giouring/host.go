//go:build giouring && linux

package giouringhost

import (
	"errors"
	"math"
	"strconv"
	"syscall"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/poller"
	"github.com/gpuline/gpuline/uring"
)

const (
	// Tag is the bit of an entry's user_data that tells completions of waits from
	// the program's own entries, which must not have it. No address of a Go program
	// has it (SetData).
	Tag uint64 = 1 << 63
	// MaxUser is the largest number that a wait can have.
	MaxUser uint64 = 1<<63 - 3

	pollUser    = Tag + MaxUser + 1
	timeoutUser = math.MaxUint64 // giouring's own timeouts
)

// Host is a uring.Host for a giouring ring. Waits whose Sink it is end as entries on
// the ring, for Handle.
//
// NewHost, Handle and Arm use the ring and belong to the goroutine that does; the
// other methods may be called from many. A ring has one Host. Close it before the
// ring; with an eventfd its poll stays on the ring until the ring goes, too.
type Host struct {
	*uring.Host
	ring    *giouring.Ring
	buf     [64]epoll.Completion
	armed   bool
	oneShot bool
}

// NewHost makes a Host for the ring. See uring.NewHost for cfg and the errors; a
// ring that has a registered descriptor only is event.InvalidArgument. Where an
// eventfd is used NewHost has put a poll of it on the ring, which begins with the
// program's next Submit.
func NewHost(ring *giouring.Ring, cfg uring.HostConfig) (*Host, error) {
	if ring == nil {
		return nil, event.New(event.InvalidArgument, "giouring host", "nil ring")
	}
	u, err := uring.NewHost(ring.RingFd(), cfg)
	if err != nil {
		return nil, err
	}
	h := &Host{Host: u, ring: ring}
	if err := h.Arm(); err != nil {
		_ = u.Close()
		return nil, err
	}
	return h, nil
}

// NewWait makes a wait that ends on the ring: Handle will call its function with
// user, which must be at most MaxUser. What it makes is
//
//	&poller.Wait{Sink: h, User: Tag | user}
func (h *Host) NewWait(user uint64) *poller.Wait {
	return &poller.Wait{Sink: h, User: Tag | user}
}

// Handle looks at an entry of the ring. It is not ours when it is one of the
// program's own. Otherwise Handle calls f for each wait that ended with it: once
// with a ring message, any number of times with an eventfd. The error that f gets is
// the wait's own, nil for success.
//
// Handle keeps nothing of cqe and does not mark it as seen. f may use the ring,
// register waits, this one included, and mark cqe as seen, but not call Handle.
//
// The error is always nil with a ring message. With an eventfd it says that the poll
// ended and could not be put on the ring again: no completion will come until Arm
// succeeds. As Handle may put the poll on the ring, don't call it between the
// entries of a linked chain.
func (h *Host) Handle(cqe *giouring.CompletionQueueEvent, f func(user uint64, err error)) (ours bool, err error) {
	user, res, flags := cqe.UserData, cqe.Res, cqe.Flags
	if h.Group() != nil {
		if user != pollUser {
			return false, nil
		}
		h.drain(f)
		return true, h.polled(res, flags)
	}
	if user&Tag == 0 || user == timeoutUser {
		return false, nil
	}
	raceAcquire(h.Host)
	f(user&^Tag, h.Err(user, res))
	return true, nil
}

func (h *Host) drain(f func(user uint64, err error)) {
	g := h.Group()
	for {
		for n := g.Drain(h.buf[:]); n > 0; n = g.Drain(h.buf[:]) {
			for i, c := range h.buf[:n] {
				h.buf[i] = epoll.Completion{}
				f(c.Wait.User&^Tag, c.Err)
			}
		}
		if !g.Arm() {
			return
		}
	}
}

// polled puts the poll on the ring again when this entry was its last, as one is
// that found the completion queue full.
func (h *Host) polled(res int32, flags uint32) error {
	h.armed = flags&giouring.CQEFMore != 0
	switch e := syscall.Errno(max(-res, 0)); {
	case h.armed:
		return nil
	case e == syscall.EINVAL && !h.oneShot:
		h.oneShot = true // before Linux 5.13
	case e != 0:
		return pollError(e)
	}
	return h.Arm()
}

func pollError(e syscall.Errno) error {
	return event.New(event.Backend, "polling an eventfd on a ring", strconv.Itoa(int(e))).WithStatus(int64(e)).Wrap(e)
}

// Arm puts the poll of the eventfd on the ring where one is used and not there; it
// begins with the program's next Submit. NewHost and Handle do that: Arm is for
// after an error of theirs. It submits when the ring has no entry free, and fails
// with event.Backend when it still has none.
func (h *Host) Arm() error {
	if h.Group() == nil || h.armed {
		return nil
	}
	sqe := h.ring.GetSQE()
	if sqe == nil {
		_, err := h.ring.Submit()
		if sqe = h.ring.GetSQE(); sqe == nil {
			e := syscall.EBUSY
			errors.As(err, &e)
			return pollError(e)
		}
	}
	if h.oneShot {
		sqe.PreparePollAdd(h.Group().Fd(), unix.POLLIN)
	} else {
		sqe.PreparePollMultishot(h.Group().Fd(), unix.POLLIN)
	}
	sqe.UserData = pollUser
	h.armed = true
	return nil
}
