package gpu

import (
	"context"
	"errors"
	"testing"

	"github.com/gpuline/gpuline/event"
)

var errStatus2 = event.New(event.Backend, "write", "2").WithStatus(2)

// brokenStream returns a stream whose mark failed, with a store that was queued in
// spite of that.
func brokenStream(t *testing.T, f *fake, d *Device) (*Stream, *fakeStream) {
	t.Helper()
	s, fs := openStream(t, d)
	f.set(func() { f.manual = true; f.fail["store"] = errStatus2 })
	if _, err := s.Mark(); err == nil {
		t.Fatal("the mark works")
	}
	f.set(func() { delete(f.fail, "store") })
	return s, fs
}

// A store that failed may come all the same: its word goes to nobody else.
func TestWordOfABrokenStream(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := brokenStream(t, f, d)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	other, otherFS := openStream(t, d)
	if other.word == s.word {
		t.Fatal("the next stream has its word")
	}
	seq := mark(t, other)
	fs.land(-1)
	if other.Reached(seq) {
		t.Error("the other stream's work counts as done")
	}
	otherFS.land(-1)
	if err := other.Wait(context.Background(), seq); err != nil {
		t.Error(err)
	}
}

// What a copy uses that failed after it was queued, or whose mark failed, stays.
func TestMemoryOfABrokenCopy(t *testing.T) {
	for _, step := range []string{"store", "copy"} {
		f := newFake()
		d := openFake(t, f)
		s, fs := openStream(t, d)
		m, err := d.Alloc(64)
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.AllocPinned(64)
		if err != nil {
			t.Fatal(err)
		}
		f.set(func() { f.manual = true; f.fail[step] = errStatus2 })
		if _, err := s.CopyToHost(b.Bytes(), m); err == nil {
			if step == "store" {
				t.Fatal("the copy works")
			}
			continue // the fake has no such step
		}
		f.set(func() { delete(f.fail, step) })
		f.forget()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if f.called("free") {
			t.Errorf("%s failed: the buffer was freed under %d operations", step, len(fs.todo))
		}
		fs.land(-1)
	}
}

// What the device may still use when it does not settle is leaked, not freed: pinned
// buffers as well as pages. And a buffer that is retained is not freed before.
func TestPinnedBufferOfAnUnsettledDevice(t *testing.T) {
	f := newFake()
	d := openFake(t, f)
	s, fs := openStream(t, d)
	b, err := d.AllocPinned(64)
	if err != nil {
		t.Fatal(err)
	}
	retained, err := d.AllocPinned(64)
	if err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.manual = true })
	seq := mark(t, s)
	for _, what := range []any{retained, retained.Bytes()[8:16]} {
		if err := s.Retain(seq, what); err != nil {
			t.Fatal(err)
		}
	}
	f.forget()
	if err := retained.Close(); err != nil || f.called("free") {
		t.Errorf("a retained buffer was freed: %v", err)
	}
	f.set(func() { f.fail["settle"] = errors.New("no") })
	before := Leaks()
	if err := d.Close(); !errors.Is(err, event.Leaked) {
		t.Errorf("%v, want Leaked", err)
	}
	if f.called("free") {
		t.Errorf("freed: %v", f.steps())
	}
	if n := Leaks() - before; n < 3 { // the page, the buffer, what is retained
		t.Errorf("%d leaks", n)
	}
	fs.land(-1)
	_ = b
}

// A goroutine that has seen its word is held up while the device is closed: it does
// not look at the word again, whose page is gone.
func TestWordIsNotLookedAtAfterTheGate(t *testing.T) {
	s := &Stream{} // no watch, no word: a look would panic
	if err := s.confirmed(context.Background(), 1); err != nil {
		t.Error(err)
	}
}
