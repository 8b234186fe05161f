package poller

import "github.com/gpuline/gpuline/line"

// queue holds the pending waits of one word, in target order. Waits are nearly
// always registered in the order of their targets, so an in-order list takes
// them at constant cost; a wait for an earlier target than the list's last goes
// to a heap. Taking the earliest is a comparison of the two heads, so that the
// cost per completion does not depend on how many waits are pending.
type queue struct {
	head, tail *Wait
	heap       []*Wait
	n          int
}

const (
	unqueued = iota
	inList
	inHeap
)

func (q *queue) push(w *Wait) {
	q.n++
	if q.tail == nil || !line.Before(w.target, q.tail.target) {
		w.where = inList
		w.prev, w.next = q.tail, nil
		if q.tail == nil {
			q.head = w
		} else {
			q.tail.next = w
		}
		q.tail = w
		return
	}
	w.where = inHeap
	w.index = int32(len(q.heap))
	q.heap = append(q.heap, w)
	q.up(int(w.index))
}

// peek returns the wait with the earliest target, nil when there is none.
func (q *queue) peek() *Wait {
	if len(q.heap) == 0 {
		return q.head
	}
	if q.head == nil || line.Before(q.heap[0].target, q.head.target) {
		return q.heap[0]
	}
	return q.head
}

func (q *queue) remove(w *Wait) {
	q.n--
	switch w.where {
	case inList:
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
	case inHeap:
		i, last := int(w.index), len(q.heap)-1
		if i != last {
			q.heap[i] = q.heap[last]
			q.heap[i].index = int32(i)
		}
		q.heap[last] = nil
		q.heap = q.heap[:last]
		if i != last && !q.down(i) {
			q.up(i)
		}
	}
	w.where = unqueued
}

func (q *queue) less(i, j int) bool { return line.Before(q.heap[i].target, q.heap[j].target) }

func (q *queue) swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].index, q.heap[j].index = int32(i), int32(j)
}

func (q *queue) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !q.less(i, p) {
			return
		}
		q.swap(i, p)
		i = p
	}
}

func (q *queue) down(i int) bool {
	start := i
	for {
		c := 2*i + 1
		if c >= len(q.heap) {
			break
		}
		if r := c + 1; r < len(q.heap) && q.less(r, c) {
			c = r
		}
		if !q.less(c, i) {
			break
		}
		q.swap(i, c)
		i = c
	}
	return i > start
}
