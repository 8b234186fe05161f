package soft

import (
	"strconv"
	"time"

	"github.com/gpuline/gpuline/event"
)

// DropStores makes the next n stores queued on the stream never land, although
// the stream goes on; n < 0 means all, 0 ends it.
func (s *Stream) DropStores(n int) {
	if s == nil {
		return
	}
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	s.q.drop = max(n, -1)
}

// DelayStores makes stores queued from now on land d after their turn, while the
// status says done at their turn. 0 ends it.
func (s *Stream) DelayStores(d time.Duration) {
	if s == nil {
		return
	}
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	s.q.delay = d
}

// HoldStores keeps stores queued from now on back when their turn has come, until
// ReleaseStores: so stores of several streams land in any order the caller likes.
func (s *Stream) HoldStores() {
	if s == nil {
		return
	}
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	s.q.hold = true
}

// ReleaseStores ends HoldStores and lets what it kept back land, in order.
func (s *Stream) ReleaseStores() {
	if s == nil {
		return
	}
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	s.q.hold = false
	if !s.q.gone {
		s.q.land()
	}
}

// Graph is what a capture recorded.
type Graph struct {
	items []item
}

// BeginCapture puts the stream into capture mode: what is queued is recorded and
// does not happen.
func (s *Stream) BeginCapture() error {
	if s == nil {
		return errNilStream
	}
	if s.closed.Load() {
		return errStreamClosed
	}
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	if q.capture != nil {
		return event.New(event.InvalidArgument, "begin of a capture", "the stream is capturing").WithStatus(statusInvalidValue)
	}
	q.capture, q.invalid = &Graph{}, false
	return nil
}

// EndCapture ends capture mode and returns what was recorded. A query or sync of
// the stream during the capture has spoiled it: event.Backend with status 901.
func (s *Stream) EndCapture() (*Graph, error) {
	if s == nil {
		return nil, errNilStream
	}
	if s.closed.Load() {
		return nil, errStreamClosed
	}
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.capture
	q.capture = nil
	if g == nil {
		return nil, event.New(event.InvalidArgument, "end of a capture", "the stream is not capturing").WithStatus(statusInvalidValue)
	}
	if q.invalid {
		return nil, event.New(event.Backend, "end of a capture that a query or sync spoiled", strconv.Itoa(statusCaptureInvalidated)).WithStatus(statusCaptureInvalidated)
	}
	return g, nil
}

// Launch queues on s what the capture recorded. It may be called many times; a
// recorded store stores the same number each time.
func (g *Graph) Launch(s *Stream) error {
	if g == nil {
		return event.New(event.InvalidArgument, "launch", "nil graph")
	}
	for _, it := range g.items {
		if err := s.add(it); err != nil {
			return err
		}
	}
	return nil
}

// Capturing implements driver.Stream. A spoiled capture still counts.
func (s *Stream) Capturing() (bool, error) {
	if s == nil {
		return false, errNilStream
	}
	if s.closed.Load() {
		return false, errStreamClosed
	}
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	if s.q.closed || s.q.gone {
		return false, errStreamClosed
	}
	return s.q.capture != nil, nil
}

// spoilCapture refuses what must not happen during a capture; mu is held.
func (q *queue) spoilCapture(what string) error {
	if q.capture == nil {
		return nil
	}
	q.invalid = true
	return event.New(event.Backend, what+" of a stream that is capturing", strconv.Itoa(statusCaptureUnsupported)).WithStatus(statusCaptureUnsupported)
}
