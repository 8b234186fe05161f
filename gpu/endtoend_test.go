package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/cuda"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/driver/standin"
	"github.com/gpuline/gpuline/gpu/hip"
	"github.com/gpuline/gpuline/gpu/opencl"
	"github.com/gpuline/gpuline/gpu/soft"
)

// drivers are what the end-to-end tests run over.
var drivers = map[string]func(t *testing.T) driver.Driver{
	"opencl": func(t *testing.T) driver.Driver {
		d := opencl.New(opencl.Config{})
		if _, err := d.Devices(); err != nil {
			if strings.Contains(os.Getenv("GPULINE_REQUIRE"), "opencl") {
				t.Fatal(err)
			}
			t.Skip("no OpenCL driver (install pocl-opencl-icd and ocl-icd-libopencl1): ", err)
		}
		return d
	},
	"cuda stand-in":     func(t *testing.T) driver.Driver { return cuda.New(cuda.Config{Library: standin.Build(t, "cuda")}) },
	"soft":              func(t *testing.T) driver.Driver { return soft.New(soft.Config{}) },
	"soft in Go":        func(t *testing.T) driver.Driver { return soft.New(soft.Config{GoEngine: true}) },
	"soft, unproven":    func(t *testing.T) driver.Driver { return soft.New(soft.Config{Unproven: true}) },
	"soft, no stores":   func(t *testing.T) driver.Driver { return soft.New(soft.Config{Lie: soft.NoStores}) },
	"soft, refused 801": func(t *testing.T) driver.Driver { return soft.New(soft.Config{Lie: soft.LieUnsupported}) },
	"hip stand-in":      func(t *testing.T) driver.Driver { return hip.New(hip.Config{Library: standin.Build(t, "hip")}) },
}

// TestEndToEnd moves data through a device on many streams from many goroutines
// and checks it each time a wait says that it is there.
func TestEndToEnd(t *testing.T) {
	for name, mk := range drivers {
		t.Run(name, func(t *testing.T) {
			d, err := gpu.Open(context.Background(), gpu.Using(mk(t)))
			if err != nil {
				t.Fatal(err)
			}
			t.Log(d.Label(), d.Warnings())
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					if err := shuttle(d, g, 40); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			st := d.Stats()
			if st.Waiter.Pending != 0 || st.Streams != 0 {
				t.Errorf("left over: %+v", st)
			}
			if !d.Caps().WordProves && st.Confirms == 0 && st.Queries == 0 {
				t.Error("words prove nothing here, yet no status was asked")
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func shuttle(d *gpu.Device, g, rounds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	const size = 4096
	mem, err := d.Alloc(size)
	if err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(uint64(g), 7))
	for i := range rounds {
		in, out := make([]byte, size), make([]byte, size)
		for j := range in {
			in[j] = byte(rnd.Uint32())
		}
		if _, err := s.CopyToDevice(mem, in); err != nil {
			return err
		}
		if i%4 == 3 {
			if err := s.Fill(mem, byte(i), size/2); err != nil {
				return err
			}
		}
		seq, err := s.CopyToHost(out, mem)
		if err != nil {
			return err
		}
		switch i % 3 {
		case 0:
			err = s.Wait(ctx, seq)
		case 1:
			<-gpu.Done(s, seq)
			err = s.Err()
		case 2:
			_, err = gpu.WaitAny(ctx, gpu.Point{Stream: s, Seq: seq})
		}
		if err != nil {
			return err
		}
		want := bytes.Clone(in)
		if i%4 == 3 {
			copy(want, bytes.Repeat([]byte{byte(i)}, size/2))
		}
		if !bytes.Equal(want, out) {
			return fmt.Errorf("goroutine %d round %d: the data was not there when the wait said so", g, i)
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	return d.Free(mem)
}

// A poisoned OpenCL queue never stores the word although clFinish reports
// success: the health tick must end the wait.
func TestPoisonedQueue(t *testing.T) {
	d, err := gpu.Open(context.Background(), gpu.Using(drivers["opencl"](t)), gpu.WithHealth(5*time.Millisecond, time.Second, 100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	cs, _ := opencl.Of(s)
	open, err := cs.Gate()
	if err != nil {
		t.Fatal(err)
	}
	seq, err := s.Mark()
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- s.Wait(context.Background(), seq) }()
	if err := open(-5); err != nil {
		t.Fatal(err)
	}
	<-gpu.Done(s, seq)
	for _, err := range []error{<-waited, s.Err(), d.Err()} {
		if !errors.Is(err, event.DeviceLost) {
			t.Errorf("got %v", err)
		}
	}
}

// A queue of another binding's context is awaited over that context.
func TestOpenDeviceOverAnotherContext(t *testing.T) {
	drv := drivers["opencl"](t).(*opencl.Driver)
	theirs, err := drv.Open(0) // stands for the other binding
	must(t, err)
	defer theirs.Close()
	queue, err := theirs.NewStream()
	must(t, err)
	defer queue.Close()
	own, err := gpu.Open(context.Background(), gpu.Using(drv))
	must(t, err)
	defer own.Close()
	if _, err := own.Adopt(queue.Handle()); !errors.Is(err, event.ForeignStream) || event.StatusOf(err) != event.StatusForeign {
		t.Errorf("adopted across contexts: %v", err)
	}
	dev, err := drv.OpenQueue(queue.Handle())
	must(t, err)
	over, err := gpu.OpenDevice(context.Background(), dev)
	must(t, err)
	s, err := over.Adopt(queue.Handle())
	must(t, err)
	must(t, s.Wait(context.Background(), markOn(t, s)))
	must(t, over.Close())
	if _, err := gpu.OpenDevice(context.Background(), nil); !errors.Is(err, event.InvalidArgument) {
		t.Error(err)
	}
}
