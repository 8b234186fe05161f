package drive

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuline/gpuline/examples/internal/matvec"
)

// fake multiplies without the device, and does something more with each request.
type fake struct {
	Count
	http.Server
	also func(y []byte)
	shut bool // connections are counted when they close
}

func (f *fake) Label() string { return "fake" }

func (f *fake) Stop() { _ = f.Close() }

func (f *fake) Serve(url chan<- string) error {
	m := matvec.Matrix()
	f.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, _ := io.ReadAll(r.Body)
		y := make([]byte, len(x))
		matvec.Multiply(m, y, x)
		f.also(y)
		_, _ = w.Write(y)
	})
	f.ConnState = func(_ net.Conn, state http.ConnState) {
		switch {
		case state == http.StateNew:
			f.Opened()
		case state == http.StateClosed && f.shut:
			f.Closed()
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url <- "http://" + ln.Addr().String() + "/"
	if err := f.Server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Run finds what a server does wrong or leaves behind.
func TestRun(t *testing.T) {
	var mu sync.Mutex
	var files []*os.File
	end := make(chan struct{})
	t.Cleanup(func() {
		close(end)
		for _, f := range files {
			_ = f.Close()
		}
	})
	nothing := func([]byte) {}
	for _, c := range []struct {
		name string
		also func(y []byte)
		open bool
		want string
	}{
		{name: "nothing", also: nothing},
		{name: "descriptor", want: "left behind", also: func([]byte) {
			mu.Lock() // a connection may be a new one while the last answer of the old is written
			defer mu.Unlock()
			if f, err := os.Open("."); err == nil && len(files) < 100 {
				files = append(files, f)
			}
		}},
		{name: "goroutine", want: "left behind", also: func([]byte) { go func() { <-end }() }},
		{name: "connection", want: "left behind", also: nothing, open: true},
		{name: "answer", want: "wrong answers", also: func(y []byte) { y[0]++ }},
		{name: "request", want: "failed requests", also: func([]byte) { panic(http.ErrAbortHandler) }},
	} {
		if c.name == "descriptor" && runtime.GOOS != "linux" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			// One client, so that also runs one at a time.
			cfg := Config{Driver: "soft", Streams: 1, Clients: 1, Load: 20 * time.Millisecond, patience: 5 * time.Second}
			if c.want == "left behind" {
				cfg.patience = 300 * time.Millisecond
			}
			err := Run(t.Context(), t.Output(), cfg, func(*matvec.Multiplier) (Server, error) {
				return &fake{also: c.also, shut: !c.open}, nil
			})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// A server that can't serve says so, and nothing is driven.
func TestRunRefused(t *testing.T) {
	refused := errors.New("refused")
	err := Run(context.Background(), io.Discard, Config{Driver: "soft", Streams: 1, Clients: 1, Load: time.Second}, func(*matvec.Multiplier) (Server, error) {
		return &refuser{err: refused}, nil
	})
	if !errors.Is(err, refused) {
		t.Errorf("error %v, want %v", err, refused)
	}
}

type refuser struct {
	Count
	err error
}

func (r *refuser) Label() string             { return "refuser" }
func (r *refuser) Stop()                     {}
func (r *refuser) Serve(chan<- string) error { return r.err }
