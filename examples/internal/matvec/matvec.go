// Package matvec is the device work of the example servers: batches of
// matrix-vector products in 32-bit integers, so that every answer can be checked
// exactly.
package matvec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/gpu/driver"
)

const (
	// Dim is the length of a vector, and the matrix's number of rows and columns.
	Dim = 64
	// MaxBatch is the largest number of vectors in one request.
	MaxBatch = 8
	// VectorBytes is the size of a vector on the wire: little-endian int32.
	VectorBytes = Dim * 4
)

// Matrix returns the matrix that all parties multiply by, row-major.
func Matrix() []int32 {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := make([]int32, Dim*Dim)
	for i := range m {
		m[i] = rnd.Int32N(201) - 100
	}
	return m
}

// Multiply is the reference: y = m x for each vector in the little-endian batch
// x. len(y) = len(x), a multiple of VectorBytes.
func Multiply(m []int32, y, x []byte) {
	var v [Dim]int32
	for len(x) >= VectorBytes {
		for i := range v {
			v[i] = int32(binary.LittleEndian.Uint32(x[4*i:]))
		}
		for r := range Dim {
			sum := int32(0)
			for c, a := range m[r*Dim : (r+1)*Dim] {
				sum += a * v[c]
			}
			binary.LittleEndian.PutUint32(y[4*r:], uint32(sum))
		}
		x, y = x[VectorBytes:], y[VectorBytes:]
	}
}

// kernel launches the product on a stream: n vectors from x to y, both in device
// memory.
type kernel interface {
	launch(s *gpu.Stream, x, y driver.Mem, n int) error
	close() error
}

// Multiplier spreads batches over the streams of one device. Its methods may be
// called from many goroutines.
type Multiplier struct {
	dev   *gpu.Device
	k     kernel
	lanes []*lane
	next  atomic.Uint64
}

// lane is one stream with its device buffers. The three steps of a batch must
// not be mixed with another's, hence the lock; it is held while work is queued,
// not while it runs.
type lane struct {
	mu   sync.Mutex
	s    *gpu.Stream
	x, y driver.Mem
}

// New makes a Multiplier with the given number of streams. work is the extra
// time that each batch keeps the soft device busy; other devices take the time
// they take.
func New(dev *gpu.Device, streams int, work time.Duration) (*Multiplier, error) {
	if streams < 1 {
		return nil, fmt.Errorf("matvec: %d streams, want at least 1", streams)
	}
	k, err := newKernel(dev, work)
	if err != nil {
		return nil, err
	}
	m := &Multiplier{dev: dev, k: k}
	for range streams {
		l := &lane{}
		if l.s, err = dev.NewStream(); err == nil {
			m.lanes = append(m.lanes, l)
			if l.x, err = dev.Alloc(MaxBatch * VectorBytes); err == nil {
				l.y, err = dev.Alloc(MaxBatch * VectorBytes)
			}
		}
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// ErrBatch is Submit's error when the batch, and not the device, is to blame.
var ErrBatch = errors.New("matvec: not a batch")

// Submit queues the product of the batch in x: whole vectors, 1..MaxBatch of
// them. The answer is in y (as long as x) once the returned point is reached; x
// and y belong to the device until then.
func (m *Multiplier) Submit(y, x []byte) (gpu.Point, error) {
	n := len(x) / VectorBytes
	if n < 1 || n > MaxBatch || len(x)%VectorBytes != 0 || len(y) != len(x) {
		return gpu.Point{}, fmt.Errorf("%w: %d bytes, want 1 to %d vectors of %d", ErrBatch, len(x), MaxBatch, VectorBytes)
	}
	l := m.lanes[m.next.Add(1)%uint64(len(m.lanes))]
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.s.CopyToDevice(l.x, x); err != nil {
		return gpu.Point{}, err
	}
	if err := m.k.launch(l.s, l.x, l.y, n); err != nil {
		return gpu.Point{}, err
	}
	seq, err := l.s.CopyToHost(y, l.y)
	return gpu.Point{Stream: l.s, Seq: seq}, err
}

// Close waits for the queued batches and frees everything.
func (m *Multiplier) Close() error {
	var errs []error
	for _, l := range m.lanes {
		if seq := l.s.Marked(); seq > 0 {
			errs = append(errs, l.s.Wait(context.Background(), seq))
		}
		for _, b := range []driver.Mem{l.x, l.y} {
			if b != 0 {
				errs = append(errs, m.dev.Free(b))
			}
		}
		errs = append(errs, l.s.Close())
	}
	return errors.Join(append(errs, m.k.close())...)
}
