"""The meta driver: exact books, no data, launches that are checked and counted, kernels for a card that is not here."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nbxtensor.backend import meta, runtime
from nbxtensor.backend.compiler import gpu_target
from nbxtensor.backend.contract import ALIGNMENT, Context, Driver
from nbxtensor.conformance.variants import COPY, Block, LoadedKernel, Memory, variant
from nbxtensor.errors import ArgumentError, DeviceError, LaunchRefused, OutOfMemory, Unavailable

TYPES = {"to": "*fp32", "source": "*fp32", "n": "i32"}


def copy_kernel(context: Context) -> LoadedKernel:
    return LoadedKernel(context, variant(COPY, TYPES, {"BLOCK": 128}))


def test_the_driver_is_one_but_never_a_default() -> None:
    assert isinstance(meta.driver, Driver)
    assert meta.driver.priority == 0
    assert meta.driver.device_type == "meta"
    with runtime.use_device("meta") as device:
        assert device == "meta"
        assert isinstance(device.context, meta.MetaContext)
    assert runtime.current_device() != "meta"


@given(st.lists(st.one_of(st.integers(1, 1 << 40), st.floats(0, 1, exclude_max=True)), max_size=60))
def test_the_books_are_exact(steps: list[int | float]) -> None:
    """An integer allocates so many bytes, a fraction frees the block at that place of the live ones."""
    context = meta.driver.open(0)
    total = context.memory_info()[1]
    live: dict[int, int] = {}
    given_out: set[int] = set()
    for step in steps:
        if isinstance(step, int):
            address = context.allocate(step)
            assert address % ALIGNMENT == 0
            assert address not in given_out, "an address names one allocation for ever"
            given_out.add(address)
            live[address] = step
        elif live:
            address = list(live)[int(step * len(live))]
            context.free(address)
            del live[address]
        assert context.memory_info() == (total - sum(live.values()), total)
    spans = sorted((address, address + nbytes) for address, nbytes in live.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_memory_ends() -> None:
    context = meta.MetaDriver(meta.INFO._replace(memory_bytes=1000)).open(0)
    first = context.allocate(600)
    with pytest.raises(OutOfMemory) as caught:
        context.allocate(401)
    assert (caught.value.requested, caught.value.free, caught.value.total, caught.value.live) == (401, 400, 1000, 600)
    context.allocate(400)
    context.free(first)
    assert context.memory_info() == (600, 1000)


def test_data_is_refused_by_the_name_of_the_verb() -> None:
    context = meta.driver.open(0)
    host = np.zeros(8, np.uint8)
    address = context.allocate(8)
    with pytest.raises(DeviceError, match=r"^copy_in: a meta device holds no data"):
        context.copy_in(address, host.ctypes.data, 8)
    with pytest.raises(DeviceError, match=r"^copy_out: a meta device holds no data"):
        context.copy_out(host.ctypes.data, address, 8)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 101), (100, 1), (1, 100), (-1, 1), (1 << 50, 4)])
def test_copies_and_fills_stay_inside_of_allocations(offset: int, nbytes: int) -> None:
    context = meta.driver.open(0)
    inside, other = context.allocate(100), context.allocate(4096)
    context.copy(inside, other, 100)
    context.fill(inside + 99, 0, 1)
    with pytest.raises(DeviceError, match="not inside a live allocation"):
        context.fill(inside + offset, 0, nbytes)
    with pytest.raises(DeviceError, match="not inside a live allocation"):
        context.copy(other, inside + offset, nbytes)
    with pytest.raises(ArgumentError, match="must not be negative"):
        context.copy(other, inside, -1)


def test_launches_are_counted_and_their_values_too() -> None:
    context = meta.driver.open(0)
    memory, kernel = Memory(context), copy_kernel(context)
    to, source = memory.block(512), memory.block(512)
    for _ in range(5):
        kernel((1, 1, 1), to, source, 128)
    assert context.launches == 5
    with pytest.raises(LaunchRefused, match="2 values for 3 parameters"):
        kernel((1, 1, 1), to, source)
    assert context.launches == 5


@pytest.mark.parametrize("grid", [(11, 1, 1), (1, 6, 1), (1, 1, 4)])
def test_the_limits_of_a_card_that_is_not_here_hold(grid: tuple[int, int, int]) -> None:
    capabilities = meta.CAPABILITIES._replace(executes=True, max_grid=(10, 5, 3))
    context = meta.MetaDriver(meta.INFO._replace(ordinal=3), capabilities).open(0)
    assert not context.capabilities.executes
    assert context.info.ordinal == 0
    kernel, block = copy_kernel(context), Block(context, context.allocate(64), 64)
    kernel((10, 5, 3), block, block, 1)
    with pytest.raises(LaunchRefused, match="is over the device's"):
        kernel(grid, block, block, 1)
    assert context.launches == 1


def test_an_unloaded_kernel_and_a_closed_context_say_so() -> None:
    context = meta.driver.open(0)
    block = Block(context, context.allocate(64), 64)
    kernel, other = copy_kernel(context), copy_kernel(context)
    context.unload(kernel.module)
    with pytest.raises(LaunchRefused, match="was unloaded"):
        kernel((1, 1, 1), block, block, 1)
    context.close()
    with pytest.raises(DeviceError, match=r"launch: the context .* is closed"):
        other((1, 1, 1), block, block, 1)


def test_a_target_gets_its_binaries() -> None:
    """Kernels for a card that this machine need not have: compiled for it, loaded, launched nowhere."""
    context = meta.for_target(gpu_target("cuda", 90, 32)).open(0)
    assert context.info.architecture == "sm_90"
    kernel, block = copy_kernel(context), Block(context, context.allocate(64), 64)
    assert kernel.artifact.kind == "cubin"
    assert kernel.artifact.payload[:4] == b"\x7fELF"
    assert kernel.artifact.metadata["arch"] == "sm90"
    kernel((1, 1, 1), block, block, 1)
    assert context.launches == 1


def test_there_is_one_device() -> None:
    with pytest.raises(Unavailable, match="one device"):
        meta.driver.open(1)
