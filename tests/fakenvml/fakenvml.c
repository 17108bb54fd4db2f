/* A libnvidia-ml.so.1 that serves a table instead of a GPU.
 *
 * $FAKE_NVML names a text file; it is read again whenever it changes, so a test changes the world by replacing it. Lines, tab
 * separated:
 *
 *     FUNCTION DEVICE ARGUMENTS <tab> RETURN CODE <tab> VALUE <tab> VALUE ...     what a call answers; the last line wins
 *     fail FUNCTION|* DEVICE|*  <tab> RETURN CODE                                 before everything else
 *     block FUNCTION DEVICE|*                                                     the call waits until the line is gone
 *     sink FUNCTION DEVICE|*                                                      the same, in state D (uninterruptible)
 *     crash FUNCTION DEVICE|*                                                     the call ends the process by SIGSEGV
 *     generation <tab> N                                                          another N: the driver was loaded anew
 *     event NUMBER <tab> DEVICE <tab> TYPE <tab> DATA                             one event, numbers rising from 1
 *     device <tab> 0 <tab> PATH                                                   opened by init and held
 *
 * A call without a line is not supported, but for the NVLink bytes of all links (scope 4294967295), which are summed up here. Every call is counted in the file $FAKE_NVML.calls, if that exists.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7, TIMED_OUT = 10, NOT_LOADED = 9, UNKNOWN = 999 };
enum { VALUES = 48, DEVICES = 64 };

struct row { char *key; int code; int count; char *value[VALUES]; };
struct handle { u32 index; int generation; };

static struct row *rows;
static size_t row_count;
static char *text;
static struct timespec read_at;
static ino_t read_inode;
static int initialised, generation, held = -1;
static struct handle handles[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- the table --------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    const struct row *x = a, *y = b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->key < y->key ? -1 : 1); /* keys lie in the order of the file */
}

static void parse(char *line) {
    char *rest = line, *word;
    struct row row = {0};
    row.key = strsep(&rest, "\t");
    if ((word = strsep(&rest, "\t"))) row.code = atoi(word);
    while (row.count < VALUES && (word = strsep(&rest, "\t"))) row.value[row.count++] = word;
    rows = realloc(rows, (row_count + 1) * sizeof row);
    rows[row_count++] = row;
}

static void refresh(void) {
    struct stat now;
    const char *path = getenv("FAKE_NVML");
    if (!path || stat(path, &now)) return;
    if (now.st_ino == read_inode && !memcmp(&now.st_mtim, &read_at, sizeof read_at)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char *fresh = calloc(1, now.st_size + 1);
    if (fread(fresh, 1, now.st_size, file) != (size_t)now.st_size) { free(fresh); fclose(file); return; }
    fclose(file);
    free(text);
    free(rows);
    text = fresh, rows = NULL, row_count = 0, read_at = now.st_mtim, read_inode = now.st_ino;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        if (*line) parse(line);
    qsort(rows, row_count, sizeof *rows, by_key);
}

static struct row *find(const char *key) {
    size_t low = 0, high = row_count; /* first row above the key */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(rows[middle].key, key) <= 0) low = middle + 1;
        else high = middle;
    }
    return low && !strcmp(rows[low - 1].key, key) ? &rows[low - 1] : NULL;
}

static struct row *told(const char *what, const char *function, int device) {
    char key[256];
    struct row *row;
    snprintf(key, sizeof key, "%s %s %d", what, function, device);
    if ((row = find(key))) return row;
    snprintf(key, sizeof key, "%s %s *", what, function);
    if ((row = find(key))) return row;
    snprintf(key, sizeof key, "%s * %d", what, device);
    if ((row = find(key))) return row;
    snprintf(key, sizeof key, "%s * *", what);
    return find(key);
}

static void count(const char *function) {
    char path[4096], line[256];
    const char *table = getenv("FAKE_NVML");
    if (!table) return;
    snprintf(path, sizeof path, "%s.calls", table);
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0) return;
    int size = snprintf(line, sizeof line, "%s\n", function);
    if (write(fd, line, size) != size) { /* a count that is lost harms nobody */ }
    close(fd);
}

/* Whoever calls vfork sits in state D until the child ends; the child shares our memory and ends when the line is gone. */
static void sink(const char *function, int device) {
    if (vfork()) return;
    while (told("sink", function, device)) {
        usleep(5000);
        refresh();
    }
    _exit(0);
}

