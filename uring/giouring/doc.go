// Package giouringhost delivers device completions to the ring of a program that
// uses github.com/pawelgaczynski/giouring: one thread, one ring, one loop over its
// completion entries for the network and the GPU alike.
//
//	host, err := giouringhost.NewHost(ring, uring.HostConfig{})
//	…
//	pending, err := stream.Notify(host.NewWait(42), seq)
//	…
//	for {
//		if _, err := ring.Submit(); err != nil { … }
//		cqe, err := ring.WaitCQE()
//		…
//		ours, err := host.Handle(cqe, func(user uint64, err error) {
//			…the device reached the mark of wait 42, or err says why not…
//		})
//		if !ours {
//			…an entry of the program's own…
//		}
//		ring.CQESeen(cqe)
//	}
//
// The loop is the same where the kernel has no messages between rings: Handle then
// takes the completions from an eventfd that the ring polls.
//
// # Building
//
// The package is empty unless it is built with the tag giouring, on Linux. It is a
// module of its own, so that nobody gets giouring who did not ask for it. A program
// that uses it must be built with a flag for the linker, too:
//
//	go build -tags giouring -ldflags=-checklinkname=0
//
// Giouring takes syscall.munmap by go:linkname, which the linker refuses since
// Go 1.23 ("invalid reference to syscall.munmap") unless it is told not to check.
// That holds for every program that imports giouring, with this package or without.
// The flag counts for go build, go test and go run alike, not for go vet, which does
// not link. A program without giouring keeps to package uring: uring.NewHost needs
// nothing but the descriptor of a ring, whoever made it.
package giouringhost
