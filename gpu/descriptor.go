package gpu

import (
	"github.com/gpuline/gpuline/line"
)

// Descriptor names the word that the device stores seq into, for code that looks
// at the word itself, such as the tasks of package fill. From the call until seq
// is reached, the health tick looks after the stream as it does for any wait.
//
// A reached word is success only where the driver says so: ask Err, or Wait,
// which then costs no more than that. The word must not be looked at any more
// once the stream or its device is closed.
//
// Errors: event.NotMarked for a number that was never marked, and the sticky error
// of a stream that has failed or was closed. Descriptor does not block and may be
// called from many goroutines.
func (s *Stream) Descriptor(seq uint64) (line.Descriptor, error) {
	if err := s.check(seq); err != nil {
		return line.Descriptor{}, err
	}
	if !s.gate.enter() {
		return line.Descriptor{}, s.closedErr()
	}
	defer s.gate.leave()
	if err := s.watch.Err(); err != nil {
		return line.Descriptor{}, err
	}
	for asked := s.asked.Load(); line.Before(asked, seq); asked = s.asked.Load() {
		if s.asked.CompareAndSwap(asked, seq) {
			break
		}
	}
	if !s.word.Reached(seq) {
		s.d.health.wake()
	}
	slot, err := line.NewSlot(s.slot % line.Words)
	return line.Descriptor{Line: s.page.line(s.slot), Slot: slot, Target: seq}, err
}

// lookedAt reports whether a number whose descriptor was asked for has not been
// reached yet.
func (s *Stream) lookedAt() bool {
	asked := s.asked.Load()
	if asked == 0 || !s.gate.enter() {
		return false
	}
	defer s.gate.leave()
	return !s.word.Reached(asked)
}

// line returns the line of word i.
func (p *wordPage) line(i int) *line.Line {
	if p.mapped != nil {
		return &p.mapped.lines[i/line.Words]
	}
	return &p.plain.Lines[i/line.Words]
}