/* Says what a call of the function answers before the table is asked; the lock is held on return. */
static int enter(const char *function, int device) {
    struct row *row;
    pthread_mutex_lock(&lock);
    refresh();
    count(function);
    if (told("crash", function, device)) *(volatile int *)0 = 1;
    while (told("block", function, device)) {
        pthread_mutex_unlock(&lock);
        usleep(5000);
        pthread_mutex_lock(&lock);
        refresh();
    }
    if (told("sink", function, device)) sink(function, device);
    if ((row = told("fail", function, device))) return row->code;
    return OK;
}

static int driver_generation(void) {
    struct row *row = find("generation");
    return row ? row->code : 0;
}

static int ready(const char *function, int device) {
    int code = enter(function, device);
    if (code) return code;
    if (!initialised) return UNINITIALIZED;
    return driver_generation() == generation ? OK : UNKNOWN;
}

static int answer(const char *function, int device, const char *arguments, struct row **row) {
    char key[256];
    int code = ready(function, device);
    if (code) return code;
    snprintf(key, sizeof key, "%s %d%s%s", function, device, *arguments ? " " : "", arguments);
    *row = find(key);
    return *row ? (*row)->code : UNSUPPORTED;
}

static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

static u64 number(struct row *row, int at) {
    return row && at < row->count ? strtoull(row->value[at], NULL, 10) : 0;
}

static void copy(char *to, u32 size, struct row *row, int at) {
    snprintf(to, size, "%s", row && at < row->count ? row->value[at] : "");
}

static int index_of(void *device) {
    struct handle *handle = device;
    if (handle < handles || handle >= handles + DEVICES) return -2;
    return handle->generation == generation ? (int)handle->index : -3; /* of a driver that is gone */
}

/* --- the library ------------------------------------------------------------------------------- */

int nvmlInitWithFlags(u32 flags) {
    int code = enter("nvmlInitWithFlags", -1);
    struct row *device = find("device");
    (void)flags;
    if (!code) {
        initialised++;
        generation = driver_generation();
        if (device && device->count && held < 0) held = open(device->value[0], O_RDONLY);
    }
    return leave(code);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    int code = enter("nvmlShutdown", -1);
    if (!code && !initialised) code = UNINITIALIZED;
    if (!code && !--initialised && held >= 0) { close(held); held = -1; }
    return leave(code);
}

const char *nvmlErrorString(int code) { return code == OK ? "Success" : "Fake error"; }

static int words(const char *function, int device, char *to, u32 size) {
    struct row *row = NULL;
    int code = answer(function, device, "", &row);
    if (!code) copy(to, size, row, 0);
    return leave(code);
}

int nvmlSystemGetDriverVersion(char *to, u32 size) { return words("nvmlSystemGetDriverVersion", -1, to, size); }
int nvmlSystemGetNVMLVersion(char *to, u32 size) { return words("nvmlSystemGetNVMLVersion", -1, to, size); }

int nvmlDeviceGetCount_v2(u32 *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetCount_v2", -1, "", &row);
    if (!code) *to = number(row, 0);
    return leave(code);
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **to) {
    int code = index < DEVICES ? ready("nvmlDeviceGetHandleByIndex_v2", index) : (enter("", -1), INVALID);
    if (!code) {
        handles[index] = (struct handle){index, generation};
        *to = &handles[index];
    }
    return leave(code);
}

/* --- one device -------------------------------------------------------------------------------- */

