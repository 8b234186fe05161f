//go:build amd64 || arm64

package soft

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/event"
)

// The engine's thread is in no list of the runtime's, carries its own name, blocks
// all signals, and is gone after Close, as is all that was mapped.
func TestThread(t *testing.T) {
	for name, cfg := range modes() {
		if cfg.GoEngine {
			continue
		}
		t.Run(name, func(t *testing.T) {
			openDevice(t, cfg).Close() // what the first one leaves is not a leak
			maps := mappings(t)
			for range 50 {
				d := openDevice(t, cfg)
				w := openWord(t, d)
				s := openStream(t, d)
				must(t, s.Store(w.host, w.dev, 1))
				must(t, s.Sync())
				pid := d.eng.(*asmEngine).pid
				if cfg.Process == inTask(pid) {
					t.Errorf("process is %v, and thread of this process is %v", cfg.Process, inTask(pid))
				}
				if status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status"); err == nil && runtime.GOARCH == "amd64" {
					if f := field(string(status), "Name"); f != "gpuline-soft" {
						t.Errorf("name %q", f)
					}
					if f := field(string(status), "SigBlk"); f != "fffffffffffbfeff" { // all but KILL, STOP
						t.Errorf("blocked signals %s", f)
					}
				}
				must(t, d.Close())
				for i := 0; inTask(pid) && i < 1000; i++ {
					time.Sleep(time.Millisecond) // from the end of its memory to the end of it
				}
				if inTask(pid) {
					t.Error("the thread is still there")
				}
				if err := unix.Kill(pid, 0); cfg.Process && !errors.Is(err, unix.ESRCH) {
					t.Errorf("the process is still there: %v", err)
				}
			}
			if n := mappings(t); n > maps+30 {
				t.Errorf("%d mappings, %d before 50 devices", n, maps)
			}
		})
	}
}

func inTask(pid int) bool {
	_, err := os.Stat("/proc/self/task/" + strconv.Itoa(pid))
	return err == nil
}

func field(status, name string) string {
	for l := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(l, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return strings.Count(string(b), "\n")
}

// The engine stores on time although no P is free to run Go code for it, and not
// before its time.
func TestStoresNeedNoP(t *testing.T) {
	for name, cfg := range modes() {
		if cfg.GoEngine {
			continue
		}
		t.Run(name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			d := openDevice(t, cfg)
			if !d.Counters().EngineInAsm {
				t.Fatalf("the engine is a %s", d.Engine())
			}
			s := openStream(t, d)
			w := openWord(t, d)
			start := Now()
			must(t, s.Work(3*time.Millisecond))
			must(t, s.Store(w.host, w.dev, 1))
			must(t, s.Work(3*time.Millisecond))
			must(t, s.Store(w.host, w.dev, 2))
			for !w.Reached(1) { // the only P never leaves these loops
			}
			for !w.Reached(2) {
			}
			end := Now()
			for i, v := range []uint64{1, 2} {
				if at, due := s.StoreTime(v), start+time.Duration(i+1)*3*time.Millisecond; at < due || at > end {
					t.Errorf("store %d at %v, due at %v, seen by %v", v, at, due, end)
				}
			}
		})
	}
}

// The clock is the same with and without the vDSO, and where the kernel offers
// one it is used.
func TestEngineClock(t *testing.T) {
	aux, err := unix.Auxv()
	must(t, err)
	offered := false
	for _, v := range aux {
		offered = offered || v[0] == 33 && v[1] != 0
	}
	if offered != (vdsoClock() != 0) {
		t.Errorf("the kernel offers a vDSO: %v; clock found: %v", offered, vdsoClock() != 0)
	}
	if vdsoClock() != 0 && elfSymbol(vdsoBase(), "no such thing") != 0 {
		t.Error("found what is not there")
	}
	for _, vdso := range []uintptr{vdsoClock(), 0} {
		d := openDevice(t, Config{})
		d.mem.ctl.vdso = vdso
		s := openStream(t, d)
		w := openWord(t, d)
		for i := range uint64(100) {
			before := Now()
			must(t, s.Store(w.host, w.dev, i+1))
			must(t, s.Sync())
			// The offset between the clocks is known to a microsecond or so.
			if at := s.StoreTime(i + 1); at < before-time.Millisecond || at > Now()+time.Millisecond {
				t.Fatalf("stored at %v, queued at %v, done at %v", at, before, Now())
			}
		}
	}
}

