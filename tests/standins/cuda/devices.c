/* Start, devices and contexts. */
#include "standin.h"

static int device_count(void) { return (int)setting("STANDIN_DEVICES", 1); }

CUresult cuInit(unsigned int flags) {
    ENTER(NOTHING);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int code = (int)setting("STANDIN_INIT", 0);
    if (!code && visible && (!*visible || !strcmp(visible, "-1"))) code = CUDA_ERROR_NO_DEVICE;
    REFUSE(flags || code, flags ? CUDA_ERROR_INVALID_VALUE : code);
    REFUSE(initialised_by_another(), CUDA_ERROR_NOT_INITIALIZED);
    initialise();
    return leave(CUDA_SUCCESS);
}
CUresult cuDriverGetVersion(int *version) {
    ENTER(NOTHING);
    *version = (int)setting("STANDIN_VERSION", 13000);
    return leave(CUDA_SUCCESS);
}
static const struct { int code; const char *name, *text; } texts[] = {
    {0, "CUDA_SUCCESS", "no error"}, {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}, {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"}, {34, "CUDA_ERROR_STUB_LIBRARY", "stub library"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static CUresult text_of(CUresult code, const char **out, int name) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == (int)code) { *out = name ? texts[i].name : texts[i].text; return CUDA_SUCCESS; }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorName(CUresult error, const char **out) { return text_of(error, out, 1); }
CUresult cuGetErrorString(CUresult error, const char **out) { return text_of(error, out, 0); }
CUresult cuDeviceGetCount(int *count) {
    ENTER(START);
    *count = device_count();
    return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(START);
    REFUSE(ordinal < 0 || ordinal >= device_count(), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(START);
    snprintf(name, (size_t)length, "Stand-in GPU %d", device);
    return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetPCIBusId(char *out, int length, CUdevice device) {
    ENTER(START);
    snprintf(out, (size_t)length, "0000:%02X:00.0", 0x1A + device);
    return leave(CUDA_SUCCESS);
}
static CUresult uuid(CUuuid *out, CUdevice device) {
    const unsigned char bytes[16] = {0x13, 0xee, 0x08, 0x00, 0x0d, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, (unsigned char)device};
    memcpy(out->bytes, bytes, 16);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
    ENTER(START);
    return leave(uuid(out, device));
}
CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
    ENTER(START);
    return leave(uuid(out, device));
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(START);
    (void)device;
    *bytes = device_memory();
    return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
    ENTER(START);
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = MAX_THREADS; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *out = MAX_GRID_X; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *out = MAX_GRID_YZ; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = MULTIPROCESSORS; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *out = architecture() / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *out = architecture() % 10; break;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *out = 1; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *out = MAX_SHARED; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *out = (int)setting("STANDIN_POOLS", 1); break;
    default: return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    ENTER(START);
    contexts[device].retained++;
    *out = &contexts[device];
    return leave(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(START);
    REFUSE(!contexts[device].retained, CUDA_ERROR_INVALID_CONTEXT);
    contexts[device].retained--;
    return leave(CUDA_SUCCESS);
}
CUresult cuCtxGetCurrent(CUcontext *out) {
    ENTER(START);
    *out = current;
    return leave(CUDA_SUCCESS);
}
CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER(START);
    REFUSE(context && !context->retained, CUDA_ERROR_INVALID_CONTEXT);
    current = context;
    return leave(CUDA_SUCCESS);
}
CUresult cuCtxSynchronize(void) {
    ENTER(CONTEXT);
    REFUSE(forbid_all(current), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return leave(run_all(current));
}

