package gpu

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/poller"
)

// patience is what a busy machine may add to any bound.
const patience = 20 * time.Second

// soon waits for something that is about to happen on another goroutine.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// ends waits for c to be closed or to have a value.
func ends[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("hangs: " + what)
	}
	return v
}

// async runs f on a goroutine of its own.
func async[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// wantFreed makes sure that nothing is left of f and that nothing counts as leaked
// but what did before.
func wantFreed(t testing.TB, f *fake, leaked uint64) {
	t.Helper()
	soon(t, "the device is closed", func() bool { return f.called("close") })
	// What an earlier test's device had not freed by then may be freed by now.
	soon(t, "all is freed", func() bool {
		refs, pages := f.left()
		return refs == 0 && pages == 0 && Leaks() <= leaked
	})
}

func TestMarkRacesWithClose(t *testing.T) {
	for range 1000 {
		f := newFake()
		f.caps.StreamStore = false
		d := openFake(t, f)
		var wg sync.WaitGroup
		var going sync.WaitGroup
		for range 4 {
			s, _ := openStream(t, d)
			going.Add(1)
			wg.Go(func() {
				_, err := s.Mark()
				going.Done()
				for err == nil {
					runtime.Gosched()
					_, err = s.Mark()
				}
				if !errors.Is(err, event.Closed) {
					t.Error(err)
				}
			})
		}
		going.Wait()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if n, m := count(f, "record"), count(f, "event release"); n != m {
			t.Fatalf("%d events, %d released", n, m)
		}
	}
}

func count(f *fake, step string) (n int) {
	for _, s := range f.steps() {
		if s == step {
			n++
		}
	}
	return n
}

// The status poller stores into pages of the program: they stay while it is stuck in
// the driver, and it does not store once they may go.
func TestCloseWhileAnEventQueryHangs(t *testing.T) {
	f := newFake()
	f.caps.StreamStore = false
	d := openFake(t, f, WithCloseBound(50*time.Millisecond))
	s, _ := openStream(t, d)
	goOn := f.stop("event query")
	defer goOn()
	leaked := Leaks()
	mark(t, s)
	soon(t, "the query", func() bool { return f.called("event query") })
	err := ends(t, "Close", async(d.Close))
	if !errors.Is(err, event.Leaked) {
		t.Errorf("close: %v", err)
	}
	if n := Leaks() - leaked; n != 1 {
		t.Errorf("%d leaks counted, want the page", n)
	}
	if v := s.word.Load(); v != 0 { // a fault when the page is gone
		t.Errorf("the word holds %d", v)
	}
	goOn()
	wantFreed(t, f, leaked)
	if count(f, "event release") != 1 {
		t.Error("the event was not released")
	}
}

// A driver that hangs when a stream or a buffer is made holds up its caller only:
// not the fault that ends the waits, and not Close.
func TestCreationHangs(t *testing.T) {
	for _, c := range []struct {
		name, step string
		make       func(d *Device) error
	}{
		{"stream", "stream", func(d *Device) error { _, err := d.NewStream(); return err }},
		{"page of words", "alloc", func(d *Device) error { _, err := d.NewStream(); return err }},
		{"pinned buffer", "alloc", func(d *Device) error { _, err := d.AllocPinned(1); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			d := openFake(t, f, WithCloseBound(50*time.Millisecond))
			s, _ := openStream(t, d)
			for range pageWords() - 1 {
				openStream(t, d)
			}
			f.set(func() { f.drop = true })
			done := Done(s, mark(t, s))
			f.forget()
			goOn := f.stop(c.step)
			defer goOn()
			leaked := Leaks()
			made := async(func() error { return c.make(d) })
			soon(t, "the call", func() bool { return f.called(c.step) })
			var second <-chan error
			if c.name == "page of words" {
				second = async(func() error { return c.make(d) }) // waits for the first's page
				soon(t, "the second stream", func() bool { return count(f, "stream") == 2 })
			}
			f.set(func() { f.fault = errors.New("719") })
			ends(t, "Done", done)
			if err := s.Err(); !errors.Is(err, event.DeviceLost) {
				t.Error(err)
			}
			if second != nil {
				if err := ends(t, "the second stream", second); !errors.Is(err, event.DeviceLost) {
					t.Errorf("second stream: %v", err)
				}
			}
			d.Stats()
			f.set(func() { f.fault = nil }) // the driver can still settle
			if err := ends(t, "Close", async(d.Close)); !errors.Is(err, event.Leaked) {
				t.Errorf("close: %v", err)
			}
			if Leaks() == leaked || f.called("free") {
				t.Error("freed, or not counted")
			}
			goOn()
			if err := ends(t, c.name, made); !errors.Is(err, event.Closed) && !errors.Is(err, event.DeviceLost) {
				t.Errorf("made: %v", err)
			}
			wantFreed(t, f, leaked)
		})
	}
}

// The waiter's goroutine in a hung query does not stretch the bound of Close, and
// what is freed after all is no leak.
func TestCloseBoundIsKept(t *testing.T) {
	f := newFake()
	f.caps.WordProves = false
	d := openFake(t, f, WithCloseBound(20*time.Millisecond), WithHealth(time.Hour, time.Hour, time.Hour))
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true })
	done := Done(s, mark(t, s))
	f.forget()
	goOn := f.stop("query")
	defer goOn()
	leaked := Leaks()
	fs.land(-1)
	soon(t, "the query", func() bool { return f.called("query") })
	start := time.Now()
	err := ends(t, "Close", async(d.Close))
	if took := time.Since(start); took >= poller.CloseBound {
		t.Errorf("close took %v", took)
	}
	if !errors.Is(err, event.Leaked) || Leaks()-leaked != 1 || f.called("free") || f.called("close") {
		t.Errorf("close: %v, %d leaks, %v", err, Leaks()-leaked, f.steps())
	}
	ends(t, "Done", done)
	goOn()
	wantFreed(t, f, leaked)
}

