/*
 * A stand-in for libamdhip64.so. Names, parameter lists and status numbers are
 * those of the HIP runtime API (rocm.docs.amd.com/projects/HIP, "Runtime API
 * reference"); what is current per thread is a device, not a context, and every
 * thread begins with device 0.
 */
#include "engine.h"

static __thread int device;
static __thread int last_error;

/* Every call that fails leaves its status for hipGetLastError, "not ready"
 * included. */
static int note(int st)
{
	if (st)
		last_error = st;
	return st;
}

#define LOCKED(expr)                          \
	do {                                  \
		pthread_mutex_lock(&mu);      \
		int r_ = (expr);              \
		pthread_mutex_unlock(&mu);    \
		return note(r_);              \
	} while (0)

/* The context of the calling thread's device. Like the real runtime, any call
 * brings a device's context to life; unlike there, only a retained one counts,
 * so that a missing reference is found. Call with mu held. */
static ctx *cur(void)
{
	ctx *c = device < SET(S_DEVICES) ? primary[device] : NULL;
	return c && c->refs > 0 ? c : c && SET(S_DESTROYED) ? c : NULL;
}

/* The null stream is each device's own. */
static stream *resolve(ctx *c, stream *s)
{
	if ((uintptr_t)s > 2)
		return s;
	if (!c || c->magic != MAGIC_CTX || s)
		return NULL;
	if (!c->legacy)
		c->legacy = new_stream(c, 0, 0);
	return c->legacy;
}

EXPORT int hipInit(unsigned flags)
{
	ENTER();
	if (flags)
		return note(INVALID_VALUE);
	if (SET(S_INIT_STATUS))
		return note((int)SET(S_INIT_STATUS));
	initialized = 1;
	return note(SET(S_DEVICES) > 0 ? OK : NO_DEVICE);
}

EXPORT int hipDriverGetVersion(int *v)
{
	ENTER();
	*v = (int)SET(S_VERSION);
	return OK;
}

EXPORT int hipRuntimeGetVersion(int *v)
{
	ENTER();
	*v = 60241133;
	return OK;
}

EXPORT int hipGetDeviceCount(int *n)
{
	ENTER();
	*n = 0;
	if (SET(S_COUNT_STATUS))
		return note((int)SET(S_COUNT_STATUS));
	*n = (int)SET(S_DEVICES);
	return note(*n > 0 ? OK : NO_DEVICE);
}

EXPORT int hipDeviceGetName(char *name, int len, int dev)
{
	ENTER();
	if (!name || len <= 0)
		return note(INVALID_VALUE);
	if (dev < 0 || dev >= SET(S_DEVICES))
		return note(INVALID_DEVICE);
	snprintf(name, (size_t)len, "Stand-in HIP device %d", dev);
	return OK;
}

EXPORT int hipGetDevice(int *dev)
{
	ENTER();
	*dev = device;
	return OK;
}

EXPORT int hipSetDevice(int dev)
{
	ENTER();
	if (dev < 0 || dev >= SET(S_DEVICES))
		return note(INVALID_DEVICE);
	device = dev;
	return OK;
}

EXPORT int hipDevicePrimaryCtxRetain(void **pctx, int dev)
{
	ENTER();
	if (!initialized)
		return note(NOT_INITIALIZED);
	if (dev < 0 || dev >= SET(S_DEVICES))
		return note(INVALID_DEVICE);
	pthread_mutex_lock(&mu);
	*pctx = retain(dev);
	pthread_mutex_unlock(&mu);
	return OK;
}

EXPORT int hipDevicePrimaryCtxRelease(int dev)
{
	ENTER();
	if (dev < 0 || dev >= SET(S_DEVICES))
		return note(INVALID_DEVICE);
	LOCKED(SET(S_DESTROYED) ? (int)SET(S_DESTROYED) : release(dev));
}

