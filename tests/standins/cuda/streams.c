/* Streams, which are queues of operations that run when they must; events; graphs. */
#include "standin.h"

static void token_release(Token *token) {
    if (token && --token->references == 0) free(token);
}
static void append(Operations *queue, Operation *op) {
    op->next = NULL;
    if (queue->last) queue->last->next = op; else queue->first = op;
    queue->last = op;
}
void operation_free(Operation *op) {
    for (int i = 0; i < op->count; i++) free(op->parameters[i]);
    free(op->parameters);
    free(op->staging);
    token_release(op->token);
    free(op);
}
void operations_free(Operations *queue) {
    for (Operation *op = queue->first, *next; op; op = next) { next = op->next; operation_free(op); }
    queue->first = queue->last = NULL;
}
Operation *operation(int kind) {
    Operation *op = calloc(1, sizeof *op);
    op->kind = kind;
    return op;
}
Operation *operation_copy(const Operation *from) {
    Operation *op = operation(from->kind);
    *op = *from;
    if (op->token) op->token->references++;
    if (op->count) op->parameters = calloc(op->count, sizeof(void *));
    for (int i = 0; i < op->count; i++)
        op->parameters[i] = memcpy(malloc(from->function->parameters[i].size), from->parameters[i], from->function->parameters[i].size);
    if (op->staging) op->source = (uint64_t)(op->staging = memcpy(malloc(op->bytes), from->staging, op->bytes));
    return op;
}
void operations_copy(Operations *to, const Operations *from) {
    for (Operation *op = from->first; op; op = op->next) append(to, operation_copy(op));
}

