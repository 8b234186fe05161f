//go:build unix || windows

package line

import (
	"errors"
	"math"
	"os"
	"sync"
	"testing"
	"unsafe"

	"github.com/gpuline/gpuline/event"
)

func TestMap(t *testing.T) {
	page := os.Getpagesize()
	perPage := page / Size
	for _, n := range []int{1, 2, perPage - 1, perPage, perPage + 1, 10 * perPage} {
		for _, shared := range []bool{false, true} {
			m, err := Map(n, shared)
			if err != nil {
				t.Fatalf("%d lines: %v", n, err)
			}
			if len(m.Lines) < n || len(m.Lines)%perPage != 0 || len(m.Lines) >= n+perPage {
				t.Errorf("%d lines asked for, %d mapped, a page holds %d", n, len(m.Lines), perPage)
			}
			if at := uintptr(unsafe.Pointer(&m.Lines[0])); at%uintptr(page) != 0 {
				t.Errorf("%d lines: the mapping starts at %#x, inside a page", n, at)
			}
			for i := range m.Lines {
				for s := range m.Lines[i] {
					if v := m.Lines[i][s].Load(); v != 0 {
						t.Fatalf("word %d of line %d is %#x when fresh", s, i, v)
					}
					m.Lines[i][s].Store(math.MaxUint64)
				}
			}
			for range 3 {
				if err := m.Close(); err != nil {
					t.Errorf("closing: %v", err)
				}
			}
			if m.Lines != nil {
				t.Error("a closed mapping still has lines")
			}
		}
	}
}

func TestMapRefuses(t *testing.T) {
	for _, n := range []int{0, -1, math.MinInt, 1<<30/Size + 1, math.MaxInt} {
		m, err := Map(n, false)
		if !errors.Is(err, event.InvalidArgument) || m != nil {
			t.Errorf("%d lines: %v, %v", n, m, err)
		}
	}
}

// TestHammerClose: many close at once, one unmaps.
func TestHammerClose(t *testing.T) {
	for range 50 {
		m, err := Map(1, true)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}
