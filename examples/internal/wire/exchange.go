package wire

import (
	"bytes"
	"errors"
	"net/http"

	"github.com/gpuline/gpuline/examples/internal/matvec"
	"github.com/gpuline/gpuline/poller"
)

// Exchange is the requests of one connection, one after the other.
type Exchange struct {
	// Wait ends when the device is done; its Sink, Data and User are the server's.
	Wait poller.Wait
	// Out is the response to send.
	Out []byte

	in   []byte
	y    []byte
	busy bool
}

// Step is what a connection needs next.
type Step int

const (
	// Receive: more bytes from the client.
	Receive Step = iota
	// Device: the end of Wait.
	Device
	// Send: Out has to go to the client.
	Send
	// Drop: the client sent what is no request.
	Drop
)

// Feed adds what was received. It reports false when the client is too far ahead.
func (x *Exchange) Feed(b []byte) bool {
	x.in = append(x.in, b...)
	return len(x.in) <= maxAhead
}

// Next starts the first request when it is complete and Out has been sent.
func (x *Exchange) Next(mul *matvec.Multiplier) Step {
	if x.busy {
		return Device
	}
	body, n, err := request(x.in)
	switch {
	case err != nil:
		return Drop
	case n == 0:
		return Receive
	}
	in := bytes.Clone(body) // the device's until it is done
	x.in = append(x.in[:0], x.in[n:]...)
	x.y = make([]byte, len(in))
	p, err := mul.Submit(x.y, in)
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, matvec.ErrBatch) {
			status = http.StatusBadRequest
		}
		return x.answer(status, []byte(err.Error()))
	}
	x.Wait.Look = p.Stream.Predict()
	pending, err := p.Stream.Notify(&x.Wait, p.Seq)
	if pending {
		x.busy = true
		return Device
	}
	return x.Done(err) // reached by now, or refused
}

// Done makes the response once Wait has ended with err.
func (x *Exchange) Done(err error) Step {
	x.busy = false
	if err != nil {
		return x.answer(http.StatusInternalServerError, []byte(err.Error()))
	}
	return x.answer(http.StatusOK, x.y)
}

// Busy reports whether the device works for the connection.
func (x *Exchange) Busy() bool { return x.busy }

func (x *Exchange) answer(status int, body []byte) Step {
	x.Out = response(x.Out[:0], status, body)
	return Send
}
