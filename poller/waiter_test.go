package poller

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/line"
)

func testLines(t testing.TB, n int) []line.Line {
	t.Helper()
	m, err := line.Map(n, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m.Lines[:n]
}

func testWaiter(t testing.TB, cfg Config) *Waiter {
	t.Helper()
	w := NewWaiter(cfg)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func testWatch(t testing.TB, w *Waiter, opt WatchOptions) (*line.Word, *Watch) {
	t.Helper()
	word := &testLines(t, 1)[0][0]
	x, err := w.Watch(word, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return word, x
}

func mustAdd(t testing.TB, x *Watch, wt *Wait, target uint64) {
	t.Helper()
	ok, err := x.Add(wt, target)
	if err != nil || !ok {
		t.Fatalf("Add(%d) = %v, %v; want registered", target, ok, err)
	}
}

// receive waits for a completion; the test's own time limit is the only clock.
func receive(t testing.TB, c <-chan error) error {
	t.Helper()
	return <-c
}

func TestReachedTargetDoesNotTouchTheWaiter(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	word.Store(7)
	wt, c := NewWait()
	for _, target := range []uint64{1, 6, 7} {
		if ok, err := x.Add(wt, target); ok || err != nil {
			t.Fatalf("Add(%d) = %v, %v; want already reached", target, ok, err)
		}
	}
	if len(c) != 0 {
		t.Fatal("a target already reached was also delivered")
	}
	if w.started.Load() {
		t.Fatal("the waiter's goroutine was started")
	}
	if s := w.Stats(); s.Immediate != 3 || s.Completed != 0 || s.Pending != 0 {
		t.Fatalf("stats %+v", s)
	}
}

func TestCompletesInTargetOrder(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	order := make(chan uint64, 16)
	s := sinkFunc(func(wt *Wait, err error) {
		if err != nil {
			t.Errorf("wait %d: %v", wt.Target(), err)
		}
		order <- wt.Target()
	})
	for _, target := range []uint64{5, 3, 8, 1, 8, 2} {
		mustAdd(t, x, &Wait{Sink: s}, target)
	}
	word.Store(4)
	for _, want := range []uint64{1, 2, 3} {
		if got := <-order; got != want {
			t.Fatalf("completed %d, want %d", got, want)
		}
	}
	if n := x.Pending(); n != 3 {
		t.Fatalf("%d pending, want 3", n)
	}
	word.Store(9)
	for _, want := range []uint64{5, 8, 8} {
		if got := <-order; got != want {
			t.Fatalf("completed %d, want %d", got, want)
		}
	}
}

func TestWrapAround(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	word.Store(^uint64(0) - 2)
	wt, c := NewWait()
	mustAdd(t, x, wt, 3) // six numbers ahead, through 0
	word.Store(^uint64(0))
	if len(c) != 0 {
		t.Fatal("completed before the counter wrapped")
	}
	word.Store(3)
	if err := receive(t, c); err != nil {
		t.Fatal(err)
	}
}

func TestCancelLeavesTheNeighbour(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	a, ca := NewWait()
	b, cb := NewWait()
	mustAdd(t, x, a, 1)
	mustAdd(t, x, b, 1)
	if !a.Cancel() {
		t.Fatal("a pending wait could not be cancelled")
	}
	if a.Cancel() {
		t.Fatal("cancelled twice")
	}
	word.Store(1)
	if err := receive(t, cb); err != nil {
		t.Fatal(err)
	}
	if len(ca) != 0 {
		t.Fatal("the cancelled wait completed")
	}
	if b.Cancel() {
		t.Fatal("a completed wait was cancelled")
	}
	// The handle of a cancelled wait is good for the next one.
	mustAdd(t, x, a, 2)
	word.Store(2)
	if err := receive(t, ca); err != nil {
		t.Fatal(err)
	}
}

func TestFailIsStickyAndEndsEverything(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{Name: "s"})
	_, other := testWatch(t, w, WatchOptions{})
	lost := event.New(event.DeviceLost, "d", "gone")
	a, ca := NewWait()
	o, co := NewWait()
	mustAdd(t, x, a, 1)
	mustAdd(t, other, o, 1)
	x.Fail(lost)
	x.Fail(errors.New("a second one"))
	if err := receive(t, ca); !errors.Is(err, event.DeviceLost) {
		t.Fatalf("pending wait ended with %v", err)
	}
	word.Store(10)
	if ok, err := x.Add(a, 2); ok || !errors.Is(err, event.DeviceLost) {
		t.Fatalf("later wait: %v, %v", ok, err)
	}
	if len(co) != 0 || other.Err() != nil {
		t.Fatal("the neighbour was hurt")
	}
}

func TestConfirmStandsBeforeSuccess(t *testing.T) {
	w := testWaiter(t, Config{})
	verdict := make(chan error)
	word, x := testWatch(t, w, WatchOptions{Confirm: func() error { return <-verdict }})
	a, ca := NewWait()
	b, cb := NewWait()
	mustAdd(t, x, a, 1)
	mustAdd(t, x, b, 2)
	word.Store(1)
	verdict <- nil
	if err := receive(t, ca); err != nil {
		t.Fatal(err)
	}
	if !x.Reached(1) || x.Reached(2) {
		t.Fatal("confirmed the wrong number")
	}
	word.Store(2)
	bad := errors.New("kernel fault")
	verdict <- bad
	if err := receive(t, cb); err != bad {
		t.Fatalf("success reported for failed work: %v", err)
	}
}

func TestEarlyHandsTheWaitBack(t *testing.T) {
	w := testWaiter(t, Config{})
	_, x := testWatch(t, w, WatchOptions{})
	wt, c := NewWait()
	wt.Look, wt.Early = time.Millisecond, true
	mustAdd(t, x, wt, 1)
	if err := receive(t, c); err != ErrLook {
		t.Fatalf("got %v, want ErrLook", err)
	}
	if waited := Now() - wt.AddedAt(); waited < wt.Look {
		t.Fatalf("handed back after %v, before %v", waited, wt.Look)
	}
	if x.Pending() != 0 {
		t.Fatal("still registered")
	}
}

func TestLateIsSeen(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	wt, c := NewWait()
	wt.Look = 20 * time.Millisecond
	mustAdd(t, x, wt, 1)
	word.Store(1) // lands during the sleep
	if err := receive(t, c); err != nil {
		t.Fatal(err)
	}
	if s := w.Stats(); wt.Late != (s.Late == 1) {
		t.Fatalf("late %v, counted %d", wt.Late, s.Late)
	}
}

// What a nap found done was pending at the look before the nap: that look is not
// later than the store, and the one that found it done not earlier.
func TestPendingAt(t *testing.T) {
	w := testWaiter(t, Config{Spin: -1, Nap: 100 * time.Microsecond})
	word, x := testWatch(t, w, WatchOptions{})
	wt, c := NewWait()
	for i := range uint64(50) {
		mustAdd(t, x, wt, i+1)
		naps := w.Stats().Naps
		for w.Stats().Naps < naps+2 { // so that there was a look since
			time.Sleep(20 * time.Microsecond)
		}
		before := Now()
		word.Store(i + 1)
		after := Now()
		if err := receive(t, c); err != nil {
			t.Fatal(err)
		}
		if wt.PendingAt <= wt.AddedAt() || wt.PendingAt > after || wt.DoneAt < before || wt.Late {
			t.Fatalf("added at %v, pending at %v, stored between %v and %v, done at %v, late %v", wt.AddedAt(), wt.PendingAt, before, after, wt.DoneAt, wt.Late)
		}
	}
}

func TestCloseEndsWaitsAndIsIdempotent(t *testing.T) {
	w := NewWaiter(Config{Name: "w"})
	_, x := testWatch(t, w, WatchOptions{Name: "s"})
	wt, c := NewWait()
	wt.Look = time.Hour
	mustAdd(t, x, wt, 1)
	for range 3 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := receive(t, c); !errors.Is(err, event.Closed) || !errors.Is(err, os.ErrClosed) {
		t.Fatalf("pending wait ended with %v", err)
	}
	if _, err := x.Add(wt, 2); !errors.Is(err, event.Closed) {
		t.Fatalf("later wait: %v", err)
	}
	if _, err := w.Watch(&testLines(t, 1)[0][0], WatchOptions{}); !errors.Is(err, event.Closed) {
		t.Fatalf("later watch: %v", err)
	}
}

func TestMisuse(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{Name: "s"})
	if _, err := w.Watch(nil, WatchOptions{}); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	if _, err := x.Add(nil, 1); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	if _, err := x.Add(&Wait{}, 1); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
	if _, err := x.Add(&Wait{Sink: uncomparable{}}, 1); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("a sink that can't be compared: %v", err)
	}
	wt, c := NewWait()
	mustAdd(t, x, wt, 1)
	if _, err := x.Add(wt, 2); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("double registration: %v", err)
	}
	word.Store(1)
	if err := receive(t, c); err != nil {
		t.Error(err)
	}
	if (&Wait{}).Cancel() {
		t.Error("cancelled what was never registered")
	}
}

