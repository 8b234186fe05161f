package poller

// Chan is the channel host: it completes a Wait by sending the error (nil for
// success) on the chan error in the Wait's Data. The channel needs room for one
// value and must be empty when the Wait is registered; a value that finds no
// room is dropped. The zero value is ready to use.
type Chan struct{}

// Complete implements Sink.
func (Chan) Complete(wt *Wait, err error) {
	if c, ok := wt.Data.(chan error); ok {
		select {
		case c <- err:
		default:
		}
	}
}

// Flush implements Sink; there is nothing to do.
func (Chan) Flush() {}

// NewWait returns a Wait that completes on the returned channel, and that can be
// registered again each time its value has been received.
func NewWait() (*Wait, <-chan error) {
	c := make(chan error, 1)
	return &Wait{Sink: Chan{}, Data: c}, c
}
