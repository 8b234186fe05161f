package gpu

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuline/gpuline/epoll"
	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/uring"
)

// Host is the way in which completions reach a program. A program that is written
// for several declares the one that it wants, at start, and Resolve says which one
// runs.
type Host uint8

const (
	// ChannelHost ends waits on Go channels (Done, poller.NewWait), for select. It
	// works everywhere.
	ChannelHost Host = iota
	// EpollHost puts them behind one pollable descriptor (epoll.Group).
	EpollHost
	// IOUringHost posts them as entries on the program's own ring (uring.Host).
	IOUringHost
	// IOUringEventfdHost is a uring.Host of a kernel that has no messages between
	// rings: the ring polls the descriptor of a group.
	IOUringEventfdHost
)

// hosts is the declared chain as data: what a host needs and which one runs instead.
var hosts = [...]struct {
	name     string
	missing  func(HostCaps) string
	fallback Host
}{
	ChannelHost:        {"channel", func(HostCaps) string { return "" }, ChannelHost},
	EpollHost:          {"epoll", func(c HostCaps) string { return c.NoDescriptor }, ChannelHost},
	IOUringHost:        {"io-uring", func(c HostCaps) string { return cmp.Or(c.NoRing, c.NoMessage) }, IOUringEventfdHost},
	IOUringEventfdHost: {"io-uring-eventfd", func(c HostCaps) string { return cmp.Or(c.NoRing, c.NoDescriptor) }, EpollHost},
}

// String returns "channel", "epoll", "io-uring" or "io-uring-eventfd", or "Host(n)".
func (h Host) String() string {
	if int(h) >= len(hosts) {
		return "Host(" + strconv.Itoa(int(h)) + ")"
	}
	return hosts[h].name
}

// ParseHost returns the host that text names. Any other text is
// event.InvalidArgument, with the accepted names.
func ParseHost(text string) (Host, error) {
	var names []string
	for h := range hosts {
		if hosts[h].name == text {
			return Host(h), nil
		}
		names = append(names, hosts[h].name)
	}
	return 0, event.New(event.InvalidArgument, "host "+strconv.Quote(text), "want one of "+strings.Join(names, ", "))
}

// HostCaps says what there is to run a host with: each field is the reason why
// something is missing, empty where it is there. Channels are always there.
type HostCaps struct {
	// NoDescriptor: the system has no descriptor for completions to be polled.
	NoDescriptor string
	// NoRing: this process can't use io_uring.
	NoRing string
	// NoMessage: the kernel has no messages between rings.
	NoMessage string
}

// ProbeHosts finds out what this process has by trying it, and leaves nothing open.
// What could not be told counts as missing, and the reason says so. Any goroutine
// may call it.
func ProbeHosts() HostCaps {
	var c HostCaps
	if g, err := epoll.NewGroup(); err != nil {
		c.NoDescriptor = err.Error()
	} else {
		_ = g.Close()
	}
	r := uring.Probe()
	if r.Ring.Answer != uring.Works {
		c.NoRing = r.Ring.String()
	}
	if r.Message.Answer != uring.Works {
		c.NoMessage = r.Message.String()
	}
	return c
}

// HostChoice is a host as it was resolved. The zero value is ChannelHost, requested
// and running.
type HostChoice struct {
	Requested, Running Host
	// Warning is an event.HostFallback when the two differ, else nil.
	Warning error
}

// Label says what runs: its name, and what was asked for when that is another.
func (c HostChoice) Label() string {
	if c.Requested == c.Running {
		return c.Running.String()
	}
	return c.Running.String() + " (fallback from " + c.Requested.String() + ")"
}

// Resolve walks the declared chain, io-uring to io-uring-eventfd to epoll to channel,
// to the first host that caps allow, and says so with a warning. With strict set a
// host that is not allowed is refused instead, with event.HostRefused. Resolve is
// pure: it depends on its arguments alone. ProbeHosts returns the caps of here.
func (h Host) Resolve(caps HostCaps, strict bool) (HostChoice, error) {
	if int(h) >= len(hosts) {
		return HostChoice{}, event.New(event.InvalidArgument, h.String(), "want a host that ParseHost returns")
	}
	c := HostChoice{Requested: h, Running: h}
	var whys []string
	for {
		why := hosts[c.Running].missing(caps)
		if why == "" {
			break
		}
		if strict {
			return HostChoice{}, event.New(event.HostRefused, h.String(), why)
		}
		if !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
		c.Running = hosts[c.Running].fallback
	}
	if whys != nil {
		c.Warning = event.New(event.HostFallback, h.String(), strings.Join(whys, "; "), c.Running.String())
	}
	return c, nil
}