EXPORT int hipDeviceSynchronize(void)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = context_status(c, __func__);
	if (!st)
		st = drain_context(c);
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipHostMalloc(void **pp, size_t n, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = context_status(c, __func__);
	if (!st)
		st = unsafe_call(c);
	if (!st && (flags & 0x40000000) && (flags & 0x80000000))
		st = INVALID_VALUE;
	if (!st && (flags & 0x40000002) != 0x40000002)
		breach(__func__, "a word's page must be mapped and coherent");
	mem *m = st ? NULL : allocate(c, n, 1);
	if (!st && !m)
		st = OUT_OF_MEMORY;
	if (m)
		*pp = m->host;
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipHostFree(void *p)
{
	ENTER();
	LOCKED(free_memory(cur(), p, 1, __func__));
}

EXPORT int hipHostGetDevicePointer(void **pdev, void *p, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st && (flags || !pinned(p)))
		st = INVALID_VALUE;
	if (!st)
		*pdev = (void *)(uintptr_t)device_address(p);
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipMalloc(void **pdev, size_t n)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = context_status(c, __func__);
	if (!st)
		st = unsafe_call(c);
	mem *m = st ? NULL : allocate(c, n ? n : 1, 0);
	if (!st && !m)
		st = OUT_OF_MEMORY;
	if (m)
		*pdev = (void *)(uintptr_t)device_address(m->host);
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipFree(void *dev)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	void *p = reach(c, (uint64_t)(uintptr_t)dev, 1);
	int st = p ? free_memory(c, p, 0, __func__) : context_status(c, __func__);
	if (!p && !st)
		st = INVALID_VALUE;
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipMemcpyHtoDAsync(void *dst, void *src, size_t n, stream *s)
{
	ENTER();
	LOCKED(copy_in(cur(), resolve(cur(), s), (uint64_t)(uintptr_t)dst, src, n, __func__));
}

EXPORT int hipMemcpyDtoHAsync(void *dst, void *src, size_t n, stream *s)
{
	ENTER();
	LOCKED(copy_out(cur(), resolve(cur(), s), dst, (uint64_t)(uintptr_t)src, n, __func__));
}

EXPORT int hipMemsetD8Async(void *dst, unsigned char value, size_t n, stream *s)
{
	ENTER();
	LOCKED(fill(cur(), resolve(cur(), s), (uint64_t)(uintptr_t)dst, value, n, __func__));
}

EXPORT int hipStreamCreateWithFlags(stream **ps, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = context_status(c, __func__);
	if (!st && flags & ~1u)
		st = INVALID_VALUE;
	if (!st && !(*ps = new_stream(c, flags, 1)))
		st = OUT_OF_MEMORY;
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipStreamDestroy(stream *s)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = stream_status(c, s, __func__);
	if (!st || (c && st == c->sticky))
		end_stream(s);
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipStreamQuery(stream *s)
{
	ENTER();
	LOCKED(stream_query(cur(), resolve(cur(), s), __func__));
}

EXPORT int hipStreamSynchronize(stream *s)
{
	ENTER();
	LOCKED(stream_sync(cur(), resolve(cur(), s), __func__));
}

EXPORT int hipStreamGetDevice(stream *s, int *dev)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = OK;
	if (!s)
		*dev = device;
	else if ((uintptr_t)s <= 2 || s->magic != MAGIC_STREAM)
		st = INVALID_HANDLE;
	else
		*dev = s->c->device;
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipStreamBeginCapture(stream *s, int mode)
{
	ENTER();
	LOCKED(begin_capture(cur(), resolve(cur(), s), mode, __func__));
}

EXPORT int hipStreamEndCapture(stream *s, void **graph)
{
	ENTER();
	LOCKED(end_capture(cur(), resolve(cur(), s), graph, __func__));
}

EXPORT int hipStreamIsCapturing(stream *s, int *out)
{
	ENTER();
	LOCKED(is_capturing(cur(), resolve(cur(), s), out, __func__));
}

EXPORT int hipThreadExchangeStreamCaptureMode(int *mode)
{
	ENTER();
	return note(exchange_mode(mode));
}

EXPORT int hipStreamWriteValue64(stream *s, void *addr, uint64_t value, unsigned flags)
{
	ENTER();
	if (flags)
		return note(INVALID_VALUE);
	LOCKED(stream_write(cur(), resolve(cur(), s), (uint64_t)(uintptr_t)addr, value, __func__));
}

EXPORT int hipEventCreateWithFlags(event **pe, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = context_status(c, __func__);
	if (!st && flags != 2) {
		breach(__func__, "an event that nobody times must be made without timing");
		st = INVALID_VALUE;
	}
	if (!st) {
		event *e = calloc(1, sizeof *e);
		e->magic = MAGIC_EVENT;
		e->c = c;
		live_events++;
		*pe = e;
	}
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipEventRecord(event *e, stream *s)
{
	ENTER();
	LOCKED(event_record(cur(), e, resolve(cur(), s), __func__));
}

EXPORT int hipEventQuery(event *e)
{
	ENTER();
	LOCKED(event_query(cur(), e, __func__));
}

EXPORT int hipEventDestroy(event *e)
{
	ENTER();
	LOCKED(event_destroy(cur(), e, __func__));
}

EXPORT int hipLaunchHostFunc(stream *s, void (*fn)(void *), void *data)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	s = resolve(c, s);
	int st = stream_status(c, s, __func__);
	if (!st)
		enqueue(s, &(item){.op = OP_HOST, .host = fn, .data = data});
	pthread_mutex_unlock(&mu);
	return note(st);
}

EXPORT int hipGetLastError(void)
{
	ENTER();
	int st = last_error;
	last_error = OK;
	return st;
}

EXPORT int hipPeekAtLastError(void)
{
	ENTER();
	return last_error;
}

static const struct {
	int status;
	const char *name, *text;
} names[] = {
	{OK, "hipSuccess", "no error"},
	{INVALID_VALUE, "hipErrorInvalidValue", "invalid argument"},
	{OUT_OF_MEMORY, "hipErrorOutOfMemory", "out of memory"},
	{NOT_INITIALIZED, "hipErrorNotInitialized", "initialization error"},
	{DEINITIALIZED, "hipErrorDeinitialized", "driver shutting down"},
	{NO_DEVICE, "hipErrorNoDevice", "no ROCm-capable device is detected"},
	{INVALID_DEVICE, "hipErrorInvalidDevice", "invalid device ordinal"},
	{INVALID_CONTEXT, "hipErrorInvalidContext", "invalid device context"},
	{INVALID_HANDLE, "hipErrorInvalidHandle", "invalid resource handle"},
	{NOT_READY, "hipErrorNotReady", "device not ready"},
	{ILLEGAL_ADDRESS, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
	{CONTEXT_IS_DESTROYED, "hipErrorContextIsDestroyed", "context is destroyed"},
	{NOT_SUPPORTED, "hipErrorNotSupported", "operation not supported"},
	{CAPTURE_UNSUPPORTED, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
};

EXPORT const char *hipGetErrorName(int st)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].status == st)
			return names[i].name;
	return "hipErrorUnknown";
}

EXPORT const char *hipGetErrorString(int st)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].status == st)
			return names[i].text;
	return "unknown error";
}
