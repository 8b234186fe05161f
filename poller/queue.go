package poller

import "github.com/gpuline/gpuline/line"

// queue holds the pending waits of one word, in target order. Waits are nearly
// always registered in the order of their targets and of the times at which they
// are to be looked at, so an in-order list takes them at constant cost; a wait for
// an earlier target than the list's last goes to a heap. Taking the earliest is a
// comparison of the two heads, so that the cost per completion does not depend on
// how many waits are pending.
//
// When to look next is the earliest look time of all waits, whatever their targets.
// A wait whose look time is not earlier than that of any wait before it needs no
// place of its own for that: in the list such waits are in the order of their look
// times, so that the list's head speaks for them. All others are in a heap by look
// time, and those with Early set in another.
type queue struct {
	head, tail *Wait
	targets    waitHeap // out of order
	looks      waitHeap // not spoken for by the list's head
	earlies    waitHeap // with Early set
	maxLook    int64    // of all waits since the queue was last empty
	n          int
}

const (
	unqueued = iota
	inList
	inHeap
)

const never = 1<<63 - 1

func (q *queue) push(w *Wait) {
	if q.n == 0 {
		q.targets.byLook, q.looks.byLook, q.earlies.byLook = false, true, true
		q.maxLook = w.lookAt
	}
	q.n++
	w.hunted = nil
	if q.tail == nil || !line.Before(w.target, q.tail.target) {
		w.where = inList
		w.prev, w.next = q.tail, nil
		if q.tail == nil {
			q.head = w
		} else {
			q.tail.next = w
		}
		q.tail = w
	} else {
		w.where = inHeap
		q.targets.push(w)
	}
	switch {
	case w.Early:
		w.hunted = &q.earlies
	case w.where == inHeap || w.lookAt < q.maxLook:
		w.hunted = &q.looks
	}
	if w.hunted != nil {
		w.hunted.push(w)
	}
	q.maxLook = max(q.maxLook, w.lookAt)
}

// peek returns the wait with the earliest target, nil when there is none.
func (q *queue) peek() *Wait {
	t := q.targets.top()
	if t == nil || q.head != nil && !line.Before(t.target, q.head.target) {
		return q.head
	}
	return t
}

// look returns the earliest look time of all, early that of those with Early set.
func (q *queue) look() (look, early int64) {
	look, early = never, never
	if q.head != nil {
		look = q.head.lookAt
	}
	if t := q.looks.top(); t != nil {
		look = min(look, t.lookAt)
	}
	if t := q.earlies.top(); t != nil {
		early = t.lookAt
		look = min(look, early)
	}
	return look, early
}

func (q *queue) remove(w *Wait) {
	q.n--
	if w.where == inList {
		if w.prev == nil {
			q.head = w.next
		} else {
			w.prev.next = w.next
		}
		if w.next == nil {
			q.tail = w.prev
		} else {
			w.next.prev = w.prev
		}
		w.prev, w.next = nil, nil
	} else {
		q.targets.remove(w)
	}
	w.where = unqueued
	if w.hunted != nil {
		w.hunted.remove(w)
		w.hunted = nil
	}
}

// waitHeap is a heap of waits, by target or by look time. Each wait knows its place
// in one heap of either kind.
type waitHeap struct {
	w      []*Wait
	byLook bool
}

func (h *waitHeap) top() *Wait {
	if len(h.w) == 0 {
		return nil
	}
	return h.w[0]
}

func (h *waitHeap) place(w *Wait) *int32 {
	if h.byLook {
		return &w.lookIndex
	}
	return &w.index
}

func (h *waitHeap) push(w *Wait) {
	*h.place(w) = int32(len(h.w))
	h.w = append(h.w, w)
	h.up(len(h.w) - 1)
}

func (h *waitHeap) remove(w *Wait) {
	i, last := int(*h.place(w)), len(h.w)-1
	if i != last {
		h.w[i] = h.w[last]
		*h.place(h.w[i]) = int32(i)
	}
	h.w[last] = nil
	h.w = h.w[:last]
	if i != last && !h.down(i) {
		h.up(i)
	}
}

func (h *waitHeap) less(i, j int) bool {
	if h.byLook {
		return h.w[i].lookAt < h.w[j].lookAt
	}
	return line.Before(h.w[i].target, h.w[j].target)
}

func (h *waitHeap) swap(i, j int) {
	h.w[i], h.w[j] = h.w[j], h.w[i]
	*h.place(h.w[i]), *h.place(h.w[j]) = int32(i), int32(j)
}

func (h *waitHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(i, p) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *waitHeap) down(i int) bool {
	start := i
	for {
		c := 2*i + 1
		if c >= len(h.w) {
			break
		}
		if r := c + 1; r < len(h.w) && h.less(r, c) {
			c = r
		}
		if !h.less(c, i) {
			break
		}
		h.swap(i, c)
		i = c
	}
	return i > start
}
