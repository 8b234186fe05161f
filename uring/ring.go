package uring

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

// RingConfig says what ring to make. The zero value is useful.
type RingConfig struct {
	// Entries is the size of the submission queue, 64 by default. The kernel
	// rounds up to a power of two and clamps to its own limit (32768).
	Entries int
	// Completions is the size of the completion queue, twice Entries by default.
	Completions int
	// OwnerThread promises that one OS thread makes all calls that reach the
	// kernel: the goroutine that calls the Ring is locked to its thread
	// (runtime.LockOSThread). The kernel then delivers completions only when that
	// thread asks for them, which saves interrupts (kernel 6.1 and later; older
	// ones ignore the promise). Calls from another thread fail with EEXIST.
	OwnerThread bool
}

// Ring is an io_uring. It is not safe for concurrent use: one goroutine owns it.
//
// The kernel cancels requests when the thread that submitted them exits, which in
// Go happens only to a goroutine that ends while locked to its thread. So don't
// let the owner end locked before the Ring is closed.
//
// A Ring that is never closed, is never freed either: requests in flight may still
// write into the buffers that it holds.
type Ring struct {
	fd       int
	features uint32
	extArg   bool
	closed   bool
	ring     []byte
	sqeMem   []byte
	entries  uint32

	// Submission side. The kernel writes sqHead, we write sqTail.
	sqHead, sqTailShared, sqFlags *atomic.Uint32
	sqTail, sqMask                uint32
	sqSent                        uint32 // up to where the kernel has taken requests
	sqes                          []sqe

	// Completion side. The kernel writes cqTail, we write cqHead.
	cqTail, cqHeadShared *atomic.Uint32
	cqHead, cqMask       uint32
	cqes                 []cqe

	slots []*slot
	free  uint32 // head of the free list, index+1
	live  int

	// Arguments that a blocking enter points to; on the heap, so that they stay in
	// place although the goroutine's stack may move before the call.
	arg eventsArg
	ts  timespec
}

// slot is what one request in flight needs to keep: its owner's number, and the
// memory that the kernel reads or writes. Slots are allocated one by one, since
// the kernel holds on to their addresses.
type slot struct {
	user   uint64
	gen    uint32
	next   uint32
	active bool
	pinned bool
	pin    runtime.Pinner
	ts     timespec
}

// Op names one request in flight, for Cancel.
type Op uint64

// A request's own user_data: the top bit, the slot's generation, its index. The
// number that the user gave is put back when the completion is read, so that he
// may use any number, also twice.
const (
	opBit     = 1 << 63
	genMask   = 1<<31 - 1
	internal  = opBit | 1<<32 - 1 // slot index that never exists
	maxRing   = 32768
	closeWait = time.Second
	probeWait = time.Second
)

// MaxMessageUser is the largest user_data that may be sent to a Ring from outside,
// by a ring-to-ring message. Rings of other libraries have no such limit.
const MaxMessageUser = 1<<63 - 1

// Completion is one entry of the completion queue.
type Completion struct {
	// User is the number that was given with the request or the message.
	User uint64
	// Res is the result: bytes, a new descriptor, poll events, or a negative errno.
	Res int32
	// Flags are the kernel's IORING_CQE_F bits.
	Flags uint32
}

// Err returns the error that a negative result stands for, a syscall.Errno, else
// nil. A timeout that ran its time has the result -ETIME.
func (c Completion) Err() error {
	if c.Res < 0 {
		return syscall.Errno(-c.Res)
	}
	return nil
}

// More reports whether the request (a multishot one) will complete again.
func (c Completion) More() bool { return c.Flags&cqeMore != 0 }

// rings keeps every open Ring reachable: a ring that its owner forgot must not
// have its buffers collected while the kernel writes into them.
var rings sync.Map

// NewRing sets a ring up. Where io_uring can't be used the error matches
// errors.ErrUnsupported and says why; see Probe.
func NewRing(cfg RingConfig) (*Ring, error) {
	if cfg.Entries < 0 || cfg.Entries > maxRing || cfg.Completions < 0 || cfg.Completions > 2*maxRing {
		return nil, event.New(event.InvalidArgument, "ring",
			fmt.Sprintf("%d entries and %d completions, want at most %d and %d", cfg.Entries, cfg.Completions, maxRing, 2*maxRing))
	}
	r, e := newRing(cfg)
	if e != 0 {
		return nil, theSystem.explain(e).Err()
	}
	return r, nil
}

