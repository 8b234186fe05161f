package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/gpuline/gpuline/fill"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/gpu/soft"
	"github.com/gpuline/gpuline/plan"
)

// decoder holds what all runs share.
type decoder struct {
	dev     *gpu.Device
	streams []*gpu.Stream // one per sequence
	rows    driver.Mem    // the logits of all states, on the device
	pieces  []string
	want    []string // the text of each sequence
	tokens  int
}

func newDecoder(ctx context.Context, dev *gpu.Device, sequences, tokens int) (d *decoder, err error) {
	if sequences < 1 || sequences > 256 || tokens < 1 {
		return nil, fmt.Errorf("%d sequences of %d tokens, want 1 to 256 of at least 1", sequences, tokens)
	}
	d = &decoder{dev: dev, pieces: pieces(), tokens: tokens}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	host := rows()
	for seq := range sequences {
		s, err := dev.NewStream()
		if err != nil {
			return d, err
		}
		d.streams = append(d.streams, s)
		d.want = append(d.want, reference(d.pieces, host, seq, tokens))
	}
	if d.rows, err = dev.Alloc(len(host)); err != nil {
		return d, err
	}
	up, err := d.streams[0].CopyToDevice(d.rows, host)
	if err != nil {
		return d, err
	}
	return d, d.streams[0].Wait(ctx, up)
}

func (d *decoder) close() error {
	var errs []error
	for _, s := range d.streams {
		errs = append(errs, s.Wait(context.Background(), s.Marked()), s.Close())
	}
	if d.rows != 0 {
		errs = append(errs, d.dev.Free(d.rows))
	}
	return errors.Join(errs...)
}

// busy keeps the stream busy for a time, on a device that can be told to.
func (d *decoder) busy(s *gpu.Stream, length time.Duration) error {
	if device, ok := soft.Of(s); ok {
		return device.Work(length)
	}
	return nil
}

// meter adds up the time during which at least one sequence waits for the
// device: from its launch until its task is resumed. Its methods are called on
// the run's thread alone.
type meter struct {
	waiting int
	since   time.Duration
	total   time.Duration // at least one waits
	summed  time.Duration // over all sequences
}

// wait is a wait, measured.
func (m *meter) wait(t *fill.Task, f func() error) error {
	begin := t.Now()
	if m.waiting++; m.waiting == 1 {
		m.since = begin
	}
	err := f()
	now := t.Now()
	m.summed += now - begin
	if m.waiting--; m.waiting == 0 {
		m.total += now - m.since
	}
	return err
}

// decode runs all sequences under one executor, checks their text, and reports.
func (d *decoder) decode(ctx context.Context, out io.Writer, opt fill.Options) error {
	p, err := plan.Parse("poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8")
	if err != nil {
		return err
	}
	prediction, _ := p.Prediction()
	points := plan.NewEstimator[string](prediction)
	var m meter
	texts := make([]*text, len(d.streams))
	stats, err := fill.Run(ctx, opt, func(t *fill.Task) error {
		for seq := range d.streams {
			t.Spawn(func(t *fill.Task) error {
				texts[seq] = &text{pieces: d.pieces}
				return d.sequence(t, seq, points, &m, texts[seq])
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	length := 0
	for seq, text := range texts {
		if string(text.shown) != d.want[seq] {
			return fmt.Errorf("sequence %d is %q, want %q", seq, text.shown, d.want[seq])
		}
		length += len(text.shown)
	}
	work := stats.Total - stats.Idle
	fmt.Fprintf(out, "   %d tokens, %d bytes of text, all as expected\n", len(texts)*d.tokens, length)
	fmt.Fprintf(out, "   %.1f ms in all: %.1f working, %.1f idle; the sequences waited %.1f ms for the device\n",
		millis(stats.Total), millis(work), millis(stats.Idle), millis(m.summed))
	fmt.Fprintf(out, "   of the %.1f ms in which one of them at least was waiting, %.0f%% were filled with work\n",
		millis(m.total), 100*(1-float64(stats.Idle)/float64(max(m.total, 1))))
	fmt.Fprintf(out, "   %d polls, %d woken by a completion, %d parks, %d sleeps, longest poll %v\n",
		stats.Polls, stats.Woke, stats.Parked, stats.Slept, stats.LongestPoll)
	if opt.Executor == fill.Naive {
		return nil // its waits are the streams' own
	}
	return fill.WritePoints(out, points)
}

// sequence is one sequence from its first token to its last: straight-line code.
func (d *decoder) sequence(t *fill.Task, seq int, points *plan.Estimator[string], m *meter, out *text) error {
	s := d.streams[seq]
	lengths := rand.New(rand.NewPCG(uint64(seq), 4))
	sampler := newSampler(uint64(seq))
	row := make([]byte, rowBytes)
	token := seq // the prompt
	for step := range d.tokens {
		point, length := points.Point(fmt.Sprint("decode ", seq)), time.Duration(400+200*seq+lengths.IntN(200))*time.Microsecond
		if step == 0 {
			point, length = points.Point("prefill"), time.Duration(3000+500*seq)*time.Microsecond
		}
		if err := d.busy(s, length); err != nil {
			return err
		}
		ready, err := s.CopyToHost(row, d.rows+driver.Mem(state(token)*rowBytes))
		if err != nil {
			return err
		}
		if err := m.wait(t, func() error { return t.WaitPoint(point, s, ready) }); err != nil {
			return err
		}
		sampler.decode(row)
		t.Yield() // to whatever has completed meanwhile
		token = sampler.sample()
		t.Yield()
		out.add(token)
	}
	return nil
}

// millis is d in milliseconds.
func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }
