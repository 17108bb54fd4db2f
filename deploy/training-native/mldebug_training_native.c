/* The writer of trace rings in C, for mldebug_training.trace. The layout of a ring stands in mldebug_training/tracing/ring.py.
 *
 * Python decides what is followed, makes the ring and interns names; here are only the events, the chunks and the records.
 * Before Python 3.12 the events come by PyEval_SetProfile (calls) or PyEval_SetTrace (lines), from 3.12 on by sys.monitoring.
 * Everything here runs under the interpreter lock; a build of Python without that lock does not get this module.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#ifdef Py_GIL_DISABLED
#error "the writers of one thread rely on the interpreter lock"
#endif

#if PY_VERSION_HEX >= 0x030c0000
#define MONITORING 1
#define get_extra PyUnstable_Code_GetExtra
#define set_extra PyUnstable_Code_SetExtra
#define new_extra PyUnstable_Eval_RequestCodeExtraIndex
#else
#define MONITORING 0
#define get_extra _PyCode_GetExtra
#define set_extra _PyCode_SetExtra
#define new_extra _PyEval_RequestCodeExtraIndex
#endif

enum { CALL = 1, RETURN, LINE, UNWIND, YIELD, RESUME, STEP };
enum { TRACING = 1, ASIDE = 3 };
enum { CALLS = 1, LINES = 2 };
enum { HEAD = 64, RECORD = 24, WHY = 352, WHY_SIZE = 256, STATE = 168, CHANGED = 176, STEP_AT = 144 };
enum { OUTSIDE = -1, UNKNOWN = -2, FAILED = -3 }; /* not followed; not known now; an exception is set */
enum { NOT_FOLLOWED = 1, FIRST = 2 }; /* in what is kept with a code object: its id + FIRST */

typedef struct Thread {
    unsigned char *at, *end, *head; /* of its chunk */
    uint32_t sequence, generation, depth, tid;
    uint64_t ident, serial;
    int64_t chunk;
    char name[24];
    struct Thread *free;
} Thread;

static struct {
    unsigned char *memory;
    Py_buffer buffer;
    PyObject *owner, *decide; /* owner: keeps the memory */
    uint64_t chunks, chunk_size, count, main_ident;
    uint32_t sequence, generation, next, mode;
    Thread **taken; /* chunk: the thread that it is the last one of */
    int on, asides;
} R;

#define OF_THREAD static __thread __attribute__((tls_model("initial-exec")))
OF_THREAD Thread *mine;
OF_THREAD uint64_t my_serial;
static Thread *unused;
static uint64_t serials;
static Py_ssize_t extra_index = -1;
static PyObject *disable, *threading_name, *active_name, *name_name, *key_name;

/* CLOCK_MONOTONIC in ns. Where the kernel itself reads it off the time stamp counter, so does `now`: it asks the kernel every
 * few ms and counts on from there, which is wrong by less than a microsecond. */
enum { TRUSTED_NS = 4000000, LEAST_NS = 4000000, MOST_NS = 1000000000, DOUBTS = 8, ONE_MOMENT = 1000 /* ticks */ };

static uint64_t kernel_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#if defined(__x86_64__)
static struct {
    uint64_t ticks, ns;   /* at the last question */
    uint64_t ticks0, ns0; /* at an earlier one, at most a second before: from both comes the rate */
    uint64_t trusted;     /* ticks after the last question; 0: the rate is not known */
    uint64_t rate;        /* ns of a tick, times 2**32 */
    uint64_t last;        /* what was answered: time never runs back */
    int counts, doubts;
} C;

static void clock_begins(void)
{
    char source[8] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    memset(&C, 0, sizeof C);
    if (file == NULL)
        return;
    C.counts = fgets(source, sizeof source, file) != NULL && strcmp(source, "tsc\n") == 0;
    fclose(file);
}

static void rate_from(uint64_t ticks, uint64_t ns)
{
    double gone_ns = (double)(ns - C.ns0), gone = (double)(ticks - C.ticks0);
    double rate = gone_ns / gone * 4294967296.0, change = C.rate ? rate / (double)C.rate : 1;
    int doubtful = C.ns0 == 0 || ticks <= C.ticks0 || change < 0.999 || change > 1.001;
    if (!doubtful && gone_ns >= LEAST_NS) {
        C.rate = (uint64_t)rate;
        C.trusted = (uint64_t)(TRUSTED_NS / gone_ns * gone);
    } else if (doubtful) {
        C.trusted = C.rate = 0;
        if (++C.doubts > DOUBTS)
            C.counts = 0; /* the counter was stopped, or differs from core to core */
    }
    if (doubtful || gone_ns > MOST_NS) {
        C.ticks0 = ticks;
        C.ns0 = ns;
    }
}

static uint64_t asked(uint64_t ticks)
{
    uint64_t ns = kernel_now();
    if (__rdtsc() - ticks > ONE_MOMENT)
        return ns; /* it was interrupted in between: ticks and ns are not of one moment */
    rate_from(ticks, ns);
    C.ticks = ticks;
    C.ns = ns;
    return ns;
}

static inline uint64_t now(void)
{
    if (!C.counts)
        return kernel_now();
    uint64_t ticks = __rdtsc(), gone = ticks - C.ticks;
    uint64_t ns = gone < C.trusted ? C.ns + (gone * C.rate >> 32) : asked(ticks);
    return C.last = ns > C.last ? ns : C.last;
}
#else
static void clock_begins(void) {}
static inline uint64_t now(void) { return kernel_now(); }
#endif

static void set32(unsigned char *at, uint32_t value) { *(volatile uint32_t *)at = value; }
static uint32_t get32(const unsigned char *at) { return *(const volatile uint32_t *)at; }
static void set64(unsigned char *at, uint64_t value) { *(volatile uint64_t *)at = value; }

/* Threads ------------------------------------------------------------------------------------------------------------ */

static void release_chunk(Thread *t)
{
    if (t->generation == R.generation && t->chunk >= 0 && R.taken && R.taken[t->chunk] == t)
        R.taken[t->chunk] = NULL;
    t->chunk = -1;
}

/* The state of the thread is gone; it may be another thread that says so, so that `mine` is told by the serial. */
static void thread_ended(PyObject *capsule)
{
    Thread *t = PyCapsule_GetPointer(capsule, NULL);
    if (t == NULL)
        return;
    release_chunk(t);
    t->serial = 0;
    t->free = unused;
    unused = t;
}

static void find_name(Thread *t)
{
    PyObject *threading = PyImport_GetModule(threading_name), *active = NULL, *ident = NULL, *thread = NULL, *name = NULL;
    if (threading && (active = PyObject_GetAttr(threading, active_name)) && PyDict_Check(active)
        && (ident = PyLong_FromUnsignedLong((unsigned long)t->ident)) && (thread = PyDict_GetItemWithError(active, ident))
        && (name = PyObject_GetAttr(thread, name_name)) && PyUnicode_Check(name)) {
        const char *text = PyUnicode_AsUTF8(name);
        if (text)
            memcpy(t->name, text, strnlen(text, sizeof t->name));
    }
    PyErr_Clear();
    Py_XDECREF(threading);
    Py_XDECREF(active);
    Py_XDECREF(ident);
    Py_XDECREF(name);
}

static Thread *new_thread(void)
{
    PyObject *dict = PyThreadState_GetDict(), *capsule, *type, *value, *traceback;
    Thread *t = unused;
    if (dict == NULL)
        return NULL;
    if (t)
        unused = t->free;
    else if ((t = malloc(sizeof *t)) == NULL)
        return NULL;
    memset(t, 0, sizeof *t);
    t->chunk = -1;
    t->tid = (uint32_t)syscall(SYS_gettid);
    t->ident = (uint64_t)PyThread_get_thread_ident();
    t->serial = ++serials;
    PyErr_Fetch(&type, &value, &traceback);
    capsule = PyCapsule_New(t, NULL, thread_ended);
    if (capsule == NULL || PyDict_SetItem(dict, key_name, capsule) < 0) {
        PyErr_Clear();
        if (capsule == NULL) {
            t->serial = 0;
            t->free = unused;
            unused = t;
        }
        t = NULL;
    } else {
        find_name(t);
        mine = t;
        my_serial = t->serial;
    }
    Py_XDECREF(capsule);
    PyErr_Restore(type, value, traceback);
    return t;
}

