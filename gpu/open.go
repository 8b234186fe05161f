package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/driver"
	"github.com/gpuline/gpuline/plan"
	"github.com/gpuline/gpuline/poller"
)

// EnvDriver names the environment variable that overrides which drivers Open
// tries: one name, or several separated by commas, in order.
const EnvDriver = "GPULINE_DRIVER"

// Option changes what Open does.
type Option func(*options)

type options struct {
	names    []string
	drivers  []driver.Driver
	ordinal  int
	fallback bool
	strict   bool

	planText string
	steps    *plan.Steps

	selfTest       time.Duration
	healthTick     time.Duration
	healthDeadline time.Duration
	storeGrace     time.Duration
	closeBound     time.Duration
}

func defaults() options {
	return options{
		selfTest:       2 * time.Second,
		healthTick:     100 * time.Millisecond,
		healthDeadline: time.Second,
		storeGrace:     time.Second,
		closeBound:     CloseBound,
	}
}

// WithDriver limits Open to the named drivers, tried in order: "cuda", "hip",
// "metal", "opencl", "soft". GPULINE_DRIVER overrides it.
func WithDriver(names ...string) Option { return func(o *options) { o.names = names } }

// Using makes Open try these drivers instead of the built-in ones, for
// a driver that was made with settings of its own. GPULINE_DRIVER does not
// override it. A nil driver is event.InvalidArgument.
func Using(drivers ...driver.Driver) Option { return func(o *options) { o.drivers = drivers } }

// WithOrdinal selects the device by its index in the driver, 0 by default.
func WithOrdinal(n int) Option { return func(o *options) { o.ordinal = n } }

// WithSoftFallback lets Open use the embedded soft device when no other driver
// has one. Without it the soft device is used only when named.
func WithSoftFallback() Option { return func(o *options) { o.fallback = true } }

// WithPlan sets the wait plan, or bands of plans, as text: see package plan.
// The default is plan.Default for what the machine and the device can do.
func WithPlan(text string) Option { return func(o *options) { o.planText = text } }

// WithSteps sets the cell that tells which band of the plan a wait belongs to.
func WithSteps(s *plan.Steps) Option { return func(o *options) { o.steps = s } }

// Strict makes Open fail where it would otherwise fall back: to another wait
// plan, or from stored words to status polling.
func Strict() Option { return func(o *options) { o.strict = true } }

// WithSelfTest bounds the self-test at open, 2 s by default. What it has made is
// freed again after that, for which there is the bound of WithCloseBound.
func WithSelfTest(bound time.Duration) Option { return func(o *options) { o.selfTest = bound } }

// WithHealth sets how often the status of a device with pending waits is asked
// (100 ms by default), how long a status query may take before the device counts
// as lost (1 s), and how long a store may trail the device's "done" before it
// counts as lost (1 s). A fault ends every wait within tick + deadline of its
// first being visible to a query, a lost store within 2 ticks + deadline + grace.
func WithHealth(tick, deadline, grace time.Duration) Option {
	return func(o *options) { o.healthTick, o.healthDeadline, o.storeGrace = tick, deadline, grace }
}

// WithCloseBound sets how long Device.Close may take, 5 s by default, and how long
// Stream.Close, PinnedBuffer.Close and an Open that fails may wait for the driver's
// calls that free something.
func WithCloseBound(d time.Duration) Option { return func(o *options) { o.closeBound = d } }

// Open opens a device: the first that works of the drivers tried in order (cuda,
// hip, metal, opencl; never soft unless it was named or WithSoftFallback given).
// When none works the error wraps one event.DriverPassedOver per driver with the
// reason; when one does, Device.Warnings has those of the drivers before it.
//
// Opening tests the device, because capability bits lie: a number is stored
// through a real stream and watched for, for at most the self-test's bound.
// A device that fails runs with status polling instead of words and says so in
// Warnings, unless Strict; one whose calls do not return is not used at all. A ctx that
// ends stops the self-test and the search. How long the driver takes to open its
// device is not bounded.
func Open(ctx context.Context, opts ...Option) (*Device, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	o, err := settle(opts)
	if err != nil {
		return nil, err
	}
	drivers, err := choose(&o)
	if err != nil {
		return nil, err
	}
	var passed []error
	for _, drv := range drivers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d, err := openOne(ctx, drv, o)
		if err == nil {
			d.warns = append(passed, d.warns...)
			return d, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		passed = append(passed, event.New(event.DriverPassedOver, drv.Name(), reason(err)).WithStatus(event.StatusOf(err)).Wrap(err))
	}
	return nil, fmt.Errorf("gpuline: no device to open: %w", errors.Join(passed...))
}