// The CPU time of an engine in a process of its own is not this process's.
func TestProcessAccount(t *testing.T) {
	d := openDevice(t, Config{Process: true, Busy: true})
	own := func() time.Duration {
		var ru unix.Rusage
		must(t, unix.Getrusage(unix.RUSAGE_SELF, &ru))
		return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	before := own()
	engine := func() time.Duration {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(d.eng.(*asmEngine).pid) + "/stat")
		must(t, err)
		f := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])
		u, _ := strconv.Atoi(f[11])
		s, _ := strconv.Atoi(f[12])
		return time.Duration(u+s) * 10 * time.Millisecond
	}
	for engine() < 100*time.Millisecond {
		time.Sleep(5 * time.Millisecond)
	}
	if used := own() - before; used > 90*time.Millisecond {
		t.Errorf("this process used %v while the engine used %v", used, engine())
	}
}

// Somebody kills the engine's process: the device is lost, and closes.
func TestProcessKilled(t *testing.T) {
	d := openDevice(t, Config{Process: true})
	s := openStream(t, d)
	_, err := s.Gate()
	must(t, err)
	synced := make(chan error)
	go func() { synced <- s.Sync() }()
	must(t, unix.Kill(d.eng.(*asmEngine).pid, unix.SIGKILL))
	if err := <-synced; !errors.Is(err, event.DeviceLost) {
		t.Errorf("Sync: %v", err)
	}
	if err := d.Status(); !errors.Is(err, event.DeviceLost) {
		t.Errorf("Status: %v", err)
	}
	must(t, d.Close())
}

const childEnv = "GPULINE_SOFT_CHILD"

// The program dies, or becomes another, and with it the engine's process ends.
func TestProcessDiesWithTheProgram(t *testing.T) {
	if os.Getenv(childEnv) == "wait" {
		os.Stdout.WriteString("waiting\n")
		select {}
	}
	if os.Getenv(childEnv) != "" {
		d := openDevice(t, Config{Process: true, Busy: os.Getenv(childEnv) == "busy"})
		os.Stdout.WriteString("engine " + d.Engine() + "\n")
		if os.Getenv(childEnv) == "exec" {
			must(t, os.Setenv(childEnv, "wait"))
			t.Fatal(unix.Exec(os.Args[0], []string{os.Args[0], "-test.run=^TestProcessDiesWithTheProgram$"}, os.Environ()))
		}
		select {}
	}
	openDevice(t, Config{Process: true}) // skips where there is none
	for _, mode := range []string{"idle", "busy", "exec"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcessDiesWithTheProgram$")
		cmd.Env = append(os.Environ(), childEnv+"="+mode)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		engine := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if pid, ok := strings.CutPrefix(lines.Text(), "engine process "); ok {
				engine = pid
			}
			if engine != "" && mode != "exec" || lines.Text() == "waiting" {
				break
			}
		}
		if _, err := strconv.Atoi(engine); err != nil {
			t.Fatalf("no engine: %q", engine)
		}
		if mode != "exec" { // that program is gone by now, although its process is not
			must(t, cmd.Process.Kill())
		}
		for i := 0; running(engine); i++ {
			if i > 5000 {
				t.Errorf("%s: the engine outlives its program by 5 s", mode)
				break
			}
			time.Sleep(time.Millisecond)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// running reports whether a process is there and no zombie that waits for init.
func running(pid string) bool {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !strings.HasPrefix(string(b)[strings.LastIndexByte(string(b), ')')+1:], " Z")
}

// Signals sent to the process reach Go's threads, never the engine's.
func TestSignalsPassTheEngineBy(t *testing.T) {
	d := openDevice(t, Config{})
	s := openStream(t, d)
	w := openWord(t, d)
	for i := range uint64(2000) {
		must(t, s.Store(w.host, w.dev, i+1))
		if i%10 == 0 {
			must(t, syscall.Kill(os.Getpid(), unix.SIGURG))
		}
		if i%100 == 0 {
			must(t, s.Sync())
		}
	}
	must(t, s.Sync())
	if w.Load() != 2000 {
		t.Errorf("word %d", w.Load())
	}
}

// An engine that is stopped at any moment of its turns hears of it: no wake-up is
// lost between its look at the word that says so and its sleep.
func TestStopIsHeard(t *testing.T) {
	for i := range 2000 {
		d, err := New(Config{}).Open(0)
		must(t, err)
		sd := d.(*Device)
		sd.tell() // a turn begins about now
		for range i % 64 {
			sd.mem.ctl.doorbell.Load()
		}
		must(t, sd.Close())
	}
}
