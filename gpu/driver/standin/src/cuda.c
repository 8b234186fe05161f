/*
 * A stand-in for libcuda.so.1. Names, parameter lists and status numbers are
 * those of the CUDA Driver API reference (docs.nvidia.com/cuda/cuda-driver-api);
 * which exported name belongs to which version of an entry point is what that
 * reference's "Driver Entry Point Access" section and cuda.h define.
 */
#include "engine.h"

typedef int CUdevice;
typedef uint64_t CUdeviceptr;

/* Old exports that a binding must not use: the real library still has them, with
 * 32-bit sizes and addresses or other semantics. */
#define TRAP(name)                                                                  \
	EXPORT int name(void)                                                       \
	{                                                                           \
		pthread_mutex_lock(&mu);                                            \
		breach(#name, "the entry point of an ABI before CUDA 4.0 was used"); \
		pthread_mutex_unlock(&mu);                                          \
		return INVALID_VALUE;                                               \
	}
TRAP(cuMemAlloc)
TRAP(cuMemFree)
TRAP(cuMemcpyHtoDAsync)
TRAP(cuMemcpyDtoHAsync)
TRAP(cuMemHostGetDevicePointer)
TRAP(cuStreamDestroy)
TRAP(cuEventDestroy)
TRAP(cuCtxPushCurrent)
TRAP(cuCtxPopCurrent)

/* The calling thread's context stack. */
static __thread ctx *current[MAX_DEPTH];

static ctx *cur(void) { return depth > 0 ? current[depth - 1] : NULL; }

/* The stream behind a handle: 0 and 1 are the legacy default stream, 2 the
 * per-thread one, which nothing here needs. */
static stream *resolve(ctx *c, stream *s)
{
	if ((uintptr_t)s > 2)
		return s;
	if (!c || c->magic != MAGIC_CTX || (uintptr_t)s == 2)
		return NULL;
	if (!c->legacy)
		c->legacy = new_stream(c, 0, 0);
	return c->legacy;
}

#define LOCKED(expr)                          \
	do {                                  \
		pthread_mutex_lock(&mu);      \
		int r_ = (expr);              \
		pthread_mutex_unlock(&mu);    \
		return r_;                    \
	} while (0)

EXPORT int cuInit(unsigned flags)
{
	ENTER();
	if (flags)
		return INVALID_VALUE;
	if (SET(S_INIT_STATUS))
		return (int)SET(S_INIT_STATUS);
	initialized = 1;
	return SET(S_DEVICES) > 0 ? OK : NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *v)
{
	ENTER();
	*v = (int)SET(S_VERSION);
	return OK;
}

EXPORT int cuDeviceGetCount(int *n)
{
	ENTER();
	if (!initialized)
		return NOT_INITIALIZED;
	if (SET(S_COUNT_STATUS))
		return (int)SET(S_COUNT_STATUS);
	*n = (int)SET(S_DEVICES);
	return OK;
}

EXPORT int cuDeviceGet(CUdevice *dev, int ordinal)
{
	ENTER();
	if (!initialized)
		return NOT_INITIALIZED;
	if (ordinal < 0 || ordinal >= SET(S_DEVICES))
		return INVALID_DEVICE;
	*dev = ordinal;
	return OK;
}

EXPORT int cuDeviceGetName(char *name, int len, CUdevice dev)
{
	ENTER();
	if (!name || len <= 0)
		return INVALID_VALUE;
	if (dev < 0 || dev >= SET(S_DEVICES))
		return INVALID_DEVICE;
	snprintf(name, (size_t)len, "Stand-in CUDA device %d", dev);
	return OK;
}

EXPORT int cuDeviceGetAttribute(int *v, int attr, CUdevice dev)
{
	ENTER();
	if (dev < 0 || dev >= SET(S_DEVICES))
		return INVALID_DEVICE;
	switch (attr) {
	case 93: /* 64-bit stream memory operations, version 1 */
		*v = SET(S_V1_MEMOPS) && SET(S_ATTR64);
		return OK;
	case 122: /* the same, version 2: since CUDA 11.7 */
		if (SET(S_VERSION) < 11070)
			return INVALID_VALUE;
		*v = (int)SET(S_ATTR64);
		return OK;
	}
	return INVALID_VALUE;
}

EXPORT int cuDevicePrimaryCtxRetain(void **pctx, CUdevice dev)
{
	ENTER();
	if (!initialized)
		return NOT_INITIALIZED;
	if (dev < 0 || dev >= SET(S_DEVICES))
		return INVALID_DEVICE;
	pthread_mutex_lock(&mu);
	*pctx = retain(dev);
	pthread_mutex_unlock(&mu);
	return OK;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTER();
	if (dev < 0 || dev >= SET(S_DEVICES))
		return INVALID_DEVICE;
	LOCKED(SET(S_DESTROYED) ? (int)SET(S_DESTROYED) : release(dev));
}

EXPORT int cuCtxCreate_v2(void **pctx, unsigned flags, CUdevice dev)
{
	ENTER();
	(void)flags;
	if (dev < 0 || dev >= SET(S_DEVICES) || depth == MAX_DEPTH)
		return INVALID_DEVICE;
	pthread_mutex_lock(&mu);
	ctx *c = calloc(1, sizeof *c);
	c->magic = MAGIC_CTX;
	c->device = dev;
	c->refs = 1;
	live_ctxs++;
	current[depth++] = c;
	*pctx = c;
	pthread_mutex_unlock(&mu);
	return OK;
}

EXPORT int cuCtxDestroy_v2(ctx *c)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = OK;
	if (!c || c->magic != MAGIC_CTX) {
		st = INVALID_CONTEXT;
	} else {
		c->magic = MAGIC_DEAD;
		while (c->streams)
			end_stream(c->streams);
		live_ctxs--;
		if (depth > 0 && current[depth - 1] == c)
			depth--;
	}
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuCtxPushCurrent_v2(ctx *c)
{
	ENTER();
	if (!initialized)
		return NOT_INITIALIZED;
	if (SET(S_DESTROYED))
		return (int)SET(S_DESTROYED);
	if (!c || (c->magic != MAGIC_CTX && c->magic != MAGIC_DEAD) || depth == MAX_DEPTH)
		return INVALID_CONTEXT;
	if (c->magic == MAGIC_DEAD)
		return CONTEXT_IS_DESTROYED;
	current[depth++] = c;
	return OK;
}

EXPORT int cuCtxPopCurrent_v2(void **pctx)
{
	ENTER();
	if (depth == 0) {
		pthread_mutex_lock(&mu);
		breach(__func__, "nothing to pop");
		pthread_mutex_unlock(&mu);
		return INVALID_CONTEXT;
	}
	depth--;
	if (pctx)
		*pctx = current[depth];
	return OK;
}

EXPORT int cuCtxGetCurrent(void **pctx)
{
	ENTER();
	*pctx = cur();
	return OK;
}

EXPORT int cuCtxSetCurrent(ctx *c)
{
	ENTER();
	if (!c)
		depth = depth > 0 ? depth - 1 : 0;
	else if (depth == 0)
		current[depth++] = c;
	else
		current[depth - 1] = c;
	return OK;
}

EXPORT int cuCtxSynchronize(void)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st)
		st = drain_context(cur());
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuMemHostAlloc(void **pp, size_t n, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st)
		st = unsafe_call(cur());
	if (!st && (n == 0 || flags & ~7u))
		st = INVALID_VALUE;
	if (!st && (flags & 3) != 3)
		breach(__func__, "a word's page must be portable and device-mapped");
	mem *m = st ? NULL : allocate(cur(), n, 1);
	if (!st && !m)
		st = OUT_OF_MEMORY;
	if (m)
		*pp = m->host;
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuMemFreeHost(void *p)
{
	ENTER();
	LOCKED(free_memory(cur(), p, 1, __func__));
}

