// Package report shows what a run found: a progress line while it goes on, tables
// in the terminal, and an HTML page with plots.
package report

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Progress is one line that says how far a run has come and how long it still
// takes. On a terminal it is rewritten in place, elsewhere a line is printed now
// and then.
type Progress struct {
	w     io.Writer
	tty   bool
	start time.Time
	last  time.Time
}

// NewProgress writes to w.
func NewProgress(w *os.File) *Progress {
	p := &Progress{w: w, start: time.Now()}
	if info, err := w.Stat(); err == nil {
		p.tty = info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// Set says that the part done, 0 to 1, lies behind, and what comes next.
func (p *Progress) Set(done float64, what string) {
	every := 5 * time.Second
	if p.tty {
		every = 100 * time.Millisecond
	}
	if time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	left := "?"
	if done > 0.01 {
		spent := time.Since(p.start).Seconds()
		left = (time.Duration(spent*(1-done)/done) * time.Second).String()
	}
	line := fmt.Sprintf("%3.0f %%, %s left: %s", 100*done, left, what)
	if p.tty {
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.w, line)
	}
}

// End clears the line.
func (p *Progress) End() {
	if p.tty {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
