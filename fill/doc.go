// Package fill is an executor that fills the time in which a GPU works with
// whatever host work is ready.
//
// It is for control loops that should not go through the Go scheduler: all tasks
// of a run share one locked OS thread, a task switch is a coroutine switch
// (package iter) and not a wake-up, and a completion that lands while a task runs
// is found right after it, without another thread being involved.
//
//	stats, err := fill.Run(ctx, fill.Options{}, func(t *fill.Task) error {
//		for _, seq := range sequences {
//			t.Spawn(func(t *fill.Task) error {
//				for !seq.finished() {
//					stream, n := seq.launch()
//					if err := t.Wait(stream, n); err != nil { // others run meanwhile
//						return err
//					}
//					seq.sample()
//				}
//				return nil
//			})
//		}
//		return nil
//	})
//
// # Tasks
//
// A task is a straight-line Go function. It gives up the thread only inside the
// methods of its Task that wait (those named Await, Wait and Sleep) and in Yield,
// and is resumed only when what it waits for has happened. Everything between two such calls is one poll. No other task runs
// during a poll, so tasks may share data without locks.
//
// Wait is for a device's stream, and ends with an error when the device fails. Await
// is for a word and knows of nothing else: a word that nobody stores into any more
// is awaited for ever.
//
// Descriptors need not be a device's. A task that stores into a word of its own
// (line.Word.Store) wakes the tasks that await it, and so does a goroutine: that
// is how ordinary Go code, such as blocking I/O on a goroutine of its own, is
// awaited by a task.
//
// # Order
//
// Between two polls the executor looks at the words waited for and at the
// deadlines. Tasks whose descriptor completed or whose deadline passed are woken
// work, in target order per word and in deadline order (ties: in the order in
// which they began to wait). Woken work runs before tasks that yielded or were
// just spawned, which run in turn; for each batch of woken work one of them runs,
// so that neither side can starve the other.
//
// With up to 16 lines waited for, every look covers all of them. With more, a
// look between polls covers 16 in turn, so that its cost stays below that of
// a few task switches; when no task is ready all are looked at.
//
// # Idle
//
// When no task is ready: (1) every task is woken whose descriptor completed or
// whose deadline passed; (2) else, with only times to wait for, the thread sleeps
// to the earliest; (3) else it parks on the lines waited for until Options.ParkBound
// or the earliest time, whichever comes first. It never parks or sleeps past
// a deadline. Tasks left with nothing to wait on end the run with event.Stalled.
//
// A wait with a prediction (AwaitPoint) counts as a time to wait for until the
// predicted completion, less the margin, has come, and as a line from then on.
//
// The processor can park on one line at a time. With several, the park goes round
// them in slices of some microseconds and looks at all of them between slices: a
// store to the parked line ends the park at once, one to another line after at
// most one slice. Streams whose words share a line are watched by one park. Where
// the processor has no park instruction, a loop looks at all lines in turn and
// there is no such difference. After Options.Spin of that the thread naps in the
// kernel between looks.
//
// # Cost
//
// A switch to a task and back is a coroutine switch, about 0.1 us, and up to five
// times that when there are so many tasks that none is in a cache. A task takes
// about 3 KB, most of it a goroutine's smallest stack. To wait and to be woken
// allocates nothing, costs a heap operation per deadline and per word (logarithmic
// in the tasks that wait for the same word), and a look costs an atomic load per
// word waited for, however many tasks wait for it. All tasks together have one
// processor: a program whose tasks have more work to do than one can take on while
// the device works is faster on goroutines (see the package's benchmark against
// them).
//
// # What a task must not do
//
// The executor is cooperative. A task that never yields holds up all others,
// their deadlines and the run's context; Stats.LongestPoll shows it. A task that
// blocks in ordinary Go code (a channel, a mutex, a system call) works, but
// blocks the whole run while it does. A task must not call the methods of another
// task, or have a goroutine call its own: that panics. It must not hold a
// runtime.LockOSThread of its own across a wait: the Go runtime ends the program.
//
// # How a run ends
//
// Run returns when every task has returned. The first task to return an error or
// to panic ends the run, as do the end of the context and a stall. The tasks left
// are then stopped, in the order in which they were spawned: the call in which
// a task waits panics with ErrStopped, which runs its deferred functions and ends
// it. Calls that wait, made by those deferred functions, panic in the same way;
// tasks they spawn, like any that have not had their first poll, never run.
// runtime.Goexit in a task (testing.T.FailNow, for one) stops the other tasks and
// ends the goroutine that called Run.
package fill
