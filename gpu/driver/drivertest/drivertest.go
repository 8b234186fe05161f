// Package drivertest is the conformance suite of the driver contract: one set of
// tests that every driver.Driver passes, whether its device is a GPU, a stand-in
// library or a piece of software. A driver's own tests call Run and add what only
// that driver can show.
//
// No test depends on how fast anything is. What has to be pending stays pending
// because a gate is closed, and waits have a bound of a minute that is only there
// to end a run that hangs.
package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

// Options are what the suite can't do through the contract alone. The zero value
// is valid: tests that need a hook that is nil, or a capability that the device
// does not claim, are left out, which the log says.
type Options struct {
	// Ordinal is the device that the suite opens.
	Ordinal int
	// Work queues work that takes a while and then leaves n bytes of value at dst:
	// the store behind it must not overtake it. nil stands for Stream.Fill.
	Work func(s driver.Stream, dst driver.Mem, n int, value byte) error
	// Gate queues work that stays pending until open is called, however long
	// that takes, and that is done soon after. open is called exactly once.
	Gate func(s driver.Stream) (open func() error, err error)
	// Poison makes work of the stream fail: work queued so far, work queued by
	// Poison, or the next thing queued. No test runs after it.
	Poison func(s driver.Stream) error
	// PoisonOrdinal is the device that the failure test opens, where opening a
	// device twice gives two handles on one context and a failure of one would
	// break the other. 0 stands for Ordinal.
	PoisonOrdinal int
	// Foreign makes a stream in d's domain with code that is not the driver's, and
	// returns its handle. It registers its own clean-up with t.
	Foreign func(t testing.TB, d driver.Device) (handle uintptr)
	// Alien makes a stream of another domain, the same way.
	Alien func(t testing.TB, d driver.Device) (handle uintptr)
	// Capture puts the stream in capture mode until end is called.
	Capture func(s driver.Stream) (end func() error, err error)
}

// Run runs the suite over the driver that setup returns. setup is called once and
// may skip. The device is opened a few times in all: once for most of the
// tests, and for each test that breaks or closes one.
func Run(t *testing.T, setup func(t *testing.T) (drv driver.Driver, opt Options)) {
	t.Helper()
	drv, opt := setup(t)
	s := &suite{drv: drv, opt: opt}
	s.dev = s.open(t)
	var out []string
	for _, c := range []struct {
		name string
		run  func(*suite, *testing.T)
		need need
	}{
		{"Devices", (*suite).devices, 0},
		{"Caps", (*suite).caps, 0},
		{"HostPages", (*suite).hostPages, stores},
		{"StoreEveryBit", (*suite).storeEveryBit, stores},
		{"StoresInOrder", (*suite).storesInOrder, stores},
		{"StoreBehindWork", (*suite).storeBehindWork, stores | memory},
		{"ManyStreams", (*suite).manyStreams, stores | memory},
		{"StoreDoesNotWait", (*suite).storeDoesNotWait, stores | gates},
		{"QuerySyncStoreAgree", (*suite).agree, gates},
		{"Events", (*suite).events, events | gates},
		{"Copies", (*suite).copies, memory},
		{"CopyBadArguments", (*suite).copyBadArguments, memory},
		{"StoreBadArguments", (*suite).storeBadArguments, stores},
		{"RetainRelease", (*suite).retainRelease, stores},
		{"Settle", (*suite).settle, gates},
		{"CloseUnderWork", (*suite).closeUnderWork, stores},
		{"UseAfterClose", (*suite).useAfterClose, 0},
		{"DeviceClose", (*suite).deviceClose, 0},
		{"Adopt", (*suite).adopt, foreign},
		{"AdoptAlien", (*suite).adoptAlien, alien},
		{"Capture", (*suite).capture, capture},
		{"ConcurrentUse", (*suite).concurrentUse, 0},
		// Last: where devices share what they break, as in CUDA, nothing works after.
		{"Failure", (*suite).failure, poison},
	} {
		if missing := s.missing(c.need); missing != "" {
			out = append(out, c.name+" (needs "+missing+")")
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.run(s, t) })
	}
	if out != nil {
		t.Logf("left out: %s", strings.Join(out, ", "))
	}
}

// need is what a test can't do without: capabilities, then hooks.
type need uint

const (
	stores need = 1 << iota
	memory
	events
	gates
	foreign
	alien
	capture
	poison
)

