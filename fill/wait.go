package fill

import (
	"math"
	"math/bits"
	"time"

	"github.com/gpuline/gpuline/line"
)

const never = time.Duration(math.MaxInt64)

// list is a FIFO of tasks, linked through Task.link.
type list struct {
	first, last *Task
	n           int
}

func (l *list) push(t *Task) {
	t.link = nil
	if l.last == nil {
		l.first = t
	} else {
		l.last.link = t
	}
	l.last = t
	l.n++
}

func (l *list) pop() *Task {
	t := l.first
	if l.first = t.link; l.first == nil {
		l.last = nil
	}
	t.link = nil
	l.n--
	return t
}

// entry is a task in a heap, with its key next to it. Equal keys are in order of
// seq, the order in which the waits began.
type entry struct {
	key, seq uint64
	t        *Task
}

// A task is in at most one heap of each kind, and knows its places in them.
const (
	inWord = iota
	inTimers
	inLooks
	heapKinds
)

// waitHeap is a binary heap of waits. Keys are in wrapping order, which for times
// (never negative) is the ordinary one.
type waitHeap []entry

func (e *entry) before(o *entry) bool {
	return line.Before(e.key, o.key) || e.key == o.key && e.seq < o.seq
}

func (h *waitHeap) push(kind int, e entry) {
	*h = append(*h, e)
	h.up(kind, len(*h)-1, e)
}

// remove takes the entry at i out.
func (h *waitHeap) remove(kind, i int) {
	old := *h
	old[i].t.at[kind] = -1
	n := len(old) - 1
	e := old[n]
	old[n].t = nil
	*h = old[:n]
	if i == n {
		return
	}
	if i > 0 && e.before(&old[(i-1)/2]) {
		h.up(kind, i, e)
	} else {
		h.down(kind, i, e)
	}
}

// up places e at i or above; down places it at i or below.
func (h waitHeap) up(kind, i int, e entry) {
	for i > 0 {
		p := (i - 1) / 2
		if !e.before(&h[p]) {
			break
		}
		h[i] = h[p]
		h[i].t.at[kind] = int32(i)
		i = p
	}
	h[i] = e
	e.t.at[kind] = int32(i)
}

func (h waitHeap) down(kind, i int, e entry) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&e) {
			break
		}
		h[i] = h[c]
		h[i].t.at[kind] = int32(i)
		i = c
	}
	h[i] = e
	e.t.at[kind] = int32(i)
}

// waits is everything that suspended tasks wait for.
type waits struct {
	seq    uint64
	timers waitHeap // by deadline
	looks  waitHeap // by the time from which on the word is to be watched
	lines  map[*line.Line]*lineState
	spare  []*lineState
	active []*lineState // lines with waits
	hot    []*Watch     // those of them with waits to park for
	peak   int          // the most that active ever held
	cursor int          // where the next partial look starts in active
}

const (
	// partialLook is how many lines are looked at between two polls.
	partialLook = 16
	// keptLines is how many lines without waits are remembered, or as many as had
	// waits at one time if that is more: so that waiting for the same lines again
	// allocates nothing, and a run does not grow with every line it ever saw.
	keptLines = 1024
)

// lineState is one line and the waits on its words.
type lineState struct {
	watch  Watch
	pos    int                // in active, -1 when it is not there
	mask   uint8              // words with waits
	cold   int                // waits that are in looks
	n      int                // all waits
	looked time.Duration      // when the line was last looked at
	next   [line.Words]uint64 // the nearest target of each word with waits
	words  [line.Words]waitHeap
}

// add registers t for d and the deadline; d may be invalid and the deadline
// never. With look > 0 the line need not be parked on before that time. Waits with equal
// times or targets are in order of what add returned for them.
func (w *waits) add(t *Task, d line.Descriptor, deadline, look, now time.Duration) (seq uint64) {
	w.seq++
	w.addAs(w.seq, t, d, deadline, look, now)
	return w.seq
}

// addAs is add for a wait that began when the one with that seq did.
func (w *waits) addAs(seq uint64, t *Task, d line.Descriptor, deadline, look, now time.Duration) {
	if deadline != never {
		w.timers.push(inTimers, entry{uint64(deadline), seq, t})
	}
	if !d.Valid() {
		return
	}
	ls := w.line(d.Line)
	ls.n++
	t.line, t.slot, t.target = ls, d.Slot.Index(), d.Target
	q := &ls.words[t.slot]
	q.push(inWord, entry{d.Target, seq, t})
	ls.next[t.slot] = (*q)[0].key
	ls.mask |= 1 << t.slot
	if ls.pos < 0 {
		ls.pos = len(w.active)
		w.active = append(w.active, ls)
		w.peak = max(w.peak, len(w.active))
		ls.looked = now
	}
	if look > 0 {
		w.looks.push(inLooks, entry{uint64(look), seq, t})
		ls.cold++
	}
	w.heat(ls)
}

