package metal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What can be checked of the table without a Mac: that it is consistent with
// itself, with the naming rules that decide ownership, and with the code.
func TestMessages(t *testing.T) {
	seen := map[string]bool{}
	for i, m := range messages {
		if m.selector == "" {
			t.Errorf("message %d has no line", i)
			continue
		}
		name := m.receiver + " " + m.selector
		if seen[name] {
			t.Errorf("%s: twice", name)
		}
		seen[name] = true
		if n := strings.Count(m.selector, ":"); n != len(m.params) {
			t.Errorf("%s: %d colons, %d parameters", name, n, len(m.params))
		}
		if len(m.params) > 2 {
			t.Errorf("%s: send passes two parameters at most", name)
		}
		owned := strings.HasPrefix(m.selector, "new") || strings.HasPrefix(m.selector, "copy") || m.selector == "retain"
		if m.owned != owned {
			t.Errorf("%s: owned is %v, by its name it is %v", name, m.owned, owned)
		}
		if m.owned && m.pooled {
			t.Errorf("%s: owned and autoreleased", name)
		}
		for _, typ := range append([]string{m.result}, m.params...) {
			switch {
			case strings.HasSuffix(typ, "*"), strings.HasPrefix(typ, "id"):
			case typ == "void", typ == "BOOL", typ == "NSUInteger", typ == "NSInteger", typ == "uint64_t",
				typ == "instancetype", typ == "MTLCommandBufferStatus":
			default:
				t.Errorf("%s: %s may not fit one integer register", name, typ)
			}
		}
		// The documentation of a protocol's method lies below the protocol.
		if strings.HasPrefix(m.receiver, "MTL") && !strings.HasPrefix(m.doc, "metal/"+strings.ToLower(m.receiver)+"/") {
			t.Errorf("%s: documented at %s", name, m.doc)
		}
		if m.doc == "" {
			t.Errorf("%s: no page", name)
		}
		major, _, _ := strings.Cut(m.since, ".")
		if v, err := strconv.Atoi(major); err != nil || v < 10 || v > 12 {
			t.Errorf("%s: since macOS %q: what is newer than 12 has to be optional", name, m.since)
		}
	}
}

// Every message in the code is sent with as many arguments as its line of the
// table says, and every line is used.
func TestSendsMatchTheTable(t *testing.T) {
	values := map[string]sel{}
	used := map[string]bool{}
	fset := token.NewFileSet()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		if e.Name() != "messages.go" {
			continue
		}
		n := sel(0)
		ast.Inspect(f, func(node ast.Node) bool {
			if v, ok := node.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "sel") {
				values[v.Names[0].Name] = n
				n++
			}
			return true
		})
		if n != numSel {
			t.Fatalf("found %d selectors, want %d", n, numSel)
		}
	}
	sends := 0
	for _, f := range files {
		ast.Inspect(f, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			fn, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || fn.Sel.Name != "send" {
				return true
			}
			sends++
			name := call.Args[2].(*ast.Ident).Name
			s, ok := values[name]
			if !ok {
				t.Errorf("%v: %s is not in the table", fset.Position(call.Pos()), name)
				return true
			}
			used[name] = true
			if got, want := len(call.Args)-3, len(messages[s].params); got != want {
				t.Errorf("%v: %s with %d arguments, want %d", fset.Position(call.Pos()), messages[s].selector, got, want)
			}
			return true
		})
	}
	for name := range values {
		if !used[name] {
			t.Errorf("%s is never sent", name)
		}
	}
	if sends < len(values) {
		t.Errorf("only %d sends found", sends)
	}
}

func TestMilliseconds(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want uint64
	}{
		{-time.Second, 0}, {0, 0}, {1, 1}, {time.Microsecond, 1}, {time.Millisecond - 1, 1}, {time.Millisecond, 1},
		{time.Millisecond + 1, 2}, {1500 * time.Microsecond, 2}, {100 * time.Millisecond, 100},
		{math.MaxInt64, 9223372036855},
	} {
		if got := milliseconds(c.d); got != c.want {
			t.Errorf("milliseconds(%v) = %d, want %d", c.d, got, c.want)
		}
	}
}

func FuzzMilliseconds(f *testing.F) {
	f.Add(int64(1))
	f.Add(int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		ms := milliseconds(d)
		if d <= 0 {
			if ms != 0 {
				t.Errorf("milliseconds(%v) = %d", d, ms)
			}
			return
		}
		// Never shorter than asked for, and less than one millisecond longer.
		whole, rest := n/1e6, n%1e6
		if want := uint64(whole); ms < want || ms > want+1 || (rest > 0) != (ms == want+1) {
			t.Errorf("milliseconds(%v) = %d", d, ms)
		}
	})
}