func (s *suite) missing(n need) string {
	c := s.dev.Caps()
	var out []string
	for _, x := range []struct {
		need need
		have bool
		name string
	}{
		{stores, c.StreamStore, "Caps.StreamStore"},
		{memory, c.Memory, "Caps.Memory"},
		{events, c.Events, "Caps.Events"},
		{gates, s.opt.Gate != nil, "Options.Gate"},
		{foreign, s.opt.Foreign != nil, "Options.Foreign"},
		{alien, s.opt.Alien != nil, "Options.Alien"},
		{capture, !c.Capture || s.opt.Capture != nil, "Options.Capture"},
		{poison, s.opt.Poison != nil, "Options.Poison"},
	} {
		if n&x.need != 0 && !x.have {
			out = append(out, x.name)
		}
	}
	return strings.Join(out, " and ")
}

type suite struct {
	drv driver.Driver
	opt Options
	dev driver.Device

	poisoned bool
}

// bound ends waits of a run that hangs.
const bound = time.Minute

func noErr(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// coded checks the one thing that every error of a driver must have. With codes
// it also must be one of those.
func coded(t testing.TB, what string, err error, codes ...event.Code) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one of %v", what, codes)
		return
	}
	if event.CodeOf(err) == 0 {
		t.Errorf("%s: the error has no code: %v", what, err)
		return
	}
	for _, c := range codes {
		if errors.Is(err, c) {
			return
		}
	}
	if len(codes) > 0 {
		t.Errorf("%s: error %v, want one of %v", what, err, codes)
	}
}

func (s *suite) open(t *testing.T) driver.Device {
	t.Helper()
	d, err := s.drv.Open(s.opt.Ordinal)
	noErr(t, "Open", err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !s.poisoned {
			t.Errorf("Device.Close: %v", err)
		}
	})
	return d
}

func stream(t testing.TB, d driver.Device) driver.Stream {
	t.Helper()
	s, err := d.NewStream()
	noErr(t, "NewStream", err)
	if s.Device() != d {
		t.Errorf("Stream.Device is %v, want the device that made it", s.Device())
	}
	closeLater(t, s)
	return s
}

func closeLater(t testing.TB, s driver.Stream) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, event.Closed) {
			t.Errorf("Stream.Close: %v", err)
		}
	})
}

// page is a host page with its words zeroed. On a device that can't store words
// it has none: store records an event instead, and want has nothing to look at.
type page struct {
	host  uintptr
	dev   uint64
	lines []line.Line
}

func (p *page) word(i int) *line.Word { return &p.lines[i/line.Words][i%line.Words] }

func (p *page) store(s driver.Stream, i int, v uint64) error {
	if p.lines == nil {
		ev, err := s.Record()
		if err == nil {
			ev.Release()
		}
		return err
	}
	off := uintptr(i) * 8
	return s.Store(p.host+off, p.dev+uint64(off), v)
}

// want checks a word that nothing is on its way to.
func (p *page) want(t testing.TB, when string, i int, v uint64) {
	t.Helper()
	if p.lines == nil {
		return
	}
	if got := p.word(i).Load(); got != v {
		t.Errorf("word %d is %d %s, want %d", i, got, when, v)
	}
}

func newPage(t testing.TB, d driver.Device) *page {
	t.Helper()
	p := makePage(t, d)
	if p.lines != nil {
		t.Cleanup(func() {
			noErr(t, "Settle", d.Settle())
			noErr(t, "FreeHost", d.FreeHost(p.host))
		})
	}
	return p
}

// makePage leaves freeing to the test.
func makePage(t testing.TB, d driver.Device) *page {
	t.Helper()
	if !d.Caps().StreamStore {
		return &page{}
	}
	size := os.Getpagesize()
	host, err := d.AllocHost(size)
	noErr(t, "AllocHost", err)
	dev, err := d.DeviceAddr(host)
	noErr(t, "DeviceAddr", err)
	if dev == 0 {
		t.Fatal("DeviceAddr returned 0")
	}
	lines, err := line.FromAddr(host, size)
	noErr(t, "lines", err)
	p := &page{host, dev, lines}
	for i := range len(lines) * line.Words {
		p.word(i).Zero()
	}
	return p
}

// hostBytes is page-locked memory as a slice. The memory is the driver's, outside
// the Go heap, and mapped until the test's clean-up.
func hostBytes(t testing.TB, d driver.Device, n int) []byte {
	t.Helper()
	host, err := d.AllocHost(n)
	noErr(t, "AllocHost", err)
	t.Cleanup(func() {
		noErr(t, "Settle", d.Settle())
		noErr(t, "FreeHost", d.FreeHost(host))
	})
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&host))), n)
}