static inline Thread *this_thread(void)
{
    return mine != NULL && mine->serial == my_serial ? mine : new_thread();
}

/* Chunks and records ------------------------------------------------------------------------------------------------- */

/* The oldest chunk that is no living thread's last one; any, where there are more threads than chunks. */
static uint64_t free_chunk(void)
{
    for (uint64_t tries = 0; tries < R.count; tries++) {
        uint64_t place = R.next;
        R.next = (uint32_t)((R.next + 1) % R.count);
        if (R.taken[place] == NULL)
            return place;
    }
    uint64_t place = R.next;
    R.next = (uint32_t)((R.next + 1) % R.count);
    return place;
}

/* All pages of a chunk that is new at once, where the kernel can (5.14): quicker than a fault for each. */
static void touch(unsigned char *head)
{
#ifdef MADV_POPULATE_WRITE
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)head & ~(page - 1);
    (void)madvise((void *)begin, (uintptr_t)head + R.chunk_size - begin, MADV_POPULATE_WRITE);
#endif
}

static void take_chunk(Thread *t)
{
    uint64_t place = free_chunk();
    unsigned char *head = R.memory + R.chunks + place * R.chunk_size;
    uint32_t before = t->generation == R.generation ? t->sequence : 0;
    if (t->generation != R.generation)
        t->depth = 0;
    release_chunk(t);
    t->generation = R.generation;
    t->chunk = (int64_t)place;
    R.taken[place] = t;
    if (++R.sequence == 0)
        R.sequence = 1;
    if (R.sequence <= R.count)
        touch(head);
    set32(head, 0);
    atomic_thread_fence(memory_order_release);
    set32(head + 4, t->tid);
    set64(head + 8, t->ident);
    memcpy(head + 16, R.memory + STEP_AT, 8);
    set64(head + 24, now());
    set32(head + 32, before);
    set32(head + 36, t->ident == R.main_ident);
    memcpy(head + 40, t->name, 24);
    atomic_thread_fence(memory_order_release);
    set32(head, R.sequence);
    t->sequence = R.sequence;
    t->head = head;
    t->at = head + HEAD;
    t->end = t->at + (R.chunk_size - HEAD) / RECORD * RECORD;
}

static inline void put(Thread *t, uint32_t name, uint32_t line, int kind)
{
    if (t->at >= t->end || get32(t->head) != t->sequence)
        take_chunk(t);
    unsigned char *at = t->at;
    set64(at, now());
    set32(at + 8, name);
    set32(at + 12, line);
    set32(at + 16, (t->depth < 65535 ? t->depth : 65535) | (uint32_t)kind << 16);
    atomic_thread_fence(memory_order_release);
    set32(at + 20, t->sequence);
    t->at = at + RECORD;
}

static inline void event(uint32_t name, uint32_t line, int kind)
{
    Thread *t = this_thread();
    if (t == NULL)
        return;
    if (t->generation != R.generation)
        take_chunk(t);
    if (kind == RETURN || kind == UNWIND || kind == YIELD)
        t->depth -= t->depth > 0;
    if (kind == LINE ? R.mode & LINES : R.mode & CALLS)
        put(t, name, line, kind);
    if (kind == CALL || kind == RESUME)
        t->depth++;
}

/* Which code is followed --------------------------------------------------------------------------------------------- */

/* As id_of. At the limit of recursion nothing can be called: it is asked again, later. Any other error is the job's, of a
 * handler of signals that ran meanwhile: `decide` raises none of its own. */
static int64_t ask(PyObject *code)
{
    PyObject *type, *value, *traceback, *decide = R.decide, *told;
    int64_t id = -1;
    PyErr_Fetch(&type, &value, &traceback);
    Py_INCREF(decide);
    told = PyObject_CallOneArg(decide, code);
    Py_DECREF(decide);
    if (told != NULL) {
        id = PyLong_AsLongLong(told);
        Py_DECREF(told);
        if (!PyErr_Occurred() && R.on) {
            uint64_t kept = (uint64_t)R.generation << 32 | (uint32_t)(id < 0 ? NOT_FOLLOWED : id + FIRST);
            set_extra(code, extra_index, (void *)kept);
        }
    }
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_RecursionError)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return FAILED;
    }
    if (PyErr_Occurred()) {
        PyErr_Clear();
        id = UNKNOWN;
    }
    PyErr_Restore(type, value, traceback);
    return R.on ? id : UNKNOWN;
}