EXPORT int cuMemHostGetDevicePointer_v2(CUdeviceptr *pdev, void *p, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st && (flags || !pinned(p)))
		st = INVALID_VALUE;
	if (!st)
		*pdev = device_address(p);
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuMemAlloc_v2(CUdeviceptr *pdev, size_t n)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st)
		st = unsafe_call(cur());
	if (!st && n == 0)
		st = INVALID_VALUE;
	mem *m = st ? NULL : allocate(cur(), n, 0);
	if (!st && !m)
		st = OUT_OF_MEMORY;
	if (m)
		*pdev = device_address(m->host);
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuMemFree_v2(CUdeviceptr dev)
{
	ENTER();
	pthread_mutex_lock(&mu);
	void *p = reach(cur(), dev, 1);
	int st = p ? free_memory(cur(), p, 0, __func__) : context_status(cur(), __func__);
	if (!p && !st)
		st = INVALID_VALUE;
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, stream *s)
{
	ENTER();
	LOCKED(copy_in(cur(), resolve(cur(), s), dst, src, n, __func__));
}

EXPORT int cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, stream *s)
{
	ENTER();
	LOCKED(copy_out(cur(), resolve(cur(), s), dst, src, n, __func__));
}

EXPORT int cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, stream *s)
{
	ENTER();
	LOCKED(fill(cur(), resolve(cur(), s), dst, value, n, __func__));
}

