// Package metal watches Metal command queues on macOS, through the Objective-C
// runtime library, opened at run time: no C compiler, no callbacks, no blocks,
// and nothing happens before the first call.
//
// Metal has no store into host memory behind a queue's work, so a word is made of
// two halves. Store commits a command buffer that holds nothing but a signal of
// the stream's MTLSharedEvent; one goroutine per stream waits for that event
// (waitUntilSignaledValue:timeoutMS:, from its first Store on, in a foreign call
// that holds no processor of the Go scheduler) and stores the number into the
// word itself. The device never writes the page: it is plain memory, and the
// host is its only writer.
//
// The package makes no buffers, copies or kernels: it is for queues that other
// code works with (AdoptStream), or to be tried out. A queue allows a fixed number
// of command buffers that are not completed (64 unless made otherwise; NewStream
// asks for 1024), and Store waits when they are used up.
//
// A failed command buffer is known only to whoever committed it: Metal runs what
// follows all the same. So neither a reached word nor a query here says that the
// program's own command buffers succeeded; look at their status.
//
// Which facts are measured: none. The package has never run on Apple hardware.
// Every message it sends is in one table (messages), each line with the page of
// Apple's documentation that it follows; most were compared with that page, some
// pages (of NSError, NSArray and some properties) could not be consulted. The
// tests run the whole package against a stand-in for the Objective-C runtime and
// Metal that checks selectors, parameters and reference counts. That a signal encoded in a later command buffer of a queue
// fires only once the earlier ones have completed is how Apple describes events;
// it has not been tried.
//
// Sources: developer.apple.com/documentation/metal; the rules for ownership by
// method name are those of Apple's "Advanced Memory Management Programming Guide".
package metal
