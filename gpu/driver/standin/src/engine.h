/*
 * The engine behind the stand-in driver libraries: contexts with a reference
 * count, memory whose device address differs from its host address, in-order
 * streams run by worker threads, events, stream capture, and every failure that
 * the tests ask for. It imitates the documented behaviour of the vendors' APIs,
 * as far as gpuline uses them; it proves a binding, not a vendor.
 *
 * Each library is one translation unit: cuda.c or hip.c includes this file.
 * Everything here is static; only the vendor's entry points and the standin_*
 * control functions are exported.
 *
 * One global mutex guards all state. Memory for streams, events and contexts is
 * never given back, so that a handle used after its destruction is recognised
 * instead of being undefined behaviour.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* Status numbers, the same in both APIs where both have them. */
enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	DEINITIALIZED = 4,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	CONTEXT_IS_DESTROYED = 709,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURE_UNMATCHED = 903,
	CAPTURE_IMPLICIT = 906,
	CAPTURED_EVENT = 907,
};

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
enum { MAX_DEVICES = 8, MAX_FAILS = 32, MAX_DEPTH = 32 };
enum { MAGIC_CTX = 0x43545821, MAGIC_STREAM = 0x53545221, MAGIC_EVENT = 0x45565421, MAGIC_DEAD = 0x44454144 };

/* Device addresses are host addresses plus this, so that a host address which
 * is passed for a device address is found out. */
#define DEVICE_TAG ((uint64_t)1 << 56)

typedef struct ctx {
	uint32_t magic;
	int device;
	int refs;
	int sticky;        /* the status that every later call answers */
	int late;          /* stores that will land after their stream is done */
	struct stream *streams;
	struct stream *legacy;
} ctx;

typedef struct event {
	uint32_t magic;
	ctx *c;
	uint64_t recorded, done;
	int captured;
} event;

enum op { OP_NOP, OP_STORE, OP_EVENT, OP_COPY, OP_FILL, OP_SPIN, OP_FILL32, OP_FAULT, OP_HOST, OP_GATE };

typedef struct item {
	struct item *next;
	enum op op;
	void *dst;
	const void *src;
	void *staged;      /* copy of pageable source memory, freed with the item */
	uint64_t value;
	size_t n;
	event *ev;
	void (*host)(void *);
	void *data;
	int *gate;         /* opened when 1 */
} item;

typedef struct stream {
	uint32_t magic;
	ctx *c;
	struct stream *next, *next_all;
	unsigned flags;
	int counted;       /* made by a call of the library under test */
	int dying;
	pthread_cond_t work;
	item *head, *tail;
	uint64_t queued, done;
	int capturing;     /* 0 none, 1 active, 2 invalidated */
	int capture_mode;
	pthread_t capture_thread;
	uint64_t captured; /* operations in the capture */
} stream;

typedef struct mem {
	struct mem *next;
	ctx *c;
	char *base, *host; /* what is mapped, what was handed out */
	size_t mapped, n;
	int pinned;        /* page-locked host memory, else device memory */
} mem;

typedef struct func {
	struct func *next;
	const char *name;
	int64_t calls;
} func;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* something finished, or a setting changed */
static int initialized;
static ctx *primary[MAX_DEVICES];
static mem *mems;
static stream *all;        /* every stream that still has a worker */
static struct late_store *lates;
static func *funcs;
static int64_t live_streams, live_events, live_ctxs, live_modules, live_threads, violations;
static char violation[256];

