package soft

import (
	"fmt"
	"sync"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
)

// Lie is what a device claims against the truth.
type Lie uint8

// The lies. A device that does not lie stores every word that it is asked to.
const (
	Honest Lie = iota
	// LieNever: claims stream stores, but none ever lands.
	LieNever
	// LieSync: claims stream stores, but they become visible only at a Sync or
	// Settle, as with host memory that is not coherent.
	LieSync
	// LieUnsupported: claims stream stores, but Store answers event.NotSupported
	// with status 801.
	LieUnsupported
	// NoStores: does not claim stream stores (no lie at all).
	NoStores
)

// Config says what device to make. The zero value is one device in the process,
// without a limit to how much of its work runs at once.
type Config struct {
	// Name is the devices' name, "embedded soft device" when empty.
	Name string
	// Devices is the number of devices, 1 when 0.
	Devices int
	// Engines limits how many streams' timed work runs at once; 0 is no limit.
	// Functions are not counted.
	Engines int
	// Process puts the store engine into a process of its own, which shares the
	// program's memory, so that its CPU time is not charged to the program.
	// Functions still run in the program. It ends when the program does, or replaces
	// itself (syscall.Exec). Linux on amd64 and arm64 only; elsewhere Open returns
	// event.NotSupported.
	Process bool
	// GoEngine runs the store engine as a goroutine even where there is one in
	// assembly.
	GoEngine bool
	// Busy keeps the store engine from ever sleeping: queueing work costs no
	// wake-up of its thread then, as with a device that reads its doorbell by itself,
	// and a processor is busy all the time.
	Busy bool
	// Unproven makes the device's words prove nothing (driver.Caps.WordProves is
	// false), as with drivers where a store behind failed work may land; with
	// StoreAfterFault it does land.
	Unproven        bool
	StoreAfterFault bool
	// Lie is what the device claims against the truth.
	Lie Lie
}

// Driver is the soft driver. It implements driver.Driver.
type Driver struct {
	cfg Config
}

// New returns a driver whose devices are made as cfg says. It starts nothing:
// each Open makes a device of its own.
func New(cfg Config) *Driver {
	cfg.Devices = max(cfg.Devices, 1)
	if cfg.Name == "" {
		cfg.Name = "embedded soft device"
	}
	return &Driver{cfg}
}

// Name returns "soft".
func (d *Driver) Name() string { return "soft" }

// Devices lists the devices. It never fails.
func (d *Driver) Devices() ([]driver.Info, error) {
	infos := make([]driver.Info, d.cfg.Devices)
	for i := range infos {
		infos[i] = d.info(i)
	}
	return infos, nil
}

func (d *Driver) info(i int) driver.Info {
	return driver.Info{Driver: "soft", Ordinal: i, Name: d.cfg.Name, Version: "1"}
}

// Open makes the device with the given ordinal and starts its store engine.
func (d *Driver) Open(ordinal int) (driver.Device, error) {
	if ordinal < 0 || ordinal >= d.cfg.Devices {
		return nil, event.New(event.NoDevice, "soft", fmt.Sprintf("ordinal %d, want 0..%d", ordinal, d.cfg.Devices-1))
	}
	return open(d.cfg, d.info(ordinal))
}

// Of returns the soft stream in x: a driver.Stream of this package, or anything
// with a method Driver that returns one, such as *gpu.Stream.
func Of(x any) (*Stream, bool) {
	switch v := x.(type) {
	case *Stream:
		return v, v != nil
	case interface{ Driver() driver.Stream }:
		s, ok := v.Driver().(*Stream)
		return s, ok
	}
	return nil, false
}

// DeviceOf returns the soft device in x: a driver.Device of this package, or
// anything with a method Driver that returns one, such as *gpu.Device.
func DeviceOf(x any) (*Device, bool) {
	switch v := x.(type) {
	case *Device:
		return v, v != nil
	case interface{ Driver() driver.Device }:
		d, ok := v.Driver().(*Device)
		return d, ok
	}
	return nil, false
}

// Counters counts what a device holds and what was done to it.
type Counters struct {
	Retained    int    // references on the domain, the open device's own included
	HostPages   int    // live allocations of AllocHost
	Memory      int    // live allocations of Alloc
	Streams     int    // streams that are not closed
	Functions   uint64 // functions run
	FreedInUse  uint64 // allocations that were freed under queued work
	BlockedNow  int    // callers held by BlockQueries
	EngineInAsm bool   // the store engine is no goroutine
}

// blocker holds callers up while it is closed to them.
type blocker struct {
	mu  sync.Mutex
	c   chan struct{}
	now int
}

func (b *blocker) block() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
}

func (b *blocker) unblock() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// count returns how many are held up now.
func (b *blocker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *blocker) pass() {
	b.mu.Lock()
	c := b.c
	if c != nil {
		b.now++
	}
	b.mu.Unlock()
	if c != nil {
		<-c
		b.mu.Lock()
		b.now--
		b.mu.Unlock()
	}
}