/* The id of the code, or one of these. */
static inline int64_t id_of(PyObject *code)
{
    void *extra = NULL;
    if (get_extra(code, extra_index, &extra) == 0 && (uint64_t)extra >> 32 == R.generation)
        return (int64_t)((uint64_t)extra & 0xFFFFFFFFu) - FIRST;
    return ask(code);
}

/* Before 3.12: profile and trace functions ---------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    int quiet; /* its end means nothing */
} Token;

static PyTypeObject TokenType;

static void tell_state(uint32_t state, const char *why)
{
    if (R.memory == NULL)
        return;
    memset(R.memory + WHY, 0, WHY_SIZE);
    memcpy(R.memory + WHY, why, strnlen(why, WHY_SIZE - 1));
    set64(R.memory + CHANGED, now());
    set32(R.memory + STATE, state);
}

#if !MONITORING
static Token *new_token(void) { return PyObject_New(Token, &TokenType); }

static int on_event(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
    if (!R.on || (what != PyTrace_CALL && what != PyTrace_RETURN && what != PyTrace_LINE))
        return 0;
    PyCodeObject *code = PyFrame_GetCode(frame);
    int64_t id = id_of((PyObject *)code);
    if (id >= 0 && R.memory) {
        if (what == PyTrace_CALL)
            event((uint32_t)id, (uint32_t)code->co_firstlineno, CALL);
        else if (what == PyTrace_LINE)
            event((uint32_t)id, (uint32_t)PyFrame_GetLineNumber(frame), LINE);
        else
            event((uint32_t)id, 0, arg == NULL ? UNWIND : RETURN);
    }
    Py_DECREF(code);
    return id == FAILED ? -1 : 0;
}

static int installed(PyThreadState *state)
{
    return R.mode & LINES ? state->c_tracefunc == on_event : state->c_profilefunc == on_event;
}

static int occupied(PyThreadState *state)
{
    return R.mode & LINES ? state->c_tracefunc != NULL : state->c_profilefunc != NULL;
}

static int put_into(PyThreadState *state, PyObject *token)
{
    Py_tracefunc function = token ? on_event : NULL;
    return R.mode & LINES ? _PyEval_SetTrace(state, function, token) : _PyEval_SetProfile(state, function, token);
}

static void take_out(PyThreadState *state)
{
    PyObject *token = R.mode & LINES ? state->c_traceobj : state->c_profileobj;
    if (token && Py_TYPE(token) == &TokenType)
        ((Token *)token)->quiet = 1;
    if (put_into(state, NULL) < 0)
        PyErr_Clear();
}

static int install_into(PyThreadState *state)
{
    Token *token = new_token();
    if (token == NULL)
        return -1;
    token->quiet = 1; /* until it is in its place */
    int failed = put_into(state, (PyObject *)token);
    token->quiet = failed;
    Py_DECREF(token);
    return failed;
}
#endif

/* A token that ends while its thread runs Python code was replaced: the job has a profiler or a debugger of its own. */
static void token_ends(PyObject *self)
{
    Token *token = (Token *)self;
    if (!token->quiet && R.on && PyEval_GetFrame() != NULL) {
        char why[WHY_SIZE];
        snprintf(why, sizeof why, "thread %.24s has a %s of its own, so it is not traced any more",
                 mine && mine->serial == my_serial && mine->name[0] ? mine->name : "?",
                 R.mode & LINES ? "debugger or tracer" : "profiler");
        R.asides++;
        tell_state(ASIDE, why);
    }
    PyObject_Free(self);
}

/* In a new thread, and where the job puts back what it found. */
static PyObject *token_called(PyObject *self, PyObject *args, PyObject *kwargs)
{
#if !MONITORING
    PyThreadState *state = PyThreadState_Get();
    if (R.on && !installed(state)) {
        int was = !((Token *)self)->quiet;
        ((Token *)self)->quiet = 1;
        if (install_into(state) < 0)
            PyErr_Clear();
        else if (was && R.asides > 0 && --R.asides == 0)
            tell_state(TRACING, "");
    }
#endif
    Py_RETURN_NONE;
}