/* Settings: standin_set(name, value). */
static struct setting {
	const char *name;
	int64_t value, initial;
} settings[] = {
#define S_DEVICES 0
	{"devices", 2, 2},                /* how many devices there are */
#define S_VERSION 1
	{"version", 12040, 12040},        /* what the driver version call answers */
#define S_ATTR64 2
	{"attr64", 1, 1},                 /* what the 64-bit stream memory operation attribute says, right or wrong */
#define S_WRITE_STATUS 3
	{"write_status", 0, 0},           /* refuse stream writes with this status */
#define S_WRITE_AFTER 4
	{"write_status_after", 0, 0},     /* queue the stream write, then answer this status */
#define S_STORE_LOST 5
	{"store_lost", 0, 0},             /* stores never land */
#define S_STORE_LATE_US 6
	{"store_late_us", 0, 0},          /* stores land this long after their stream says done */
#define S_STORE_AFTER_FAULT 7
	{"store_after_fault", 0, 0},      /* stores queued behind failed work land all the same */
#define S_HOLD 8
	{"hold", 0, 0},                   /* streams execute nothing while set */
#define S_DELAY_US 9
	{"delay_us", 0, 0},               /* each item takes at least this long */
#define S_QUERY_BLOCK 10
	{"query_block", 0, 0},            /* stream and event queries block while set */
#define S_DESTROYED 11
	{"destroyed", 0, 0},              /* every call that needs a context answers this status (709, 201, 4) */
#define S_INIT_STATUS 12
	{"init_status", 0, 0},            /* what the init call answers */
#define S_UVA 13
	{"uva", 0, 0},                    /* device addresses equal host addresses */
#define S_PAGEABLE_SYNC 14
	{"pageable_sync", 1, 1},          /* device-to-pageable-host copies return when done, as documented */
#define S_FAULT_STATUS 15
	{"fault_status", ILLEGAL_ADDRESS, ILLEGAL_ADDRESS}, /* the sticky status of failing work */
#define S_V1_MEMOPS 16
	{"v1_memops", 0, 0},              /* the old stream write works (the kernel module parameter is set) */
#define S_COUNT_STATUS 17
	{"count_status", 0, 0},           /* what the device count call answers */
#define S_UNALIGNED 18
	{"unaligned", 0, 0},              /* page-locked memory does not begin on a page boundary */
	{NULL, 0, 0},
};
#define SET(i) (settings[i].value)

static struct {
	char name[64];
	int64_t status;
} fails[MAX_FAILS];
static int nfails;

/* What is current on the calling thread. */
static __thread int depth;
static __thread int thread_capture_mode = CAPTURE_GLOBAL;

static void breach(const char *fn, const char *what)
{
	violations++;
	snprintf(violation, sizeof violation, "%s: %s", fn, what);
}

/* Every entry point begins with ENTER: it counts the call and answers the
 * failure that a test asked for. */
static int enter(const char *name, func *f)
{
	pthread_mutex_lock(&mu);
	if (!f->name) {
		f->name = name;
		f->next = funcs;
		funcs = f;
	}
	f->calls++;
	int st = 0;
	for (int i = 0; i < nfails; i++)
		if (!strcmp(fails[i].name, name))
			st = (int)fails[i].status;
	pthread_mutex_unlock(&mu);
	return st;
}

#define ENTER()                                       \
	do {                                          \
		static func fn_;                      \
		int st_ = enter(__func__, &fn_);      \
		if (st_)                              \
			return st_;                   \
	} while (0)

/* Call with mu held, on a live context. */
static int context_status(ctx *c, const char *fn)
{
	if (SET(S_DESTROYED))
		return (int)SET(S_DESTROYED);
	if (!c) {
		breach(fn, "no context is current on the calling thread");
		return INVALID_CONTEXT;
	}
	if (c->magic != MAGIC_CTX)
		return CONTEXT_IS_DESTROYED;
	return c->sticky;
}

/* A potentially unsafe call during a capture that forbids it invalidates the
 * capture. Call with mu held. */
static int unsafe_call(ctx *c)
{
	if (thread_capture_mode == CAPTURE_RELAXED)
		return OK;
	int st = OK;
	for (stream *s = c ? c->streams : NULL; s; s = s->next) {
		if (s->magic != MAGIC_STREAM || s->capturing != 1)
			continue;
		int own = pthread_equal(s->capture_thread, pthread_self());
		if ((own && s->capture_mode != CAPTURE_RELAXED) ||
		    (!own && s->capture_mode == CAPTURE_GLOBAL && thread_capture_mode == CAPTURE_GLOBAL)) {
			s->capturing = 2;
			st = CAPTURE_UNSUPPORTED;
		}
	}
	return st;
}

