package wire

import (
	"strings"
	"testing"

	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/gpu"
	"github.com/gpuline/gpuline/poller"
)

func TestRequest(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
	for _, c := range []struct {
		in, body string
		n        int
		err      bool
	}{
		{in: ""},
		{in: "POST / HT"},
		{in: head + "ab"},
		{in: head + "abc", body: "abc", n: len(head) + 3},
		{in: head + "abcPOST", body: "abc", n: len(head) + 3},
		{in: "GET / HTTP/1.1\r\nHost: x\r\n\r\n", n: 27},
		{in: "nonsense\r\n\r\n", err: true},
		{in: "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", err: true},
		{in: "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", err: true},
		{in: strings.Repeat("x", maxHeader+1), err: true},
	} {
		body, n, err := request([]byte(c.in))
		if string(body) != c.body || n != c.n || (err != nil) != c.err {
			t.Errorf("%.40q: body %q, length %d, error %v", c.in, body, n, err)
		}
	}
}

type sink chan error

func (s sink) Complete(_ *poller.Wait, err error) { s <- err }
func (s sink) Flush()                             {}

// Requests that come in pieces and ahead of time are answered one by one.
func TestExchange(t *testing.T) {
	dev, err := gpu.Open(t.Context(), gpu.WithDriver("soft"))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	mul, err := matvec.New(dev, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mul.Close()
	x := &Exchange{}
	done := make(sink, 1)
	x.Wait.Sink = done
	vector := strings.Repeat("\x01", matvec.VectorBytes)
	good := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 256\r\n\r\n" + vector
	bad := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
	expect := func(got Step, want Step) {
		t.Helper()
		if got != want {
			t.Fatalf("step %d, want %d", got, want)
		}
	}
	for _, b := range []byte(good[:len(good)-1]) {
		x.Feed([]byte{b})
		expect(x.Next(mul), Receive)
	}
	x.Feed([]byte(good[len(good)-1:] + bad + "nonsense\r\n\r\n"))
	next := x.Next(mul)
	if next == Device {
		expect(x.Next(mul), Device)
		next = x.Done(<-done)
	}
	expect(next, Send)
	if !strings.HasPrefix(string(x.Out), "HTTP/1.1 200 OK\r\nContent-Length: 256\r\n\r\n") {
		t.Errorf("response %q", x.Out)
	}
	expect(x.Next(mul), Send)
	if !strings.HasPrefix(string(x.Out), "HTTP/1.1 400 Bad Request\r\n") {
		t.Errorf("response %q", x.Out)
	}
	expect(x.Next(mul), Drop)
	if x.Feed(make([]byte, maxAhead)) {
		t.Error("a client may be ahead without end")
	}
}
