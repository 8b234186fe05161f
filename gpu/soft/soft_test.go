package soft

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/line"
)

const haveAsm = runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modes are the ways a device can run here.
func modes() map[string]Config {
	m := map[string]Config{"default": {}, "go engine": {GoEngine: true}}
	if haveAsm {
		m["process"] = Config{Process: true}
	}
	return m
}

func eachMode(t *testing.T, f func(t *testing.T, cfg Config)) {
	for name, cfg := range modes() {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

func openDevice(t testing.TB, cfg Config) *Device {
	t.Helper()
	dd, err := New(cfg).Open(0)
	if cfg.Process && errors.Is(err, event.NotSupported) && runtime.GOARCH != "amd64" {
		t.Skip(err) // qemu-user makes no processes that share their memory
	}
	if err != nil {
		t.Fatal(err)
	}
	d := dd.(*Device)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func openStream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s.(*Stream)
}

type hostWord struct {
	*line.Word
	host uintptr
	dev  uint64
}

func openWord(t testing.TB, d *Device) hostWord {
	t.Helper()
	host, err := d.AllocHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := d.DeviceAddr(host)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := line.FromAddr(host, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if lines[0][0].Load() == 0 {
		t.Error("fresh host memory is zeroed: no real driver does that")
	}
	lines[0][0].Zero()
	return hostWord{&lines[0][0], host, dev}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for a word without a bound of its own.
func await(w hostWord, v uint64) {
	for !w.Reached(v) {
		time.Sleep(20 * time.Microsecond)
	}
}

func TestStoreBehindWork(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		w := openWord(t, d)
		before := Now()
		must(t, s.Work(3*time.Millisecond))
		must(t, s.Store(w.host, w.dev, 1))
		if done, err := s.Query(); done || err != nil {
			t.Errorf("Query = %v, %v right after the launch", done, err)
		}
		must(t, s.Sync())
		if !w.Reached(1) {
			t.Error("Sync returned before the store")
		}
		if at := s.StoreTime(1); at < before+3*time.Millisecond || at > Now() {
			t.Errorf("stored at %v, launched at %v", at, before)
		}
		if done, err := s.Query(); !done || err != nil {
			t.Errorf("Query = %v, %v", done, err)
		}
	})
}

func TestOrderWithData(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		var wg sync.WaitGroup
		for range 8 {
			s := openStream(t, d)
			w := openWord(t, d)
			mem, err := d.Alloc(1 << 12)
			must(t, err)
			wg.Go(func() {
				in, out := make([]byte, 1<<12), make([]byte, 1<<12)
				var pin runtime.Pinner
				pin.Pin(&in[0])
				pin.Pin(&out[0])
				defer pin.Unpin()
				for i := range 50 {
					for j := range in {
						in[j] = byte(i + j)
					}
					n := 0
					errs := []error{
						s.CopyToDevice(mem, unsafe.Pointer(&in[0]), len(in)),
						s.Work(time.Duration(i%3) * 20 * time.Microsecond),
						s.Run(func() error { n = i; return nil }),
						s.Fill(mem, 0xee, 16),
						s.CopyToHost(unsafe.Pointer(&out[0]), mem, len(out)),
						s.Store(w.host, w.dev, uint64(i+1)),
					}
					if err := errors.Join(errs...); err != nil {
						t.Error(err)
						return
					}
					await(w, uint64(i+1))
					if n != i || !bytes.Equal(out[16:], in[16:]) || !bytes.Equal(out[:16], bytes.Repeat([]byte{0xee}, 16)) {
						t.Errorf("round %d: the word came before the data", i)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestManyEntriesAndStreams(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		for range 200 {
			openStream(t, d)
		}
		s := openStream(t, d)
		w := openWord(t, d)
		const n = 5 * ringEntries // more than the ring takes
		for i := range uint64(n) {
			must(t, s.Store(w.host, w.dev, i+1))
		}
		must(t, s.Sync())
		if w.Load() != n {
			t.Errorf("word holds %d, want %d", w.Load(), n)
		}
	})
}

func TestEnginesAreLimited(t *testing.T) {
	d := openDevice(t, Config{Engines: 2})
	w := openWord(t, d)
	start := Now()
	var last *Stream
	for i := range 6 {
		last = openStream(t, d)
		must(t, last.Work(4*time.Millisecond))
		must(t, last.Store(w.host, w.dev, uint64(i+1)))
	}
	must(t, d.Settle())
	if end := last.StoreTime(6); end < start+12*time.Millisecond {
		t.Errorf("six works of 4 ms on two engines ended after %v", end-start)
	}
}

func TestGateAndEvents(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		w := openWord(t, d)
		before, err := s.Record()
		must(t, err)
		open, err := s.Gate()
		must(t, err)
		after, err := s.Record()
		must(t, err)
		must(t, s.Store(w.host, w.dev, 1))
		for {
			if done, err := before.Query(); err != nil {
				t.Fatal(err)
			} else if done {
				break
			}
			time.Sleep(20 * time.Microsecond)
		}
		if done, _ := after.Query(); done || w.Reached(1) {
			t.Error("passed a closed gate")
		}
		open()
		open()
		must(t, s.Sync())
		if done, _ := after.Query(); !done || !w.Reached(1) {
			t.Error("stuck behind an open gate")
		}
	})
}

func TestFaults(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		t.Run("failing work", func(t *testing.T) {
			d := openDevice(t, cfg)
			s, o := openStream(t, d), openStream(t, d)
			w, v := openWord(t, d), openWord(t, d)
			must(t, s.Store(w.host, w.dev, 1))
			begin, err := s.Gate()
			must(t, err)
			must(t, s.Fail(nil))
			must(t, s.Store(w.host, w.dev, 2))
			open, err := o.Gate()
			must(t, err)
			must(t, o.Store(v.host, v.dev, 1))
			begin()
			err = s.Sync()
			if !errors.Is(err, event.WorkFailed) || event.StatusOf(err) != StatusIllegalAddress {
				t.Fatalf("Sync: %v", err)
			}
			open()
			for name, err := range map[string]error{
				"other stream's sync": o.Sync(), "status": d.Status(), "later store": s.Store(w.host, w.dev, 3), "later work": o.Work(0),
			} {
				if !errors.Is(err, event.WorkFailed) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := d.NewStream(); !errors.Is(err, event.WorkFailed) {
				t.Error(err)
			}
			must(t, d.Settle())
			if w.Load() != 1 || v.Load() != 0 {
				t.Errorf("stores landed behind failed work: %d, %d", w.Load(), v.Load())
			}
		})
		t.Run("lost", func(t *testing.T) {
			d := openDevice(t, cfg)
			s := openStream(t, d)
			w := openWord(t, d)
			must(t, s.Work(time.Hour))
			must(t, s.Store(w.host, w.dev, 1))
			blocked := make(chan error)
			go func() { blocked <- s.Sync() }()
			d.Lose("fell off the bus")
			if err := <-blocked; !errors.Is(err, event.DeviceLost) {
				t.Error(err)
			}
			if w.Load() != 0 {
				t.Error("a store of a lost device landed")
			}
		})
		t.Run("dropped, late, held stores", func(t *testing.T) {
			d := openDevice(t, cfg)
			a, b := openStream(t, d), openStream(t, d)
			w, v := openWord(t, d), openWord(t, d)
			a.DropStores(1)
			must(t, a.Store(w.host, w.dev, 1))
			must(t, a.Sync())
			if w.Load() != 0 {
				t.Error("a dropped store landed")
			}
			a.HoldStores()
			must(t, a.Store(w.host, w.dev, 2))
			must(t, a.Sync())
			must(t, b.Store(v.host, v.dev, 1)) // queued later, lands first
			await(v, 1)
			if w.Load() != 0 {
				t.Error("a held store landed")
			}
			a.ReleaseStores()
			await(w, 2)
			a.DelayStores(2 * time.Millisecond)
			must(t, a.Store(w.host, w.dev, 3))
			must(t, a.Sync()) // the status says done at once
			await(w, 3)
		})
		t.Run("blocked queries", func(t *testing.T) {
			d := openDevice(t, cfg)
			s := openStream(t, d)
			d.BlockQueries()
			got := make(chan error, 2)
			go func() { _, err := s.Query(); got <- err }()
			go func() { got <- d.Status() }()
			for d.Counters().BlockedNow < 2 {
				time.Sleep(time.Millisecond)
			}
			if len(got) != 0 {
				t.Error("a query got through")
			}
			d.UnblockQueries()
			must(t, <-got)
			must(t, <-got)
		})
	})
}

func TestLies(t *testing.T) {
	for lie, check := range map[Lie]func(t *testing.T, s *Stream, w hostWord){
		LieNever: func(t *testing.T, s *Stream, w hostWord) {
			must(t, s.Store(w.host, w.dev, 1))
			must(t, s.Sync())
			if w.Load() != 0 {
				t.Error("landed")
			}
		},
		LieSync: func(t *testing.T, s *Stream, w hostWord) {
			must(t, s.Store(w.host, w.dev, 1))
			for done := false; !done; {
				done, _ = s.Query()
			}
			if w.Load() != 0 {
				t.Error("visible before a sync")
			}
			must(t, s.Sync())
			await(w, 1)
		},
		LieUnsupported: func(t *testing.T, s *Stream, w hostWord) {
			if err := s.Store(w.host, w.dev, 1); !errors.Is(err, event.NotSupported) || event.StatusOf(err) != StatusNotSupported {
				t.Error(err)
			}
		},
	} {
		d := openDevice(t, Config{Lie: lie})
		if !d.Caps().StreamStore {
			t.Error("a liar that does not claim stores")
		}
		check(t, openStream(t, d), openWord(t, d))
	}
	if c := openDevice(t, Config{Lie: NoStores}).Caps(); c.StreamStore || c.NoStore == "" {
		t.Errorf("%+v", c)
	}
}

func TestMisuse(t *testing.T) {
	d := openDevice(t, Config{})
	s := openStream(t, d)
	w := openWord(t, d)
	mem, err := d.Alloc(100)
	must(t, err)
	b := make([]byte, 200)
	for name, err := range map[string]error{
		"host address for the device's": s.Store(w.host, uint64(w.host), 1),
		"negative work":                 s.Work(-1),
		"nil function":                  s.Run(nil),
		"copy out of bounds":            s.CopyToDevice(mem, unsafe.Pointer(&b[0]), 101),
		"negative fill":                 s.Fill(mem, 0, -1),
		"misaligned store":              s.Store(w.host+4, uint64(w.host)+deviceOffset+4, 1),
		"free of a stranger":            d.Free(12345),
		"free host of a stranger":       d.FreeHost(12345),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(Config{}).Open(1); !errors.Is(err, event.NoDevice) {
		t.Error(err)
	}
	if _, err := d.AdoptStream(0); !errors.Is(err, event.ForeignStream) {
		t.Error(err)
	}
	if a, err := d.AdoptStream(s.Handle()); err != nil || a.Close() != nil {
		t.Error(err)
	} else if o, ok := Of(a); !ok || o.q != s.q {
		t.Error("Of an adopted stream")
	}
	must(t, s.Work(0)) // closing the adopted one left it alone
	must(t, s.Close())
	if err := s.Work(0); !errors.Is(err, event.Closed) {
		t.Error(err)
	}
	if d.Bytes(mem, 101) != nil || len(d.Bytes(mem+50, 50)) != 50 {
		t.Error("Bytes")
	}
	var _ driver.Stream = s
}

func TestCloseLeavesNothing(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		tasks := func() int {
			e, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Skip("no /proc on this system")
			}
			return len(e)
		}
		fds := func() int {
			e, _ := os.ReadDir("/proc/self/fd")
			return len(e)
		}
		openDevice(t, Config{}).Close() // the netpoller's own descriptors exist from here on
		beforeFDs := fds()
		for range 20 {
			d := openDevice(t, cfg)
			s := openStream(t, d)
			must(t, s.Work(time.Hour))
			_, err := s.Gate()
			must(t, err)
			must(t, d.Retain())
			must(t, d.Close())
			must(t, d.Close())
			if d.Counters().Retained != 1 {
				t.Error("references")
			}
			must(t, d.Release())
			if done, err := s.Query(); done || !errors.Is(err, event.Closed) {
				t.Error("a stream of a device that is gone:", done, err)
			}
			if err := s.Work(0); !errors.Is(err, event.Closed) {
				t.Error(err)
			}
		}
		if n := fds(); n > beforeFDs {
			t.Errorf("%d descriptors, %d before", n, beforeFDs)
		}
		if n := tasks(); n > 40 {
			t.Errorf("%d threads", n)
		}
	})
}
