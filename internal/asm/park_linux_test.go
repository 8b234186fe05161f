package asm

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// page is a page of shared memory that can be mapped any number of times.
type page struct {
	t  *testing.T
	fd int
}

func newPage(t *testing.T) page {
	fd, err := unix.MemfdCreate("line", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(os.NewSyscallError("memfd_create", err))
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(os.Getpagesize())); err != nil {
		t.Fatal(os.NewSyscallError("ftruncate", err))
	}
	return page{t, fd}
}

// view maps the page once more. Nothing has used the address yet.
func (p page) view() *[8]atomic.Uint64 {
	b, err := unix.Mmap(p.fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		p.t.Fatal(os.NewSyscallError("mmap", err))
	}
	p.t.Cleanup(func() { _ = unix.Munmap(b) })
	return (*[8]atomic.Uint64)(unsafe.Pointer(&b[0])) // the page stays until the test ends
}

// A store to any word of the line ends the wait: this fails with an instruction
// that returns at once, and (except loosely, see there) with one that only its
// timer ends.
//
// Both sides use a new mapping of the page for each store, as a device and a
// process have their own. It matters to Bochs (3.0), where arming the monitor and
// watching stores look only at what misses the emulated TLB.
func TestParkStoreWakes(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	eachPark(t, func(t *testing.T, p Park) {
		const stores = 50
		full := measured().ticks(p.Slice())
		words := max(1, min(8, Granule()/8)) // that one monitor watches
		shared := newPage(t)
		var here, there [stores]*[8]atomic.Uint64
		for i := range here {
			here[i], there[i] = shared.view(), shared.view()
		}
		var ready atomic.Uint64
		done := make(chan struct{})
		go func() { // the device
			defer close(done)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i, line := range there {
				v := uint64(i + 1)
				for ready.Load() != v {
					Pause()
				}
				for start := Ticks(); Ticks()-start < full/4; {
				}
				line[i%words].Store(v)
			}
		}()
		waits, woken := 0, 0
		var seen [8]uint64
		for i, line := range here {
			v, word := uint64(i+1), &line[i%words]
			ready.Store(v)
			took := p.once((*uint64)(unsafe.Pointer(line)), &seen[0], words)
			if waits++; word.Load() == v && took < full*3/4 {
				woken++
			}
			for word.Load() != v {
				p.once((*uint64)(unsafe.Pointer(line)), &seen[0], words)
				waits++
			}
			seen[i%words] = v
		}
		<-done
		t.Logf("%d stores to %d words in %d waits, %d of them ended by the store", stores, words, waits, woken)
		// An interrupt or a busy machine may end or stretch some.
		if waits > stores*10 {
			t.Errorf("%d waits for %d stores", waits, stores)
		}
		if woken < stores/2 && !loosely {
			t.Errorf("only %d of %d stores ended the wait for them", woken, stores)
		}
	})
}