#define WORDS(name) \
    int name(void *device, char *to, u32 size) { return words(#name, index_of(device), to, size); }
#define NUMBER(name) \
    int name(void *device, u32 *to) { \
        struct row *row = NULL; \
        int code = answer(#name, index_of(device), "", &row); \
        if (!code) *to = number(row, 0); \
        return leave(code); \
    }
#define LONG(name) \
    int name(void *device, u64 *to) { \
        struct row *row = NULL; \
        int code = answer(#name, index_of(device), "", &row); \
        if (!code) *to = number(row, 0); \
        return leave(code); \
    }
#define PAIR(name) \
    int name(void *device, u32 *one, u32 *two) { \
        struct row *row = NULL; \
        int code = answer(#name, index_of(device), "", &row); \
        if (!code) *one = number(row, 0), *two = number(row, 1); \
        return leave(code); \
    }
#define KEYED(name) \
    int name(void *device, u32 which, u32 *to) { \
        struct row *row = NULL; \
        char arguments[32]; \
        snprintf(arguments, sizeof arguments, "%u", which); \
        int code = answer(#name, index_of(device), arguments, &row); \
        if (!code) *to = number(row, 0); \
        return leave(code); \
    }

WORDS(nvmlDeviceGetName)
WORDS(nvmlDeviceGetUUID)
WORDS(nvmlDeviceGetSerial)
WORDS(nvmlDeviceGetVbiosVersion)
NUMBER(nvmlDeviceGetMinorNumber)
NUMBER(nvmlDeviceGetArchitecture)
NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER(nvmlDeviceGetPerformanceState)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetPcieReplayCounter)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
LONG(nvmlDeviceGetTotalEnergyConsumption)
LONG(nvmlDeviceGetCurrentClocksEventReasons)
LONG(nvmlDeviceGetCurrentClocksThrottleReasons)
LONG(nvmlDeviceGetSupportedClocksEventReasons)
LONG(nvmlDeviceGetSupportedClocksThrottleReasons)
LONG(nvmlDeviceGetSupportedEventTypes)
PAIR(nvmlDeviceGetEccMode)
PAIR(nvmlDeviceGetMigMode)
PAIR(nvmlDeviceGetPowerManagementLimitConstraints)
KEYED(nvmlDeviceGetTemperature)
KEYED(nvmlDeviceGetTemperatureThreshold)
KEYED(nvmlDeviceGetClockInfo)
KEYED(nvmlDeviceGetMaxClockInfo)
KEYED(nvmlDeviceGetNvLinkState)

/* Slow by nature (20 ms): the counter says whether anybody asks. */
KEYED(nvmlDeviceGetPcieThroughput)

struct utilization { u32 gpu, memory; };

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetUtilizationRates", index_of(device), "", &row);
    if (!code) *to = (struct utilization){number(row, 0), number(row, 1)};
    return leave(code);
}

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo(void *device, struct memory *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetMemoryInfo", index_of(device), "", &row);
    if (!code) *to = (struct memory){number(row, 0), number(row, 1), number(row, 2)};
    return leave(code);
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetMemoryInfo_v2", index_of(device), "", &row);
    if (!code) *to = (struct memory_v2){to->version, number(row, 0), number(row, 3), number(row, 1), number(row, 2)};
    return leave(code);
}

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetPciInfo_v3", index_of(device), "", &row);
    if (!code) {
        memset(to, 0, sizeof *to);
        copy(to->bus_id, sizeof to->bus_id, row, 0);
        to->domain = number(row, 1), to->bus = number(row, 2), to->device = number(row, 3);
    }
    return leave(code);
}

struct margin { u32 version; int celsius; };

int nvmlDeviceGetMarginTemperature(void *device, struct margin *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetMarginTemperature", index_of(device), "", &row);
    if (!code) to->celsius = (int)number(row, 0);
    return leave(code);
}

int nvmlDeviceGetTotalEccErrors(void *device, u32 type, u32 scope, u64 *to) {
    struct row *row = NULL;
    char arguments[32];
    snprintf(arguments, sizeof arguments, "%u %u", type, scope);
    int code = answer("nvmlDeviceGetTotalEccErrors", index_of(device), arguments, &row);
    if (!code) *to = number(row, 0);
    return leave(code);
}

int nvmlDeviceGetMemoryErrorCounter(void *device, u32 type, u32 scope, u32 location, u64 *to) {
    struct row *row = NULL;
    char arguments[32];
    snprintf(arguments, sizeof arguments, "%u %u %u", type, scope, location);
    int code = answer("nvmlDeviceGetMemoryErrorCounter", index_of(device), arguments, &row);
    if (!code) *to = number(row, 0);
    return leave(code);
}

int nvmlDeviceGetRemappedRows(void *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetRemappedRows", index_of(device), "", &row);
    if (!code)
        *corrected = number(row, 0), *uncorrected = number(row, 1), *pending = number(row, 2), *failed = number(row, 3);
    return leave(code);
}

struct fabric { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; };

int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetGpuFabricInfoV", index_of(device), "", &row);
    if (!code) to->state = number(row, 0), to->status = number(row, 1), to->health = number(row, 2);
    return leave(code);
}

struct histogram { u32 max, high, partial, low, none; };

int nvmlDeviceGetRowRemapperHistogram(void *device, struct histogram *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetRowRemapperHistogram", index_of(device), "", &row);
    if (!code)
        *to = (struct histogram){number(row, 0), number(row, 1), number(row, 2), number(row, 3), number(row, 4)};
    return leave(code);
}

int nvmlDeviceGetRetiredPages(void *device, u32 cause, u32 *size, u64 *to) {
    struct row *row = NULL;
    char arguments[32];
    snprintf(arguments, sizeof arguments, "%u", cause);
    int code = answer("nvmlDeviceGetRetiredPages", index_of(device), arguments, &row);
    if (!code) {
        u32 found = number(row, 0);
        if (!to || *size < found) code = found ? TOO_SMALL : OK;
        for (u32 at = 0; !code && at < found; at++) to[at] = 4096ULL * at;
        *size = found;
    }
    return leave(code);
}

int nvmlDeviceGetNvLinkErrorCounter(void *device, u32 link, u32 counter, u64 *to) {
    struct row *row = NULL;
    char arguments[32];
    snprintf(arguments, sizeof arguments, "%u %u", link, counter);
    int code = answer("nvmlDeviceGetNvLinkErrorCounter", index_of(device), arguments, &row);
    if (!code) *to = number(row, 0);
    return leave(code);
}

struct process { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };

/* Values: pid and memory of each, in turn. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *size, struct process *to) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetComputeRunningProcesses_v3", index_of(device), "", &row);
    if (!code) {
        u32 found = row->count / 2;
        if (*size < found) code = TOO_SMALL;
        for (u32 at = 0; !code && at < found; at++)
            to[at] = (struct process){number(row, 2 * at), number(row, 2 * at + 1), ~0u, ~0u};
        *size = found;
    }
    return leave(code);
}

struct use { u32 pid; u64 at; u32 sm, memory, encoder, decoder; };

/* Values: pid, percent of the multiprocessors, of each sample in turn; those after `since`, which is a microsecond apart. */
int nvmlDeviceGetProcessUtilization(void *device, struct use *to, u32 *size, u64 since) {
    struct row *row = NULL;
    int code = answer("nvmlDeviceGetProcessUtilization", index_of(device), "", &row);
    if (!code) {
        u32 found = row->count / 2;
        if (!to || *size < found) code = TOO_SMALL;
        for (u32 at = 0; !code && at < found; at++)
            to[at] = (struct use){number(row, 2 * at), since + 1, number(row, 2 * at + 1), 0, 0, 0};
        *size = found;
    }
    return leave(code);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **to) {
    struct row *row = NULL;
    char arguments[32];
    snprintf(arguments, sizeof arguments, "%u", index);
    int code = answer("nvmlDeviceGetMigDeviceHandleByIndex", index_of(device), arguments, &row);
    u32 which = code ? 0 : number(row, 0); /* the number under which the table knows the instance */
    if (!code && which < DEVICES) {
        handles[which] = (struct handle){which, generation};
        *to = &handles[which];
    }
    return leave(code);
}

/* --- fields ------------------------------------------------------------------------------------ */

union value { double d; u32 ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; };
struct field { u32 id, scope; long long timestamp, latency; u32 type; int code; union value value; };

enum { COUNT = 91, TRANSMIT = 138, RECEIVE = 139, REPLAY = 161, STATE = 165, LINKS = 36 };
static const u32 ALL_LINKS = ~0u;

/* The bytes of all links, where no line tells them: the sum of those that have one. */
static int all_links(int device, struct field *field) {
    int found = 0;
    for (int link = 0; link < LINKS; link++) {
        char key[64];
        snprintf(key, sizeof key, "field %d %u %d", device, field->id, link);
        struct row *row = find(key);
        if (!row || row->code || !row->count) continue;
        field->type = 3;
        field->value.ull += number(row, 1);
        found = 1;
    }
    return found ? OK : UNSUPPORTED;
}

static int is_of_a_link(u32 id) {
    return id == COUNT || id == TRANSMIT || id == RECEIVE || (id >= REPLAY && id <= STATE);
}

/* The real one (580.159.04) fills in the entry behind the last one of a link; behind the end of the array we only count that. */
static void look_further(struct field *fields, int size) {
    if (size > 0 && is_of_a_link(fields[size - 1].id)) count("behind the end");
}

/* Values: type, value, latency; a line without values is SUCCESS that nobody filled in, as drivers do. */
int nvmlDeviceGetFieldValues(void *device, int size, struct field *fields) {
    int code = ready("nvmlDeviceGetFieldValues", index_of(device));
    for (int at = 0; !code && at < size; at++) {
        struct field *field = &fields[at];
        char key[64];
        snprintf(key, sizeof key, "field %d %u %u", index_of(device), field->id, field->scope);
        struct row *row = find(key);
        int whole = !row && field->scope == ALL_LINKS && (field->id == TRANSMIT || field->id == RECEIVE);
        field->code = row ? row->code : whole ? all_links(index_of(device), field) : UNSUPPORTED;
        if (field->code || !row || !row->count) continue;
        field->type = number(row, 0);
        field->timestamp = time(NULL) * 1000000LL;
        field->latency = number(row, 2);
        if (field->type == 0) field->value.d = strtod(row->value[1], NULL);
        else if (field->type == 1) field->value.ui = number(row, 1);
        else if (field->type == 5) field->value.si = (int)number(row, 1);
        else field->value.ull = number(row, 1);
    }
    if (!code) look_further(fields, size);
    return leave(code);
}

/* --- GPM --------------------------------------------------------------------------------------- */

struct sample { int device; struct timespec at; };
struct metric { u32 id; int code; double value; const char *names[3]; };
struct metrics { u32 version, count; struct sample *one, *two; struct metric metric[]; };
struct support { u32 version, supported; };

int nvmlGpmQueryDeviceSupport(void *device, struct support *to) {
    struct row *row = NULL;
    int code = answer("nvmlGpmQueryDeviceSupport", index_of(device), "", &row);
    if (!code) to->supported = number(row, 0);
    return leave(code);
}

int nvmlGpmSampleAlloc(struct sample **to) {
    int code = ready("nvmlGpmSampleAlloc", -1);
    if (!code) *to = calloc(1, sizeof **to);
    return leave(code);
}

int nvmlGpmSampleFree(struct sample *sample) {
    enter("nvmlGpmSampleFree", -1);
    free(sample);
    return leave(OK);
}

int nvmlGpmSampleGet(void *device, struct sample *sample) {
    int code = ready("nvmlGpmSampleGet", index_of(device));
    if (!code) {
        sample->device = index_of(device) + 1;
        clock_gettime(CLOCK_MONOTONIC, &sample->at);
    }
    return leave(code);
}

int nvmlGpmMetricsGet(struct metrics *to) {
    int device = to->one && to->two ? to->one->device - 1 : -1;
    int code = ready("nvmlGpmMetricsGet", device);
    int later = to->two->at.tv_sec > to->one->at.tv_sec
        || (to->two->at.tv_sec == to->one->at.tv_sec && to->two->at.tv_nsec > to->one->at.tv_nsec);
    if (!code && (device < 0 || to->two->device != to->one->device || !later)) code = INVALID;
    for (u32 at = 0; !code && at < to->count; at++) {
        char key[64];
        snprintf(key, sizeof key, "gpm %d %u", device, to->metric[at].id);
        struct row *row = find(key);
        to->metric[at].code = row ? row->code : INVALID;
        to->metric[at].value = row && row->count ? strtod(row->value[0], NULL) : 0.0;
    }
    return leave(code);
}

/* --- events ------------------------------------------------------------------------------------ */

struct events { int delivered; u64 wanted[DEVICES]; };
struct event { void *device; u64 type, data; u32 gpu_instance, compute_instance; };

int nvmlEventSetCreate(struct events **to) {
    int code = ready("nvmlEventSetCreate", -1);
    if (!code) {
        char key[32];
        *to = calloc(1, sizeof **to);
        do snprintf(key, sizeof key, "event %d", (*to)->delivered + 1); /* what was before is not heard */
        while (find(key) && ++(*to)->delivered);
    }
    return leave(code);
}

int nvmlEventSetFree(struct events *set) {
    enter("nvmlEventSetFree", -1);
    free(set);
    return leave(OK);
}

int nvmlDeviceRegisterEvents(void *device, u64 types, struct events *set) {
    int code = ready("nvmlDeviceRegisterEvents", index_of(device));
    if (!code && index_of(device) >= 0) set->wanted[index_of(device)] = types;
    return leave(code);
}

static int next_event(struct events *set, struct event *to) {
    char key[32];
    struct row *row;
    for (;;) {
        snprintf(key, sizeof key, "event %d", set->delivered + 1);
        if (!(row = find(key))) return TIMED_OUT;
        set->delivered++;
        u32 device = row->code;
        if (device >= DEVICES || !(set->wanted[device] & number(row, 0))) continue;
        handles[device] = (struct handle){device, generation};
        *to = (struct event){&handles[device], number(row, 0), number(row, 1), ~0u, ~0u};
        return OK;
    }
}

int nvmlEventSetWait_v2(struct events *set, struct event *to, u32 milliseconds) {
    for (u32 waited = 0;; waited += 5) {
        int code = ready("nvmlEventSetWait_v2", -1);
        if (!code) code = next_event(set, to);
        leave(code);
        if (code != TIMED_OUT || waited >= milliseconds) return code;
        usleep(5000);
    }
}
