package fill_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/soft"
)

func openSoft(t *testing.T, cfg soft.Config) *gpu.Device {
	t.Helper()
	d, err := gpu.Open(context.Background(), gpu.Using(soft.New(cfg)), gpu.WithHealth(2*ms, 200*ms, 30*ms))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && d.Err() == nil {
			t.Error(err)
		}
	})
	return d
}

func newStream(t *testing.T, d *gpu.Device) (*gpu.Stream, *soft.Stream) {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	device, ok := soft.Of(s)
	if !ok {
		t.Fatal("not a soft stream")
	}
	return s, device
}

// Tasks wait for the streams of a device under every executor, also where words
// prove nothing and where there are none.
func TestDevice(t *testing.T) {
	for name, cfg := range map[string]soft.Config{
		"words": {}, "unproven": {Unproven: true}, "no words": {Lie: soft.NoStores},
	} {
		for _, e := range []fill.Executor{fill.Naive, fill.GPUReactor, fill.IOUring} {
			t.Run(name+"/"+e.String(), func(t *testing.T) {
				if c, _ := e.Resolve(fill.ProbeCaps(), false); c.Warning != nil {
					t.Skip(c.Warning)
				}
				d := openSoft(t, cfg)
				points := newPoints(t)
				_, err := fill.Run(context.Background(), fill.Options{Executor: e}, func(t2 *fill.Task) error {
					for i := range 4 {
						s, device := newStream(t, d)
						done := 0
						t2.Spawn(func(t2 *fill.Task) error {
							for round := range 5 {
								if err := device.Work(time.Duration(i*50) * us); err != nil {
									return err
								}
								if err := device.Run(func() error { done++; return nil }); err != nil {
									return err
								}
								seq, err := s.Mark()
								if err != nil {
									return err
								}
								if err := t2.WaitPoint(points.Point(s.String()), s, seq); err != nil {
									return err
								}
								if done != round+1 {
									return errors.New("the wait ended before the work")
								}
							}
							return nil
						})
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A fault of the device ends a task's wait although the word never moves.
func TestDeviceFaults(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  soft.Config
		do   func(*soft.Stream, *soft.Device) error
		want event.Code
	}{
		"lost": {soft.Config{}, func(s *soft.Stream, d *soft.Device) error {
			_, err := s.Gate()
			time.AfterFunc(5*ms, func() { d.Lose("pulled out") })
			return err
		}, event.DeviceLost},
		"failing work": {soft.Config{}, func(s *soft.Stream, _ *soft.Device) error {
			return s.Fail(event.New(event.Backend, "kernel", "illegal address").WithStatus(soft.StatusIllegalAddress))
		}, event.DeviceLost},
		"a store behind failing work": {soft.Config{Unproven: true, StoreAfterFault: true}, func(s *soft.Stream, _ *soft.Device) error {
			return s.Fail(event.New(event.Backend, "kernel", "illegal address").WithStatus(soft.StatusIllegalAddress))
		}, event.DeviceLost},
		"store lost": {soft.Config{}, func(s *soft.Stream, _ *soft.Device) error {
			s.DropStores(-1)
			return nil
		}, event.StoreLost},
	} {
		t.Run(name, func(t *testing.T) {
			d := openSoft(t, c.cfg)
			s, device := newStream(t, d)
			sd, _ := soft.DeviceOf(d)
			_, err := fill.Run(context.Background(), fill.Options{}, func(t *fill.Task) error {
				// The mark is queued before anything goes wrong.
				open, err := device.Gate()
				if err != nil {
					return err
				}
				if err := c.do(device, sd); err != nil {
					return err
				}
				seq, err := s.Mark()
				if err != nil {
					return err
				}
				open()
				return t.Wait(s, seq)
			})
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

// A slip elsewhere on the stream, a Done for a number that was never marked, does
// not end a wait for one that was.
func TestWaitBesideASlip(t *testing.T) {
	d, err := gpu.Open(t.Context(), gpu.WithDriver("soft"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	ss, _ := soft.Of(s)
	if err := ss.Work(30 * time.Millisecond); err != nil { // beyond the first look at the stream's health
		t.Fatal(err)
	}
	seq, err := s.Mark()
	if err != nil {
		t.Fatal(err)
	}
	<-gpu.Done(s, seq+1)
	if s.Err() == nil {
		t.Error("the slip is not reported")
	}
	if _, err := fill.Run(t.Context(), fill.Options{}, func(t *fill.Task) error { return t.Wait(s, seq) }); err != nil {
		t.Error(err)
	}
}
