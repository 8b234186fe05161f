// Package poller waits: Run spends one wait as its plan says on the calling
// goroutine, and the Waiter watches the words of many streams on one locked
// thread and completes waits through channels or other sinks.
package poller
