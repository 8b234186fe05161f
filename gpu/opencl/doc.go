// Package opencl drives any OpenCL implementation that is installed as an ICD:
// a GPU vendor's, or PoCL (http://portablecl.org), which runs real kernels on the
// processor, so that the whole library can be tried on a machine without a GPU.
// libOpenCL is opened at run time, on first use.
//
// # What it needs
//
// OpenCL 1.2 gives streams, kernels and completion by event status. Words need
// OpenCL 2.0 shared virtual memory with fine-grained buffers
// (CL_DEVICE_SVM_FINE_GRAIN_BUFFER): then a store is an 8-byte clEnqueueSVMMemFill
// behind the work of an in-order queue. Caps.NoStore says what is missing
// otherwise, and Stream.Record still works. Device memory is SVM too, fine-grained
// where there is such a thing and coarse-grained elsewhere.
//
// The standard does not promise that the host sees an 8-byte fill as one 64-bit
// store. PoCL does it that way. A fill that arrives in two halves can be told
// apart only when the upper half changes, once in 2^32 marks of one stream.
//
// # Failure
//
// OpenCL reports failed work in one place only: the status of that command's
// event. clFinish says success behind work that was never run, and PoCL 3.1 and
// 6.0 run a command that is queued after the failure as if nothing had happened.
// So a Stream follows the event of every command that goes through it, and
// remembers the first failure: from then on its Query, Sync and every enqueue
// return that error. While work is pending a Query is one clGetEventInfo.
//
// Work that other code queues, on an adopted queue or through Stream.Handle, is
// known only by markers that Query puts behind it. Such work fails unseen when
// its failure is over before the next command or Query of this package reaches
// the queue.
//
// # Contexts
//
// OpenCL has no primary context: Open makes a context of its own each time. To
// await work of another binding, open the Device over that binding's context
// with Driver.OpenContext or Driver.OpenQueue, or have the binding make its
// queues in Device.Context.
//
// # Signals
//
// Implementations built on LLVM replace the process's signal handlers when they
// load: after that the first SIGQUIT no longer prints the goroutines. This
// package puts the handlers back. The one exception is a handler for SIGFPE:
// PoCL's kernels rely on theirs for integer division by zero, so that one stays,
// made to run on the signal stack as Go requires (os/signal, "Non-Go programs that
// call Go code").
//
// A handle that was released, or never was one, crashes inside the driver; no
// Go code can catch that. Streams, programs and kernels of this package know
// when they are closed and return event.Closed; handles given to AdoptStream,
// OpenContext and OpenQueue must be alive.
package opencl
