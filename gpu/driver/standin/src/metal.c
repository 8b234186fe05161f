/*
 * A stand-in for the parts of libobjc and of Metal.framework that gpuline uses.
 * objc_msgSend here takes its arguments as the C function that it is; methods are
 * looked up by class and selector as the Objective-C runtime does, with the
 * parameter counts of Apple's documentation (developer.apple.com/documentation:
 * Metal, Foundation). Objects are counted, autoreleased objects need a pool, and
 * a message that the class does not understand, that goes to an object that is
 * gone, or that leaves an autoreleased object without a pool is a violation.
 *
 * It proves the calls and the ownership rules, not Metal.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum class_ { FREED, CLASS, DEVICE, QUEUE, COMMAND_BUFFER, SHARED_EVENT, STRING, ARRAY, ERROR, POOL };
static const char *const class_names[] = {"(freed)", "class", "MTLDevice", "MTLCommandQueue", "MTLCommandBuffer",
                                          "MTLSharedEvent", "NSString", "NSArray", "NSError", "NSAutoreleasePool"};

enum { NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, FAILED };

typedef struct object {
	enum class_ cls;
	int refs;
	/* DEVICE */
	int ordinal;
	/* QUEUE */
	struct object *device;
	struct object *head, *tail;
	int outstanding, max;
	pthread_cond_t work;
	int started, dying, fail_code;
	/* COMMAND_BUFFER */
	struct object *queue, *next, *event;
	uint64_t value;
	int status, code;
	uint64_t spin_ns;
	int *gate;         /* opened when 1 */
	/* SHARED_EVENT */
	uint64_t signaled;
	/* STRING */
	char text[64];
	/* POOL */
	struct object *below, *items[64];
	int n;
} object;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static object *devices[4];
static object pool_class = {.cls = CLASS, .refs = 1 << 20};
static __thread object *pool;
static int64_t live[10], live_threads, violations, messages;
static char violation[256];

static struct setting {
	const char *name;
	int64_t value;
} settings[] = {
#define S_DEVICES 0
	{"devices", 2},
#define S_HOLD 1
	{"hold", 0},          /* queues execute nothing while set */
#define S_FAIL_CODE 2
	{"fail_code", 0},     /* command buffers fail with this error code */
#define S_SIGNAL_FAILED 3
	{"signal_failed", 0}, /* ... but signal their event all the same */
#define S_LOST 4
	{"lost", 0},          /* events are never signalled though command buffers complete */
#define S_NIL_BUFFER 5
	{"nil_buffer", 0},    /* the queue makes no command buffers */
#define S_NIL_QUEUE 6
	{"nil_queue", 0},
#define S_NIL_EVENT 7
	{"nil_event", 0},
#define S_NIL_ARRAY 8
	{"nil_array", 0},
	{NULL, 0},
};
#define SET(i) (settings[i].value)

static void init(void)
{
	pthread_condattr_t at;
	pthread_condattr_init(&at);
	pthread_condattr_setclock(&at, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &at);
}

static void breach(const char *what, const char *detail)
{
	violations++;
	snprintf(violation, sizeof violation, "%s: %s", what, detail);
}

static object *make(enum class_ cls)
{
	object *o = calloc(1, sizeof *o);
	o->cls = cls;
	o->refs = 1;
	live[cls]++;
	return o;
}

/* Call with mu held. Memory is kept, so that late messages are found. */
static void drop(object *o)
{
	if (--o->refs > 0)
		return;
	live[o->cls]--;
	switch (o->cls) {
	case QUEUE:
		o->dying = 1;
		if (o->started)
			pthread_cond_signal(&o->work);
		break;
	case COMMAND_BUFFER:
		drop(o->queue);
		if (o->event)
			drop(o->event);
		break;
	default:
		break;
	}
	o->cls = FREED;
}

/* Call with mu held. */
static object *autoreleased(object *o, const char *sel)
{
	if (!pool)
		breach(sel, "an autoreleased object was returned outside any pool");
	else if (pool->n == 64)
		breach(sel, "the pool of the stand-in is full");
	else
		pool->items[pool->n++] = o;
	return o;
}

static object *string(const char *text, const char *sel)
{
	object *s = make(STRING);
	snprintf(s->text, sizeof s->text, "%s", text);
	return autoreleased(s, sel);
}

static void *worker(void *p)
{
	object *q = p;
	pthread_mutex_lock(&mu);
	for (;;) {
		while (!q->head && !q->dying)
			pthread_cond_wait(&q->work, &mu);
		if (!q->head)
			break;
		while (SET(S_HOLD))
			pthread_cond_wait(&changed, &mu);
		object *cb = q->head;
		cb->status = SCHEDULED;
		while (cb->gate && !*cb->gate)
			pthread_cond_wait(&changed, &mu);
		free(cb->gate);
		if (cb->spin_ns) {
			pthread_mutex_unlock(&mu);
			struct timespec ts = {.tv_nsec = (long)cb->spin_ns};
			nanosleep(&ts, NULL);
			pthread_mutex_lock(&mu);
		}
		q->head = cb->next;
		if (!q->head)
			q->tail = NULL;
		cb->code = q->fail_code ? q->fail_code : (int)SET(S_FAIL_CODE);
		if (cb->event && !SET(S_LOST) && (!cb->code || SET(S_SIGNAL_FAILED)) && cb->value > cb->event->signaled)
			cb->event->signaled = cb->value;
		cb->status = cb->code ? FAILED : COMPLETED;
		q->outstanding--;
		drop(cb);
		pthread_cond_broadcast(&changed);
	}
	live_threads--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	return NULL;
}

