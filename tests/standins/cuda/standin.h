/* The stand-in's own types. */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Names that newer headers turn into _v2; a driver exports the plain ones all the same. */
#undef cuEventElapsedTime
#undef cuDeviceGetUuid
CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end);
CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device);

enum { MAX_DEVICES = 8, MAX_THREADS = 1024, MAX_GRID_X = 2147483647, MAX_GRID_YZ = 65535, MAX_SHARED = 232448,
       MULTIPROCESSORS = 132, MAX_PARAMETERS = 512 };
enum { NOTHING, START, CONTEXT };
enum { ALLOCATIONS, HOST, STREAMS, EVENTS, MODULES, GRAPHS, EXECUTABLES, KINDS };
enum { COPY_IN, COPY_OUT, COPY, FILL, FREE, RECORD, WAIT, KERNEL };

typedef struct { unsigned grid[3], block[3], shared, cluster[3]; int cooperative, policy, dependent; } standin_launch;
/* Runs a kernel on arguments that it reads through parameters; returns a CUresult. */
typedef int (*standin_runner)(uint64_t hash, const char *name, const unsigned *grid, const unsigned *block, unsigned shared,
                              void **parameters, int count);

typedef struct { void **items; size_t count, room; } List;
typedef struct { uint64_t address; size_t bytes; int device; } Allocation;
/* One record of an event. */
typedef struct { int references, done; double seconds; CUstream stream; CUgraph graph; } Token;
typedef struct { unsigned offset, size; } Parameter;

typedef struct Operation {
    int kind, byte, count;
    uint64_t to, source;
    size_t bytes;
    void *staging; /* what was read of pageable memory at the call */
    Token *token;
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void **parameters;
    struct Operation *next;
} Operation;
typedef struct { Operation *first, *last; } Operations;

struct CUstream_st { CUcontext context; Operations queue; CUgraph capture; };
struct CUctx_st { int retained, sticky, peers; struct CUstream_st legacy; };
struct CUmemPoolHandle_st { int unused; };
struct CUevent_st { Token *token; };
struct CUmod_st { CUcontext context; uint64_t hash; void *image; CUfunction functions; };
struct CUfunc_st {
    CUmodule module;
    CUfunction next;
    char name[256];
    int count, large_cluster;
    unsigned threads, max_shared; /* threads of a block that the binary demands, 0 for any */
    Parameter parameters[MAX_PARAMETERS];
};
struct CUgraph_st { Operations operations; int invalid; };
struct CUgraphExec_st { Operations operations; };

typedef struct { size_t bytes; uint64_t hash; int architecture; } Cubin;
CUresult cubin_read(const void *image, Cubin *out);
CUresult cubin_kernel(const void *image, const char *name, CUfunction out);

extern List live[KINDS];
extern __thread CUcontext current;
extern struct CUctx_st contexts[MAX_DEVICES];
extern standin_runner runner;
extern standin_launch last_launch;
extern long legacy_uses, peer_rights;

long setting(const char *name, long otherwise);
static inline size_t device_memory(void) { return (size_t)setting("STANDIN_MEMORY", 1L << 30); }
static inline int architecture(void) { return (int)setting("STANDIN_ARCH", 90); }

/* Every function enters with what it needs, and leaves with its code. */
CUresult enter(const char *name, int needs);
CUresult leave(CUresult code);
void initialise(void);
int initialised_by_another(void);
#define ENTER(needs) CUresult entered = enter(__func__, needs); if (entered) return leave(entered)
#define REFUSE(condition, code) do { if (condition) return leave(code); } while (0)
#define STREAM(handle) CUstream stream; do { CUresult found = stream_of(handle, &stream); if (found) return leave(found); } while (0)

void add(int kind, void *object);
int has(int kind, const void *object);
void drop(int kind, const void *object);

Allocation *allocation_at(int kind, uint64_t address, size_t bytes);
void release(Allocation *a, int kind);

/* The stream of a handle. Whatever is given to a captured stream goes into its graph. */
CUresult stream_of(CUstream handle, CUstream *stream);
CUresult give(CUstream stream, Operation *op);
Operation *operation(int kind);
/* Runs what the stream holds, up to a recorded event or all of it. A fault stays with the context. */
CUresult run_until(CUstream stream, const Token *token);
CUresult run_all(CUcontext context);
int is_capturing(CUstream stream);
CUresult forbid(CUstream stream);
int forbid_all(CUcontext context);
