package poller

// Sink receives what completed. Its dynamic type must be comparable, as pointers
// are, and safe for concurrent use: waits are failed from other goroutines. The waiter (or whoever fails or closes a watch)
// calls it with no lock held.
type Sink interface {
	// Complete is called exactly once for each registration that was not
	// cancelled: err is nil when the word reached the target (and the status
	// query, where one is needed, found no fault), else the reason. It must not
	// block. The Wait may be registered again from within Complete.
	Complete(w *Wait, err error)
	// Flush is called once after a batch in which Complete was called on this
	// sink: the place for one system call per batch. It must not block.
	Flush()
}
