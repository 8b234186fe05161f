package uring

import (
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/poller"
)

// HostConfig says how completions are to reach the ring. The zero value is useful.
type HostConfig struct {
	// Strict refuses (event.HostRefused) where messages from ring to ring do not
	// work, instead of falling back to an eventfd.
	Strict bool
	// Eventfd takes the eventfd also where messages work.
	Eventfd bool
}

// HostStats counts what a Host did since it was made. With an eventfd only the
// Group counts.
type HostStats struct {
	Posted  uint64 // completions that the kernel put on the ring
	Calls   uint64 // system calls made for them
	Retried uint64 // times that the kernel could not take one and it was kept
	Lost    uint64 // completions for a ring that is gone
	Waiting int    // completions that are kept for the next try
}

// Host posts completions on somebody's ring: each wait that names it as its Sink
// ends as a completion entry there, with the wait's User as user_data and Result of
// its error as res. It needs the ring's descriptor and nothing else, so any
// library's ring will do.
//
// Where the kernel has no messages between rings (before Linux 5.18), Group is not
// nil: put a multishot poll, or a read, of Group().Fd() on the ring and take the
// completions out of the group when it fires, as package epoll describes.
//
// Nothing is lost when the ring's completion queue is full: the kernel keeps what
// does not fit until the ring's owner asks (IORING_FEAT_NODROP), and what the
// kernel has no memory to keep, the Host keeps and tries again, at first after 100
// us and never later than 10 ms after the last try. Waits complete in order as long
// as the kernel takes them all.
//
// All methods may be called from many goroutines. Close the Host before the ring:
// it holds a duplicate of the descriptor, so that a reused number can't lead to the
// wrong ring, and a ring lives as long as any descriptor of it. Then only is the
// ring torn down and its requests cancelled.
type Host struct {
	group   *epoll.Group
	warning error
	fd      int // our duplicate of the ring's descriptor

	mu      sync.Mutex
	pending []posting
	errs    map[uint64]error
	fatal   error
	lost    uint64

	// send serialises the system calls; all below belongs to its holder.
	send     sync.Mutex
	backlog  []posting
	flight   []flying // by the user number of our own request
	spare    []uint64 // indices of flight that are free
	ring     *Ring    // ours, from which messages are sent
	ringless bool
	stats    HostStats
	retrying bool
	closed   bool
	quit     chan struct{}
	retries  sync.WaitGroup

	// What the kernel is asked with; tests put in a kernel that is short of memory.
	post    func(fd int, user uint64, res int32) syscall.Errno
	newRing func() (*Ring, syscall.Errno)
}

type posting struct {
	user uint64
	res  int32
}

type flying struct {
	posting
	busy bool
}

var _ poller.Sink = (*Host)(nil)

const (
	senderEntries = 256
	// A message without a ring costs a system call each, but half as much as a ring's
	// first. From three on the ring is cheaper.
	ringlessMost = 2
	retryFirst   = 100 * time.Microsecond
	retryMost    = 10 * time.Millisecond
	// keptErrors bounds the errors kept for Err.
	keptErrors = 1 << 16
)

// NewHost makes a Host for the ring with the given descriptor. It starts no
// goroutine. Where io_uring can't be used at all, and where Strict is set and
// messages don't work, the error is event.HostRefused with the reason.
func NewHost(ringFD int, cfg HostConfig) (*Host, error) { return newHost(ringFD, cfg, Probe()) }

const (
	hostName    = "uring (ring message)"
	eventfdName = "uring (eventfd)"
)

func newHost(ringFD int, cfg HostConfig, rep Report) (*Host, error) {
	if err := rep.Ring.Err(); err != nil {
		return nil, event.New(event.HostRefused, "uring", rep.Ring.String()).Wrap(err)
	}
	if err := isRing(ringFD); err != nil {
		return nil, err
	}
	h := &Host{
		fd: -1, quit: make(chan struct{}), post: sendRingless, ringless: rep.RinglessMessage.Answer == Works,
		newRing: func() (*Ring, syscall.Errno) { return newRing(RingConfig{Entries: senderEntries}) },
	}
	if rep.Message.Answer != Works {
		if cfg.Strict {
			return nil, event.New(event.HostRefused, hostName, rep.Message.String()).Wrap(rep.Message.Err())
		}
		if !cfg.Eventfd {
			h.warning = event.New(event.HostFallback, hostName, rep.Message.String(), eventfdName)
		}
		cfg.Eventfd = true
	}
	var err error
	if cfg.Eventfd {
		h.group, err = epoll.NewGroup()
		return h, err
	}
	if h.fd, err = sysDup(ringFD); err != nil {
		return nil, ringError("dup", asErrno(err))
	}
	return h, nil
}