/* Call with mu held. */
static int stream_status(ctx *c, stream *s, const char *fn)
{
	int st = context_status(c, fn);
	if (st)
		return st;
	if (!s || (s->magic != MAGIC_STREAM && s->magic != MAGIC_DEAD)) {
		breach(fn, "not a stream");
		return INVALID_HANDLE;
	}
	if (s->magic == MAGIC_DEAD) {
		breach(fn, "the stream was destroyed");
		return INVALID_HANDLE;
	}
	if (s->c != c) {
		breach(fn, "the stream belongs to another context than the current one");
		return INVALID_HANDLE;
	}
	return OK;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

typedef struct late_store {
	struct late_store *next;
	ctx *c;
	uint64_t *dst, value, us;
} late_store;

static void *late_thread(void *p)
{
	late_store *l = p;
	sleep_ns(l->us * 1000);
	__atomic_store_n(l->dst, l->value, __ATOMIC_RELEASE);
	pthread_mutex_lock(&mu);
	l->c->late--;
	live_threads--;
	for (late_store **q = &lates; *q; q = &(*q)->next)
		if (*q == l) {
			*q = l->next;
			break;
		}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	free(l);
	return NULL;
}

static int spawn(void *(*fn)(void *), void *arg)
{
	pthread_t th;
	pthread_attr_t at;
	pthread_attr_init(&at);
	pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&at, 128 << 10);
	int e = pthread_create(&th, &at, fn, arg);
	pthread_attr_destroy(&at);
	return e;
}

/* Runs one item. Call with mu held; it is dropped while the item runs. */
static void execute(stream *s, item *it)
{
	ctx *c = s->c;
	uint64_t delay = (uint64_t)SET(S_DELAY_US) * 1000;
	if (it->op == OP_SPIN)
		delay += it->value;
	if (c->sticky && !(it->op == OP_STORE && SET(S_STORE_AFTER_FAULT)))
		return;
	if (it->op == OP_STORE && SET(S_STORE_LOST))
		return;
	if (it->op == OP_STORE && SET(S_STORE_LATE_US)) {
		late_store *l = malloc(sizeof *l);
		*l = (late_store){lates, c, it->dst, it->value, (uint64_t)SET(S_STORE_LATE_US)};
		if (spawn(late_thread, l)) {
			free(l);
			return;
		}
		lates = l;
		c->late++;
		live_threads++;
		return;
	}
	pthread_mutex_unlock(&mu);
	if (delay)
		sleep_ns(delay);
	switch (it->op) {
	case OP_STORE:
		__atomic_store_n((uint64_t *)it->dst, it->value, __ATOMIC_RELEASE);
		break;
	case OP_COPY:
		memcpy(it->dst, it->staged ? it->staged : it->src, it->n);
		break;
	case OP_FILL:
		memset(it->dst, (int)it->value, it->n);
		break;
	case OP_FILL32:
		for (size_t i = 0; i < it->n; i++)
			((uint32_t *)it->dst)[i] = (uint32_t)it->value;
		break;
	case OP_HOST:
		it->host(it->data);
		break;
	default:
		break;
	}
	pthread_mutex_lock(&mu);
	if (it->op == OP_FAULT)
		c->sticky = (int)SET(S_FAULT_STATUS);
}

static void *worker(void *p)
{
	stream *s = p;
	pthread_mutex_lock(&mu);
	for (;;) {
		while (!s->head && !s->dying)
			pthread_cond_wait(&s->work, &mu);
		if (!s->head)
			break;
		while (SET(S_HOLD))
			pthread_cond_wait(&changed, &mu);
		item *it = s->head;
		while (it->gate && !*it->gate)
			pthread_cond_wait(&changed, &mu);
		free(it->gate);
		execute(s, it);
		s->head = it->next;
		if (!s->head)
			s->tail = NULL;
		s->done++;
		if (it->ev) {
			it->ev->done++;
		}
		pthread_cond_broadcast(&changed);
		free(it->staged);
		free(it);
	}
	for (stream **q = &all; *q; q = &(*q)->next_all)
		if (*q == s) {
			*q = s->next_all;
			break;
		}
	live_threads--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	return NULL;
}

