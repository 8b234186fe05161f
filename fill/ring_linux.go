package fill

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/uring"
)

// ringSleeper waits on a ring of the run's own, which an eventfd can end.
type ringSleeper struct {
	ring *uring.Ring
	stop int
}

func (s *ringSleeper) enter() error {
	ring, err := uring.NewRing(uring.RingConfig{Entries: 4, OwnerThread: true})
	if err != nil {
		return err
	}
	s.ring = ring
	s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		if _, err = ring.Poll(0, s.stop, unix.POLLIN, false); err == nil {
			return nil
		}
		_ = unix.Close(s.stop)
	}
	_ = ring.Close()
	return err
}

func (s *ringSleeper) leave() {
	_ = s.ring.Close() // it has nothing in flight that holds memory
	_ = unix.Close(s.stop)
}

// sleep leaves the completion of the poll in the queue, so that all later sleeps
// end at once.
func (s *ringSleeper) sleep(d time.Duration) {
	if _, err := s.ring.Wait(d); err != nil {
		// Only a kernel out of memory gets here. Not to sleep is safe: the run
		// decides again.
		return
	}
}

func (s *ringSleeper) wake() {
	_, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}