// isRing refuses what is no ring. Registering a probe is harmless, and only a ring
// takes it, or has another answer than that it can't.
func isRing(fd int) error {
	e := syscall.EBADF // what a negative number would get before Linux 6.13
	if fd >= 0 {
		e = sysRegister(fd, registerProbe, nil, 0)
	}
	if e == syscall.EBADF || e == syscall.EOPNOTSUPP {
		return event.New(event.InvalidArgument, "uring host", "descriptor "+strconv.Itoa(fd)+" is not an io_uring").Wrap(e)
	}
	return nil
}

// Label says what runs: "uring (ring message)" or "uring (eventfd)", and what was
// asked for where that is another.
func (h *Host) Label() string {
	switch {
	case h.group == nil:
		return hostName
	case h.warning != nil:
		return eventfdName + " (fallback from " + hostName + ")"
	}
	return eventfdName
}

// Warning returns the event.HostFallback when something else runs than what was
// asked for, else nil.
func (h *Host) Warning() error { return h.warning }

// Group returns the group through which completions come where an eventfd is used,
// else nil. It belongs to the Host.
func (h *Host) Group() *epoll.Group { return h.group }

// Complete implements poller.Sink: it queues and makes no system call.
func (h *Host) Complete(wt *poller.Wait, err error) {
	if h.group != nil {
		h.group.Complete(wt, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && len(h.errs) < keptErrors {
		if h.errs == nil {
			h.errs = make(map[uint64]error)
		}
		h.errs[wt.User] = err
	}
	h.pending = append(h.pending, posting{wt.User, Result(err)})
}

// Flush implements poller.Sink: it posts what is queued, with one system call per
// 256 completions (for one or two, with one each where the kernel offers that: it
// is cheaper). It does not wait for room on the ring.
func (h *Host) Flush() {
	if h.group != nil {
		h.group.Flush()
		return
	}
	h.send.Lock()
	defer h.send.Unlock()
	h.deliver()
	if h.owed() > 0 && !h.retrying && !h.closed {
		h.retrying = true
		h.retries.Go(h.retry)
	}
}

// owed is the number of completions that are not known to be on the ring.
func (h *Host) owed() int { return len(h.backlog) + len(h.flight) - len(h.spare) }

func (h *Host) retry() {
	d := retryFirst
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-h.quit:
			return
		case <-t.C:
		}
		h.send.Lock()
		posted := h.stats.Posted
		h.deliver()
		if h.owed() == 0 {
			h.retrying = false
			h.send.Unlock()
			return
		}
		if h.stats.Posted > posted {
			d = retryFirst
		} else {
			d = min(2*d, retryMost)
		}
		h.send.Unlock()
		t.Reset(d)
	}
}

// deliver posts the backlog and what is pending, as far as the kernel takes it.
func (h *Host) deliver() {
	raceRelease()
	h.mu.Lock()
	fatal := h.fatal
	if len(h.backlog) == 0 {
		h.backlog, h.pending = h.pending, h.backlog[:0]
	} else {
		h.backlog = append(h.backlog, h.pending...)
		h.pending = h.pending[:0]
	}
	h.mu.Unlock()
	if fatal == nil && h.owed() > 0 {
		if h.ringless && h.owed() <= ringlessMost && len(h.flight) == len(h.spare) {
			fatal = h.deliverOneByOne()
		} else {
			fatal = h.deliverByRing()
		}
	}
	if fatal != nil {
		h.mu.Lock()
		h.fatal = fatal
		h.lost += uint64(h.owed())
		h.mu.Unlock()
		h.backlog = h.backlog[:0]
		h.freeFlight()
	}
}

func (h *Host) deliverOneByOne() error {
	n := 0
	defer func() {
		h.backlog = h.backlog[:copy(h.backlog, h.backlog[n:])]
	}()
	for _, p := range h.backlog {
		h.stats.Calls++
		switch keep, err := h.verdict(h.post(h.fd, p.user, p.res)); {
		case err != nil:
			return err
		case keep:
			return nil
		}
		n++
	}
	return nil
}

