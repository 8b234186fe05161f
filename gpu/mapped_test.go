package gpu

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpuline/gpuline/event"
)

func TestMappedLineOrder(t *testing.T) {
	f := newFake()
	m, err := MapLine(f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.steps(), []string{"retain", "alloc", "devaddr"}; !slices.Equal(got, want) {
		t.Errorf("creation: %v, want %v", got, want)
	}
	if m.Words() != pageWords() {
		t.Errorf("%d words, want %d", m.Words(), pageWords())
	}
	for i := range m.Words() {
		if v := m.Word(i).Load(); v != 0 {
			t.Fatalf("fresh word %d holds %d", i, v)
		}
	}
	// Nothing was stored: the page can be freed at once, without settling.
	f.forget()
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := f.steps(), []string{"free", "release"}; !slices.Equal(got, want) {
		t.Errorf("close: %v, want %v", got, want)
	}
	if f.refs != 0 || len(f.live) != 0 {
		t.Errorf("%d references and %d pages left", f.refs, len(f.live))
	}
}

func TestMappedLineUndoesFailedSteps(t *testing.T) {
	boom := errors.New("boom")
	for step, want := range map[string][]string{
		"retain":  {"retain"},
		"alloc":   {"retain", "alloc", "release"},
		"devaddr": {"retain", "alloc", "devaddr", "free", "release"},
	} {
		f := newFake()
		f.fail[step] = boom
		if _, err := MapLine(f); !errors.Is(err, boom) {
			t.Errorf("%s failing: error %v", step, err)
		}
		if got := f.steps(); !slices.Equal(got, want) {
			t.Errorf("%s failing: %v, want %v", step, got, want)
		}
		if f.refs != 0 || len(f.live) != 0 {
			t.Errorf("%s failing: %d references and %d pages left", step, f.refs, len(f.live))
		}
	}
	if _, err := MapLine(nil); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("nil device: %v", err)
	}
}

func TestMappedLineSettlesOnceAStoreMayBeQueued(t *testing.T) {
	// A store that fails may have been queued all the same.
	for _, failing := range []bool{false, true} {
		f := newFake()
		m, err := MapLine(f)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := f.NewStream()
		if failing {
			f.fail["store"] = errors.New("status 1")
		}
		if err := m.Store(s, 3, 7); (err != nil) != failing {
			t.Fatalf("store: %v", err)
		}
		if v := m.Word(3).Load(); v != 7 {
			t.Errorf("word holds %d, want 7", v)
		}
		f.forget()
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := f.steps(), []string{"settle", "free", "release"}; !slices.Equal(got, want) {
			t.Errorf("close after a store (failing %v): %v, want %v", failing, got, want)
		}
		if err := m.Store(s, 0, 1); !errors.Is(err, event.Closed) {
			t.Errorf("store after close: %v", err)
		}
	}
}

func TestMappedLineLeaksUnderADeviceThatMayWrite(t *testing.T) {
	for _, step := range []string{"settle", "free"} {
		f := newFake()
		m, err := MapLine(f)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := f.NewStream()
		if err := m.Store(s, 0, 1); err != nil {
			t.Fatal(err)
		}
		f.fail[step] = event.New(event.Backend, "sync", "719").WithStatus(719)
		before := Leaks()
		err = m.Close()
		if !errors.Is(err, event.Leaked) || event.StatusOf(err) != 719 {
			t.Errorf("%s failing: %v", step, err)
		}
		if Leaks() != before+1 {
			t.Errorf("%s failing: not counted", step)
		}
		if f.refs != 1 || len(f.live) != 1 {
			t.Errorf("%s failing: %d references and %d pages, want both kept", step, f.refs, len(f.live))
		}
		if err := m.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		for _, p := range f.live {
			_ = p.Close()
		}
	}
}

func TestMappedLineRefusesForeignStreams(t *testing.T) {
	f, g := newFake(), newFake()
	m, err := MapLine(f)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, _ := g.NewStream()
	if err := m.Store(s, 0, 1); !errors.Is(err, event.ForeignStream) || event.StatusOf(err) != event.StatusForeign {
		t.Errorf("store from a foreign stream: %v", err)
	}
	if slices.Contains(g.steps(), "store") {
		t.Error("the driver was called")
	}
	mine, _ := f.NewStream()
	for _, i := range []int{-1, m.Words()} {
		if err := m.Store(mine, i, 1); !errors.Is(err, event.InvalidArgument) {
			t.Errorf("word %d: %v", i, err)
		}
	}
	if err := m.Store(nil, 0, 1); !errors.Is(err, event.InvalidArgument) {
		t.Errorf("nil stream: %v", err)
	}
}

var heap []byte

func TestPinnedRegistry(t *testing.T) {
	var r PinnedRegistry
	b := make([]byte, 100)
	heap = b // a stack would move
	at := addrOf(b)
	r.Register(0, 10)
	r.Register(at, 0)
	r.Register(at, -1)
	if r.Live() != 0 {
		t.Fatal("null or empty was registered")
	}
	r.Register(at+10, 50)
	for _, c := range []struct {
		from, to int
		want     bool
	}{
		{10, 60, true}, {10, 11, true}, {30, 40, true}, {59, 60, true},
		{9, 20, false}, {59, 61, false}, {0, 100, false}, {60, 61, false}, {0, 10, false},
		{20, 20, false},
	} {
		if got := r.Contains(b[c.from:c.to]); got != c.want {
			t.Errorf("[%d:%d] inside: %v, want %v", c.from, c.to, got, c.want)
		}
	}
	r.Register(at+10, 20) // the same base again: shorter now
	if r.Live() != 1 || r.Contains(b[10:60]) || !r.Contains(b[10:30]) {
		t.Error("the length was not updated")
	}
	r.Register(at+70, 10)
	if !r.Contains(b[72:80]) || r.Contains(b[25:75]) {
		t.Error("two ranges")
	}
	if !r.Unregister(at+10) || r.Unregister(at+10) || r.Contains(b[10:12]) || r.Live() != 1 {
		t.Error("unregister")
	}
	if r.Contains(nil) {
		t.Error("nil is inside")
	}
}
