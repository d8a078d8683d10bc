/* Memory: allocations, copies, fills, access between devices. */
#include "standin.h"

static struct CUmemPoolHandle_st pools[MAX_DEVICES];

Allocation *allocation_at(int kind, uint64_t address, size_t bytes) {
    for (size_t i = 0; i < live[kind].count; i++) {
        Allocation *a = live[kind].items[i];
        if (a->address <= address && address + bytes <= a->address + a->bytes) return a;
    }
    return NULL;
}
static size_t used_memory(int device) {
    size_t total = 0;
    for (size_t i = 0; i < live[ALLOCATIONS].count; i++) {
        Allocation *a = live[ALLOCATIONS].items[i];
        if (a->device == device) total += a->bytes;
    }
    return total;
}
static CUresult allocate(CUdeviceptr *out, size_t bytes) {
    int device = (int)(current - contexts);
    void *memory;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > device_memory() - used_memory(device) || posix_memalign(&memory, 512, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(memory, 0xCD, bytes);
    Allocation *a = calloc(1, sizeof *a);
    *a = (Allocation){(uint64_t)memory, bytes, device};
    add(ALLOCATIONS, a);
    *out = a->address;
    return CUDA_SUCCESS;
}
void release(Allocation *a, int kind) {
    memset((void *)a->address, 0xDD, a->bytes);
    free((void *)a->address);
    drop(kind, a);
    free(a);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER(CONTEXT);
    *total = device_memory();
    *free_bytes = *total - used_memory((int)(current - contexts));
    return leave(CUDA_SUCCESS);
}
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    ENTER(CONTEXT);
    return leave(allocate(out, bytes));
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER(CONTEXT);
    CUresult code = run_all(current);
    Allocation *a = allocation_at(ALLOCATIONS, address, 1);
    REFUSE(!a || a->address != address, CUDA_ERROR_INVALID_VALUE);
    release(a, ALLOCATIONS);
    return leave(code);
}
CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(is_capturing(stream), forbid(stream));
    return leave(allocate(out, bytes));
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    Allocation *a = allocation_at(ALLOCATIONS, address, 1);
    REFUSE(!a || a->address != address, CUDA_ERROR_INVALID_VALUE);
    Operation *op = operation(FREE);
    op->to = address;
    return leave(give(stream, op));
}
CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
    ENTER(CONTEXT);
    (void)flags;
    REFUSE(!bytes, CUDA_ERROR_INVALID_VALUE);
    REFUSE(posix_memalign(out, 4096, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    Allocation *a = calloc(1, sizeof *a);
    *a = (Allocation){(uint64_t)*out, bytes, -1};
    add(HOST, a);
    return leave(CUDA_SUCCESS);
}
CUresult cuMemFreeHost(void *address) {
    ENTER(CONTEXT);
    CUresult code = run_all(current);
    Allocation *a = allocation_at(HOST, (uint64_t)address, 1);
    REFUSE(!a || a->address != (uint64_t)address, CUDA_ERROR_INVALID_VALUE);
    release(a, HOST);
    return leave(code);
}
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
    ENTER(CONTEXT);
    REFUSE(attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUDA_ERROR_INVALID_VALUE);
    int device = allocation_at(ALLOCATIONS, address, 1) != NULL, host = allocation_at(HOST, address, 1) != NULL;
    REFUSE(!device && !host, CUDA_ERROR_INVALID_VALUE);
    *(unsigned int *)out = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    return leave(CUDA_SUCCESS);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *source, size_t bytes, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    Operation *op = operation(COPY_IN);
    op->to = to, op->source = (uint64_t)source, op->bytes = bytes;
    if (!allocation_at(HOST, (uint64_t)source, bytes)) /* pageable: read now */
        op->source = (uint64_t)(op->staging = memcpy(malloc(bytes), source, bytes));
    return leave(give(stream, op));
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr source, size_t bytes, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    int pageable = !allocation_at(HOST, (uint64_t)to, bytes);
    REFUSE(is_capturing(stream) && pageable, forbid(stream));
    Operation *op = operation(COPY_OUT);
    op->to = (uint64_t)to, op->source = source, op->bytes = bytes;
    give(stream, op);
    return leave(pageable ? run_until(stream, NULL) : CUDA_SUCCESS);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr source, size_t bytes, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    Operation *op = operation(COPY);
    op->to = to, op->source = source, op->bytes = bytes;
    return leave(give(stream, op));
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr source, CUcontext here, size_t bytes, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    Allocation *a = allocation_at(ALLOCATIONS, to, bytes), *b = allocation_at(ALLOCATIONS, source, bytes);
    REFUSE(!a || !b || &contexts[a->device] != there || &contexts[b->device] != here, CUDA_ERROR_INVALID_VALUE);
    Operation *op = operation(COPY);
    op->to = to, op->source = source, op->bytes = bytes;
    return leave(give(stream, op));
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    Operation *op = operation(FILL);
    op->to = to, op->bytes = bytes, op->byte = byte;
    return leave(give(stream, op));
}
CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer) {
    ENTER(START);
    *out = device != peer && setting("STANDIN_PEERS", 1);
    return leave(CUDA_SUCCESS);
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    ENTER(CONTEXT);
    REFUSE(flags || !peer->retained || peer == current, CUDA_ERROR_INVALID_VALUE);
    int bit = 1 << (peer - contexts);
    REFUSE(current->peers & bit, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    current->peers |= bit;
    return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    ENTER(START);
    *out = &pools[device];
    return leave(CUDA_SUCCESS);
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    ENTER(START);
    for (size_t i = 0; i < count; i++) {
        REFUSE(map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || map[i].location.id == pool - pools, CUDA_ERROR_INVALID_VALUE);
        REFUSE(map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_INVALID_VALUE);
        peer_rights++;
    }
    return leave(CUDA_SUCCESS);
}