EXPORT int cuStreamCreate(stream **ps, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st && flags & ~1u)
		st = INVALID_VALUE;
	if (!st && !(*ps = new_stream(cur(), flags, 1)))
		st = OUT_OF_MEMORY;
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuStreamDestroy_v2(stream *s)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	int st = stream_status(c, s, __func__);
	if (!st || (c && st == c->sticky))
		end_stream(s);
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuStreamQuery(stream *s)
{
	ENTER();
	LOCKED(stream_query(cur(), resolve(cur(), s), __func__));
}

EXPORT int cuStreamSynchronize(stream *s)
{
	ENTER();
	LOCKED(stream_sync(cur(), resolve(cur(), s), __func__));
}

EXPORT int cuStreamGetCtx(stream *s, void **pctx)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = OK;
	if ((uintptr_t)s <= 2) {
		if ((*pctx = cur()) == NULL)
			st = INVALID_CONTEXT;
	} else if (s->magic != MAGIC_STREAM) {
		st = INVALID_HANDLE;
	} else {
		*pctx = s->c;
	}
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuStreamBeginCapture_v2(stream *s, int mode)
{
	ENTER();
	LOCKED(begin_capture(cur(), resolve(cur(), s), mode, __func__));
}

EXPORT int cuStreamEndCapture(stream *s, void **graph)
{
	ENTER();
	LOCKED(end_capture(cur(), resolve(cur(), s), graph, __func__));
}

EXPORT int cuStreamIsCapturing(stream *s, int *out)
{
	ENTER();
	LOCKED(is_capturing(cur(), resolve(cur(), s), out, __func__));
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	ENTER();
	return exchange_mode(mode);
}

EXPORT int cuStreamWriteValue64_v2(stream *s, CUdeviceptr addr, uint64_t value, unsigned flags)
{
	ENTER();
	if (flags & ~1u)
		return INVALID_VALUE;
	LOCKED(stream_write(cur(), resolve(cur(), s), addr, value, __func__));
}

EXPORT int cuStreamWriteValue64(stream *s, CUdeviceptr addr, uint64_t value, unsigned flags)
{
	ENTER();
	if (!SET(S_V1_MEMOPS))
		return NOT_SUPPORTED;
	if (flags & ~1u)
		return INVALID_VALUE;
	LOCKED(stream_write(cur(), resolve(cur(), s), addr, value, __func__));
}

EXPORT int cuEventCreate(event **pe, unsigned flags)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st && flags != 2 && flags != 3) { /* 1 is CU_EVENT_BLOCKING_SYNC */
		breach(__func__, "an event that nobody times must be made without timing");
		st = INVALID_VALUE;
	}
	if (!st) {
		event *e = calloc(1, sizeof *e);
		e->magic = MAGIC_EVENT;
		e->c = cur();
		live_events++;
		*pe = e;
	}
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuEventRecord(event *e, stream *s)
{
	ENTER();
	LOCKED(event_record(cur(), e, resolve(cur(), s), __func__));
}

EXPORT int cuEventQuery(event *e)
{
	ENTER();
	LOCKED(event_query(cur(), e, __func__));
}

