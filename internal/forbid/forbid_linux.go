// Package forbid makes system calls fail in a child process. It is for tests alone.
package forbid

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rule makes one system call fail, all its calls or those with a given second
// argument.
type Rule struct {
	Call  uintptr
	Arg1  uint32
	Any   bool // whatever Arg1 is
	Errno unix.Errno
}

// Syscalls runs f in a child process in which a seccomp filter enforces the rules. The
// child is the test binary, running the calling test (or subtest) alone; the caller
// passes t and does everything else inside f. The child's output is shown when it
// fails.
func Syscalls(t *testing.T, rules []Rule, f func(t *testing.T)) {
	t.Helper()
	const env = "GPULINE_FORBID"
	if os.Getenv(env) == t.Name() {
		install(t, rules)
		f(t)
		return
	}
	if os.Getenv(env) != "" {
		t.Skip("in the child of another test")
	}
	run := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.Command(os.Args[0], "-test.run", run, "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), env+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in the child: %v\n%s", err, out)
	} else if !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("the child did not run the test:\n%s", out)
	}
}

// install puts the filter on every thread of the process, for good.
func install(t *testing.T, rules []Rule) {
	t.Helper()
	const (
		nr, arch, arg1Low = 0, 4, 24 // struct seccomp_data, little-endian
		load              = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jumpEq            = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret               = unix.BPF_RET | unix.BPF_K
	)
	native := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64, "386": unix.AUDIT_ARCH_I386, "arm": unix.AUDIT_ARCH_ARM}[runtime.GOARCH]
	prog := []unix.SockFilter{
		{Code: load, K: arch},
		{Code: jumpEq, K: native, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	for _, r := range rules {
		refuse := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(r.Errno)}
		prog = append(prog, unix.SockFilter{Code: load, K: nr})
		if r.Any {
			prog = append(prog, unix.SockFilter{Code: jumpEq, K: uint32(r.Call), Jf: 1}, refuse)
			continue
		}
		prog = append(prog,
			unix.SockFilter{Code: jumpEq, K: uint32(r.Call), Jf: 3},
			unix.SockFilter{Code: load, K: arg1Low},
			unix.SockFilter{Code: jumpEq, K: r.Arg1, Jf: 1}, refuse)
	}
	prog = append(prog, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	tid, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&p)))
	if e != 0 || tid != 0 {
		t.Fatal(fmt.Errorf("seccomp: thread %d, %w", tid, e))
	}
}
