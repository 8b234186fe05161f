package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/gpuline/gpuline/uring"
)

var bin string // where the programs are

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./select", "./server", "./epollserver", "./uringserver").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// program runs one as a reader would run it and looks for what it should print.
func program(t *testing.T, command string, want ...string) {
	args := strings.Fields(command)
	if (args[0] == "epollserver" || args[0] == "uringserver") && runtime.GOOS != "linux" {
		t.Skip("on Linux only")
	}
	if ring := uring.Probe().Ring; args[0] == "uringserver" && ring.Answer == uring.DoesNot {
		t.Skip(ring)
	}
	b, err := exec.Command(filepath.Join(bin, args[0]), args[1:]...).CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("the output lacks %q:\n%s", w, out)
		}
	}
	t.Log(out)
}

// servers have to print this, whatever they are.
var clean = []string{" 0 wrong, 0 failed", "left over  0 registrations, 0 retained buffers, 0 leaks", "as before the load", "as before the run"}

func TestPrograms(t *testing.T) {
	program(t, "select", "served: a request that arrives meanwhile", "the device is done")
	for _, s := range []string{
		"server", "epollserver", "uringserver", "uringserver -eventfd",
		"uringserver -entries 2", // the completion queue overflows
	} {
		t.Run(s, func(t *testing.T) {
			program(t, s+" -load 300ms -clients 8 -streams 8 -work 200us", clean...)
		})
	}
}

var thousand sync.Once // is enough, also with -count

// With 1,000 connections open at once, on 64 streams, with clients that vanish, no
// request is lost, every answer is right, and what was used is given back: the
// program fails otherwise.
func TestThousandConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	thousand.Do(func() {
		for _, s := range []string{"server", "epollserver", "uringserver", "uringserver -eventfd"} {
			t.Run(s, func(t *testing.T) {
				program(t, s+" -load 2s -clients 1000 -streams 64 -vanish 20", clean...)
			})
		}
	})
}
