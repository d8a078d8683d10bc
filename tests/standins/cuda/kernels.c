/* Modules and kernels. */
#include "standin.h"

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER(CONTEXT);
    Cubin cubin;
    CUresult code = cubin_read(image, &cubin);
    REFUSE(code, code);
    REFUSE(cubin.architecture != architecture(), CUDA_ERROR_NO_BINARY_FOR_GPU);
    CUmodule module = calloc(1, sizeof *module);
    module->context = current;
    module->hash = cubin.hash;
    module->image = memcpy(malloc(cubin.bytes), image, cubin.bytes);
    add(MODULES, *out = module);
    return leave(CUDA_SUCCESS);
}
CUresult cuModuleUnload(CUmodule module) {
    ENTER(CONTEXT);
    REFUSE(!has(MODULES, module), CUDA_ERROR_INVALID_HANDLE);
    CUresult code = run_all(module->context);
    drop(MODULES, module);
    for (CUfunction f = module->functions, next; f; f = next) { next = f->next; free(f); }
    free(module->image);
    free(module);
    return leave(code);
}
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    ENTER(CONTEXT);
    REFUSE(!has(MODULES, module), CUDA_ERROR_INVALID_HANDLE);
    CUfunction function = calloc(1, sizeof *function);
    if (strlen(name) >= sizeof function->name || cubin_kernel(module->image, name, function)) {
        free(function);
        return leave(CUDA_ERROR_NOT_FOUND);
    }
    strcpy(function->name, name);
    function->module = module;
    function->next = module->functions;
    module->functions = *out = function;
    return leave(CUDA_SUCCESS);
}
CUresult cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction function) {
    ENTER(CONTEXT);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = (int)setting("STANDIN_KERNEL_THREADS", MAX_THREADS); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out = 40; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *out = (int)function->max_shared; break;
    default: return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    ENTER(CONTEXT);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        REFUSE(value < 0 || value > MAX_SHARED, CUDA_ERROR_INVALID_VALUE);
        function->max_shared = (unsigned)value;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: REFUSE(value < -1 || value > 100, CUDA_ERROR_INVALID_VALUE); break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: function->large_cluster = value; break;
    default: return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}
static CUresult launch(CUfunction f, const standin_launch *asked, CUstream stream, void **parameters) {
    if (!has(MODULES, f->module) || f->module->context != current) return CUDA_ERROR_INVALID_HANDLE;
    const unsigned *grid = asked->grid, *block = asked->block, cluster = asked->cluster[0];
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > MAX_GRID_X || grid[1] > MAX_GRID_YZ || grid[2] > MAX_GRID_YZ ||
        block[0] * block[1] * block[2] > MAX_THREADS || (f->threads && block[0] != f->threads) || block[1] != 1 || block[2] != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (asked->shared > (f->max_shared > 49152 ? f->max_shared : 49152)) return CUDA_ERROR_INVALID_VALUE;
    if (cluster > 1 && (grid[0] % cluster || cluster > 16 || (cluster > 8 && !f->large_cluster))) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (asked->cooperative && (long)grid[0] * grid[1] * grid[2] > MULTIPROCESSORS * (2048 / block[0]))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    Operation *op = operation(KERNEL);
    op->function = f;
    memcpy(op->grid, grid, sizeof op->grid);
    memcpy(op->block, block, sizeof op->block);
    op->grid[0] /= cluster;
    op->shared = asked->shared;
    op->count = f->count;
    op->parameters = calloc((size_t)f->count + 1, sizeof(void *));
    for (int i = 0; i < f->count; i++)
        op->parameters[i] = memcpy(malloc(f->parameters[i].size), parameters[i], f->parameters[i].size);
    last_launch = *asked;
    return give(stream, op);
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream handle, void **parameters, void **extra) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(extra, CUDA_ERROR_INVALID_VALUE);
    standin_launch asked = {{gx, gy, gz}, {bx, by, bz}, shared, {1, 1, 1}, 0, 0, 0};
    return leave(launch(f, &asked, stream, parameters));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
    ENTER(CONTEXT);
    STREAM(c->hStream);
    REFUSE(extra, CUDA_ERROR_INVALID_VALUE);
    standin_launch asked = {{c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ},
                            c->sharedMemBytes, {1, 1, 1}, 0, 0, 0};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttributeValue *value = &c->attrs[i].value;
        switch (c->attrs[i].id) {
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: asked.cooperative = value->cooperative; break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            asked.dependent = value->programmaticStreamSerializationAllowed;
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: memcpy(asked.cluster, &value->clusterDim, sizeof asked.cluster); break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            asked.policy = (int)value->clusterSchedulingPolicyPreference;
            break;
        default: return leave(CUDA_ERROR_INVALID_VALUE);
        }
    }
    return leave(launch(f, &asked, stream, parameters));
}


/* A tensor map that tests can read: address, type, rank, then sizes, strides in bytes, and the box. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    ENTER(START);
    REFUSE(rank < 1 || rank > 5 || (uintptr_t)address % 16 || interleave || promotion > 3, CUDA_ERROR_INVALID_VALUE);
    for (cuuint32_t i = 0; i < rank; i++)
        REFUSE(!sizes[i] || box[i] < 1 || box[i] > 256 || steps[i] != 1 || (i && strides[i - 1] % 16), CUDA_ERROR_INVALID_VALUE);
    memset(out, 0, sizeof *out);
    out->opaque[0] = (cuuint64_t)address;
    out->opaque[1] = (cuuint64_t)type | (cuuint64_t)rank << 8 | (cuuint64_t)swizzle << 16 | (cuuint64_t)fill << 24;
    for (cuuint32_t i = 0; i < rank; i++) {
        out->opaque[2 + i] = sizes[i];
        if (i) out->opaque[6 + i] = strides[i - 1];
        out->opaque[11 + i / 2] |= (cuuint64_t)box[i] << 32 * (i % 2);
    }
    return leave(CUDA_SUCCESS);
}