static int commit(object *cb)
{
	object *q = cb->queue;
	if (cb->status != NOT_ENQUEUED) {
		breach("commit", "committed twice");
		return 0;
	}
	cb->status = COMMITTED;
	cb->refs++;
	cb->next = NULL;
	if (q->tail)
		q->tail->next = cb;
	else
		q->head = cb;
	q->tail = cb;
	if (!q->started) {
		pthread_t th;
		pthread_attr_t at;
		pthread_attr_init(&at);
		pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
		q->started = 1;
		live_threads++;
		pthread_cond_init(&q->work, NULL);
		pthread_create(&th, &at, worker, q);
		pthread_attr_destroy(&at);
	}
	pthread_cond_signal(&q->work);
	return 0;
}

/* Waits for the event; false at the end of ms milliseconds. */
static int wait_signaled(object *ev, uint64_t value, uint64_t ms)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_sec += (time_t)(ms / 1000);
	ts.tv_nsec += (long)(ms % 1000) * 1000000;
	if (ts.tv_nsec >= 1000000000) {
		ts.tv_sec++;
		ts.tv_nsec -= 1000000000;
	}
	while (ev->signaled < value)
		if (pthread_cond_timedwait(&changed, &mu, &ts) == ETIMEDOUT)
			break;
	return ev->signaled >= value;
}

/* A BOOL is one byte; the rest of the register is anything. */
#define BOOL_RESULT(b) ((uintptr_t)((b) ? 1 : 0) | (uintptr_t)0xdeadbeefcafe00)

EXPORT uintptr_t objc_msgSend(object *self, const char *sel, uintptr_t a, uintptr_t b)
{
	pthread_once(&once, init);
	if (!self)
		return 0; /* a message to nil answers 0 */
	pthread_mutex_lock(&mu);
	messages++;
	uintptr_t r = 0;
	int known = 1;
#define IS(c, s) (self->cls == (c) && !strcmp(sel, s))
	if (self->cls != FREED && self->cls != CLASS && !strcmp(sel, "retain")) {
		self->refs++;
		r = (uintptr_t)self;
	} else if (self->cls != FREED && self->cls != CLASS && self->cls != POOL && !strcmp(sel, "release")) {
		drop(self);
	} else if (self == &pool_class && !strcmp(sel, "new")) {
		object *p = make(POOL);
		p->below = pool;
		pool = p;
		r = (uintptr_t)p;
	} else if (IS(POOL, "drain")) {
		if (pool != self)
			breach(sel, "not the innermost pool of this thread");
		for (int i = 0; i < self->n; i++)
			drop(self->items[i]);
		pool = self->below;
		drop(self);
	} else if (IS(ARRAY, "count")) {
		r = (uintptr_t)SET(S_DEVICES);
	} else if (IS(ARRAY, "objectAtIndex:")) {
		if (a >= (uintptr_t)SET(S_DEVICES))
			breach(sel, "out of bounds");
		else
			r = (uintptr_t)devices[a];
	} else if (IS(STRING, "UTF8String")) {
		r = (uintptr_t)self->text;
	} else if (IS(DEVICE, "name")) {
		char text[64];
		snprintf(text, sizeof text, "Stand-in Metal device %d", self->ordinal);
		r = (uintptr_t)string(text, sel);
	} else if (IS(DEVICE, "registryID")) {
		r = 0x100000100ull + (uintptr_t)self->ordinal; /* needs more than 32 bits */
	} else if (IS(DEVICE, "newCommandQueueWithMaxCommandBufferCount:")) {
		if (a == 0)
			breach(sel, "no command buffers allowed");
		if (!SET(S_NIL_QUEUE)) {
			object *q = make(QUEUE);
			q->device = self;
			q->max = (int)a;
			r = (uintptr_t)q;
		}
	} else if (IS(DEVICE, "newSharedEvent")) {
		r = SET(S_NIL_EVENT) ? 0 : (uintptr_t)make(SHARED_EVENT);
	} else if (IS(QUEUE, "device")) {
		r = (uintptr_t)self->device;
	} else if (IS(QUEUE, "commandBuffer")) {
		while (self->outstanding >= self->max)
			pthread_cond_wait(&changed, &mu);
		if (!SET(S_NIL_BUFFER)) {
			object *cb = make(COMMAND_BUFFER);
			cb->queue = self;
			self->refs++;
			self->outstanding++;
			r = (uintptr_t)autoreleased(cb, sel);
		}
	} else if (IS(COMMAND_BUFFER, "encodeSignalEvent:value:")) {
		object *ev = (object *)a;
		if (!ev || ev->cls != SHARED_EVENT) {
			breach(sel, "not an event");
		} else {
			self->event = ev;
			ev->refs++;
			self->value = b;
		}
	} else if (IS(COMMAND_BUFFER, "commit")) {
		commit(self);
	} else if (IS(COMMAND_BUFFER, "status")) {
		r = (uintptr_t)self->status;
	} else if (IS(COMMAND_BUFFER, "error")) {
		if (self->status == FAILED) {
			object *e = make(ERROR);
			e->code = self->code;
			r = (uintptr_t)autoreleased(e, sel);
		}
	} else if (IS(COMMAND_BUFFER, "waitUntilCompleted")) {
		if (self->status == NOT_ENQUEUED)
			breach(sel, "not committed");
		else
			while (self->status < COMPLETED)
				pthread_cond_wait(&changed, &mu);
	} else if (IS(ERROR, "code")) {
		r = (uintptr_t)self->code;
	} else if (IS(ERROR, "localizedDescription")) {
		r = (uintptr_t)string("the stand-in was told to fail", sel);
	} else if (IS(SHARED_EVENT, "signaledValue")) {
		r = self->signaled;
	} else if (IS(SHARED_EVENT, "waitUntilSignaledValue:timeoutMS:")) {
		r = BOOL_RESULT(wait_signaled(self, a, b));
	} else {
		known = 0;
	}
	if (!known) {
		char text[128];
		snprintf(text, sizeof text, "unrecognized selector sent to %s", class_names[self->cls]);
		breach(sel, text);
	}
	pthread_mutex_unlock(&mu);
	return r;
}