func (h *Host) deliverByRing() error {
	if h.ring == nil {
		r, e := h.newRing()
		if e != 0 {
			if h.ringless {
				return h.deliverOneByOne()
			}
			h.stats.Retried++
			return nil
		}
		h.ring = r
		h.flight = make([]flying, senderEntries)
		h.freeFlight()
	}
	todo, again := h.backlog, []posting(nil)
	defer func() {
		if again != nil {
			h.backlog = append(again, todo...)
		} else {
			h.backlog = h.backlog[:copy(h.backlog, todo)]
		}
	}()
	for len(todo) > 0 || len(h.flight) > len(h.spare) {
		n := min(len(todo), len(h.spare))
		for _, p := range todo[:n] {
			i := h.spare[len(h.spare)-1]
			if _, err := h.ring.Message(i, h.fd, p.user, p.res); err != nil {
				return err
			}
			h.spare = h.spare[:len(h.spare)-1]
			h.flight[i] = flying{p, true}
			todo = todo[1:]
		}
		h.stats.Calls++
		err := h.ring.Submit()
		if err != nil {
			// The requests stay queued in our ring for the next try.
			if _, fatal := h.verdict(asErrno(err)); fatal != nil {
				return fatal
			}
		}
		done := 0
		for {
			c, ok := h.ring.Next()
			if !ok {
				break
			}
			if c.User >= senderEntries || !h.flight[c.User].busy {
				continue // not ours: somebody posts on this ring
			}
			h.flight[c.User].busy = false
			done++
			keep, fatal := h.verdict(syscall.Errno(max(-c.Res, 0)))
			if fatal != nil {
				return fatal
			}
			if keep {
				again = append(again, h.flight[c.User].posting)
			}
			h.spare = append(h.spare, c.User)
		}
		if err != nil || done == 0 || again != nil {
			break
		}
	}
	return nil
}

func (h *Host) freeFlight() {
	h.spare = h.spare[:0]
	clear(h.flight)
	for i := range h.flight {
		h.spare = append(h.spare, uint64(i))
	}
}

// verdict says what an answer means: posted, to be tried again, or that there is no
// ring any more to post on.
func (h *Host) verdict(e syscall.Errno) (keep bool, fatal error) {
	switch e {
	case 0:
		h.stats.Posted++
		return false, nil
	// No room and no memory to keep it in; locks that are taken; a ring that its
	// owner has not enabled yet.
	case errOverflow, syscall.EAGAIN, syscall.ENOMEM, syscall.EBUSY, syscall.EINTR, errBadFD:
		h.stats.Retried++
		return true, nil
	}
	return false, event.New(event.Backend, "posting on a ring", strconv.Itoa(int(e))).WithStatus(int64(e)).Wrap(e)
}

// Err returns the error that the wait with this user number ended with, and forgets
// it; res is the result that its completion had. It returns nil when res is not
// negative. Where the error is not kept any more (65536 are) it is ResultError's.
// Waits in flight at the same time with the same number share what is kept.
func (h *Host) Err(user uint64, res int32) error {
	if res >= 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err, ok := h.errs[user]; ok {
		delete(h.errs, user)
		return err
	}
	return ResultError(res)
}

// Broken returns the error that made posting impossible for good, or nil.
// Completions that come then are lost and counted, as there is nobody to take them.
// The kernel does not say so when a ring's owner closed it or ended.
func (h *Host) Broken() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fatal
}

// Stats returns the counters.
func (h *Host) Stats() HostStats {
	h.send.Lock()
	defer h.send.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Lost = h.lost
	s.Waiting = h.owed() + len(h.pending)
	return s
}

// Close tries once more to post what is left and gives the ring up. When something
// could not be posted the error is event.Leaked and says how many. Let no wait that
// has the Host as its Sink be pending any more. Close is idempotent.
func (h *Host) Close() error {
	if h.group != nil {
		return h.group.Close()
	}
	h.send.Lock()
	if h.closed {
		h.send.Unlock()
		return nil
	}
	h.closed = true
	close(h.quit)
	h.send.Unlock()
	h.retries.Wait()
	h.send.Lock()
	defer h.send.Unlock()
	h.deliver()
	var err error
	if n := h.owed(); n > 0 {
		err = event.New(event.Leaked, strconv.Itoa(n)+" completions", "the ring had no room for them")
		h.mu.Lock()
		h.lost += uint64(n)
		h.mu.Unlock()
	}
	h.mu.Lock()
	if h.fatal == nil {
		h.fatal = event.New(event.Closed, "uring host")
	}
	h.mu.Unlock()
	h.backlog = nil
	h.freeFlight()
	if h.ring != nil {
		err = errors.Join(err, h.ring.Close())
	}
	return errors.Join(err, sysClose(h.fd))
}

func asErrno(err error) syscall.Errno {
	var e syscall.Errno
	if !errors.As(err, &e) {
		return syscall.EINVAL
	}
	return e
}