func alloc(t testing.TB, d driver.Device, n int) driver.Mem {
	t.Helper()
	m, err := d.Alloc(n)
	noErr(t, "Alloc", err)
	if m == 0 {
		t.Fatal("Alloc returned address 0")
	}
	t.Cleanup(func() {
		noErr(t, "Settle", d.Settle())
		noErr(t, "Free", d.Free(m))
	})
	return m
}

// await waits for a word; it may be called from any goroutine.
func await(w *line.Word, target uint64) error {
	for end := time.Now().Add(bound); !w.Reached(target); runtime.Gosched() {
		if time.Now().After(end) {
			return fmt.Errorf("the word is %d after %v and has not reached %d", w.Load(), bound, target)
		}
	}
	return nil
}

// poll queries until the work is done or failed.
func poll(query func() (bool, error)) error {
	for end := time.Now().Add(bound); ; runtime.Gosched() {
		done, err := query()
		if done && err != nil {
			return fmt.Errorf("done and an error at once: %w", err)
		}
		if done || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("still pending after %v", bound)
		}
	}
}

func (s *suite) work(st driver.Stream, dst driver.Mem, n int, value byte) error {
	if s.opt.Work != nil {
		return s.opt.Work(st, dst, n, value)
	}
	return st.Fill(dst, value, n)
}

func (s *suite) gate(t testing.TB, st driver.Stream) (open func()) {
	t.Helper()
	f, err := s.opt.Gate(st)
	noErr(t, "Options.Gate", err)
	var once sync.Once
	open = func() {
		once.Do(func() {
			if err := f(); err != nil {
				t.Errorf("opening the gate: %v", err)
			}
		})
	}
	t.Cleanup(open) // a test that ends early must not leave the device blocked
	return open
}

func (s *suite) devices(t *testing.T) {
	name := s.drv.Name()
	if name == "" || name != strings.ToLower(name) {
		t.Errorf("Name is %q, want a short lower-case name", name)
	}
	infos, err := s.drv.Devices()
	noErr(t, "Devices", err)
	if len(infos) == 0 {
		t.Fatal("no devices and no error")
	}
	for i, info := range infos {
		if info.Driver != name || info.Ordinal != i || info.Name == "" {
			t.Errorf("device %d says %+v", i, info)
		}
	}
	if s.opt.Ordinal < len(infos) && s.dev.Info() != infos[s.opt.Ordinal] {
		t.Errorf("the open device says %+v, the list %+v", s.dev.Info(), infos[s.opt.Ordinal])
	}
	for _, n := range []int{-1, len(infos), 1 << 30} {
		d, err := s.drv.Open(n)
		coded(t, fmt.Sprintf("Open(%d)", n), err, event.NoDevice, event.InvalidArgument)
		if d != nil {
			t.Errorf("Open(%d) returned a device and an error", n)
		}
	}
}

func (s *suite) caps(t *testing.T) {
	c := s.dev.Caps()
	if c.StreamStore == (c.NoStore != "") {
		t.Errorf("StreamStore is %v and NoStore %q: want a reason exactly where there is no store", c.StreamStore, c.NoStore)
	}
	if c.WhyProves == "" {
		t.Error("WhyProves is empty: either value of WordProves needs its reason")
	}
	if !c.StreamStore && !c.Events {
		t.Error("neither StreamStore nor Events: the device can't be waited on")
	}
	noErr(t, "Status of a healthy device", s.dev.Status())
	if !c.StreamStore {
		st := stream(t, s.dev)
		// Some address that is aligned and not null; nothing may look at it.
		coded(t, "Store where Caps say no", st.Store(4096, 4096, 1), event.NotSupported)
	}
}

