/* A libcuda.so.1 whose device memory is host memory and whose kernels are run by the process that loads it.

   It is as unhelpful as the interface allows. Work given to a stream runs only when something waits for it, so a missing
   wait shows. Page-locked host memory is read and written that late too. Memory is poisoned when it is given out and when
   it is taken back. Handles, contexts, captures, grids, blocks, shared memory and the architecture of a cubin are checked.

   A kernel is known by the hash of its module. Its arguments are read through the packed void ** alone, at the launch, with
   the sizes that the cubin states. The process runs it in a callback (standin_run_with). Functions called standin_* are for
   tests: faults, counts, the last launch. NVIDIA's cuda.h declares everything else. */
#define _GNU_SOURCE
#include "standin.h"

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int initialised, owner, gone;
static struct { const char *name; long calls, countdown; int code; } functions[128];
static const char *const kind_names[KINDS] = {"allocations", "host", "streams", "events", "modules", "graphs", "executables"};
List live[KINDS];
__thread CUcontext current;
struct CUctx_st contexts[MAX_DEVICES];
standin_runner runner;
standin_launch last_launch;
long legacy_uses, peer_rights;

long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

/* Entering and leaving the library. */

static int slot_of(const char *name) {
    int i = 0;
    while (functions[i].name && strcmp(functions[i].name, name)) i++;
    if (!functions[i].name) functions[i].name = strdup(name);
    return i;
}

CUresult enter(const char *name, int needs) {
    pthread_mutex_lock(&mutex);
    int i = slot_of(name);
    functions[i].calls++;
    if (functions[i].countdown > 0 && --functions[i].countdown == 0) return functions[i].code;
    if (needs == NOTHING) return CUDA_SUCCESS;
    if (gone) return CUDA_ERROR_DEINITIALIZED;
    if (!initialised || owner != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs == CONTEXT && (!current || !current->retained)) return CUDA_ERROR_INVALID_CONTEXT;
    if (needs == CONTEXT) return current->sticky;
    return CUDA_SUCCESS;
}
CUresult leave(CUresult code) {
    pthread_mutex_unlock(&mutex);
    return code;
}
void initialise(void) {
    initialised = 1;
    owner = getpid();
}
int initialised_by_another(void) { return initialised && owner != getpid(); }

/* Live objects. */

void add(int kind, void *object) {
    List *list = &live[kind];
    if (list->count == list->room) list->items = realloc(list->items, sizeof(void *) * (list->room = 2 * list->room + 16));
    list->items[list->count++] = object;
}
int has(int kind, const void *object) {
    for (size_t i = 0; i < live[kind].count; i++)
        if (live[kind].items[i] == object) return 1;
    return 0;
}
void drop(int kind, const void *object) {
    List *list = &live[kind];
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i] == object) { list->items[i] = list->items[--list->count]; return; }
}

/* For tests. */

void standin_run_with(standin_runner run) { runner = run; }
uint64_t standin_hash(const void *image) {
    Cubin cubin;
    return cubin_read(image, &cubin) ? 0 : cubin.hash;
}
/* Start and size of each allocation; how many there are. */
long standin_allocations(uint64_t *out, long room) {
    pthread_mutex_lock(&mutex);
    long count = (long)live[ALLOCATIONS].count;
    for (long i = 0; i < count && i < room; i++) {
        Allocation *a = live[ALLOCATIONS].items[i];
        out[2 * i] = a->address, out[2 * i + 1] = a->bytes;
    }
    pthread_mutex_unlock(&mutex);
    return count;
}
/* The nth call of a function from now on returns code; n = 0 takes that back. */
void standin_fail(const char *name, long nth, int code) {
    int i = slot_of(name);
    functions[i].countdown = nth;
    functions[i].code = code;
}
long standin_calls(const char *name) { return functions[slot_of(name)].calls; }
long standin_live(const char *kind) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kind_names[i], kind)) return (long)live[i].count;
    if (!strcmp(kind, "contexts")) {
        long total = 0;
        for (int i = 0; i < MAX_DEVICES; i++) total += contexts[i].retained;
        return total;
    }
    return -1;
}
long standin_legacy_uses(void) { return legacy_uses; }
long standin_peer_rights(void) { return peer_rights; }
void standin_last_launch(standin_launch *out) { *out = last_launch; }
/* As after the driver's own exit handlers. */
void standin_go_away(void) { gone = 1; }