// OpenDevice is Open for a device that a driver has already opened, for example
// over the context of another binding (opencl.Driver.OpenContext). The Device
// owns dev from then on, also when OpenDevice fails. Options about drivers do not
// matter.
func OpenDevice(ctx context.Context, dev driver.Device, opts ...Option) (*Device, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	if dev == nil {
		return nil, event.New(event.InvalidArgument, "OpenDevice", "nil device")
	}
	o, err := settle(opts)
	if err != nil {
		return nil, errors.Join(err, discard(dev, CloseBound))
	}
	return setUp(ctx, dev, o)
}

// discard closes the driver's device, for which it waits at most for the bound.
func discard(dev driver.Device, bound time.Duration) error {
	closed := make(chan error, 1)
	go func() { closed <- dev.Close() }()
	return within(bound, closed, describe(dev), one)
}

// settle applies and checks the options.
func settle(opts []Option) (options, error) {
	o := defaults()
	for _, f := range opts {
		if f != nil {
			f(&o)
		}
	}
	for _, b := range []struct {
		name string
		d    time.Duration
	}{
		{"WithSelfTest", o.selfTest}, {"WithHealth tick", o.healthTick}, {"WithHealth deadline", o.healthDeadline},
		{"WithHealth grace", o.storeGrace}, {"WithCloseBound", o.closeBound},
	} {
		if b.d <= 0 {
			return o, event.New(event.InvalidArgument, b.name, "want a duration above 0, got "+b.d.String())
		}
	}
	if o.planText != "" {
		if _, err := plan.ParseBands(o.planText); err != nil {
			return o, err
		}
	}
	return o, nil
}

func reason(err error) string { return strings.TrimPrefix(err.Error(), "gpuline: ") }

// choose returns the drivers to try, in order.
func choose(o *options) ([]driver.Driver, error) {
	if len(o.drivers) > 0 {
		for _, drv := range o.drivers {
			if drv == nil {
				return nil, event.New(event.InvalidArgument, "Using", "nil driver")
			}
		}
		return o.drivers, nil
	}
	names := o.names
	if env := os.Getenv(EnvDriver); env != "" {
		names = strings.Split(env, ",")
	}
	if len(names) == 0 {
		names = []string{"cuda", "hip", "metal", "opencl"}
		if o.fallback {
			names = append(names, "soft")
		}
	}
	return named(names)
}

// named makes the built-in drivers of the given names.
func named(names []string) ([]driver.Driver, error) {
	var out []driver.Driver
	for _, n := range names {
		mk, ok := builtin[strings.TrimSpace(n)]
		if !ok {
			return nil, event.New(event.InvalidArgument, fmt.Sprintf("driver %q", n), "unknown, want one of cuda, hip, metal, opencl, soft")
		}
		drv, err := mk()
		if err != nil {
			return nil, err
		}
		out = append(out, drv)
	}
	return out, nil
}

// Found is what one driver has to offer.
type Found struct {
	Driver  string
	Devices []driver.Info
	// Err says why there are no devices.
	Err error
}

// Devices asks the named drivers, or all built-in ones, for their devices.
// GPULINE_DRIVER does not matter to it.
func Devices(names ...string) ([]Found, error) {
	if len(names) == 0 {
		names = []string{"cuda", "hip", "metal", "opencl", "soft"}
	}
	drivers, err := named(names)
	if err != nil {
		return nil, err
	}
	out := make([]Found, len(drivers))
	for i, drv := range drivers {
		out[i].Driver = drv.Name()
		out[i].Devices, out[i].Err = drv.Devices()
	}
	return out, nil
}

func openOne(ctx context.Context, drv driver.Driver, o options) (*Device, error) {
	dev, err := drv.Open(o.ordinal)
	if err != nil {
		return nil, err
	}
	return setUp(ctx, dev, o)
}