func (s *suite) hostPages(t *testing.T) {
	type block struct {
		host uintptr
		mem  []byte
	}
	var blocks []block
	ps := os.Getpagesize()
	for _, n := range []int{1, line.Size, ps, ps + 1, 16 * ps} {
		host, err := s.dev.AllocHost(n)
		noErr(t, "AllocHost", err)
		if host == 0 || host%uintptr(ps) != 0 {
			t.Errorf("AllocHost(%d) = %#x, want a page boundary", n, host)
		}
		dev, err := s.dev.DeviceAddr(host)
		noErr(t, "DeviceAddr", err)
		if dev == 0 || dev%8 != 0 {
			t.Errorf("DeviceAddr(%#x) = %#x", host, dev)
		}
		if again, err := s.dev.DeviceAddr(host); err != nil || again != dev {
			t.Errorf("DeviceAddr(%#x) = %#x, then %#x (%v)", host, dev, again, err)
		}
		mem := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&host))), n)
		for i := range mem {
			mem[i] = byte(len(blocks) + 1)
		}
		blocks = append(blocks, block{host, mem})
	}
	for i, b := range blocks {
		if firstDifference(b.mem, bytes.Repeat([]byte{byte(i + 1)}, len(b.mem))) >= 0 {
			t.Errorf("block %d overlaps another", i)
		}
		noErr(t, "FreeHost", s.dev.FreeHost(b.host))
	}
	for _, n := range []int{0, -1} {
		_, err := s.dev.AllocHost(n)
		coded(t, fmt.Sprintf("AllocHost(%d)", n), err)
	}
}

func (s *suite) storeEveryBit(t *testing.T) {
	p, st := newPage(t, s.dev), stream(t, s.dev)
	last := len(p.lines)*line.Words - 1
	for _, i := range []int{0, 1, 7, 8, last} {
		for _, v := range []uint64{1, 0x0123456789abcdef, 1 << 31, 1 << 32, 1<<32 - 1, 1 << 63, ^uint64(0), 0} {
			noErr(t, "Store", p.store(st, i, v))
			noErr(t, "Sync", st.Sync())
			if got := p.word(i).Load(); got != v {
				t.Fatalf("word %d is %#x after a store of %#x", i, got, v)
			}
		}
	}
	// Every word got a 0 last, and nobody else was touched.
	for i := range last + 1 {
		if v := p.word(i).Load(); v != 0 {
			t.Errorf("word %d is %#x, want 0", i, v)
		}
	}
}

func (s *suite) storesInOrder(t *testing.T) {
	p, st := newPage(t, s.dev), stream(t, s.dev)
	const n = 3000
	var stop atomic.Bool
	seen := make(chan error, 1)
	go func() {
		var prev uint64
		for !stop.Load() {
			v := p.word(0).Load()
			lo, hi := v&0xffffffff, v>>32
			switch {
			case lo != hi:
				seen <- fmt.Errorf("torn: the word is %#x", v)
				return
			case lo < prev:
				seen <- fmt.Errorf("the word went back from %d to %d", prev, lo)
				return
			case lo == prev:
				runtime.Gosched()
			}
			prev = lo
		}
		seen <- nil
	}()
	for i := uint64(1); i <= n; i++ {
		if err := p.store(st, 0, i<<32|i); err != nil {
			t.Errorf("store %d: %v", i, err)
			break
		}
	}
	err := st.Sync()
	if v := p.word(0).Load(); v != n<<32|n {
		t.Errorf("the word is %#x in the end, want %#x", v, uint64(n<<32|n))
	}
	stop.Store(true)
	noErr(t, "watching", <-seen)
	noErr(t, "Sync", err)
}

// round queues work, a copy of its result and a store, and checks the copy when
// the word is there. It returns an error, for use from other goroutines.
func (s *suite) round(st driver.Stream, p *page, slot int, m driver.Mem, buf []byte, seq uint64) error {
	value := byte(seq*37 + uint64(slot))
	err := s.work(st, m, len(buf), value)
	if err == nil {
		err = st.CopyToHost(unsafe.Pointer(&buf[0]), m, len(buf))
	}
	if err == nil {
		err = p.store(st, slot, seq)
	}
	if err == nil {
		err = await(p.word(slot), seq)
	}
	if err != nil {
		return err
	}
	for i, b := range buf {
		if b != value {
			return fmt.Errorf("round %d: byte %d is %#x when the word is there, want %#x", seq, i, b, value)
		}
	}
	return nil
}

func (s *suite) storeBehindWork(t *testing.T) {
	p, st := newPage(t, s.dev), stream(t, s.dev)
	for _, n := range []int{1, 64, 5000, 64 << 10} {
		m, buf := alloc(t, s.dev, n), hostBytes(t, s.dev, n)
		for r := range uint64(20) {
			p.word(0).Zero() // nothing is queued
			noErr(t, fmt.Sprintf("%d bytes", n), s.round(st, p, 0, m, buf, r+1))
		}
		noErr(t, "Sync", st.Sync())
	}
}