// drop removes whatever t is registered for.
func (w *waits) drop(t *Task) {
	if i := t.at[inTimers]; i >= 0 {
		w.timers.remove(inTimers, int(i))
	}
	ls := t.line
	if ls == nil {
		return
	}
	t.line = nil
	if i := t.at[inLooks]; i >= 0 {
		w.looks.remove(inLooks, int(i))
		ls.cold--
	}
	q := &ls.words[t.slot]
	q.remove(inWord, int(t.at[inWord]))
	if len(*q) == 0 {
		ls.mask &^= 1 << t.slot
	} else {
		ls.next[t.slot] = (*q)[0].key
	}
	ls.n--
	w.heat(ls)
	if ls.n > 0 {
		return
	}
	last := len(w.active) - 1
	w.active[ls.pos] = w.active[last]
	w.active[ls.pos].pos = ls.pos
	w.active[last] = nil
	w.active = w.active[:last]
	ls.pos = -1
	if kept := max(keptLines, w.peak); len(w.lines)-last > kept {
		delete(w.lines, ls.watch.Line)
		ls.watch.Line = nil
		if len(w.spare) < kept {
			w.spare = append(w.spare, ls)
		}
	}
}

// warm makes a wait whose look time has come one to park for.
func (w *waits) warm(t *Task) {
	w.looks.remove(inLooks, int(t.at[inLooks]))
	t.line.cold--
	w.heat(t.line)
}

// heat puts the line into hot or takes it out, as its waits demand.
func (w *waits) heat(ls *lineState) {
	v := &ls.watch
	switch hot := ls.n > ls.cold; {
	case hot && v.pos < 0:
		v.pos = len(w.hot)
		w.hot = append(w.hot, v)
	case !hot && v.pos >= 0:
		last := len(w.hot) - 1
		w.hot[v.pos] = w.hot[last]
		w.hot[v.pos].pos = v.pos
		w.hot[last] = nil
		w.hot = w.hot[:last]
		v.pos = -1
	}
}

func (w *waits) line(l *line.Line) *lineState {
	if ls := w.lines[l]; ls != nil {
		return ls
	}
	var ls *lineState
	if n := len(w.spare) - 1; n >= 0 {
		ls, w.spare[n] = w.spare[n], nil
		w.spare = w.spare[:n]
	} else {
		ls = &lineState{pos: -1}
		ls.watch.pos = -1
	}
	ls.watch.Line = l
	if w.lines == nil {
		w.lines = make(map[*line.Line]*lineState)
	}
	w.lines[l] = ls
	return ls
}

// look looks at the lines waited for, all of them or the next few, and calls
// reached for every task whose target has been reached; reached must drop it.
// It returns how many lines it looked at.
func (w *waits) look(all bool, now time.Duration, reached func(*Task)) int {
	n := len(w.active)
	if all || n <= partialLook {
		// From the start: a line that takes the place of one that is no longer
		// waited for then comes from those not looked at yet.
		w.cursor = 0
	} else {
		n = partialLook
	}
	for range n {
		if w.cursor >= len(w.active) {
			w.cursor = 0
		}
		ls := w.active[w.cursor]
		w.see(ls, all, reached)
		if ls.pos >= 0 {
			ls.looked = now
			w.cursor++
		}
	}
	return n
}

// see looks at one line. For a park to follow, Seen is brought up to date, with
// all eight words, since the park ends when any of them changes.
func (w *waits) see(ls *lineState, seen bool, reached func(*Task)) {
	l := ls.watch.Line
	if seen {
		for i := range l {
			ls.watch.Seen[i] = l[i].Load()
		}
	}
	for m := ls.mask; m != 0; m &= m - 1 {
		s := bits.TrailingZeros8(m)
		v := ls.watch.Seen[s]
		if !seen {
			v = l[s].Load()
		}
		for ls.mask&(1<<s) != 0 && line.Reached(v, ls.next[s]) {
			reached(ls.words[s][0].t)
		}
	}
}