func newRing(cfg RingConfig) (*Ring, syscall.Errno) {
	if cfg.Entries == 0 {
		cfg.Entries = 64
	}
	flags := uint32(setupClamp)
	if cfg.Completions > 0 {
		flags |= setupCQSize
	}
	p := params{cqEntries: uint32(max(cfg.Completions, cfg.Entries))}
	if cfg.OwnerThread {
		p.flags = flags | setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag
		if r, e := setupRing(cfg.Entries, p); e != syscall.EINVAL {
			return r, e
		}
	}
	p.flags = flags
	return setupRing(cfg.Entries, p)
}

func setupRing(entries int, p params) (*Ring, syscall.Errno) {
	fd, e := sysSetup(uint32(entries), &p)
	if e != 0 {
		return nil, e
	}
	r, err := mapRing(fd, &p)
	if err != nil {
		_ = sysClose(fd)
		return nil, asErrno(err)
	}
	rings.Store(r, nil)
	return r, 0
}

func mapRing(fd int, p *params) (*Ring, error) {
	// Linux 5.5: one mapping, no lost completions, request memory read at submission.
	if p.features&needFeatures != needFeatures {
		return nil, syscall.ENOSYS
	}
	size := max(int(p.sqOff.array)+4*int(p.sqEntries), int(p.cqOff.cqes)+cqeSize*int(p.cqEntries))
	ring, err := sysMmap(fd, offRing, size)
	if err != nil {
		return nil, err
	}
	sqeMem, err := sysMmap(fd, offSQEs, sqeSize*int(p.sqEntries))
	if err != nil {
		_ = sysMunmap(ring)
		return nil, err
	}
	r := &Ring{
		fd: fd, ring: ring, sqeMem: sqeMem, entries: p.sqEntries,
		features: p.features, extArg: p.features&featExtArg != 0,
		sqHead: word(ring, p.sqOff.head), sqTailShared: word(ring, p.sqOff.tail), sqFlags: word(ring, p.sqOff.flags),
		sqMask: p.sqEntries - 1, sqes: sqesAt(sqeMem, p.sqEntries),
		cqTail: word(ring, p.cqOff.tail), cqHeadShared: word(ring, p.cqOff.head),
		cqMask: p.cqEntries - 1, cqes: cqesAt(ring, p.cqOff.cqes, p.cqEntries),
	}
	r.sqTail = r.sqTailShared.Load()
	r.sqSent = r.sqTail
	r.cqHead = r.cqHeadShared.Load()
	// Requests are taken in the order in which they lie, so the array of indices is
	// the identity, once and for all.
	for i, a := uint32(0), words(ring, p.sqOff.array, p.sqEntries); i < p.sqEntries; i++ {
		a[i] = i
	}
	return r, nil
}

// gone reports whether the Ring was closed, or is nil or not made by NewRing.
func (r *Ring) gone() bool { return r == nil || r.closed || r.sqes == nil }

// Fd returns the ring's descriptor, to which other rings and a Host can send
// messages, -1 where there is none. It belongs to the Ring.
func (r *Ring) Fd() int {
	if r == nil || r.sqes == nil {
		return -1
	}
	return r.fd
}

// InFlight returns the number of requests that have been queued and have not
// completed for good.
func (r *Ring) InFlight() int {
	if r == nil {
		return 0
	}
	return r.live
}

func ringError(op string, e syscall.Errno) error {
	return event.New(event.Backend, op, strconv.Itoa(int(e))).WithStatus(int64(e)).Wrap(e)
}

