package gpu

import "sync"

// leakList holds what must never be freed or collected.
type leakList struct {
	mu  sync.Mutex
	all []retained
}

func (l *leakList) add(r []retained) {
	if len(r) == 0 {
		return
	}
	leaks.Add(uint64(len(r)))
	l.mu.Lock()
	l.all = append(l.all, r...)
	l.mu.Unlock()
}
