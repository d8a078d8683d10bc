"""Graphs: what a stream is given, kept and launched as one."""

from __future__ import annotations

import weakref
from typing import Any

from nbxtensor.backend.cuda import ffi
from nbxtensor.backend.cuda.launch import KernelVerbs, Scratch
from nbxtensor.errors import DeviceError

# Failures of cuStreamEndCapture after which the stream is no longer captured.
_OVER = (ffi.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ffi.CUDA_ERROR_STREAM_CAPTURE_UNJOINED)


class Graph:
    """An executable graph. Its kernels' scratch memory is its own: it may run beside the stream that it came from."""

    __slots__ = ("handle", "scratch", "finalizer", "__weakref__")

    def __init__(self, handle: int, scratch: Scratch | None):
        self.handle, self.scratch = handle, scratch
        self.finalizer: weakref.finalize[Any, Any] | None = None


class GraphVerbs(KernelVerbs):
    """Capture is relaxed: other threads, and the allocations of this one, go on as they would without it."""

    def __init__(self, *arguments: Any):
        self._aside: dict[int, Scratch | None] = {}  # the scratch memory of a captured stream, until the capture ends
        self._graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        super().__init__(*arguments)

    def graph_begin(self, stream: int) -> None:
        self._enter()
        if stream in self._captured:
            raise DeviceError(f"graph_begin: stream={stream:#x}: is being captured already")
        self._cuda.cuStreamBeginCapture_v2(stream, ffi.CU_STREAM_CAPTURE_MODE_RELAXED)
        self._captured.add(stream)
        self._aside[stream] = self._scratch.pop(stream, None)

    def graph_end(self, stream: int) -> Graph:
        captured, scratch = self._end_capture("graph_end", stream)
        try:
            handle = self._cuda.integer(self._cuda.cuGraphInstantiateWithFlags, captured, 0, type="CUgraphExec")
        except BaseException:
            self._raw.cuGraphDestroy(captured)
            self._free_scratch(scratch)
            raise
        graph = Graph(handle, scratch)
        graph.finalizer = weakref.finalize(graph, self._drop_graph, handle, scratch)
        self._graphs.add(graph)
        self._cuda.cuGraphDestroy(captured)
        return graph

    def graph_update(self, graph: Graph, stream: int) -> bool:
        """Ends the capture and makes ``graph`` do what was captured. False where that has other nodes than it: then the
        graph stays as it was."""
        captured, scratch = self._end_capture("graph_update", stream)
        result = self._ffi.new("CUgraphExecUpdateResultInfo *")
        code = self._raw.cuGraphExecUpdate_v2(graph.handle, captured, result)
        self._cuda.cuGraphDestroy(captured)
        if code:
            self._free_scratch(scratch)
            if code == ffi.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
                return False
            raise self._cuda.failure("cuGraphExecUpdate_v2", code)
        before, graph.scratch = graph.scratch, scratch
        if graph.finalizer is not None:
            graph.finalizer.detach()
        graph.finalizer = weakref.finalize(graph, self._drop_graph, graph.handle, scratch)
        self._free_scratch(before)
        return True

    def graph_launch(self, graph: Graph, stream: int | None = None) -> None:
        self._enter()
        self._cuda.cuGraphLaunch(graph.handle, self._handle(stream))

    def graph_destroy(self, graph: Graph) -> None:
        """Frees the graph; launches of it that are under way finish. One that nobody refers to is freed by itself."""
        self._enter()
        if graph.finalizer is None or graph.finalizer.detach() is None:
            raise DeviceError("graph_destroy: the graph was destroyed before")
        self._graphs.discard(graph)
        self._cuda.cuGraphExecDestroy(graph.handle)
        self._free_scratch(graph.scratch)

    def _end_capture(self, verb: str, stream: int) -> tuple[int, Scratch | None]:
        """The captured graph and the scratch memory that its kernels use."""
        self._enter()
        if stream not in self._captured:
            raise DeviceError(f"{verb}: stream={stream:#x}: is not being captured")
        captured = self._ffi.new("CUgraph *")
        code = self._raw.cuStreamEndCapture(stream, captured)
        if code and code not in _OVER:
            raise self._cuda.failure("cuStreamEndCapture", code)
        self._captured.discard(stream)
        scratch, before = self._scratch.pop(stream, None), self._aside.pop(stream)
        if before is not None:
            self._scratch[stream] = before
        if code:
            self._free_scratch(scratch)
            raise self._cuda.failure("cuStreamEndCapture", code)
        return int(captured[0]), scratch

    def _drop_graph(self, handle: int, scratch: Scratch | None) -> None:
        """Frees a graph that nobody refers to any more, on whatever thread the collector runs. A closed context has
        freed it already."""
        if self._ended is None:
            self._enter()
            self._raw.cuGraphExecDestroy(handle)
            self._free_scratch(scratch)
