// Package cuda drives NVIDIA GPUs through the CUDA driver library, opened at run
// time: no toolkit, no C compiler, and nothing happens before the first call.
//
// A word is a 64-bit store queued on a stream by cuStreamWriteValue64 (CUDA's
// stream memory operations), into a page that cuMemHostAlloc made portable and
// device-mapped. The store's default flag makes everything that the stream wrote
// before it visible first. It needs CUDA 11.7 or newer, or an older driver with
// the kernel module parameter NVreg_EnableStreamMemOPs=1, and is missing on some
// virtual GPUs and on Tegra: Caps says so, a refused store is
// event.NotSupported, and the device can then be waited on by events.
//
// A Device stands for the device's primary context, the one that the CUDA
// runtime API uses too, so that streams made by any other binding in the process
// can be adopted. Contexts are current per OS thread and goroutines are not bound
// to one: each call pushes the context it needs and pops it again, so that a
// thread that has a context of its own keeps it.
//
// Which facts are measured: nothing yet on NVIDIA hardware. The tests run
// against a stand-in library that imitates the documented behaviour of the entry
// points used here; that proves the binding (names, argument order and widths,
// contexts, failure paths), not the driver.
//
// Sources: the CUDA Driver API reference, docs.nvidia.com/cuda/cuda-driver-api,
// sections "Stream Memory Operations", "Primary Context Management", "Context
// Management", "Stream Management", "Driver Entry Point Access" and "Data types
// used by CUDA driver".
package cuda