// next returns a zeroed entry of the submission queue and its slot. A full queue
// is submitted first.
func (r *Ring) next(user uint64, op uint8, fd int) (*sqe, *slot, Op, error) {
	if r.gone() {
		return nil, nil, 0, event.New(event.Closed, "ring")
	}
	if fd < -1 || fd > 1<<31-1 {
		return nil, nil, 0, event.New(event.InvalidArgument, "ring", "descriptor "+strconv.Itoa(fd))
	}
	s, err := r.entry()
	if err != nil {
		return nil, nil, 0, err
	}
	if r.free == 0 {
		r.slots = append(r.slots, &slot{})
		r.free = uint32(len(r.slots))
	}
	i := r.free - 1
	sl := r.slots[i]
	r.free, sl.next = sl.next, 0
	sl.gen = (sl.gen + 1) & genMask
	sl.user, sl.active = user, true
	r.live++
	id := opBit | uint64(sl.gen)<<32 | uint64(i)
	*s = sqe{opcode: op, fd: int32(fd), userData: id}
	return s, sl, Op(id), nil
}

func (r *Ring) entry() (*sqe, error) {
	// Load-acquire of the head pairs with the kernel's smp_store_release in
	// io_commit_sqring: an entry that the kernel is done with may be written again.
	if r.sqTail-r.sqHead.Load() == r.entries {
		if err := r.Submit(); err != nil {
			return nil, err
		}
	}
	s := &r.sqes[r.sqTail&r.sqMask]
	r.sqTail++
	return s, nil
}

// hold pins buf until the slot's request has completed.
func (sl *slot) hold(buf []byte) uint64 {
	if len(buf) == 0 {
		return 0
	}
	p := unsafe.Pointer(&buf[0])
	sl.pin.Pin(p)
	sl.pinned = true
	return address(p)
}

func (r *Ring) release(i uint32, sl *slot) {
	if sl.pinned {
		sl.pin.Unpin()
		sl.pinned = false
	}
	sl.active = false
	sl.next, r.free = r.free, i+1
	r.live--
}

// publish makes queued entries visible and returns how many the kernel has to take.
func (r *Ring) publish() uint32 {
	// Store-release: the entries' contents come before the tail. Pairs with the
	// kernel's smp_load_acquire of sq.tail in io_sqring_entries.
	r.sqTailShared.Store(r.sqTail)
	return r.sqTail - r.sqSent
}

// Submit hands what is queued to the kernel. It does not wait for completions.
// After an error, what the kernel did not take stays queued. An error that matches
// syscall.EBUSY or syscall.EAGAIN means that the kernel wants completions taken
// first, or is short of memory.
func (r *Ring) Submit() error { return r.enter(false, -1) }

// Wait submits what is queued and blocks until there is a completion, for at most
// d, forever when d is negative. It reports whether there is one.
func (r *Ring) Wait(d time.Duration) (bool, error) {
	until := time.Duration(-1)
	if d > 0 {
		until = now() + d
	}
	for {
		if err := r.enter(d != 0, until); err != nil {
			return false, err
		}
		if r.ready() {
			return true, nil
		}
		if d >= 0 && now() >= until {
			return false, nil
		}
	}
}

// enter submits and, with wait set, blocks until a completion lies in the queue or
// it is until, if that is not negative. EINTR shortens nothing.
func (r *Ring) enter(wait bool, until time.Duration) error {
	if r.gone() {
		return event.New(event.Closed, "ring")
	}
	for {
		n := r.publish()
		if r.cqHead != r.cqTail.Load() {
			wait = false
		}
		if n == 0 && !wait {
			return nil
		}
		var flags, least uint32
		var arg *eventsArg
		if wait {
			flags, least = enterGetEvents, 1
			left := until - now()
			switch {
			case until < 0:
			case left <= 0:
				wait, flags, least = false, 0, 0
				if n == 0 {
					return nil
				}
			case r.extArg:
				flags |= enterExtArg
				r.ts = spec(left)
				r.arg = eventsArg{ts: address(unsafe.Pointer(&r.ts))}
				arg = &r.arg
			case n > 0:
				flags, least = 0, 0
			default:
				// Before Linux 5.11 enter takes no timeout, but the ring can be polled.
				if ok, err := sysPoll(r.fd, left); err != nil || ok {
					return err
				}
				continue
			}
		}
		got, e := sysEnter(r.fd, n, least, flags, arg)
		switch e {
		case 0:
			r.sqSent += uint32(got)
			if got == 0 && n > 0 && !wait {
				return ringError("io_uring_enter", syscall.EAGAIN)
			}
		case syscall.EINTR, errTime:
		default:
			return ringError("io_uring_enter", e)
		}
	}
}

