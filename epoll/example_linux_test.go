package epoll_test

import (
	"context"
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/line"
	"github.com/gpuline/gpuline/poller"
)

// A loop of one's own: sockets would be in it beside the group's descriptor.
func Example() {
	m, err := line.Map(1, false)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	word := &m.Lines[0][0] // a device stores its progress here
	waiter := poller.NewWaiter(poller.Config{})
	defer waiter.Close()
	watch, err := waiter.Watch(word, poller.WatchOptions{})
	if err != nil {
		log.Fatal(err)
	}

	group, err := epoll.NewGroup()
	if err != nil {
		log.Fatal(err)
	}
	defer group.Close()
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		log.Fatal(err)
	}
	defer unix.Close(ep)
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(group.Fd())}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, group.Fd(), &event); err != nil {
		log.Fatal(err)
	}

	pending, err := watch.Add(&poller.Wait{Sink: group, User: 42}, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pending:", pending)
	go word.Store(1)

	events := make([]unix.EpollEvent, 8)
	buf := make([]epoll.Completion, 8)
	for done := false; !done; {
		n, err := unix.EpollWait(ep, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range events[:n] {
			if int(e.Fd) != group.Fd() {
				continue // a socket
			}
			for {
				for n := group.Drain(buf); n > 0; n = group.Drain(buf) {
					for _, c := range buf[:n] {
						fmt.Println("completed:", c.Wait.User, c.Err)
						done = true
					}
				}
				if !group.Arm() {
					break
				}
			}
		}
	}
	// Output:
	// pending: true
	// completed: 42 <nil>
}

// Go's netpoller instead of a loop of one's own.
func ExampleGroup_Wait() {
	group, err := epoll.NewGroup()
	if err != nil {
		log.Fatal(err)
	}
	defer group.Close()
	go func() { // what a Waiter does
		group.Complete(&poller.Wait{User: 7}, nil)
		group.Flush()
	}()
	buf := make([]epoll.Completion, 8)
	n, err := group.Wait(context.Background(), buf)
	fmt.Println(n, err, buf[0].Wait.User)
	// Output: 1 <nil> 7
}
