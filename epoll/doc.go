// Package epoll makes device completions look like any other ready file
// descriptor: for a loop of one's own on epoll, poll, select or kqueue, beside
// sockets and in one thread, and for Go's netpoller.
//
// A Group is a queue of completions with one descriptor for all of them. It is a
// poller.Sink: waits that name it as their Sink end in its queue, and the
// descriptor becomes readable.
//
//	g, err := epoll.NewGroup()
//	…add g.Fd() to the loop for reading (level- or edge-triggered)…
//	wait := &poller.Wait{Sink: g, User: 42}
//	registered, err := watch.Add(wait, seq)
//
// When the loop says that g.Fd() is readable, take what there is and arm again:
//
//	for {
//		for n := g.Drain(buf); n > 0; n = g.Drain(buf) {
//			…handle buf[:n]…
//		}
//		if !g.Arm() {
//			break // nothing left; the descriptor will be readable for the next one
//		}
//	}
//
// Arm reports busy (true) when completions came in before the descriptor was armed;
// then nothing will be signalled for them and the loop has to go round again. The
// descriptor is written once per arming and not once per completion, so a busy
// consumer costs the waiter no system call at all.
//
// # Who owns the descriptor
//
// The Group does. Fd may be added to loops, polled and duplicated. It must not be
// read (Arm does that), written or closed; take it out of your loops, then call
// Close. The Group signals and clears through descriptors of its own that name the
// same open file, so a loop that closes Fd by mistake loses its wake-ups, but
// neither Group nor Close then touches whatever reuses the number. File returns a
// duplicate that belongs to the caller, for libraries that insist on closing.
//
// On Linux the descriptor is an eventfd, on other Unix systems the read end of a
// pipe, which kqueue, poll and select take alike. Elsewhere NewGroup returns
// event.NotSupported.
package epoll