// ready reports whether a completion can be read. What the kernel holds back (for
// want of room, or since it delivers only when asked) is fetched first.
func (r *Ring) ready() bool {
	// Load-acquire of the tail pairs with the kernel's smp_store_release in
	// io_commit_cqring: the entries up to it are written.
	if r.cqHead != r.cqTail.Load() {
		return true
	}
	// The kernel sets the flag after the last entry that fitted, so with an empty
	// queue and no flag there is nothing held back.
	if r.closed || r.sqFlags.Load()&(sqCQOverflow|sqTaskrun) == 0 {
		return false
	}
	for {
		if _, e := sysEnter(r.fd, 0, 0, enterGetEvents, nil); e != syscall.EINTR {
			break
		}
	}
	return r.cqHead != r.cqTail.Load()
}

// Next takes the next completion, if there is one. It does not block.
func (r *Ring) Next() (Completion, bool) {
	if r.gone() || !r.ready() {
		return Completion{}, false
	}
	raceAcquire()
	e := &r.cqes[r.cqHead&r.cqMask]
	c := Completion{User: e.userData, Res: e.res, Flags: e.flags}
	r.cqHead++
	// Store-release of the head pairs with the kernel's read of cq.head before it
	// reuses an entry (a control dependency in io_cqe_cache_refill): our loads of the
	// entry come first.
	r.cqHeadShared.Store(r.cqHead)
	if i, sl := r.slotOf(c.User); sl != nil {
		c.User = sl.user
		if !c.More() {
			r.release(i, sl)
		}
	}
	return c, true
}

func (r *Ring) slotOf(id uint64) (uint32, *slot) {
	i := uint32(id)
	if id&opBit == 0 || uint64(i) >= uint64(len(r.slots)) {
		return 0, nil
	}
	if sl := r.slots[i]; sl.active && sl.gen == uint32(id>>32)&genMask {
		return i, sl
	}
	return 0, nil
}

// Close cancels what is in flight, takes its completions and frees the ring. Other
// completions that lie in the queue are dropped. When requests that hold memory
// can't be ended within a second, or the caller is not the owner thread, that
// memory is leaked, with an event.Leaked error: the kernel may still write into it.
// Close is idempotent.
func (r *Ring) Close() error {
	if r.gone() {
		return nil
	}
	r.drain(now() + closeWait)
	r.closed = true
	left := 0
	for _, sl := range r.slots {
		if sl.active && sl.pinned {
			left++
		}
	}
	err := errors.Join(sysClose(r.fd), sysMunmap(r.ring), sysMunmap(r.sqeMem))
	r.cqes, r.sqes, r.ring, r.sqeMem = nil, nil, nil, nil
	if left > 0 {
		// The ring stays in rings, and with it the pins.
		return errors.Join(event.New(event.Leaked, strconv.Itoa(left)+" buffers of a ring", "their requests have not ended"), err)
	}
	rings.Delete(r)
	return err
}

// drain cancels every request and takes completions until none is in flight.
func (r *Ring) drain(until time.Duration) {
	if r.Submit() != nil && !r.ready() {
		return
	}
	for i, sl := range r.slots {
		if !sl.active {
			continue
		}
		s, err := r.entry()
		if err != nil {
			return
		}
		*s = sqe{opcode: opAsyncCancel, fd: -1, addr: opBit | uint64(sl.gen)<<32 | uint64(i), userData: internal}
	}
	for r.live > 0 && now() < until {
		ok, err := r.Wait(until - now())
		if err != nil || !ok {
			return
		}
		for {
			if _, ok := r.Next(); !ok {
				break
			}
		}
	}
}

func now() time.Duration { return event.RealClock{}.Now() }

func spec(d time.Duration) timespec {
	return timespec{int64(d / time.Second), int64(d % time.Second)}
}
