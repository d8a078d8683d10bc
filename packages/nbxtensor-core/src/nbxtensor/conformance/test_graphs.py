"""Graph capture where it is declared, and its refusal where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from nbxtensor.backend.contract import Context
from nbxtensor.conformance import variants
from nbxtensor.conformance.marks import declares, lacks
from nbxtensor.conformance.plugin import Load
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import DeviceError, NBXError

N = 200


@pytest.fixture(scope="session")
def add(load: Load) -> LoadedKernel:
    return load(
        variant(variants.ADD_VALUE, {"to": "*i32", "source": "*i32", "value": "i32", "n": "i32"}, {"BLOCK": 256})
    )


@declares("graph_capture")
def test_a_graph_runs_what_was_captured_each_time(
    context: Context, memory: Memory, streams: tuple[int, int], add: LoadedKernel
) -> None:
    stream, other = streams
    a, b = memory.of(np.arange(N, dtype=np.int32)), memory.filled(4 * N, 0)
    context.synchronize()
    context.graph_begin(stream)  # type: ignore[attr-defined]
    add((1, 1, 1), b, a, 1, N, stream=stream)
    context.copy(a.address, b.address, 4 * N, stream)
    context.fill(b.address, 0, 4 * N, stream)
    graph = context.graph_end(stream)  # type: ignore[attr-defined]
    context.synchronize(stream)
    np.testing.assert_array_equal(a.read(np.int32), np.arange(N), "a capture must not run")
    for _ in range(3):
        context.graph_launch(graph, other)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(a.read(np.int32, stream=other), np.arange(N) + 3)
    context.graph_launch(graph)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(a.read(np.int32), np.arange(N) + 4)


@declares("graph_capture")
def test_a_graph_keeps_the_arguments_of_its_capture(
    context: Context, memory: Memory, streams: tuple[int, int], add: LoadedKernel
) -> None:
    """Later launches of the same kernel, through the same argument arena, do not reach into a captured one."""
    stream, _ = streams
    a, b = memory.of(np.zeros(N, np.int32)), memory.filled(4 * N, 0)
    context.synchronize()
    context.graph_begin(stream)  # type: ignore[attr-defined]
    add((1, 1, 1), b, a, 5, N, stream=stream)
    graph = context.graph_end(stream)  # type: ignore[attr-defined]
    add((1, 1, 1), a, a, 100, N, stream=stream)
    context.graph_launch(graph, stream)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(b.read(np.int32, stream=stream), np.full(N, 105))


@declares("graph_capture")
def test_the_end_of_no_capture_is_refused(context: Context, streams: tuple[int, int]) -> None:
    with pytest.raises(NBXError):
        context.graph_end(streams[0])  # type: ignore[attr-defined]


@lacks("graph_capture")
def test_undeclared_capture_is_refused(context: Context, streams: tuple[int, int]) -> None:
    begin = getattr(context, "graph_begin", None)
    if begin is not None:
        with pytest.raises(DeviceError):
            begin(streams[0])
    assert not context.capabilities.graph_capture
