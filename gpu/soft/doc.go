// Package soft is the embedded software device: streams with real concurrency,
// so that the whole library runs, demonstrates itself and is tested with no GPU.
//
// A device has in-order streams. What is queued on one takes stated time (Work),
// runs a function (Run, HostFunc), waits for a gate, moves memory (copies and
// fills), or stores a word. Timed work is planned when it is queued: it begins
// when the work before it ends and, with a limited number of engines, one is
// free. So a stream of timed work, copies and stores needs no Go code to run, and
// no P to be free, for any of it to happen on time.
//
// Words are stored by the store engine. On linux/amd64 and linux/arm64 that is a
// thread which runs nothing but a small assembly routine (engine_linux_*.s): made
// by clone(2), unknown to the Go runtime and not scheduled by its Ps. With
// Config.Process it is a process of its own that shares the program's memory, so
// that the CPU time it takes is not charged to the program, and that ends with it.
// Elsewhere the engine is a goroutine locked to its thread, which needs a P and has
// the precision of Go's timers; Device.Engine tells. Functions run on goroutines
// in any case, since they are Go code.
//
// The engine also copies and fills, like a device, by itself and when the stream
// has come to it: a buffer that is reused too early shows. The race detector sees
// none of its accesses. What orders them for their users is the word stored behind
// them, an event, or a Sync: after those, what functions on the device wrote is
// also visible to the race detector.
//
// Faults can be asked for: work that fails (Fail, or a function that returns an
// error or panics), a device lost (Lose), stores that never land (DropStores),
// land late (DelayStores) or out of order between streams (HoldStores), status
// queries that block (BlockQueries), and a device that lies about what it can do
// (Lie). Memory freed under queued work is a fault too. Faults are sticky for the
// device, as in CUDA: everything queued behind one, on any stream, is dropped.
package soft
