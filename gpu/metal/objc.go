package metal

import (
	"runtime"
	"strconv"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/gpu/internal/clib"
)

// id is an Objective-C object.
type id uintptr

// objc is the Objective-C runtime and Metal.
type objc struct {
	msgSend   uintptr
	copyAll   uintptr // MTLCopyAllDevices
	poolClass id
	sels      [numSel]uintptr
}

func libraries() (runtimeLib, metalLib string) {
	if runtime.GOOS == "darwin" && clib.Supported {
		return "/usr/lib/libobjc.A.dylib", "/System/Library/Frameworks/Metal.framework/Metal"
	}
	return "", ""
}

// loadObjC opens both libraries and resolves every selector of the table. Metal
// brings Foundation in.
func loadObjC(runtimeLib, metalLib string) (*objc, error) {
	if runtimeLib == "" {
		return nil, event.New(event.NotSupported, "metal", "it exists on macOS only")
	}
	missing := func(what string, why string) error {
		return event.New(event.DriverMissing, what, why).WithStatus(event.StatusMissing)
	}
	rt, err := clib.Open(runtimeLib)
	if err != nil {
		return nil, missing(runtimeLib, err.Error())
	}
	mtl, err := clib.Open(metalLib)
	if err != nil {
		return nil, missing(metalLib, err.Error())
	}
	o := &objc{msgSend: rt.Sym("objc_msgSend"), copyAll: mtl.Sym("MTLCopyAllDevices")}
	register, getClass := rt.Sym("sel_registerName"), rt.Sym("objc_getClass")
	for _, s := range []struct {
		name string
		fn   uintptr
		lib  *clib.Lib
	}{
		{"objc_msgSend", o.msgSend, rt}, {"sel_registerName", register, rt}, {"objc_getClass", getClass, rt},
		{"MTLCopyAllDevices", o.copyAll, mtl},
	} {
		if s.fn == 0 {
			return nil, missing(s.name, "not in "+s.lib.Path)
		}
	}
	f := clib.Get()
	defer f.Put()
	text := func(s string) uintptr {
		p := f.TextAt()
		copy(f.Text[:], s)
		return p
	}
	if o.poolClass = id(f.Call(getClass, text("NSAutoreleasePool"))); o.poolClass == 0 {
		return nil, missing("class NSAutoreleasePool", "not in "+rt.Path)
	}
	for i, m := range messages {
		if o.sels[i] = f.Call(register, text(m.selector)); o.sels[i] == 0 {
			return nil, missing("selector "+m.selector, "sel_registerName refused it")
		}
	}
	return o, nil
}

// send sends a message whose parameters and result each fit one integer
// register: for those, objc_msgSend is called as the C function that the method
// is.
func (o *objc) send(f *clib.Frame, to id, s sel, args ...uintptr) uintptr {
	switch len(args) {
	case 0:
		return f.Call(o.msgSend, uintptr(to), o.sels[s])
	case 1:
		return f.Call(o.msgSend, uintptr(to), o.sels[s], args[0])
	}
	return f.Call(o.msgSend, uintptr(to), o.sels[s], args[0], args[1])
}

// pool makes an autorelease pool, which belongs to the thread: the goroutine
// stays on it until the returned function drains the pool.
func (o *objc) pool(f *clib.Frame) (drain func()) {
	runtime.LockOSThread()
	p := id(o.send(f, o.poolClass, selNew))
	return func() {
		o.send(f, p, selDrain)
		runtime.UnlockOSThread()
	}
}

func (o *objc) release(f *clib.Frame, x id) { o.send(f, x, selRelease) }

// devices returns all devices, each with a reference of the caller.
func (o *objc) devices(f *clib.Frame) []id {
	array := id(f.Call(o.copyAll))
	if array == 0 {
		return nil
	}
	defer o.release(f, array)
	devs := make([]id, o.send(f, array, selCount))
	for i := range devs {
		devs[i] = id(o.send(f, array, selObjectAtIndex, uintptr(i)))
		o.send(f, devs[i], selRetain)
	}
	return devs
}

func (o *objc) name(f *clib.Frame, dev id) string {
	defer o.pool(f)()
	return clib.String(o.send(f, id(o.send(f, dev, selName)), selUTF8String))
}

// signal commits a command buffer that signals ev with n behind all work that is
// committed to the queue so far. The caller owns the command buffer; 0 means
// that the queue made none.
func (o *objc) signal(f *clib.Frame, queue, ev id, n uint64) id {
	defer o.pool(f)()
	cb := id(o.send(f, queue, selCommandBuffer))
	if cb == 0 {
		return 0
	}
	o.send(f, cb, selRetain)
	o.send(f, cb, selEncodeSignal, uintptr(ev), uintptr(n))
	o.send(f, cb, selCommit)
	return cb
}

// status reports whether a command buffer is completed, or its error.
func (o *objc) status(f *clib.Frame, cb id) (done bool, err error) {
	switch o.send(f, cb, selStatus) {
	case bufferCompleted:
		return true, nil
	case bufferError:
		defer o.pool(f)()
		e := id(o.send(f, cb, selError))
		code := int64(o.send(f, e, selCode))
		text := clib.String(o.send(f, id(o.send(f, e, selDescription)), selUTF8String))
		return false, event.New(event.Backend, "MTLCommandBuffer", strconv.FormatInt(code, 10)+" ("+text+")").WithStatus(code)
	}
	return false, nil
}

func (o *objc) waitCompleted(f *clib.Frame, cb id) { o.send(f, cb, selWaitCompleted) }

// waitSignaled waits for at most d until the event has reached n, and returns
// the value it has.
func (o *objc) waitSignaled(f *clib.Frame, ev id, n uint64, d time.Duration) uint64 {
	defer o.pool(f)()
	// The BOOL is one byte of the register, and the value says more.
	o.send(f, ev, selWaitSignaled, uintptr(n), uintptr(milliseconds(d)))
	return uint64(o.send(f, ev, selSignaledValue))
}

// milliseconds is d in whole milliseconds, rounded up: a wait may be longer than
// asked for but never shorter, and never 0 for a d that is not, which would make
// the waiting loop spin.
func milliseconds(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return (uint64(d) + uint64(time.Millisecond) - 1) / uint64(time.Millisecond)
}
