package uring

import (
	"context"
	"errors"
	"strconv"
	"syscall"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/poller"
)

// results maps the reasons why a wait can end to the errno numbers that stand for
// them in a completion entry, as negative results. Each number stands for one
// reason, so that it can be turned back. The first row that matches counts.
var results = [...]struct {
	err   error
	errno int32
}{
	{poller.ErrLook, 11},           // EAGAIN
	{event.DeviceLost, 19},         // ENODEV
	{event.Closed, 108},            // ESHUTDOWN
	{event.WorkFailed, 5},          // EIO
	{event.StoreLost, 61},          // ENODATA
	{event.Backend, 121},           // EREMOTEIO
	{event.NotMarked, 34},          // ERANGE
	{event.CaptureRefused, 16},     // EBUSY
	{event.NotSupported, 95},       // EOPNOTSUPP
	{event.ForeignStream, 18},      // EXDEV
	{event.InvalidArgument, 22},    // EINVAL
	{event.Panicked, 14},           // EFAULT
	{context.Canceled, 125},        // ECANCELED
	{context.DeadlineExceeded, 62}, // ETIME
}

const otherResult = 71 // EPROTO

// Result returns what a completion entry says of a wait that ended with err: 0 for
// success, else a negative errno by this table (numbers of x86 and arm):
//
//	poller.ErrLook           -EAGAIN      11
//	event.DeviceLost         -ENODEV      19
//	event.Closed             -ESHUTDOWN  108
//	event.WorkFailed         -EIO          5
//	event.StoreLost          -ENODATA     61
//	event.Backend            -EREMOTEIO  121
//	event.NotMarked          -ERANGE      34
//	event.CaptureRefused     -EBUSY       16
//	event.NotSupported       -EOPNOTSUPP  95
//	event.ForeignStream      -EXDEV       18
//	event.InvalidArgument    -EINVAL      22
//	event.Panicked           -EFAULT      14
//	context.Canceled         -ECANCELED  125
//	context.DeadlineExceeded -ETIME       62
//	anything else            -EPROTO      71
func Result(err error) int32 {
	if err == nil {
		return 0
	}
	for _, r := range results {
		if errors.Is(err, r.err) {
			return -r.errno
		}
	}
	return -otherResult
}

// ResultError returns an error for a result that Result made: nil unless res is
// negative, else one that matches the reason's code or sentinel. What else the
// original error had to say, Host.Err has.
func ResultError(res int32) error {
	if res >= 0 {
		return nil
	}
	for _, r := range results {
		if r.errno != -res {
			continue
		}
		if code, ok := r.err.(event.Code); ok {
			return event.New(code, "a wait on an io_uring", "its completion says "+strconv.Itoa(int(res))).WithStatus(int64(res))
		}
		return r.err
	}
	return event.New(event.Backend, "a wait on an io_uring", strconv.Itoa(int(res))).WithStatus(int64(res)).Wrap(syscall.Errno(-res))
}
