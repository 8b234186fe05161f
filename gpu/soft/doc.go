// Package soft is the embedded software device: streams with real concurrency,
// so that the whole library runs, demonstrates itself and is tested with no GPU.
//
// A device has in-order streams. What is queued on one takes stated time (Work),
// runs a function (Run, HostFunc), waits for a gate, moves memory (copies and
// fills), or stores a word. Timed work is planned when it is queued: it begins
// when the work before it ends and, with a limited number of engines, one is
// free.
//
// Words are stored by the store engine: on linux/amd64 a thread that runs
// nothing but a small assembly routine (engine_linux_amd64.s), created by clone(2), unknown to the Go runtime and not scheduled by its Ps. With
// Config.Process it is a process of its own, so that the CPU time it takes is not
// charged to the program. Elsewhere the engine is a goroutine locked to its
// thread. Functions run on goroutines, since they are Go code.
//
// Faults can be asked for: work that fails, a device lost, stores that never
// land, land late, or land out of order between streams, status queries that
// block, and a device that lies about what it can do.
package soft