/* Blocks in naps, as a blocking wait that leaves the processor to others. */
EXPORT int cuEventSynchronize(event *e)
{
	ENTER();
	for (;;) {
		pthread_mutex_lock(&mu);
		int st = event_query(cur(), e, __func__);
		pthread_mutex_unlock(&mu);
		if (st != NOT_READY)
			return st;
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
}

EXPORT int cuEventDestroy_v2(event *e)
{
	ENTER();
	LOCKED(event_destroy(cur(), e, __func__));
}

EXPORT int cuLaunchHostFunc(stream *s, void (*fn)(void *), void *data)
{
	ENTER();
	pthread_mutex_lock(&mu);
	s = resolve(cur(), s);
	int st = stream_status(cur(), s, __func__);
	if (!st)
		enqueue(s, &(item){.op = OP_HOST, .host = fn, .data = data});
	pthread_mutex_unlock(&mu);
	return st;
}

/* Modules are text in which ".entry <name>" declares a kernel. The names that
 * are known can be launched. */
static const char *const kernels[] = {"fill32", "spin", "fault", NULL};

typedef struct module {
	int known[3];
} module;

EXPORT int cuModuleLoadData(module **pm, const char *image)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st && !strstr(image, ".version"))
		st = 218; /* CUDA_ERROR_INVALID_PTX */
	size_t len = st ? 0 : strlen(image);
	if (!st && (len == 0 || (image[len - 1] != '\n' && image[len - 1] != '}')))
		st = 218; /* what follows the text is not part of it: no terminator */
	if (!st) {
		module *m = calloc(1, sizeof *m);
		for (int i = 0; kernels[i]; i++) {
			char entry[64];
			snprintf(entry, sizeof entry, ".entry %s(", kernels[i]);
			m->known[i] = strstr(image, entry) != NULL;
		}
		live_modules++;
		*pm = m;
	}
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuModuleUnload(module *m)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st) {
		live_modules--;
		free(m);
	}
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuModuleGetFunction(uintptr_t *pf, module *m, const char *name)
{
	ENTER();
	pthread_mutex_lock(&mu);
	int st = context_status(cur(), __func__);
	if (!st) {
		st = NOT_FOUND;
		for (int i = 0; kernels[i]; i++)
			if (m->known[i] && !strcmp(kernels[i], name)) {
				*pf = (uintptr_t)i + 1;
				st = OK;
			}
	}
	pthread_mutex_unlock(&mu);
	return st;
}

EXPORT int cuLaunchKernel(uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, stream *s, void **params, void **extra)
{
	ENTER();
	pthread_mutex_lock(&mu);
	ctx *c = cur();
	s = resolve(c, s);
	int st = stream_status(c, s, __func__);
	if (!st && (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || shared > 48 << 10 || extra))
		st = INVALID_VALUE;
	item it = {0};
	if (!st)
		switch (f) {
		case 1: { /* fill32(u64 ptr, u32 value, u32 n): each thread fills one element */
			it.op = OP_FILL32;
			uint32_t n = *(uint32_t *)params[2];
			if ((uint64_t)gx * bx < n)
				n = gx * bx;
			it.n = n;
			it.value = *(uint32_t *)params[1];
			it.dst = reach(c, *(uint64_t *)params[0], (size_t)n * 4);
			if (!it.dst) /* a real kernel fails when it runs, not when it is queued */
				it.op = OP_FAULT;
			break;
		}
		case 2: /* spin(u64 nanoseconds) */
			it.op = OP_SPIN;
			it.value = *(uint64_t *)params[0];
			break;
		case 3: /* fault() */
			it.op = OP_FAULT;
			break;
		default:
			st = INVALID_HANDLE;
		}
	if (!st)
		enqueue(s, &it);
	pthread_mutex_unlock(&mu);
	return st;
}

static const struct {
	int status;
	const char *name, *text;
} names[] = {
	{OK, "CUDA_SUCCESS", "no error"},
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
};

EXPORT int cuGetErrorName(int st, const char **out)
{
	ENTER();
	*out = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].status == st)
			*out = names[i].name;
	return *out ? OK : INVALID_VALUE;
}

EXPORT int cuGetErrorString(int st, const char **out)
{
	ENTER();
	*out = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].status == st)
			*out = names[i].text;
	return *out ? OK : INVALID_VALUE;
}

/* Base name, the CUDA version in which this ABI of it appeared, and the entry
 * point; newer ABIs first. */