// setUp tests an open driver device and makes a Device of it, or closes it.
func setUp(ctx context.Context, dev driver.Device, o options) (*Device, error) {
	d := &Device{
		dev: dev, opt: o,
		name:    describe(dev),
		failed:  make(chan struct{}),
		streams: make(map[*Stream]struct{}),
	}
	caps := dev.Caps()
	testErr, stuck := d.selfTest(ctx)
	if stuck != nil {
		// Stuck in the driver: the device is closed when the call has returned.
		closed := make(chan error, 1)
		go func() {
			<-stuck
			closed <- dev.Close()
		}()
		leakUntil(closed, 1)
		return nil, event.New(event.SelfTestFailed, d.name, reason(testErr), "nothing: its calls do not return").Wrap(testErr)
	}
	d.byWord = testErr == nil
	if testErr != nil {
		refuse := ctx.Err() != nil || o.strict || !caps.Events
		w := event.New(event.SelfTestFailed, d.name, reason(testErr), "status polling").WithStatus(event.StatusOf(testErr)).Wrap(testErr)
		if refuse {
			if !caps.Events && !o.strict {
				w.Args[2] = "nothing: the driver has no events to poll either"
			} else if o.strict {
				w.Args[2] = "nothing: strict was asked for"
			}
			return nil, errors.Join(w, discard(dev, o.closeBound))
		}
		d.warns = append(d.warns, w)
	}
	if err := d.settlePlan(o.planText, o.strict); err != nil {
		return nil, errors.Join(err, discard(dev, o.closeBound))
	}
	d.health = newHealth(d)
	d.confirmer = newConfirmer(d)
	cfg := d.waiterConfig()
	cfg.Name, cfg.Busy = d.name+"'s waiter", d.health.wake
	d.waiter = poller.NewWaiter(cfg)
	if !d.byWord {
		d.status = newStatusPoller(d)
	}
	return d, nil
}

// selfTest stores a number through a real stream and watches for it, for at most
// the self-test's bound, and then cleans up, for at most the close bound. When one of
// the driver's calls has not returned by then, stuck tells when it has.
func (d *Device) selfTest(ctx context.Context) (err error, stuck <-chan error) {
	caps := d.dev.Caps()
	if !caps.StreamStore {
		return event.New(event.NotSupported, "a store from a stream", caps.NoStore), nil
	}
	short, cancel := context.WithTimeout(ctx, d.opt.selfTest)
	defer cancel()
	tested := make(chan error, 1)
	go func() {
		err := d.storeAndWatch(short)
		if err == context.DeadlineExceeded && ctx.Err() == nil {
			err = event.New(event.StoreLost, "self-test of "+d.name, "a number stored through a stream was not seen within "+d.opt.selfTest.String())
		}
		tested <- err
	}()
	select {
	case err := <-tested:
		return err, nil
	case <-short.Done():
	}
	t := time.NewTimer(d.opt.closeBound)
	defer t.Stop()
	select {
	case err := <-tested:
		return err, nil
	case <-t.C:
	}
	return event.New(event.Leaked, d.name, "a driver call has not returned in the self-test, nor within "+d.opt.closeBound.String()+" after it").Wrap(ctx.Err()), tested
}

// storeAndWatch is the test itself. It may block wherever the driver does.
func (d *Device) storeAndWatch(ctx context.Context) (err error) {
	page, err := MapLine(d.dev)
	if err != nil {
		return err
	}
	defer func() {
		// A store that was only late must not land in freed memory: Close settles
		// first, and leaks the page when that fails.
		if cerr := page.Close(); err == nil {
			err = cerr
		}
	}()
	s, err := d.dev.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	// Two numbers, so that a word that holds the first one by luck is not enough.
	nonce := uint64(time.Now().UnixNano())<<1 | 1
	word := page.Word(page.Words() - 1)
	for _, want := range []uint64{nonce, nonce ^ 0x5555555555555554} {
		if err := page.Store(s, page.Words()-1, want); err != nil {
			return err
		}
		for nap := time.Microsecond; word.Load() != want; nap = min(2*nap, time.Millisecond) {
			if err := ctx.Err(); err != nil {
				return err
			}
			sleepFor(nap)
		}
	}
	return nil
}
