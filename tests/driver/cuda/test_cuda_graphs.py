"""Scratch memory and graphs of the CUDA driver on the stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from nbxtensor.backend.cuda import CudaContext
from nbxtensor.conformance import variants
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import DeviceError, DriverError
from standins.cuda.execute import Standin

ONE = (1, 1, 1)
STORE = variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"})
TILE_TYPES = {"to": "*fp32", "source": "*fp32", "rows": "i32", "columns": "i32"}
TILE = variant(variants.COPY_TILE, TILE_TYPES, {"BLOCK": 32}, divisible=("to", "source", "rows", "columns"))


def run_tile(context: CudaContext, memory: Memory, rows: int, stream: int | None = None) -> None:
    kernel = LoadedKernel(context, TILE)
    content = np.random.default_rng(rows).random((rows, 80), np.float32)
    source, to = memory.of(content), memory.block(content.nbytes)
    context.synchronize()
    kernel((3, rows // 32, 1), to, source, rows, 80, stream=stream)
    np.testing.assert_array_equal(to.read(np.float32, stream=stream).reshape(content.shape), content)


def test_scratch_memory_is_a_streams_own_and_grows(context: CudaContext, memory: Memory, standin: Standin) -> None:
    streams = None, context.create_stream()
    for rows in (32, 320, 64):
        for stream in streams:
            run_tile(context, memory, rows, stream)
    size = context.compile(TILE).metadata["global_scratch_size"]
    blocks = [context._scratch[context._handle(stream)] for stream in streams]
    assert blocks[0].address != blocks[1].address
    assert all(block.nbytes >= 10 * 3 * size and len(block.older) == 1 for block in blocks)
    memory.release()
    live = standin.live()["allocations"]
    context.destroy_stream(streams[1])
    assert standin.live()["allocations"] == live - 2


def test_a_graphs_scratch_memory_is_its_own(context: CudaContext, memory: Memory) -> None:
    stream = context.create_stream()
    run_tile(context, memory, 32, stream)
    eager = context._scratch[stream].address
    kernel, content = LoadedKernel(context, TILE), np.random.default_rng(0).random((32, 80), np.float32)
    source, to = memory.of(content), memory.filled(content.nbytes, 0)
    context.synchronize()
    context.graph_begin(stream)
    kernel((3, 1, 1), to, source, 32, 80, stream=stream)
    graph = context.graph_end(stream)
    assert graph.scratch is not None and graph.scratch.address != eager == context._scratch[stream].address
    context.graph_launch(graph, stream)
    np.testing.assert_array_equal(to.read(np.float32, stream=stream), content.ravel())
    context.graph_destroy(graph)
    with pytest.raises(DeviceError, match="destroyed before"):
        context.graph_destroy(graph)
    memory.release()


def test_a_graph_is_updated_in_place(context: CudaContext, memory: Memory) -> None:
    kernel, to, stream = LoadedKernel(context, STORE), memory.filled(4, 0), context.create_stream()
    context.synchronize()

    def capture(*values: int) -> None:
        context.graph_begin(stream)
        for value in values:
            kernel(ONE, to, value, stream=stream)

    capture(1)
    graph = context.graph_end(stream)
    capture(2)
    assert context.graph_update(graph, stream)
    context.graph_launch(graph, stream)
    assert to.read(np.int32, stream=stream)[0] == 2
    capture(3, 4)
    assert not context.graph_update(graph, stream)
    context.graph_launch(graph, stream)
    assert to.read(np.int32, stream=stream)[0] == 2
    memory.release()


def test_the_host_cannot_take_part_in_a_capture(context: CudaContext, memory: Memory) -> None:
    stream, block, host = context.create_stream(), memory.filled(64, 1), np.zeros(64, np.uint8)
    context.synchronize()
    context.graph_begin(stream)
    with pytest.raises(DeviceError, match="copy_in: the stream is being captured"):
        context.copy_in(block.address, host.ctypes.data, 64, stream)
    with pytest.raises(DeviceError, match="copy_out: the stream is being captured"):
        context.copy_out(host.ctypes.data, block.address, 64, stream)
    with pytest.raises(DeviceError, match="is being captured already"):
        context.graph_begin(stream)
    context.fill(block.address, 2, 64, stream)
    context.graph_launch(context.graph_end(stream))
    assert (block.read() == 2).all()
    memory.release()


def test_a_capture_that_was_broken_off_is_told_and_over(context: CudaContext) -> None:
    stream = context.create_stream()
    context.graph_begin(stream)
    with pytest.raises(DriverError, match="cannot be waited for"):
        context.synchronize(stream)
    with pytest.raises(DriverError, match="broken off by an earlier refused call"):
        context.graph_end(stream)
    context.synchronize(stream)
    context.graph_begin(stream)
    context.graph_end(stream)


def test_memory_grows_during_a_capture(context: CudaContext) -> None:
    stream = context.create_stream()
    context.graph_begin(stream)
    address = context.allocate(4096)
    context.fill(address, 1, 4096, stream)
    context.graph_launch(context.graph_end(stream))
    out = np.zeros(4096, np.uint8)
    context.copy_out(out.ctypes.data, address, 4096)
    assert (out == 1).all()


def test_streams_join_a_capture_through_events(context: CudaContext, memory: Memory) -> None:
    first, second = context.create_stream(), context.create_stream()
    begun, ended, block = context.create_event(), context.create_event(), memory.filled(64, 0)
    context.synchronize()
    context.graph_begin(first)
    context.record(begun, first)
    context.wait(begun, second)
    context.fill(block.address, 5, 64, second)
    context.record(ended, second)
    context.wait(ended, first)
    graph = context.graph_end(first)
    assert (block.read() == 0).all()
    context.graph_launch(graph)
    assert (block.read() == 5).all()
    memory.release()