// Memory is freed on no goroutine that anything else depends on.
func TestFreeHangs(t *testing.T) {
	f := newFake()
	d := openFake(t, f, WithCloseBound(50*time.Millisecond))
	a, fa := openStream(t, d)
	b, _ := openStream(t, d)
	mem, err := d.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.AllocPinned(8)
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.AllocPinned(8)
	if err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.manual = true })
	seq, err := a.CopyToDevice(mem, p.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	f.forget()
	leaked := Leaks()
	goOn := f.stop("free")
	defer goOn()
	done := Done(a, seq)
	fa.land(-1)
	ends(t, "Done", done)
	soon(t, "the call", func() bool { return f.called("free") })
	f.set(func() { f.manual = false })
	for range 3 { // by the waiter
		wt, c := poller.NewWait()
		f.set(func() { f.manual = true })
		if ok, err := b.Notify(wt, mark(t, b)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		b.ds.(*fakeStream).land(-1)
		if err := ends(t, "a wait", c); err != nil {
			t.Error(err)
		}
	}
	if err := ends(t, "PinnedBuffer.Close", async(q.Close)); !errors.Is(err, event.Leaked) || Leaks() != leaked+1 {
		t.Errorf("%v, %d leaks", err, Leaks()-leaked)
	}
	// A fault is found all the same.
	f.set(func() { f.drop = true })
	done = Done(b, mark(t, b))
	f.set(func() { f.fault = errors.New("719") })
	ends(t, "Done", done)
	f.set(func() { f.fault = nil })
	if err := ends(t, "Close", async(d.Close)); !errors.Is(err, event.Leaked) {
		t.Errorf("close: %v", err)
	}
	goOn()
	wantFreed(t, f, leaked)
}

func TestStreamCloseHangs(t *testing.T) {
	f := newFake()
	d := openFake(t, f, WithCloseBound(50*time.Millisecond))
	idle, _ := openStream(t, d)
	busy, fb := openStream(t, d)
	late, fl := openStream(t, d)
	f.set(func() { f.manual = true })
	mark(t, busy)
	mark(t, late)
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	leaked := Leaks()
	goOn := f.stop("stream close")
	defer goOn()
	fb.land(-1)
	soon(t, "the tick destroys the stream", func() bool { return f.called("stream close") })
	if err := ends(t, "Close of a stream with work under way", async(late.Close)); err != nil {
		t.Error(err)
	}
	if err := ends(t, "Close of an idle stream", async(idle.Close)); !errors.Is(err, event.Leaked) {
		t.Errorf("idle: %v", err)
	}
	fl.land(-1)
	// The health tick is alive.
	s, _ := openStream(t, d)
	f.set(func() { f.drop = true })
	done := Done(s, mark(t, s))
	f.set(func() { f.fault = errors.New("719") })
	ends(t, "Done", done)
	f.set(func() { f.fault = nil })
	if err := ends(t, "Device.Close", async(d.Close)); !errors.Is(err, event.Leaked) {
		t.Errorf("close: %v", err)
	}
	goOn()
	wantFreed(t, f, leaked)
}

// No call of the self-test can keep Open from returning, and the next driver from
// being tried.
func TestSelfTestHangs(t *testing.T) {
	for _, step := range []string{"retain", "alloc", "devaddr", "stream", "store", "stream close", "settle", "free", "release"} {
		t.Run(step, func(t *testing.T) {
			bad := newFake()
			leaked := Leaks()
			goOn := bad.stop(step)
			defer goOn()
			d := ends(t, "Open", async(func() *Device {
				return openFake(t, newFake(), Using(bad, newFake()), WithSelfTest(10*time.Millisecond), WithCloseBound(20*time.Millisecond))
			}))
			w := d.Warnings()
			if len(w) == 0 || !errors.Is(w[0], event.SelfTestFailed) || !errors.Is(w[0], event.Leaked) {
				t.Errorf("warnings %v", w)
			}
			if Leaks() != leaked+1 || bad.called("close") {
				t.Errorf("%d leaks, %v", Leaks()-leaked, bad.steps())
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			goOn()
			wantFreed(t, bad, leaked)
		})
	}
	t.Run("context ends", func(t *testing.T) {
		f, other := newFake(), newFake()
		d := openFake(t, other)
		leaked := Leaks()
		goOn := f.stop("stream")
		defer goOn()
		ctx, cancel := context.WithCancel(context.Background())
		opened := async(func() error {
			_, err := Open(ctx, Using(f), WithSelfTest(time.Hour), WithCloseBound(20*time.Millisecond))
			return err
		})
		soon(t, "the call", func() bool { return f.called("stream") })
		if err := ends(t, "Close of another device", async(d.Close)); err != nil {
			t.Error(err)
		}
		cancel()
		if err := ends(t, "Open", opened); !errors.Is(err, context.Canceled) || !errors.Is(err, event.Leaked) {
			t.Errorf("open: %v", err)
		}
		goOn()
		wantFreed(t, f, leaked)
	})
	t.Run("close", func(t *testing.T) {
		f := newFake()
		f.fail["store"] = errors.New("719")
		leaked := Leaks()
		goOn := f.stop("close")
		defer goOn()
		err := ends(t, "Open", async(func() error {
			_, err := Open(context.Background(), Using(f), Strict(), WithCloseBound(20*time.Millisecond))
			return err
		}))
		if !errors.Is(err, event.SelfTestFailed) || !errors.Is(err, event.Leaked) || Leaks() != leaked+1 {
			t.Errorf("open: %v, %d leaks", err, Leaks()-leaked)
		}
		goOn()
		wantFreed(t, f, leaked)
	})
}

// A copy on one device keeps the pinned memory of another.
func TestPinnedBufferOfAnotherDevice(t *testing.T) {
	f, g := newFake(), newFake()
	a, b := openFake(t, f), openFake(t, g)
	s, fs := openStream(t, a)
	mem, err := a.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.AllocPinned(4096)
	if err != nil {
		t.Fatal(err)
	}
	copy(p.Bytes()[100:], "12345678")
	f.set(func() { f.manual = true })
	seq, err := s.CopyToDevice(mem, p.Bytes()[100:108])
	if err != nil {
		t.Fatal(err)
	}
	leaked := Leaks()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if refs, pages := g.left(); refs != 1 || pages != 1 {
		t.Fatalf("%d references and %d pages under a copy that still reads", refs, pages)
	}
	var wg sync.WaitGroup
	for range 4 { // while the copy is found done
		wg.Go(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	fs.land(-1)
	if err := s.Wait(context.Background(), seq); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	wantFreed(t, g, leaked)
	if got := string(f.mem[mem]); got != "12345678" {
		t.Errorf("copied %q", got)
	}
	if len(buffers.all) != 0 {
		t.Errorf("%d buffers listed", len(buffers.all))
	}
}

func TestBufferTable(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	var all []*PinnedBuffer
	for range 5 {
		p, err := d.AllocPinned(4096)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	for _, p := range all {
		for _, at := range []int{0, 1, 4095} {
			if got := buffers.use(p.Bytes()[at:]); got != p {
				t.Errorf("byte %d: %p, want %p", at, got, p)
			}
			p.busy.done()
		}
	}
	if buffers.use(heapBytes()) != nil {
		t.Error("memory of the heap was found")
	}
	for len(all) > 0 {
		p := all[len(all)/2]
		all = slices.Delete(all, len(all)/2, len(all)/2+1)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		for _, q := range all {
			if buffers.use(q.Bytes()) != q {
				t.Error("lost")
			}
			q.busy.done()
		}
	}
}

func heapBytes() []byte {
	heap = make([]byte, 64)
	return heap
}

// A buffer that the driver does not free is counted, and keeps its domain.
func TestPinnedBufferThatIsNotFreed(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	p, err := d.AllocPinned(1)
	if err != nil {
		t.Fatal(err)
	}
	leaked := Leaks()
	f.set(func() { f.fail["free"] = event.New(event.Backend, "free", "719").WithStatus(719) })
	if err := p.Close(); !errors.Is(err, event.Leaked) || event.StatusOf(err) != 719 || Leaks() != leaked+1 {
		t.Errorf("%v, %d leaks", err, Leaks()-leaked)
	}
	if err := p.Close(); err != nil {
		t.Error("second close:", err)
	}
	f.set(func() { delete(f.fail, "free") })
	if refs, _ := f.left(); refs != 1 {
		t.Errorf("%d references", refs)
	}
	_ = f.FreeHost(p.host)
	_ = f.Release()
}