static int reachable(uint64_t address, size_t bytes) {
    return allocation_at(ALLOCATIONS, address, bytes) || allocation_at(HOST, address, bytes);
}
static CUresult execute(Operation *op) {
    struct timespec now;
    switch (op->kind) {
    case COPY_IN:
        if (!allocation_at(ALLOCATIONS, op->to, op->bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy((void *)op->to, (void *)op->source, op->bytes);
        break;
    case COPY_OUT:
        if (!allocation_at(ALLOCATIONS, op->source, op->bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy((void *)op->to, (void *)op->source, op->bytes);
        break;
    case COPY:
        if (!reachable(op->to, op->bytes) || !reachable(op->source, op->bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy((void *)op->to, (void *)op->source, op->bytes);
        break;
    case FILL:
        if (!allocation_at(ALLOCATIONS, op->to, op->bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        memset((void *)op->to, op->byte, op->bytes);
        break;
    case FREE: {
        Allocation *a = allocation_at(ALLOCATIONS, op->to, 1);
        if (a) release(a, ALLOCATIONS);
        break;
    }
    case RECORD:
        clock_gettime(CLOCK_MONOTONIC, &now);
        op->token->seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        op->token->done = 1;
        break;
    case WAIT:
        return op->token->done ? CUDA_SUCCESS : run_until(op->token->stream, op->token);
    case KERNEL:
        return runner ? runner(op->function->module->hash, op->function->name, op->grid, op->block, op->shared,
                               op->parameters, op->count) : CUDA_ERROR_LAUNCH_FAILED;
    }
    return CUDA_SUCCESS;
}

/* Runs what the stream holds, up to a recorded event or all of it. A fault stays with the context. */
CUresult run_until(CUstream stream, const Token *token) {
    while (stream->queue.first && !(token && token->done)) {
        Operation *op = stream->queue.first;
        stream->queue.first = op->next;
        if (!op->next) stream->queue.last = NULL;
        CUresult code = execute(op);
        operation_free(op);
        if (code) return stream->context->sticky = code;
    }
    return CUDA_SUCCESS;
}
CUresult run_all(CUcontext context) {
    for (size_t i = 0; i < live[STREAMS].count; i++) {
        CUstream stream = live[STREAMS].items[i];
        CUresult code = stream->context == context ? run_until(stream, NULL) : CUDA_SUCCESS;
        if (code) return code;
    }
    return run_until(&context->legacy, NULL);
}

CUresult stream_of(CUstream handle, CUstream *stream) {
    if ((uintptr_t)handle <= 2) {
        legacy_uses++;
        current->legacy.context = current;
        *stream = &current->legacy;
        return CUDA_SUCCESS;
    }
    if (!has(STREAMS, handle) || handle->context != current) return CUDA_ERROR_INVALID_HANDLE;
    *stream = handle;
    return CUDA_SUCCESS;
}
int is_capturing(CUstream stream) { return stream->capture != NULL; }
CUresult forbid(CUstream stream) {
    stream->capture->invalid = 1;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
int forbid_all(CUcontext context) {
    int any = 0;
    for (size_t i = 0; i < live[STREAMS].count; i++) {
        CUstream stream = live[STREAMS].items[i];
        if (stream->context == context && is_capturing(stream)) { forbid(stream); any = 1; }
    }
    return any;
}
/* Gives the operation to the stream, or to the graph that the stream is captured into. */
CUresult give(CUstream stream, Operation *op) {
    append(stream->capture ? &stream->capture->operations : &stream->queue, op);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    ENTER(CONTEXT);
    REFUSE(flags != CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    *out = calloc(1, sizeof **out);
    (*out)->context = current;
    add(STREAMS, *out);
    return leave(CUDA_SUCCESS);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(CONTEXT);
    REFUSE(!has(STREAMS, stream), CUDA_ERROR_INVALID_HANDLE);
    CUresult code = run_until(stream, NULL);
    drop(STREAMS, stream);
    operations_free(&stream->queue);
    free(stream);
    return leave(code);
}
CUresult cuStreamSynchronize(CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(is_capturing(stream), forbid(stream));
    return leave(run_until(stream, NULL));
}
CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(flags || !has(EVENTS, event), CUDA_ERROR_INVALID_HANDLE);
    Token *token = event->token;
    if (!token || token->done) return leave(CUDA_SUCCESS);
    if (token->graph) { /* the stream joins the capture */
        REFUSE(stream->capture && stream->capture != token->graph, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        stream->capture = token->graph;
        return leave(CUDA_SUCCESS);
    }
    if (is_capturing(stream)) {
        stream->capture->invalid = 1;
        return leave(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    Operation *op = operation(WAIT);
    op->token = token;
    token->references++;
    return leave(give(stream, op));
}
CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    ENTER(CONTEXT);
    REFUSE(flags, CUDA_ERROR_INVALID_VALUE);
    *out = calloc(1, sizeof **out);
    add(EVENTS, *out);
    return leave(CUDA_SUCCESS);
}
CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(CONTEXT);
    REFUSE(!has(EVENTS, event), CUDA_ERROR_INVALID_HANDLE);
    token_release(event->token);
    drop(EVENTS, event);
    free(event);
    return leave(CUDA_SUCCESS);
}
CUresult cuEventRecord(CUevent event, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(!has(EVENTS, event), CUDA_ERROR_INVALID_HANDLE);
    token_release(event->token);
    Token *token = event->token = calloc(1, sizeof *token);
    token->references = 2, token->stream = stream, token->graph = stream->capture;
    Operation *op = operation(RECORD);
    op->token = token;
    return leave(give(stream, op));
}
CUresult cuEventSynchronize(CUevent event) {
    ENTER(CONTEXT);
    REFUSE(!has(EVENTS, event), CUDA_ERROR_INVALID_HANDLE);
    Token *token = event->token;
    REFUSE(token && token->graph && !token->done, CUDA_ERROR_CAPTURED_EVENT);
    return leave(!token || token->done ? CUDA_SUCCESS : run_until(token->stream, token));
}
CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end) {
    ENTER(CONTEXT);
    REFUSE(!has(EVENTS, start) || !has(EVENTS, end) || !start->token || !end->token, CUDA_ERROR_INVALID_HANDLE);
    REFUSE(!start->token->done || !end->token->done, CUDA_ERROR_NOT_READY);
    *out = (float)(1e3 * (end->token->seconds - start->token->seconds));
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(stream == &current->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REFUSE(is_capturing(stream), CUDA_ERROR_ILLEGAL_STATE);
    REFUSE(mode != CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    stream->capture = calloc(1, sizeof *stream->capture);
    return leave(CUDA_SUCCESS);
}
static void graph_free(CUgraph graph) {
    operations_free(&graph->operations);
    free(graph);
}
CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    ENTER(CONTEXT);
    STREAM(handle);
    CUgraph graph = stream->capture;
    *out = NULL;
    REFUSE(!graph, CUDA_ERROR_ILLEGAL_STATE);
    for (size_t i = 0; i < live[STREAMS].count; i++) {
        CUstream other = live[STREAMS].items[i];
        if (other->capture == graph) other->capture = NULL;
    }
    if (graph->invalid) {
        graph_free(graph);
        return leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    add(GRAPHS, *out = graph);
    return leave(CUDA_SUCCESS);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    ENTER(CONTEXT);
    REFUSE(flags || !has(GRAPHS, graph), CUDA_ERROR_INVALID_VALUE);
    *out = calloc(1, sizeof **out);
    operations_copy(&(*out)->operations, &graph->operations);
    add(EXECUTABLES, *out);
    return leave(CUDA_SUCCESS);
}
CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo *result) {
    ENTER(CONTEXT);
    REFUSE(!has(EXECUTABLES, executable) || !has(GRAPHS, graph), CUDA_ERROR_INVALID_VALUE);
    Operation *a = executable->operations.first, *b = graph->operations.first;
    while (a && b && a->kind == b->kind) a = a->next, b = b->next;
    result->result = a || b ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED : CU_GRAPH_EXEC_UPDATE_SUCCESS;
    REFUSE(a || b, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    operations_free(&executable->operations);
    operations_copy(&executable->operations, &graph->operations);
    return leave(CUDA_SUCCESS);
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
    ENTER(CONTEXT);
    STREAM(handle);
    REFUSE(!has(EXECUTABLES, executable), CUDA_ERROR_INVALID_HANDLE);
    for (Operation *op = executable->operations.first; op; op = op->next)
        if (op->kind != RECORD) give(stream, operation_copy(op));
    return leave(CUDA_SUCCESS);
}
CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(CONTEXT);
    REFUSE(!has(GRAPHS, graph), CUDA_ERROR_INVALID_HANDLE);
    drop(GRAPHS, graph);
    graph_free(graph);
    return leave(CUDA_SUCCESS);
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
    ENTER(CONTEXT);
    REFUSE(!has(EXECUTABLES, executable), CUDA_ERROR_INVALID_HANDLE);
    drop(EXECUTABLES, executable);
    operations_free(&executable->operations);
    free(executable);
    return leave(CUDA_SUCCESS);
}