static PyTypeObject TokenType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mldebug_training_native.Tracer",
    .tp_basicsize = sizeof(Token),
    .tp_dealloc = token_ends,
    .tp_call = token_called,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Stands where sys.getprofile() or sys.gettrace() finds the tracer of this thread.",
};

/* The module's functions ---------------------------------------------------------------------------------------------- */

static void forget_ring(void)
{
    R.on = 0;
    R.generation++;
    if (R.generation == 0)
        R.generation = 1;
    R.memory = NULL;
    free(R.taken);
    R.taken = NULL;
    if (R.buffer.obj)
        PyBuffer_Release(&R.buffer);
    Py_CLEAR(R.owner);
}

static PyObject *begin(PyObject *self, PyObject *args)
{
    PyObject *decide, *told_disable;
    unsigned int mode;
    if (!PyArg_ParseTuple(args, "OOI", &decide, &told_disable, &mode))
        return NULL;
    forget_ring();
    Py_INCREF(decide);
    Py_XSETREF(R.decide, decide);
    Py_INCREF(told_disable);
    Py_XSETREF(disable, told_disable);
    R.mode = mode;
    R.asides = 0;
    R.on = 1;
    Py_RETURN_NONE;
}

static PyObject *use(PyObject *self, PyObject *args)
{
    PyObject *owner, *view;
    unsigned long long chunks, chunk_size, count, main_ident;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "OOKKKK", &owner, &view, &chunks, &chunk_size, &count, &main_ident))
        return NULL;
    if (PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    if (chunk_size < HEAD + RECORD || count == 0 || chunks % 8 || chunk_size % 8 || chunks > (uint64_t)buffer.len
        || count > ((uint64_t)buffer.len - chunks) / chunk_size) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "the chunks do not fit into the ring");
        return NULL;
    }
    Thread **taken = calloc(count, sizeof *taken);
    if (taken == NULL) {
        PyBuffer_Release(&buffer);
        return PyErr_NoMemory();
    }
    int on = R.on;
    forget_ring();
    R.buffer = buffer;
    Py_INCREF(owner);
    R.owner = owner;
    R.memory = buffer.buf;
    R.chunks = chunks, R.chunk_size = chunk_size, R.count = count, R.main_ident = main_ident;
    R.taken = taken;
    R.next = R.sequence = 0;
    R.on = on;
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *self, PyObject *unused_argument)
{
    R.on = 0;
#if !MONITORING
    PyThreadState *state = PyInterpreterState_ThreadHead(PyThreadState_Get()->interp);
    for (; state; state = PyThreadState_Next(state))
        if (installed(state))
            take_out(state);
#endif
    forget_ring();
    Py_CLEAR(R.decide);
    Py_RETURN_NONE;
}

static PyObject *pause_(PyObject *self, PyObject *argument)
{
    int paused = PyObject_IsTrue(argument);
    if (paused < 0)
        return NULL;
    R.on = !paused && R.decide != NULL;
    Py_RETURN_NONE;
}

/* What is known of all code objects is asked anew. */
static PyObject *ask_again(PyObject *self, PyObject *unused_argument)
{
    uint32_t before = R.generation;
    R.generation = before + 1 ? before + 1 : 1;
    if (R.taken)
        memset(R.taken, 0, R.count * sizeof *R.taken);
    Py_RETURN_NONE;
}

/* In a forked child: the ring is the parent's. */
static PyObject *forget(PyObject *self, PyObject *unused_argument)
{
    forget_ring();
    Py_RETURN_NONE;
}

static PyObject *step(PyObject *self, PyObject *argument)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred())
        return NULL;
    Thread *t = R.on && R.memory ? this_thread() : NULL;
    if (t != NULL) {
        if (t->generation != R.generation)
            take_chunk(t);
        put(t, (uint32_t)number, (uint32_t)(number >> 32), STEP);
    }
    Py_RETURN_NONE;
}

