"""Allocation: alignment, books, refusals, bounds."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from nbxtensor.backend.contract import ALIGNMENT, Context
from nbxtensor.conformance.marks import keeps_data
from nbxtensor.conformance.variants import Memory
from nbxtensor.errors import DeviceError, NBXError, OutOfMemory

SIZES = (1, 2, 255, 256, 257, 4096, 65537, 1 << 20, 3, 1, 1)
ABSURD = 1 << 60


def test_addresses_are_aligned(memory: Memory) -> None:
    assert [hex(b.address) for b in map(memory.block, SIZES) if b.address % ALIGNMENT or b.address <= 0] == []


def test_allocations_do_not_overlap(memory: Memory) -> None:
    spans = sorted((b.address, b.address + b.nbytes) for b in map(memory.block, SIZES * 3))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@keeps_data
def test_allocations_keep_their_bytes(memory: Memory) -> None:
    blocks = [memory.filled(nbytes, 1 + i) for i, nbytes in enumerate(SIZES)]
    for i, block in enumerate(blocks):
        assert (block.read() == 1 + i).all(), f"allocation {i} of {block.nbytes} bytes"


@pytest.mark.parametrize("nbytes", [0, -1])
def test_no_size_is_refused(context: Context, nbytes: int) -> None:
    with pytest.raises(NBXError):
        context.allocate(nbytes)
    with pytest.raises(NBXError):
        context.allocate_host(nbytes)


def test_double_free_is_refused(context: Context) -> None:
    address = context.allocate(4096)
    context.free(address)
    with pytest.raises(DeviceError):
        context.free(address)


def test_free_of_a_foreign_address_is_refused(context: Context, memory: Memory) -> None:
    block = memory.block(4096)
    for address in (block.address + ALIGNMENT, block.address + 1, 0, 64):
        with pytest.raises(DeviceError):
            context.free(address)


def test_out_of_memory_says_how_much(context: Context, memory: Memory) -> None:
    memory.block(4096)
    with pytest.raises(OutOfMemory) as caught:
        context.allocate(ABSURD)
    error = caught.value
    assert error.requested == ABSURD
    assert error.total == context.memory_info()[1]
    assert 0 <= error.free <= error.total
    assert 4096 <= error.live <= error.total


@keeps_data
def test_memory_works_after_out_of_memory(context: Context, memory: Memory) -> None:
    kept = memory.filled(4096, 5)
    with pytest.raises(OutOfMemory):
        context.allocate(ABSURD)
    assert (kept.read() == 5).all()
    assert (memory.filled(4096, 6).read() == 6).all()


def test_memory_info_is_plausible(context: Context) -> None:
    free, total = context.memory_info()
    assert type(free) is int and type(total) is int
    assert 0 <= free <= total
    assert total // 2 <= context.info.memory_bytes <= total * 2


def test_freed_memory_is_given_out_again(context: Context) -> None:
    """Allocates more than the whole device, a piece at a time."""
    free, total = context.memory_info()
    piece = max(ALIGNMENT, min(free // 4, 1 << 30))
    for _ in range(min(total // piece + 2, 4096)):
        context.free(context.allocate(piece))


def test_many_small_allocations(context: Context) -> None:
    for _ in range(3):
        addresses = [context.allocate(1 + n % 700) for n in range(1000)]
        assert len(set(addresses)) == len(addresses)
        for address in addresses[::2] + addresses[1::2]:
            context.free(address)


def test_host_memory_is_memory(context: Context) -> None:
    address = context.allocate_host(4097)
    try:
        bytes_ = np.ctypeslib.as_array((ctypes.c_uint8 * 4097).from_address(address))
        bytes_[:] = np.arange(4097) % 251
        assert (bytes_ == np.arange(4097) % 251).all()
    finally:
        context.free_host(address)


def test_host_memory_is_freed_once(context: Context) -> None:
    address = context.allocate_host(64)
    context.free_host(address)
    with pytest.raises(DeviceError):
        context.free_host(address)
