package fill_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/poller"
)

// The comparison's device is a process of its own, so that neither its work nor
// its scheduling is charged to the program. It has in-order streams that do
// nothing for a stated time. Each stream is a line:
const (
	wordDone     = iota // the device stores the number of the work done,
	wordStored          // and before that the time of the store.
	wordDoorbell        // The host stores the number of the work to do,
	wordLength          // and before that its length.
	wordQuit            // On line 0: the host wants the device to end.
)

const deviceStreams = 8

func init() {
	deviceProcess = func() {
		mem, err := unix.Mmap(3, 0, deviceStreams*line.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			panic(err)
		}
		lines, err := line.FromBytes(mem)
		if err != nil {
			panic(err)
		}
		var due [deviceStreams]time.Duration
		var doing [deviceStreams]uint64
		for parent := os.Getppid(); lines[0][wordQuit].Load() == 0 && os.Getppid() == parent; {
			for range 1000 {
				now := kernelTime()
				for i := range lines {
					l := &lines[i]
					if bell := l[wordDoorbell].Load(); bell != doing[i] {
						doing[i], due[i] = bell, now+time.Duration(l[wordLength].Load())
					}
					if doing[i] != l[wordDone].Load() && now >= due[i] {
						l[wordStored].Store(uint64(kernelTime()))
						l[wordDone].Store(doing[i])
					}
				}
			}
		}
	}
}

// kernelTime is a clock that two processes share.
func kernelTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func startDevice(b *testing.B) []line.Line {
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		b.Skipf("memfd_create: %v", err)
	}
	f := os.NewFile(uintptr(fd), "device")
	defer f.Close()
	if err := f.Truncate(deviceStreams * line.Size); err != nil {
		b.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, deviceStreams*line.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	lines, err := line.FromBytes(mem)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), deviceEnv+"=1", "GOMAXPROCS=1")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		lines[0][wordQuit].Store(1)
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
		if err := unix.Munmap(mem); err != nil {
			b.Error(err)
		}
	})
	return lines
}

// loop is the program under comparison: each sequence launches work, waits for
// it, and then does hostWork on the CPU, a stated number of times.
type loop struct {
	lines     []line.Line
	sequences int
	rounds    int
	hostWork  time.Duration
	lengths   []time.Duration
	latencies []time.Duration // from the device's store to the code behind the wait
}

func newLoop(lines []line.Line, sequences, rounds int, hostWork time.Duration) *loop {
	l := &loop{lines: lines, sequences: sequences, rounds: rounds, hostWork: hostWork}
	rng := rand.New(rand.NewPCG(1, 2))
	for range sequences * rounds {
		l.lengths = append(l.lengths, 200*us+time.Duration(rng.IntN(400))*us)
	}
	l.latencies = make([]time.Duration, sequences*rounds)
	return l
}

// step is one round of a sequence, with the wait as a function.
func (l *loop) step(i, round int, wait func(target uint64)) {
	ln := &l.lines[i]
	target := ln[wordDoorbell].Load() + 1
	ln[wordLength].Store(uint64(l.lengths[i*l.rounds+round]))
	ln[wordDoorbell].Store(target)
	wait(target)
	l.latencies[i*l.rounds+round] = kernelTime() - time.Duration(ln[wordStored].Load())
	for end := kernelTime() + l.hostWork; kernelTime() < end; {
	}
}

func (l *loop) onTasks(b *testing.B) { l.onTasksOf(b, fill.Options{}) }

// spinning is for those who give a core to the loop.
func (l *loop) onSpinningTasks(b *testing.B) { l.onTasksOf(b, fill.Options{Spin: time.Second}) }

func (l *loop) onTasksOf(b *testing.B, opt fill.Options) {
	mustRunB(b, opt, func(t *fill.Task) error {
		for i := range l.sequences {
			t.Spawn(func(t *fill.Task) error {
				for round := range l.rounds {
					l.step(i, round, func(target uint64) { t.Await(line.Descriptor{Line: &l.lines[i], Target: target}) })
				}
				return nil
			})
		}
		return nil
	})
}

// onGoroutines has a poller.Waiter complete the waits on channels.
func (l *loop) onGoroutines(b *testing.B) {
	w := poller.NewWaiter(poller.Config{})
	defer w.Close()
	var wg sync.WaitGroup
	for i := range l.sequences {
		x, err := w.Watch(&l.lines[i][wordDone], poller.WatchOptions{})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			wt, c := poller.NewWait()
			for round := range l.rounds {
				l.step(i, round, func(target uint64) {
					pending, err := x.Add(wt, target)
					if err == nil && pending {
						err = <-c
					}
					if err != nil {
						b.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
}

// BenchmarkAgainstGoroutines runs the same program on tasks and on goroutines
// with channels, with the other processors idle and with a busy goroutine for
// every one of them.
func BenchmarkAgainstGoroutines(b *testing.B) {
	lines := startDevice(b)
	for _, busy := range []string{"idle", "busy"} {
		for _, sequences := range []int{1, deviceStreams} {
			l := newLoop(lines, sequences, 100, 20*us)
			for _, c := range []struct {
				name string
				run  func(*testing.B)
			}{{"tasks", l.onTasks}, {"spinning-tasks", l.onSpinningTasks}, {"goroutines", l.onGoroutines}} {
				b.Run(busy+"/sequences="+string(rune('0'+sequences))+"/"+c.name, func(b *testing.B) {
					if busy == "busy" {
						defer hog()()
					}
					var all []time.Duration
					for b.Loop() {
						c.run(b)
						all = append(all, l.latencies...)
					}
					slices.Sort(all)
					b.ReportMetric(float64(all[len(all)/2])/1e3, "p50-us")
					b.ReportMetric(float64(all[len(all)*99/100])/1e3, "p99-us")
					b.ReportMetric(float64(b.Elapsed())/float64(b.N)/1e6, "ms/program")
				})
			}
		}
	}
}

// hog keeps every P busy until the returned function is called.
func hog() func() {
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !stop.Load() {
			}
		})
	}
	return func() { stop.Store(true); wg.Wait() }
}
