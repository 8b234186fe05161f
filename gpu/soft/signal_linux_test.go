package soft

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSignal(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config) {
		d := openDevice(t, cfg)
		s := openStream(t, d)
		w := openWord(t, d)
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		must(t, err)
		defer unix.Close(fd)
		must(t, s.Work(time.Millisecond))
		must(t, s.Store(w.host, w.dev, 1))
		must(t, s.Signal(fd))
		must(t, s.Signal(fd))
		must(t, s.Sync())
		var buf [8]byte
		_, err = unix.Read(fd, buf[:])
		must(t, err)
		if buf[0] != 2 || !w.Reached(1) {
			t.Errorf("eventfd says %v, word %d: want 2 signals behind the store", buf, w.Load())
		}
	})
}
