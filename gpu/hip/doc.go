// Package hip drives AMD GPUs through the HIP runtime library of ROCm, opened at
// run time: no toolkit, no C compiler, and nothing happens before the first
// call.
//
// A word is a 64-bit store queued on a stream by hipStreamWriteValue64, into a
// page that hipHostMalloc made mapped and coherent: memory that is not coherent
// (coarse-grained) is only up to date for the host after a synchronisation, so
// the flag is asked for and not left to a default that an environment variable
// can change. HIP marks the call as beta. A library without it, or a device that
// refuses it, leaves waiting by events.
//
// A Device stands for one device and its primary context, which every HIP
// program shares, so that streams made by other code in the process can be
// adopted. HIP keeps a current device per OS thread and goroutines are not bound
// to one: each call makes its device current and puts back what it found. HIP
// also keeps the last error per thread, "not ready" included: a status that a
// call of this package has dealt with is cleared, so that code which asks
// hipGetLastError on the same thread does not find it.
//
// Which facts are measured: the runtime library of Debian 12 (HIP 5.2, without
// a device) is found and says so; there is no measurement on an AMD GPU, the
// package has never run on one. The other tests run against a stand-in library
// that imitates the documented behaviour of the entry points used here; that
// proves the binding (names, argument order and widths, the current device,
// failure paths), not the runtime.
//
// Sources: the HIP documentation, rocm.docs.amd.com/projects/HIP, "HIP runtime
// API reference", "HIP error codes" and "Coherence control"; hip_runtime_api.h
// of HIP 5.2.
package hip