func (s *suite) manyStreams(t *testing.T) {
	p := newPage(t, s.dev)
	const streams, rounds, n = 10, 30, 4096
	errs := make(chan error, streams)
	for i := range streams {
		// Neighbouring words of one line: devices must not disturb each other's.
		st, m, buf := stream(t, s.dev), alloc(t, s.dev, n), hostBytes(t, s.dev, n)
		go func() {
			for r := uint64(1); r <= rounds; r++ {
				if err := s.round(st, p, i, m, buf, r); err != nil {
					errs <- fmt.Errorf("stream %d: %w", i, err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range streams {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func (s *suite) storeDoesNotWait(t *testing.T) {
	p, st := newPage(t, s.dev), stream(t, s.dev)
	open := s.gate(t, st)
	const n = 200
	for i := uint64(1); i <= n; i++ {
		noErr(t, "Store behind a gate", p.store(st, 0, i))
	}
	if v := p.word(0).Load(); v != 0 {
		t.Errorf("the word is %d behind a closed gate", v)
	}
	open()
	noErr(t, "word", await(p.word(0), n))
	// A stream is not held up by another one's gate.
	other := stream(t, s.dev)
	open = s.gate(t, st)
	noErr(t, "Store", p.store(st, 0, n+1))
	noErr(t, "Store", p.store(other, 1, 1))
	noErr(t, "word of the other stream", await(p.word(1), 1))
	noErr(t, "Sync of the other stream", other.Sync())
	if v := p.word(0).Load(); v != n {
		t.Errorf("the word is %d behind a closed gate, want %d", v, n)
	}
	open()
	noErr(t, "word", await(p.word(0), n+1))
}

func (s *suite) agree(t *testing.T) {
	p, st := newPage(t, s.dev), stream(t, s.dev)
	noErr(t, "Query of a fresh stream", poll(st.Query))
	noErr(t, "Sync of a fresh stream", st.Sync())
	for r := uint64(1); r <= 20; r++ {
		noErr(t, "Store", p.store(st, 0, r))
		if r%2 == 0 {
			noErr(t, "Sync", st.Sync())
		} else {
			noErr(t, "Query", poll(st.Query))
		}
		p.want(t, "when the driver says done", 0, r)
		noErr(t, "Query after done", poll(st.Query))
		noErr(t, "Device.Status", s.dev.Status())
	}
	open := s.gate(t, st)
	noErr(t, "Store", p.store(st, 0, 100))
	for range 50 {
		if done, err := st.Query(); done || err != nil {
			t.Fatalf("Query behind a closed gate: %v, %v", done, err)
		}
	}
	noErr(t, "Device.Status with work pending", s.dev.Status())
	synced := make(chan error, 1)
	go func() { synced <- st.Sync() }()
	runtime.Gosched()
	select {
	case err := <-synced:
		t.Fatalf("Sync returned (%v) behind a closed gate", err)
	default:
	}
	// Queries go on beside the blocking wait.
	if done, err := st.Query(); done || err != nil {
		t.Errorf("Query beside Sync: %v, %v", done, err)
	}
	open()
	noErr(t, "Sync", <-synced)
	p.want(t, "after Sync", 0, 100)
}

func (s *suite) events(t *testing.T) {
	st := stream(t, s.dev)
	first, err := st.Record()
	noErr(t, "Record", err)
	defer first.Release()
	noErr(t, "event of an idle stream", poll(first.Query))

	open := s.gate(t, st)
	var evs []driver.Event
	for range 100 {
		ev, err := st.Record()
		noErr(t, "Record", err)
		evs = append(evs, ev)
	}
	for i, ev := range evs {
		if done, err := ev.Query(); done || err != nil {
			t.Fatalf("event %d behind a closed gate: %v, %v", i, done, err)
		}
	}
	if done, err := first.Query(); !done || err != nil {
		t.Errorf("the event before the gate: %v, %v", done, err)
	}
	evs[50].Release() // of an event that is pending
	open()
	noErr(t, "the last event", poll(evs[99].Query))
	for i, ev := range evs {
		if i == 50 {
			continue
		}
		if done, err := ev.Query(); !done || err != nil {
			t.Errorf("event %d after the last one: %v, %v", i, done, err)
		}
		ev.Release()
	}
}

func (s *suite) copies(t *testing.T) {
	st := stream(t, s.dev)
	for _, n := range []int{1, 3, 64, 4096, 100_001} {
		m := alloc(t, s.dev, n)
		src, dst := make([]byte, n), make([]byte, n)
		for i := range src {
			src[i] = byte(i*31 + n)
		}
		var pin runtime.Pinner
		pin.Pin(&src[0])
		pin.Pin(&dst[0])
		noErr(t, "CopyToDevice", st.CopyToDevice(m, unsafe.Pointer(&src[0]), n))
		if n > 64 {
			noErr(t, "Fill inside", st.Fill(m+17, 0xEE, 30))
			noErr(t, "CopyToDevice inside", st.CopyToDevice(m+3, unsafe.Pointer(&src[40]), 5))
		}
		noErr(t, "CopyToHost", st.CopyToHost(unsafe.Pointer(&dst[0]), m, n))
		noErr(t, "Sync", st.Sync())
		pin.Unpin()
		want := bytes.Clone(src)
		if n > 64 {
			copy(want[17:47], bytes.Repeat([]byte{0xEE}, 30))
			copy(want[3:8], src[40:45])
		}
		if i := firstDifference(dst, want); i >= 0 {
			t.Fatalf("%d bytes: byte %d came back as %#x, want %#x", n, i, dst[i], want[i])
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func (s *suite) copyBadArguments(t *testing.T) {
	st, m := stream(t, s.dev), alloc(t, s.dev, 64)
	buf := make([]byte, 64)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&buf[0])
	p := unsafe.Pointer(&buf[0])
	noErr(t, "Fill", st.Fill(m, 7, 64))
	for what, err := range map[string]error{
		"Fill of nothing":       st.Fill(m, 1, 0),
		"copy of nothing":       st.CopyToDevice(m, p, 0),
		"copy of nothing, back": st.CopyToHost(p, m, 0),
	} {
		noErr(t, what, err)
	}
	for what, err := range map[string]error{
		"Fill, negative length":         st.Fill(m, 1, -1),
		"CopyToDevice, negative length": st.CopyToDevice(m, p, -1),
		"CopyToHost, negative length":   st.CopyToHost(p, m, -1),
		"CopyToDevice from nil":         st.CopyToDevice(m, nil, 8),
		"CopyToHost to nil":             st.CopyToHost(nil, m, 8),
	} {
		coded(t, what, err)
	}
	for _, n := range []int{0, -1} {
		_, err := s.dev.Alloc(n)
		coded(t, fmt.Sprintf("Alloc(%d)", n), err)
	}
	// None of it harmed stream or memory.
	noErr(t, "CopyToHost", st.CopyToHost(p, m, 64))
	noErr(t, "Sync", st.Sync())
	if i := firstDifference(buf, bytes.Repeat([]byte{7}, 64)); i >= 0 {
		t.Errorf("byte %d is %#x", i, buf[i])
	}
}

func (s *suite) storeBadArguments(t *testing.T) {
	p, st := newPage(t, s.dev), stream(t, s.dev)
	coded(t, "Store to address 0", st.Store(0, 0, 1))
	for off := uintptr(1); off < 8; off++ {
		coded(t, fmt.Sprintf("Store to an address %d off", off), st.Store(p.host+off, p.dev+uint64(off), 1))
	}
	noErr(t, "Store", p.store(st, 1, 5))
	noErr(t, "Sync", st.Sync())
	if a, b := p.word(0).Load(), p.word(1).Load(); a != 0 || b != 5 {
		t.Errorf("the words are %d and %d, want 0 and 5", a, b)
	}
}

func (s *suite) retainRelease(t *testing.T) {
	d := s.open(t)
	for range 3 {
		noErr(t, "Retain", d.Retain())
	}
	for range 2 {
		noErr(t, "Release", d.Release())
	}
	// The order of a page's life: the domain is retained before the page is made,
	// and released after it is freed, also when the device is closed in between.
	host, err := d.AllocHost(os.Getpagesize())
	noErr(t, "AllocHost", err)
	dev, err := d.DeviceAddr(host)
	noErr(t, "DeviceAddr", err)
	lines, err := line.FromAddr(host, os.Getpagesize())
	noErr(t, "lines", err)
	lines[0][0].Zero()
	st, err := d.NewStream()
	noErr(t, "NewStream", err)
	noErr(t, "Store", st.Store(host, dev, 6))
	noErr(t, "Sync", st.Sync())
	noErr(t, "Stream.Close", st.Close())
	noErr(t, "Device.Close", d.Close())
	if v := lines[0][0].Load(); v != 6 {
		t.Errorf("the word is %d", v)
	}
	noErr(t, "Settle of a retained domain", d.Settle())
	noErr(t, "FreeHost of a retained domain", d.FreeHost(host))
	noErr(t, "Release", d.Release())
}

func (s *suite) settle(t *testing.T) {
	p := newPage(t, s.dev)
	a, b := stream(t, s.dev), stream(t, s.dev)
	for r := uint64(1); r <= 20; r++ {
		noErr(t, "Store", p.store(a, 0, r))
		noErr(t, "Store", p.store(b, 1, r))
		noErr(t, "Settle", s.dev.Settle())
		p.want(t, "after Settle", 0, r)
		p.want(t, "after Settle", 1, r)
	}
	open := s.gate(t, a)
	noErr(t, "Store", p.store(a, 0, 100))
	settled := make(chan error, 1)
	go func() { settled <- s.dev.Settle() }()
	runtime.Gosched()
	select {
	case err := <-settled:
		t.Fatalf("Settle returned (%v) with a store behind a closed gate", err)
	default:
	}
	open()
	noErr(t, "Settle", <-settled)
	p.want(t, "after Settle", 0, 100)
}

// After Close the work is finished or dropped; after Settle it is certain that
// nothing writes any more, so a page may be freed.
func (s *suite) closeUnderWork(t *testing.T) {
	for range 10 {
		p := newPage(t, s.dev)
		st, err := s.dev.NewStream()
		noErr(t, "NewStream", err)
		for i := uint64(1); i <= 50; i++ {
			noErr(t, "Store", p.store(st, 0, i))
		}
		noErr(t, "Stream.Close", st.Close())
		noErr(t, "Settle", s.dev.Settle())
		v := p.word(0).Load()
		if v > 50 {
			t.Errorf("the word is %d, more than was ever stored", v)
		}
		p.word(0).Store(1 << 40) // a late store would show
		noErr(t, "Settle", s.dev.Settle())
		if got := p.word(0).Load(); got != 1<<40 {
			t.Errorf("a store of %d landed after Settle", got)
		}
	}
}

func (s *suite) useAfterClose(t *testing.T) {
	st, err := s.dev.NewStream()
	noErr(t, "NewStream", err)
	noErr(t, "Close", st.Close())
	caps := s.dev.Caps()
	check := func(what string, err error) {
		t.Helper()
		coded(t, what+" on a closed stream", err, event.Closed)
	}
	_, err = st.Query()
	check("Query", err)
	check("Sync", st.Sync())
	if caps.Events {
		_, err = st.Record()
		check("Record", err)
	}
	if caps.StreamStore {
		p := newPage(t, s.dev)
		check("Store", p.store(st, 0, 1))
	}
	if caps.Memory {
		m := alloc(t, s.dev, 8)
		buf := make([]byte, 8)
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(&buf[0])
		check("Fill", st.Fill(m, 0, 8))
		check("CopyToDevice", st.CopyToDevice(m, unsafe.Pointer(&buf[0]), 8))
		check("CopyToHost", st.CopyToHost(unsafe.Pointer(&buf[0]), m, 8))
	}
	if caps.Capture {
		_, err = st.Capturing()
		check("Capturing", err)
	}
	if st.Device() != s.dev {
		t.Error("a closed stream forgot its device")
	}
	// A second Close has nothing to do, and may say so.
	if err := st.Close(); err != nil {
		coded(t, "second Close", err, event.Closed)
	}
}

func (s *suite) deviceClose(t *testing.T) {
	d, err := s.drv.Open(s.opt.Ordinal)
	noErr(t, "Open", err)
	noErr(t, "Close", d.Close())
	check := func(what string, err error) {
		t.Helper()
		coded(t, what+" on a closed device", err, event.Closed)
	}
	_, err = d.NewStream()
	check("NewStream", err)
	if caps := d.Caps(); caps.Memory {
		_, err = d.Alloc(8)
		check("Alloc", err)
	}
	if err := d.Close(); err != nil {
		coded(t, "second Close", err, event.Closed)
	}
	// The device is opened again, and is a working one.
	again := s.open(t)
	st := stream(t, again)
	noErr(t, "Sync", st.Sync())
}

func (s *suite) adopt(t *testing.T) {
	h := s.opt.Foreign(t, s.dev)
	for round := range 2 { // closing leaves the handle alone: it can be adopted again
		st, err := s.dev.AdoptStream(h)
		noErr(t, "AdoptStream", err)
		if st.Handle() != h || st.Device() != s.dev {
			t.Errorf("handle %#x of device %v, want %#x of %v", st.Handle(), st.Device(), h, s.dev)
		}
		noErr(t, "Query", poll(st.Query))
		if s.dev.Caps().StreamStore {
			p := newPage(t, s.dev)
			noErr(t, "Store", p.store(st, round, 5))
			noErr(t, "word", await(p.word(round), 5))
		}
		noErr(t, "Sync", st.Sync())
		noErr(t, "Query", poll(st.Query))
		noErr(t, "Close", st.Close())
		_, err = st.Query()
		coded(t, "Query of a closed adopted stream", err, event.Closed)
	}
}

func (s *suite) adoptAlien(t *testing.T) {
	st, err := s.dev.AdoptStream(s.opt.Alien(t, s.dev))
	coded(t, "AdoptStream of another domain's stream", err, event.ForeignStream)
	if st != nil {
		t.Error("AdoptStream returned a stream and an error")
	}
	if event.StatusOf(err) != event.StatusForeign {
		t.Errorf("status %d, want %d", event.StatusOf(err), event.StatusForeign)
	}
}

func (s *suite) capture(t *testing.T) {
	st := stream(t, s.dev)
	if on, err := st.Capturing(); on || err != nil {
		t.Errorf("Capturing of a fresh stream: %v, %v", on, err)
	}
	if !s.dev.Caps().Capture {
		return // false is all there is to say
	}
	end, err := s.opt.Capture(st)
	noErr(t, "Options.Capture", err)
	if on, err := st.Capturing(); !on || err != nil {
		t.Errorf("Capturing while capturing: %v, %v", on, err)
	}
	noErr(t, "end of capture", end())
	if on, err := st.Capturing(); on || err != nil {
		t.Errorf("Capturing after the capture: %v, %v", on, err)
	}
	noErr(t, "Sync", st.Sync())
}

// Queries, syncs and a close run beside the enqueues, from any goroutine.
func (s *suite) concurrentUse(t *testing.T) {
	p := newPage(t, s.dev)
	for round := range 10 {
		st := stream(t, s.dev)
		var wg sync.WaitGroup
		run := func(n int, f func(i int) error) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range n {
					if err := f(i); err != nil {
						coded(t, "beside a Close", err, event.Closed)
						return
					}
				}
			}()
		}
		run(200, func(i int) error { return p.store(st, round, uint64(i)+1) })
		run(200, func(int) error { _, err := st.Query(); return err })
		run(20, func(int) error { return st.Sync() })
		run(20, func(int) error { return s.dev.Status() })
		run(200, func(int) error { _, err := st.Capturing(); return err })
		run(20, func(int) error { st.Handle(); return nil })
		if round%2 == 0 {
			run(1, func(int) error {
				for range 50 * round {
					runtime.Gosched()
				}
				return st.Close()
			})
		}
		wg.Wait()
		if round%2 != 0 {
			noErr(t, "Sync", st.Sync())
			p.want(t, "after Sync", round, 200)
		}
	}
}

func (s *suite) failure(t *testing.T) {
	// Whatever the tests did to it, the shared device is still well.
	noErr(t, "Device.Status", s.dev.Status())
	ordinal := s.opt.PoisonOrdinal
	if ordinal == 0 {
		ordinal = s.opt.Ordinal
	}
	s.poisoned = ordinal == s.opt.Ordinal
	d, err := s.drv.Open(ordinal)
	noErr(t, "Open", err)
	defer d.Close() // of a device that has failed, whatever it says
	p := makePage(t, d)
	st, err := d.NewStream()
	noErr(t, "NewStream", err)
	defer st.Close()

	// A gate in front, so that the failure comes after the store was queued.
	open := func() {}
	if s.opt.Gate != nil {
		open = s.gate(t, st)
	}
	noErr(t, "Options.Poison", s.opt.Poison(st))
	if err := p.store(st, 0, 9); err != nil {
		coded(t, "Store behind failing work", err)
	}
	open()
	err = poll(st.Query)
	coded(t, "Query of a failed stream", err)
	coded(t, "Sync of a failed stream", st.Sync())
	for range 3 { // and it stays that way
		_, err = st.Query()
		coded(t, "Query of a failed stream", err)
	}
	coded(t, "Device.Status", d.Status())
	if ev, err := st.Record(); err == nil {
		coded(t, "event behind the failure", poll(ev.Query))
		ev.Release()
	} else {
		coded(t, "Record", err)
	}
	settled := d.Settle() == nil
	if d.Caps().WordProves {
		p.want(t, "although Caps.WordProves says that nothing is stored behind failed work", 0, 0)
	}
	// Memory of a failed device is given up rather than freed under it, unless the
	// device promises that it writes no more.
	if settled && p.lines != nil {
		if err := d.FreeHost(p.host); err != nil {
			coded(t, "FreeHost", err)
		}
	}
}