/* Selectors are unique strings; any other pointer to the same text is none. */
EXPORT const char *sel_registerName(const char *name)
{
	static char *known[64];
	static int n;
	const char *r = NULL;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < n; i++)
		if (!strcmp(known[i], name))
			r = known[i];
	if (!r && n < 64)
		r = known[n++] = strdup(name);
	pthread_mutex_unlock(&mu);
	return r;
}

EXPORT object *objc_getClass(const char *name)
{
	return strcmp(name, "NSAutoreleasePool") ? NULL : &pool_class;
}

EXPORT object *MTLCopyAllDevices(void)
{
	pthread_once(&once, init);
	pthread_mutex_lock(&mu);
	for (int i = 0; i < 4; i++)
		if (!devices[i]) {
			devices[i] = make(DEVICE);
			devices[i]->ordinal = i;
		}
	object *a = SET(S_NIL_ARRAY) ? NULL : make(ARRAY);
	pthread_mutex_unlock(&mu);
	return a;
}

/* ---- control ---- */

EXPORT int standin_set(const char *name, int64_t value)
{
	pthread_once(&once, init);
	int found = 0;
	pthread_mutex_lock(&mu);
	if (!strcmp(name, "violations")) {
		violations = value;
		found = 1;
	}
	for (struct setting *s = settings; s->name; s++)
		if (!strcmp(s->name, name)) {
			s->value = value;
			found = 1;
		}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	return found;
}

EXPORT int64_t standin_get(const char *name)
{
	int64_t v = -1;
	pthread_mutex_lock(&mu);
	for (int c = DEVICE; c <= POOL; c++)
		if (!strcmp(name, class_names[c])) {
			v = live[c];
			if (c == DEVICE) { /* what was retained beyond the system's own reference */
				v = 0;
				for (int i = 0; i < 4; i++)
					v += devices[i] ? devices[i]->refs - 1 : 0;
			}
		}
	for (struct setting *s = settings; s->name; s++)
		if (!strcmp(s->name, name))
			v = s->value;
	if (!strcmp(name, "threads"))
		v = live_threads;
	if (!strcmp(name, "violations"))
		v = violations;
	if (!strcmp(name, "messages"))
		v = messages;
	pthread_mutex_unlock(&mu);
	return v;
}

EXPORT const char *standin_violation(void) { return violation; }

/* Commits a command buffer of other code to a queue. Call with mu held. */
static void foreign(object *q, uint64_t ns, int *gate)
{
	object *cb = make(COMMAND_BUFFER);
	cb->queue = q;
	q->refs++;
	q->outstanding++;
	cb->spin_ns = ns;
	cb->gate = gate;
	commit(cb);
	drop(cb);
}

/* Commits work that takes ns. */
EXPORT int standin_spin(object *q, uint64_t ns)
{
	pthread_mutex_lock(&mu);
	foreign(q, ns, NULL);
	pthread_mutex_unlock(&mu);
	return 0;
}

/* Commits work that stays pending until standin_open. */
EXPORT int *standin_gate(object *q)
{
	int *gate = calloc(1, sizeof *gate);
	pthread_mutex_lock(&mu);
	foreign(q, 0, gate);
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

/* Makes every command buffer that the queue executes from now on fail. */
EXPORT int standin_fault(object *q)
{
	pthread_mutex_lock(&mu);
	q->fail_code = 3; /* MTLCommandBufferErrorPageFault */
	pthread_mutex_unlock(&mu);
	return 0;
}
