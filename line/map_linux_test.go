package line

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
)

// perms returns the permissions of the mapping that holds addr, "" when there is
// none: "rw-p", or "rw-s" for one that is shared with processes forked later.
func perms(t *testing.T, addr uintptr) string {
	t.Helper()
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var low, high uintptr
		var perm string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %s", &low, &high, &perm); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		if low <= addr && addr < high {
			return perm
		}
	}
	return ""
}

func TestMapSharing(t *testing.T) {
	for shared, want := range map[bool]string{false: "p", true: "s"} {
		// A size that no other mapping has, so that the gap it leaves is not filled
		// before it is looked for.
		m, err := Map(100_003, shared)
		if err != nil {
			t.Fatal(err)
		}
		at := m.Lines[0][0].Addr()
		if got := perms(t, at); !strings.HasPrefix(got, "rw-") || !strings.HasSuffix(got, want) {
			t.Errorf("shared %v: mapped with %q", shared, got)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if got := perms(t, at); got != "" {
			t.Errorf("shared %v: still mapped with %q after Close", shared, got)
		}
	}
}