static const struct {
	const char *name;
	int version;
	void *fn;
} procs[] = {
	{"cuInit", 2000, cuInit},
	{"cuDriverGetVersion", 2020, cuDriverGetVersion},
	{"cuDeviceGetCount", 2000, cuDeviceGetCount},
	{"cuDeviceGet", 2000, cuDeviceGet},
	{"cuDeviceGetName", 2000, cuDeviceGetName},
	{"cuDeviceGetAttribute", 2000, cuDeviceGetAttribute},
	{"cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain},
	{"cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2},
	{"cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2},
	{"cuCtxPushCurrent", 2000, cuCtxPushCurrent},
	{"cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2},
	{"cuCtxPopCurrent", 2000, cuCtxPopCurrent},
	{"cuCtxGetCurrent", 4000, cuCtxGetCurrent},
	{"cuCtxSetCurrent", 4000, cuCtxSetCurrent},
	{"cuCtxSynchronize", 2000, cuCtxSynchronize},
	{"cuMemHostAlloc", 2020, cuMemHostAlloc},
	{"cuMemFreeHost", 2000, cuMemFreeHost},
	{"cuMemHostGetDevicePointer", 3020, cuMemHostGetDevicePointer_v2},
	{"cuMemHostGetDevicePointer", 2020, cuMemHostGetDevicePointer},
	{"cuMemAlloc", 3020, cuMemAlloc_v2},
	{"cuMemAlloc", 2000, cuMemAlloc},
	{"cuMemFree", 3020, cuMemFree_v2},
	{"cuMemFree", 2000, cuMemFree},
	{"cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2},
	{"cuMemcpyHtoDAsync", 2000, cuMemcpyHtoDAsync},
	{"cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2},
	{"cuMemcpyDtoHAsync", 2000, cuMemcpyDtoHAsync},
	{"cuMemsetD8Async", 3020, cuMemsetD8Async},
	{"cuStreamCreate", 2000, cuStreamCreate},
	{"cuStreamDestroy", 4000, cuStreamDestroy_v2},
	{"cuStreamDestroy", 2000, cuStreamDestroy},
	{"cuStreamQuery", 2000, cuStreamQuery},
	{"cuStreamSynchronize", 2000, cuStreamSynchronize},
	{"cuStreamGetCtx", 9020, cuStreamGetCtx},
	{"cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2},
	{"cuStreamEndCapture", 10000, cuStreamEndCapture},
	{"cuStreamIsCapturing", 10000, cuStreamIsCapturing},
	{"cuThreadExchangeStreamCaptureMode", 10010, cuThreadExchangeStreamCaptureMode},
	{"cuStreamWriteValue64", 11070, cuStreamWriteValue64_v2},
	{"cuStreamWriteValue64", 9000, cuStreamWriteValue64},
	{"cuEventCreate", 2000, cuEventCreate},
	{"cuEventRecord", 2000, cuEventRecord},
	{"cuEventQuery", 2000, cuEventQuery},
	{"cuEventSynchronize", 2000, cuEventSynchronize},
	{"cuEventDestroy", 4000, cuEventDestroy_v2},
	{"cuEventDestroy", 2000, cuEventDestroy},
	{"cuLaunchHostFunc", 10000, cuLaunchHostFunc},
	{"cuModuleLoadData", 2000, cuModuleLoadData},
	{"cuModuleUnload", 2000, cuModuleUnload},
	{"cuModuleGetFunction", 2000, cuModuleGetFunction},
	{"cuLaunchKernel", 4000, cuLaunchKernel},
	{"cuGetErrorName", 6000, cuGetErrorName},
	{"cuGetErrorString", 6000, cuGetErrorString},
};

static int lookup(const char *name, void **pfn, int version, int *status)
{
	*pfn = NULL;
	*status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
	if (version > SET(S_VERSION))
		return INVALID_VALUE;
	for (size_t i = 0; i < sizeof procs / sizeof *procs; i++) {
		if (strcmp(procs[i].name, name))
			continue;
		*status = 2; /* CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT */
		if (procs[i].version > version)
			continue;
		*pfn = procs[i].fn;
		*status = 0;
		break;
	}
	return OK;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	ENTER();
	int st = 0;
	if (flags > 2)
		return INVALID_VALUE;
	int r = lookup(name, pfn, version, &st);
	if (status)
		*status = st;
	return r;
}

EXPORT int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags)
{
	ENTER();
	int st = 0;
	if (flags > 2)
		return INVALID_VALUE;
	int r = lookup(name, pfn, version, &st);
	return r ? r : *pfn ? OK : NOT_FOUND;
}
