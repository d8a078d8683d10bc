"""Contexts of the CUDA driver on the stand-in: books, memory, threads, two devices."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from nbxtensor.backend.contract import Context, GraphContext
from nbxtensor.backend.cuda import CudaContext
from nbxtensor.conformance import variants
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import ArgumentError, DeviceError, OutOfMemory
from standins.cuda.execute import Standin
from standins.cuda.subject import driver

ONE = (1, 1, 1)
STORE = variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"})


def test_it_is_what_the_contract_asks(context: CudaContext) -> None:
    opened: Context = context
    assert isinstance(context, GraphContext)
    assert (opened.target.backend, opened.target.arch, opened.target.warp_size) == ("cuda", 90, 32)


@pytest.mark.parametrize("ordinal", [-1, 1, 99])
def test_a_device_that_is_not_there(standin: Standin, ordinal: int) -> None:
    with pytest.raises(DeviceError, match=f"1 GPUs, numbered from 0; asked for {ordinal}"):
        driver.open(ordinal)


def test_dtypes_follow_the_generation(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    def dtypes(architecture: int) -> frozenset[str]:
        monkeypatch.setenv("STANDIN_ARCH", str(architecture))
        opened = driver.open(0)
        opened.close()
        return opened.capabilities.dtypes

    newest = dtypes(90)
    assert newest - dtypes(80) == {"float8_e4m3fn"}
    assert newest - dtypes(75) == {"float8_e4m3fn", "bfloat16"}


def test_closing_lets_go_of_what_was_left(context: CudaContext) -> None:
    """The fixture counts; graphs, captures under way, events, streams and kernels are left on purpose."""
    stream, other = context.create_stream(), context.create_stream()
    context.create_event()
    context.allocate_host(64)
    to = context.allocate(4)
    kernel = context.load(context.compile(STORE))
    context.launch(kernel, ONE, (to, 1), stream, ())
    context.graph_begin(stream)
    context.launch(kernel, ONE, (to, 1), stream, ())
    graph = context.graph_end(stream)
    context.graph_begin(other)
    context.close()
    context.close()
    with pytest.raises(DeviceError, match="is closed"):
        context.graph_launch(graph)


def test_a_graph_that_nobody_refers_to_is_freed(context: CudaContext, standin: Standin) -> None:
    stream = context.create_stream()
    context.graph_begin(stream)
    context.graph_end(stream)
    gc.collect()
    assert standin.live()["executables"] == 0


def test_the_legacy_stream_is_never_used(context: CudaContext, memory: Memory, standin: Standin) -> None:
    before = standin.library.standin_legacy_uses()
    to = memory.filled(4, 0)
    LoadedKernel(context, STORE)(ONE, to, 3)
    event = context.create_event()
    context.record(event)
    context.wait(event)
    assert to.read(np.int32)[0] == 3
    memory.release()
    assert standin.library.standin_legacy_uses() == before


# Memory


@pytest.mark.parametrize("pools", ["0", "1"])
def test_memory_comes_from_where_the_device_has_it(
    standin: Standin, monkeypatch: pytest.MonkeyPatch, pools: str
) -> None:
    monkeypatch.setenv("STANDIN_POOLS", pools)
    before, plain, ordered = standin.live(), standin.calls("cuMemAlloc_v2"), standin.calls("cuMemAllocAsync")
    opened = driver.open(0)
    free, total = opened.memory_info()
    address = opened.allocate(1000)
    assert opened.memory_info() == (free - 1000, total)
    opened.free(address)
    assert opened.memory_info() == (free, total)
    opened.close()
    assert standin.calls("cuMemAlloc_v2") - plain == (pools == "0")
    assert standin.calls("cuMemAllocAsync") - ordered == (pools == "1")
    assert standin.live() == before


def test_memory_is_usable_on_every_stream_at_once(context: CudaContext, memory: Memory) -> None:
    stream = context.create_stream()
    block = memory.block(64)
    context.fill(block.address, 7, 64, stream)
    assert (block.read(stream=stream) == 7).all()
    memory.release()


def test_memory_is_not_freed_under_work_that_uses_it(context: CudaContext, standin: Standin) -> None:
    """Work of any stream, though nobody waited for it: the stand-in has not even begun it."""
    stream, faults = context.create_stream(), len(standin.faults)
    to = context.allocate(4)
    context.launch(context.load(context.compile(STORE)), ONE, (to, 1), stream, ())
    context.free(to)
    context.synchronize(stream)
    assert len(standin.faults) == faults


def test_out_of_memory_names_its_figures(context: CudaContext) -> None:
    kept = context.allocate(4096)
    free, total = context.memory_info()
    with pytest.raises(OutOfMemory) as caught:
        context.allocate(free + 1)
    error = caught.value
    assert (error.requested, error.free, error.total, error.live) == (free + 1, free, total, 4096)
    context.free(kept)


def test_page_locked_memory_is_read_before_copy_in_returns(context: CudaContext, memory: Memory) -> None:
    host = context.allocate_host(64)
    bytes_ = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(host))
    block = memory.block(64)
    bytes_[:] = 1
    context.copy_in(block.address, host, 64)
    bytes_[:] = 2
    assert (block.read() == 1).all()
    context.free_host(host)
    memory.release()


@pytest.mark.parametrize("verb", ["copy_in", "copy_out", "copy", "fill"])
def test_negative_sizes_are_refused(context: CudaContext, verb: str) -> None:
    with pytest.raises(ArgumentError, match="nbytes=-1"):
        getattr(context, verb)(64, 0, -1)


def test_what_is_not_the_contexts_is_refused(context: CudaContext) -> None:
    for call in (context.free, context.free_host, context.destroy_stream, context.destroy_event, context.record):
        with pytest.raises(DeviceError, match="0x1234"):
            call(0x1234)


def test_another_threads_first_call_makes_the_context_current(context: CudaContext, memory: Memory) -> None:
    """The stand-in refuses every call of a thread whose current context is another's or none."""
    kernel, to, seen = LoadedKernel(context, STORE), memory.filled(4, 0), []

    def work() -> None:
        kernel(ONE, to, 5)
        seen.append(to.read(np.int32)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [5]
    memory.release()


# Two devices


@pytest.fixture
def pair(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CudaContext, CudaContext]]:
    monkeypatch.setenv("STANDIN_DEVICES", "2")
    before = standin.live()
    contexts = driver.open(0), driver.open(1)
    yield contexts
    for context in contexts:
        context.close()
    assert standin.live() == before


def test_each_launch_goes_to_its_own_device(pair: tuple[CudaContext, CudaContext]) -> None:
    memories = [Memory(context) for context in pair]
    kernels = [LoadedKernel(context, STORE) for context in pair]
    blocks = [memory.filled(4, 0) for memory in memories]
    for value in range(3):
        for kernel, block in zip(kernels, blocks, strict=True):
            kernel(ONE, block, value)
            assert block.read(np.int32)[0] == value
    for memory in memories:
        memory.release()


def test_copies_between_devices(pair: tuple[CudaContext, CudaContext], standin: Standin) -> None:
    first, second = pair
    source, to = Memory(first).filled(64, 9), Memory(second).filled(64, 0)
    first.synchronize()
    second.copy_from(to.address, first, source.address, 64)
    assert (to.read() == 9).all()
    rights = standin.library.standin_peer_rights()
    assert second.enable_peer(first)
    assert second.enable_peer(first)
    assert standin.library.standin_peer_rights() == rights + 2  # the pool's own rights, besides the context's


def test_devices_that_cannot_reach_each_other(
    pair: tuple[CudaContext, CudaContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_PEERS", "0")
    assert not pair[0].enable_peer(pair[1])