/* Queues a copy of *proto. Call with mu held. */
static void enqueue(stream *s, const item *proto)
{
	if (s->capturing == 1) {
		s->captured++;
		if (proto->ev)
			proto->ev->captured = 1;
		free(proto->staged);
		return;
	}
	item *it = malloc(sizeof *it);
	*it = *proto;
	it->next = NULL;
	if (it->ev) {
		it->ev->recorded++;
		it->ev->captured = 0;
	}
	if (s->tail)
		s->tail->next = it;
	else
		s->head = it;
	s->tail = it;
	s->queued++;
	pthread_cond_signal(&s->work);
}

/* Call with mu held. */
static stream *new_stream(ctx *c, unsigned flags, int counted)
{
	stream *s = calloc(1, sizeof *s);
	s->magic = MAGIC_STREAM;
	s->c = c;
	s->flags = flags;
	pthread_cond_init(&s->work, NULL);
	if (spawn(worker, s)) { /* which waits for mu */
		free(s);
		return NULL;
	}
	live_threads++;
	s->next = c->streams;
	c->streams = s;
	s->next_all = all;
	all = s;
	s->counted = counted;
	live_streams += counted;
	return s;
}

/* Queued work still runs; the handle is dead at once. Call with mu held. */
static void end_stream(stream *s)
{
	s->magic = MAGIC_DEAD;
	s->dying = 1;
	live_streams -= s->counted;
	for (stream **p = &s->c->streams; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			break;
		}
	pthread_cond_signal(&s->work);
}

/* Waits for all that is queued now. Call with mu held; answers the status. */
static int drain(stream *s)
{
	ctx *c = s->c;
	uint64_t target = s->queued;
	while (s->done < target && c->magic == MAGIC_CTX && !SET(S_DESTROYED))
		pthread_cond_wait(&changed, &mu);
	if (SET(S_DESTROYED))
		return (int)SET(S_DESTROYED);
	return c->sticky;
}

static int drain_context(ctx *c)
{
	for (stream *s = c->streams; s; s = s->next)
		if (s->capturing) {
			s->capturing = 2;
			return CAPTURE_UNSUPPORTED;
		}
again:
	/* Also what was queued on streams that have been destroyed since. */
	for (stream *s = all; s; s = s->next_all)
		if (s->c == c && s->done < s->queued) {
			int st = drain(s); /* drops mu: the list may have changed */
			if (st == OK)
				goto again;
			return st;
		}
	while (c->late && c->magic == MAGIC_CTX)
		pthread_cond_wait(&changed, &mu);
	return c->sticky;
}

static ctx *retain(int device)
{
	if (!primary[device]) {
		primary[device] = calloc(1, sizeof(ctx));
		primary[device]->device = device;
	}
	ctx *c = primary[device];
	if (c->refs++ == 0) {
		/* A fresh context under the same handle, as the vendor does it. */
		c->magic = MAGIC_CTX;
		c->sticky = 0;
		c->streams = NULL;
		c->legacy = NULL;
		live_ctxs++;
	}
	return c;
}

static void unlist(mem *m)
{
	for (mem **p = &mems; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			break;
		}
	munmap(m->base, m->mapped);
	free(m);
}

static int release(int device)
{
	ctx *c = primary[device];
	if (!c || c->refs == 0)
		return INVALID_CONTEXT;
	if (--c->refs > 0)
		return OK;
	c->magic = MAGIC_DEAD;
	while (c->streams)
		end_stream(c->streams);
	for (mem *m = mems, *next; m; m = next) {
		next = m->next;
		/* Page-locked memory is kept mapped: the test that frees too late must
		 * see a status, not a fault. Device memory dies with its context. */
		if (m->c == c && !m->pinned)
			unlist(m);
	}
	live_ctxs--;
	pthread_cond_broadcast(&changed);
	return OK;
}

