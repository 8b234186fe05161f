package gpu

import (
	"runtime"
	"strconv"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// retained is something that device work up to seq may still use.
type retained struct {
	seq  uint64
	what any
	free func()
}

// Retain keeps what reachable until the device has reached seq, even when the
// wait for it was abandoned and the stream closed. If that can never be proved,
// because the device was lost, what is kept for good and counted by Leaks. Use it
// for whatever queued work reads or writes. seq must have been marked.
func (s *Stream) Retain(seq uint64, what any) error {
	if err := s.check(seq); err != nil {
		return err
	}
	r := retained{what: what}
	switch w := what.(type) {
	case *PinnedBuffer:
		if b := w.Bytes(); len(b) > 0 {
			r = use(b, r)
		}
	case []byte:
		if len(w) > 0 {
			r = use(w, r)
		}
	}
	r.seq = seq
	s.retain(r)
	return nil
}

// use makes r keep the buffer of AllocPinned that b lies in, if it lies in one.
func use(b []byte, r retained) retained {
	if p := buffers.use(b); p != nil {
		r.free = p.busy.done
	}
	return r
}

func (s *Stream) retain(r retained) {
	s.retainMu.Lock()
	s.retained = append(s.retained, r)
	s.holds.Store(int64(len(s.retained)))
	s.retainMu.Unlock()
	// The tick lets go of what nobody else asks about.
	s.d.health.wake()
}

// sweep lets go of what the device is done with. The caller is inside the gate.
func (s *Stream) sweep() {
	if s.watch.Err() == nil {
		s.sweepTo(s.word.Load())
	}
}

func (s *Stream) sweepTo(value uint64) {
	s.retainMu.Lock()
	var free []func()
	keep := s.retained[:0]
	for _, r := range s.retained {
		if !line.Reached(value, r.seq) {
			keep = append(keep, r)
		} else if r.free != nil {
			free = append(free, r.free)
		}
	}
	clear(s.retained[len(keep):])
	s.retained = keep
	s.holds.Store(int64(len(keep)))
	s.retainMu.Unlock()
	for _, f := range free {
		f()
	}
}

func (s *Stream) sweepIfHeld() {
	if s.holds.Load() > 0 && s.gate.enter() {
		s.sweep()
		s.gate.leave()
	}
}

// leakedBuffers keeps for good what a lost device may still use.
var leakedBuffers leakList

// release lets go of everything when the stream's work is known to be done, and
// gives it all up otherwise.
func (s *Stream) release(settled bool) {
	s.retainMu.Lock()
	all := s.retained
	s.retained = nil
	s.holds.Store(0)
	s.retainMu.Unlock()
	if !settled {
		leakedBuffers.add(all)
		return
	}
	for _, r := range all {
		if r.free != nil {
			r.free()
		}
	}
}

// Alloc allocates n bytes of device memory (n >= 1). Free it with Free.
func (d *Device) Alloc(n int) (driver.Mem, error) {
	if n < 1 {
		return 0, event.New(event.InvalidArgument, "device memory of "+strconv.Itoa(n)+" bytes", "want at least 1")
	}
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.calls.leave()
	return d.dev.Alloc(n)
}

// Free frees device memory. It does not wait: nothing that was queued may still
// use the memory.
func (d *Device) Free(m driver.Mem) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.calls.leave()
	return d.dev.Free(m)
}

// CopyToDevice queues a copy of src to device memory and a mark behind it, and
// returns the mark's number. The source is read at some time before that number
// is reached: until then it is retained (Go memory is also pinned), even when
// nobody waits for it, and must not be written to.
func (s *Stream) CopyToDevice(dst driver.Mem, src []byte) (uint64, error) {
	return s.copy(src, func(p unsafe.Pointer) error { return s.ds.CopyToDevice(dst, p, len(src)) })
}

// CopyToHost queues a copy from device memory into dst and a mark behind it, and
// returns the mark's number; dst is retained like the source of CopyToDevice, and
// its content is undefined until the number is reached.
func (s *Stream) CopyToHost(dst []byte, src driver.Mem) (uint64, error) {
	return s.copy(dst, func(p unsafe.Pointer) error { return s.ds.CopyToHost(p, src, len(dst)) })
}

func (s *Stream) copy(host []byte, queue func(unsafe.Pointer) error) (uint64, error) {
	if s == nil {
		return 0, errNilStream
	}
	if len(host) == 0 {
		return 0, event.New(event.InvalidArgument, "copy on "+s.name, "no bytes to copy")
	}
	if !s.gate.enter() {
		return 0, s.closedErr()
	}
	defer s.gate.leave()
	s.enq.Lock()
	defer s.enq.Unlock()
	if err := s.d.Err(); err != nil {
		return 0, err
	}
	if s.broken != nil {
		return 0, s.broken
	}
	r := hold(host)
	err := queue(unsafe.Pointer(&host[0]))
	var seq uint64
	if err == nil {
		seq, err = s.mark()
	}
	if err != nil {
		// The copy may have been queued all the same, and no number tells when it
		// is done. The next mark that works would; until then nothing may be let go.
		r.seq = s.marked.Load() + 1
		s.retain(r)
		return 0, err
	}
	r.seq = seq
	s.retain(r)
	return seq, nil
}

// Fill queues a fill of n bytes of device memory with value, without a mark.
func (s *Stream) Fill(dst driver.Mem, value byte, n int) error {
	if s == nil {
		return errNilStream
	}
	if !s.gate.enter() {
		return s.closedErr()
	}
	defer s.gate.leave()
	s.enq.Lock()
	defer s.enq.Unlock()
	if err := s.d.Err(); err != nil {
		return err
	}
	return s.ds.Fill(dst, value, n)
}

// hold makes the retention of one host buffer: Go memory is pinned, a buffer of
// AllocPinned, of whatever device, is kept from being freed.
func hold(b []byte) retained {
	if p := buffers.use(b); p != nil {
		return retained{what: p, free: p.busy.done}
	}
	pin := new(runtime.Pinner)
	pin.Pin(&b[0])
	return retained{what: b, free: pin.Unpin}
}
