// Package event is the vocabulary that every gpuline package shares: coded
// errors, the clock (a real one and one that moves by hand), the port through
// which one wait on device work reaches its back end, and the report that a
// finished wait leaves behind.
//
// Nothing here starts a goroutine, opens a file or touches a device.
package event
