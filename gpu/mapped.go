package gpu

import (
	"os"
	"sync/atomic"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// Leaks returns how many host pages and buffers this process has not freed because
// a device may still write or read them. Those that it has given up count for good.
// What a Close did not get to within its bound, because a driver's call has not
// returned, counts (as 1 where it is no page or buffer) until that call returns.
func Leaks() uint64 { return leaks.Load() }

var leaks atomic.Uint64

// MappedLine is a page-locked, device-mapped host page that holds lines of one
// domain, the context of the device that made it. It keeps a reference on the
// domain from before the page is allocated until after it is freed. Its methods
// may be called from many goroutines.
type MappedLine struct {
	dev   driver.Device
	host  uintptr
	addr  uint64
	lines []line.Line

	calls  gate        // around stores
	stored atomic.Bool // a store may have been queued
	closed atomic.Bool
}

// MapLine makes a mapped page on dev: retain the domain, allocate, ask for the
// device's address, zero every word. A step that fails undoes the ones before it.
func MapLine(dev driver.Device) (*MappedLine, error) {
	if dev == nil {
		return nil, event.New(event.InvalidArgument, "mapped line", "nil device")
	}
	if err := dev.Retain(); err != nil {
		return nil, err
	}
	size := os.Getpagesize()
	host, err := dev.AllocHost(size)
	if err != nil {
		_ = dev.Release()
		return nil, err
	}
	undo := func() {
		_ = dev.FreeHost(host)
		_ = dev.Release()
	}
	addr, err := dev.DeviceAddr(host)
	if err != nil {
		undo()
		return nil, err
	}
	lines, err := line.FromAddr(host, size)
	if err != nil {
		undo()
		return nil, err
	}
	for i := range lines {
		for j := range lines[i] {
			lines[i][j].Zero()
		}
	}
	return &MappedLine{dev: dev, host: host, addr: addr, lines: lines}, nil
}

// Lines returns the page's lines. They must not be used after Close.
func (m *MappedLine) Lines() []line.Line {
	if m == nil {
		return nil
	}
	return m.lines
}

// Words returns the number of words on the page.
func (m *MappedLine) Words() int { return len(m.Lines()) * line.Words }

// Word returns word i, 0 <= i < Words().
func (m *MappedLine) Word(i int) *line.Word { return &m.lines[i/line.Words][i%line.Words] }

// Store queues "word i = value" behind the work of s, which must be a stream of
// the page's own device: any other is event.ForeignStream. It is noted that
// a store may be queued before the driver is called, since a store that was
// queued despite a failing status still counts.
func (m *MappedLine) Store(s driver.Stream, i int, value uint64) error {
	if m == nil || s == nil || i < 0 || i >= m.Words() {
		return event.New(event.InvalidArgument, "store", "needs a stream and a word of the page")
	}
	if s.Device() != m.dev {
		return event.New(event.ForeignStream, "store", "the word belongs to "+describe(m.dev)).WithStatus(event.StatusForeign)
	}
	if !m.calls.enter() {
		return event.New(event.Closed, "mapped line")
	}
	defer m.calls.leave()
	m.stored.Store(true)
	off := uintptr(i) * 8
	return s.Store(m.host+off, m.addr+uint64(off), value)
}

// Close frees the page and then drops the domain. When a store may have been
// queued, the domain must settle first; when it can't, page and reference are
// leaked and counted (event.Leaked), never freed under a device that may still
// write. It is idempotent: calls after the first return nil at once. The first blocks
// for as long as the driver's Store, Settle and FreeHost do.
func (m *MappedLine) Close() error {
	if m == nil || m.closed.Swap(true) {
		return nil
	}
	m.calls.close()
	if m.stored.Load() {
		if err := m.dev.Settle(); err != nil {
			return m.leak(err)
		}
	}
	err := m.dev.FreeHost(m.host)
	if err != nil {
		return m.leak(err)
	}
	return m.dev.Release()
}

// Leak gives the page up without asking the domain to settle: for a device
// whose calls do not return any more. Close does nothing after it.
func (m *MappedLine) Leak(why error) error {
	if m == nil || m.closed.Swap(true) {
		return nil
	}
	m.calls.shut()
	return m.leak(why)
}

func (m *MappedLine) leak(why error) error {
	leaks.Add(1)
	return event.New(event.Leaked, "host page of "+describe(m.dev), "the device may still write to it").Wrap(why)
}

func describe(d driver.Device) string {
	i := d.Info()
	return i.Driver + ":" + itoa(i.Ordinal)
}