static mem *allocate(ctx *c, size_t n, int pinned)
{
	size_t shift = pinned && SET(S_UNALIGNED) ? 512 : 0;
	void *p = mmap(NULL, n + shift, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	memset(p, 0xa5, n); /* the vendor's memory is not zeroed either */
	mem *m = calloc(1, sizeof *m);
	m->c = c;
	m->base = p;
	m->mapped = n + shift;
	m->host = m->base + shift;
	m->n = n;
	m->pinned = pinned;
	m->next = mems;
	mems = m;
	return m;
}

static uint64_t device_address(const void *host)
{
	return (uint64_t)(uintptr_t)host + (SET(S_UVA) ? 0 : DEVICE_TAG);
}

/* The host memory behind n bytes at a device address, or NULL. */
static void *reach(ctx *c, uint64_t dev, size_t n)
{
	uint64_t h = dev - (SET(S_UVA) ? 0 : DEVICE_TAG);
	for (mem *m = mems; m; m = m->next) {
		uint64_t base = (uint64_t)(uintptr_t)m->host;
		if (h >= base && n <= m->n && h - base <= m->n - n)
			return m->c == c || m->pinned ? (void *)(uintptr_t)h : NULL;
	}
	return NULL;
}

static mem *find_host(const void *p)
{
	for (mem *m = mems; m; m = m->next)
		if ((const char *)p >= m->host && (const char *)p < m->host + m->n)
			return m;
	return NULL;
}

static int pinned(const void *p)
{
	mem *m = find_host(p);
	return m && m->pinned;
}

/* ---- what the two faces share: call with mu held ---- */

static int stream_write(ctx *c, stream *s, uint64_t dev, uint64_t value, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	if (SET(S_WRITE_STATUS))
		return (int)SET(S_WRITE_STATUS);
	void *dst = reach(c, dev, 8);
	if (!dst || dev % 8) {
		breach(fn, "not an 8-byte aligned device address");
		return INVALID_VALUE;
	}
	enqueue(s, &(item){.op = OP_STORE, .dst = dst, .value = value});
	return (int)SET(S_WRITE_AFTER);
}

static int stream_query(ctx *c, stream *s, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	while (SET(S_QUERY_BLOCK))
		pthread_cond_wait(&changed, &mu);
	if (s->capturing) {
		s->capturing = 2;
		breach(fn, "query of a capturing stream");
		return CAPTURE_UNSUPPORTED;
	}
	if (s == c->legacy)
		for (stream *o = c->streams; o; o = o->next)
			if (o->capturing && !(o->flags & 1))
				return CAPTURE_IMPLICIT;
	if ((st = unsafe_call(c)) || (st = context_status(c, fn)))
		return st;
	return s->done == s->queued ? OK : NOT_READY;
}

static int stream_sync(ctx *c, stream *s, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	if (s->capturing) {
		s->capturing = 2;
		return CAPTURE_UNSUPPORTED;
	}
	if ((st = unsafe_call(c)))
		return st;
	return drain(s);
}

static int event_query(ctx *c, event *e, const char *fn)
{
	int st = context_status(c, fn);
	if (st)
		return st;
	if (!e || e->magic != MAGIC_EVENT) {
		breach(fn, "not an event");
		return INVALID_HANDLE;
	}
	while (SET(S_QUERY_BLOCK))
		pthread_cond_wait(&changed, &mu);
	if (e->captured)
		return CAPTURED_EVENT;
	if ((st = unsafe_call(c)) || (st = context_status(c, fn)))
		return st;
	return e->done == e->recorded ? OK : NOT_READY;
}

static int event_record(ctx *c, event *e, stream *s, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	if (!e || e->magic != MAGIC_EVENT || e->c != c) {
		breach(fn, "not an event of this context");
		return INVALID_HANDLE;
	}
	enqueue(s, &(item){.op = OP_EVENT, .ev = e});
	return OK;
}

static int event_destroy(ctx *c, event *e, const char *fn)
{
	int st = context_status(c, fn);
	if (st && st != (c ? c->sticky : 0))
		return st;
	if (!e || e->magic != MAGIC_EVENT) {
		breach(fn, "not an event");
		return INVALID_HANDLE;
	}
	e->magic = MAGIC_DEAD;
	live_events--;
	return OK;
}

static int copy_in(ctx *c, stream *s, uint64_t dst, const void *src, size_t n, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	item it = {.op = OP_COPY, .dst = reach(c, dst, n), .src = src, .n = n};
	if (!it.dst || !src) {
		breach(fn, "bad address or size");
		return INVALID_VALUE;
	}
	if (!pinned(src)) { /* pageable memory has been read when the call returns */
		it.staged = malloc(n);
		memcpy(it.staged, src, n);
	}
	enqueue(s, &it);
	return OK;
}

static int copy_out(ctx *c, stream *s, void *dst, uint64_t src, size_t n, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	item it = {.op = OP_COPY, .dst = dst, .src = reach(c, src, n), .n = n};
	if (!it.src || !dst) {
		breach(fn, "bad address or size");
		return INVALID_VALUE;
	}
	enqueue(s, &it);
	if (!s->capturing && SET(S_PAGEABLE_SYNC) && !pinned(dst))
		return drain(s);
	return OK;
}

static int fill(ctx *c, stream *s, uint64_t dst, unsigned value, size_t n, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	void *p = reach(c, dst, n);
	if (!p) {
		breach(fn, "bad address or size");
		return INVALID_VALUE;
	}
	enqueue(s, &(item){.op = OP_FILL, .dst = p, .value = value & 0xff, .n = n});
	return OK;
}

static int inside(const mem *m, const void *p)
{
	return (const char *)p >= m->host && (const char *)p < m->host + m->n;
}

/* Reports whether queued or late work will still touch the memory. */
static int in_use(const mem *m)
{
	for (stream *s = all; s; s = s->next_all)
		for (item *it = s->head; it; it = it->next)
			if (inside(m, it->dst) || inside(m, it->src))
				return 1;
	for (late_store *l = lates; l; l = l->next)
		if (inside(m, l->dst))
			return 1;
	return 0;
}

static int free_memory(ctx *c, void *host, int want_pinned, const char *fn)
{
	int st = context_status(c, fn);
	if (st)
		return st;
	if ((st = unsafe_call(c)))
		return st;
	mem *m = find_host(host);
	if (!m || m->host != host || m->pinned != want_pinned) {
		breach(fn, "not an allocation");
		return INVALID_VALUE;
	}
	if (in_use(m)) { /* undefined with the vendor; here it is found, and the memory stays */
		breach(fn, "memory was freed that queued work still uses");
		return OK;
	}
	unlist(m);
	return OK;
}

static int begin_capture(ctx *c, stream *s, int mode, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	if (s == c->legacy || s->capturing)
		return CAPTURE_UNSUPPORTED;
	s->capturing = 1;
	s->capture_mode = mode;
	s->capture_thread = pthread_self();
	s->captured = 0;
	return OK;
}

/* *graph becomes a non-null token: graphs can't be launched here. */
static int end_capture(ctx *c, stream *s, void **graph, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	if (!s->capturing)
		return CAPTURE_UNMATCHED;
	int was = s->capturing;
	s->capturing = 0;
	*graph = was == 1 ? (void *)s : NULL;
	return was == 1 ? OK : CAPTURE_INVALIDATED;
}

static int is_capturing(ctx *c, stream *s, int *out, const char *fn)
{
	int st = stream_status(c, s, fn);
	if (st)
		return st;
	if (s == c->legacy)
		for (stream *o = c->streams; o; o = o->next)
			if (o->capturing && !(o->flags & 1))
				return CAPTURE_IMPLICIT;
	*out = s->capturing;
	return OK;
}

static int exchange_mode(int *mode)
{
	if (*mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED)
		return INVALID_VALUE;
	int old = thread_capture_mode;
	thread_capture_mode = *mode;
	*mode = old;
	return OK;
}

/* ---- control: called by the tests, never by the library under test ---- */

/* Sets a setting, or with "fail:<entry point>" the status that this entry point
 * answers from now on (0: works again). 0 when there is no such setting. */
EXPORT int standin_set(const char *name, int64_t value)
{
	int found = 0;
	pthread_mutex_lock(&mu);
	if (!strncmp(name, "fail:", 5)) {
		int i;
		for (i = 0; i < nfails && strcmp(fails[i].name, name + 5); i++)
			;
		if (i < MAX_FAILS && strlen(name + 5) < sizeof fails[i].name) {
			strcpy(fails[i].name, name + 5);
			fails[i].status = value;
			if (i == nfails)
				nfails++;
			found = 1;
		}
	} else if (!strcmp(name, "violations")) { /* a test that misuses on purpose takes its own away */
		violations = value;
		found = 1;
	} else {
		for (struct setting *s = settings; s->name; s++)
			if (!strcmp(s->name, name)) {
				s->value = value;
				found = 1;
			}
	}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	return found;
}

/* Reads a counter, a setting, or "calls:<entry point>"; -1 when there is no such name. */
EXPORT int64_t standin_get(const char *name)
{
	static const struct {
		const char *name;
		int64_t *p;
	} counters[] = {
		{"streams", &live_streams}, {"events", &live_events}, {"contexts", &live_ctxs},
		{"modules", &live_modules}, {"threads", &live_threads}, {"violations", &violations},
	};
	int64_t v = -1;
	pthread_mutex_lock(&mu);
	for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
		if (!strcmp(counters[i].name, name))
			v = *counters[i].p;
	for (struct setting *s = settings; s->name; s++)
		if (!strcmp(s->name, name))
			v = s->value;
	if (!strcmp(name, "pinned") || !strcmp(name, "device_memory")) {
		v = 0;
		for (mem *m = mems; m; m = m->next)
			v += m->pinned == !strcmp(name, "pinned");
	}
	if (!strncmp(name, "calls:", 6)) {
		v = 0;
		for (func *f = funcs; f; f = f->next)
			if (!strcmp(f->name, name + 6))
				v = f->calls;
	}
	if (!strcmp(name, "depth")) /* of the calling thread's context stack */
		v = depth;
	if (!strcmp(name, "capture_mode"))
		v = thread_capture_mode;
	pthread_mutex_unlock(&mu);
	return v;
}

/* The last misuse that was found, "" when there was none. */
EXPORT const char *standin_violation(void) { return violation; }

/* Makes the next queued thing on a stream fail, as a kernel with a bad pointer
 * does. */
EXPORT int standin_fault(void *h)
{
	pthread_mutex_lock(&mu);
	enqueue(h, &(item){.op = OP_FAULT});
	pthread_mutex_unlock(&mu);
	return 0;
}

/* Queues work on a stream that stays pending until standin_open. */
EXPORT int *standin_gate(void *h)
{
	int *gate = calloc(1, sizeof *gate);
	pthread_mutex_lock(&mu);
	enqueue(h, &(item){.op = OP_GATE, .gate = gate});
	pthread_mutex_unlock(&mu);
	return gate;
}

EXPORT void standin_open(int *gate)
{
	pthread_mutex_lock(&mu);
	*gate = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

/* Queues ns nanoseconds of work on a stream. */
EXPORT int standin_spin(void *h, uint64_t ns)
{
	pthread_mutex_lock(&mu);
	enqueue(h, &(item){.op = OP_SPIN, .value = ns});
	pthread_mutex_unlock(&mu);
	return 0;
}
