package event

import "os"

var errClosed = os.ErrClosed
