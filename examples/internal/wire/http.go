// Package wire is what the servers without net/http share: requests out of a
// buffer, the device work for them, responses into a buffer, and sockets.
package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"

	"github.com/gpuline/gpuline/examples/internal/matvec"
)

const (
	maxHeader = 16 << 10
	maxBody   = matvec.MaxBatch * matvec.VectorBytes
	maxAhead  = 64 << 10 // what a client may send before its requests are taken
)

var errRequest = errors.New("not a request that is served here")

// request returns the body of the first request in b and its whole length, 0 when
// it is not complete.
func request(b []byte) (body []byte, n int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) > maxHeader {
			err = errRequest
		}
		return nil, 0, err
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b[:end+4])))
	if err != nil {
		return nil, 0, err
	}
	if r.ContentLength < 0 || r.ContentLength > maxBody {
		return nil, 0, errRequest
	}
	n = end + 4 + int(r.ContentLength)
	if len(b) < n {
		return nil, 0, nil
	}
	return b[end+4 : n], n, nil
}

// response appends a response to dst.
func response(dst []byte, status int, body []byte) []byte {
	dst = fmt.Appendf(dst, "HTTP/1.1 %d %s\r\nContent-Length: %d\r\n\r\n", status, http.StatusText(status), len(body))
	return append(dst, body...)
}