static PyObject *install(PyObject *self, PyObject *unused_argument)
{
    long others = 0;
#if !MONITORING
    PyThreadState *state = PyInterpreterState_ThreadHead(PyThreadState_Get()->interp);
    for (; state; state = PyThreadState_Next(state)) {
        if (installed(state))
            continue;
        if (occupied(state))
            others++;
        else if (install_into(state) < 0)
            return NULL;
    }
#endif
    return PyLong_FromLong(others);
}

static PyObject *bootstrap(PyObject *self, PyObject *unused_argument)
{
    Token *token = PyObject_New(Token, &TokenType);
    if (token)
        token->quiet = 1;
    return (PyObject *)token;
}

#if MONITORING
static PyObject *monitored(PyObject *const *args, Py_ssize_t count, int kind, int may_disable)
{
    if (count < 2 || !R.on || !PyCode_Check(args[0]))
        Py_RETURN_NONE;
    int64_t id = id_of(args[0]);
    if (id == FAILED)
        return NULL;
    if (id < 0) {
        PyObject *told = id == OUTSIDE && may_disable && disable ? disable : Py_None;
        Py_INCREF(told);
        return told;
    }
    uint32_t line = 0;
    if (kind == LINE)
        line = (uint32_t)PyLong_AsLong(args[1]);
    else if (kind == CALL || kind == RESUME)
        line = (uint32_t)((PyCodeObject *)args[0])->co_firstlineno;
    if (R.memory)
        event((uint32_t)id, line, kind);
    Py_RETURN_NONE;
}

#define CALLBACK(name, kind, may_disable)                                                                            \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count)                                   \
    {                                                                                                                \
        return monitored(args, count, kind, may_disable);                                                            \
    }
CALLBACK(py_start, CALL, 1)
CALLBACK(py_return, RETURN, 1)
CALLBACK(py_yield, YIELD, 1)
CALLBACK(py_resume, RESUME, 1)
CALLBACK(py_throw, RESUME, 0)
CALLBACK(py_unwind, UNWIND, 0)
CALLBACK(line, LINE, 1)
#define ROW(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, "For the event of sys.monitoring."}
#endif

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, "begin(decide, DISABLE, mode): from now on code is asked for; no ring yet."},
    {"use", use, METH_VARARGS, "use(owner, memory, chunks, chunk_size, count, main thread): write into this ring."},
    {"end", end, METH_NOARGS, "Let go of the ring, and of all threads."},
    {"pause", pause_, METH_O, "Is nothing written for now?"},
    {"ask_again", ask_again, METH_NOARGS, "Forget which code is followed."},
    {"forget", forget, METH_NOARGS, "In a forked child: the ring is the parent's."},
    {"step", step, METH_O, "Write that this step was reached."},
    {"install", install, METH_NOARGS, "Into every thread that is free; how many have a profiler of their own."},
    {"bootstrap", bootstrap, METH_NOARGS, "What threading.setprofile() takes."},
#if MONITORING
    ROW(py_start),
    ROW(py_return),
    ROW(py_yield),
    ROW(py_resume),
    ROW(py_throw),
    ROW(py_unwind),
    ROW(line),
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "mldebug_training_native",
                                    "Writes trace rings for mldebug_training.trace.", -1, methods};

/* Nothing is written into the ring of the parent, whoever has forked. */
static void in_child(void)
{
    R.on = 0;
    mine = NULL; /* the number of the thread is another one */
}

PyMODINIT_FUNC PyInit_mldebug_training_native(void)
{
    if (PyType_Ready(&TokenType) < 0)
        return NULL;
    threading_name = PyUnicode_InternFromString("threading");
    active_name = PyUnicode_InternFromString("_active");
    name_name = PyUnicode_InternFromString("_name");
    key_name = PyUnicode_InternFromString("mldebug_training_native");
    extra_index = new_extra(NULL);
    R.generation = 1;
    clock_begins();
    if (!threading_name || !active_name || !name_name || !key_name || extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "Python has no room for what is kept with code objects");
        return NULL;
    }
    PyObject *self = PyModule_Create(&module);
    if (self == NULL || pthread_atfork(NULL, NULL, in_child) != 0
        || PyModule_AddIntConstant(self, "LAYOUT", 1) < 0) {
        Py_XDECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}