// A hand-picked sleep in the far future is cut short by a nearer registration.
func TestNearerRegistrationEndsASleep(t *testing.T) {
	w := testWaiter(t, Config{})
	word, x := testWatch(t, w, WatchOptions{})
	far, cfar := NewWait()
	far.Look = time.Hour
	mustAdd(t, x, far, 1000)
	for w.state.Load() <= 0 {
		time.Sleep(time.Millisecond)
	}
	_, y := testWatch(t, w, WatchOptions{})
	near, cnear := NewWait()
	near.Look, near.Early = time.Millisecond, true
	mustAdd(t, y, near, 1)
	if err := receive(t, cnear); err != ErrLook {
		t.Fatal(err)
	}
	// And so does an earlier target on the sleeping word itself.
	now, cnow := NewWait()
	word.Store(1)
	if ok, err := x.Add(now, 2); err != nil || !ok {
		t.Fatal(ok, err)
	}
	word.Store(2)
	if err := receive(t, cnow); err != nil {
		t.Fatal(err)
	}
	if len(cfar) != 0 {
		t.Fatal("the far wait completed")
	}
}

type sinkFn struct{ f func(wt *Wait, err error) }

func sinkFunc(f func(wt *Wait, err error)) Sink { return &sinkFn{f} }

func (f *sinkFn) Complete(wt *Wait, err error) { f.f(wt, err) }
func (f *sinkFn) Flush()                       {}

type uncomparable struct{ f func() }

func (uncomparable) Complete(*Wait, error) {}
func (uncomparable) Flush()                {}
