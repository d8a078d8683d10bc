"""Copies and fills: every byte asked for and no other, at any size, offset and host alignment."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from nbxtensor.backend.contract import Context
from nbxtensor.conformance.marks import declares, keeps_data, lacks
from nbxtensor.conformance.variants import Array, Memory
from nbxtensor.errors import DeviceError, NBXError

SIZES = (1, 2, 3, 7, 15, 16, 17, 31, 255, 257, 4097)
OFFSETS = range(18)
GUARD = 0xA5
ROOM = 4097 + 64
LARGE = (64 << 20) + 13


def pattern(nbytes: int, seed: int = 0) -> Array:
    """Bytes none of which is the guard."""
    return np.random.default_rng(seed).integers(0, GUARD, nbytes, dtype=np.uint8)


def expected(nbytes: int, offset: int, content: Array | int) -> Array:
    """A guarded room with ``nbytes`` bytes of content at ``offset``."""
    room = np.full(ROOM, GUARD, np.uint8)
    room[offset : offset + nbytes] = content
    return room


@keeps_data
@pytest.mark.parametrize("nbytes", SIZES)
def test_copy_in_writes_its_bytes_only(context: Context, memory: Memory, nbytes: int) -> None:
    block = memory.block(ROOM)
    for offset in OFFSETS:
        context.fill(block.address, GUARD, ROOM)
        block.at(offset).write(pattern(nbytes, offset))
        np.testing.assert_array_equal(
            block.read(), expected(nbytes, offset, pattern(nbytes, offset)), f"offset {offset}"
        )


@keeps_data
@pytest.mark.parametrize("nbytes", SIZES)
def test_copy_out_reads_its_bytes_only(context: Context, memory: Memory, nbytes: int) -> None:
    content = pattern(ROOM)
    block = memory.of(content)
    for offset in OFFSETS:
        host = np.full(ROOM, GUARD, np.uint8)
        context.copy_out(host.ctypes.data + 5, block.address + offset, nbytes)
        np.testing.assert_array_equal(host, expected(nbytes, 5, content[offset : offset + nbytes]), f"offset {offset}")


@keeps_data
@pytest.mark.parametrize("nbytes", SIZES)
def test_copy_moves_its_bytes_only(context: Context, memory: Memory, nbytes: int) -> None:
    content = pattern(ROOM)
    source, to = memory.of(content), memory.block(ROOM)
    for offset, source_offset in itertools.chain(
        zip(OFFSETS, reversed(OFFSETS), strict=True), ((0, 1), (16, 0), (8, 8))
    ):
        context.fill(to.address, GUARD, ROOM)
        context.copy(to.address + offset, source.address + source_offset, nbytes)
        np.testing.assert_array_equal(
            to.read(),
            expected(nbytes, offset, content[source_offset : source_offset + nbytes]),
            f"to offset {offset}, from offset {source_offset}",
        )


@keeps_data
@pytest.mark.parametrize("nbytes", SIZES)
def test_fill_sets_its_bytes_only(context: Context, memory: Memory, nbytes: int) -> None:
    block = memory.block(ROOM)
    for offset, byte in zip(OFFSETS, itertools.cycle((0, 1, 127, 128, 255)), strict=False):
        context.fill(block.address, GUARD, ROOM)
        context.fill(block.address + offset, byte, nbytes)
        np.testing.assert_array_equal(block.read(), expected(nbytes, offset, byte), f"offset {offset}, byte {byte}")


@keeps_data
@pytest.mark.parametrize("byte", [-1, 256])
def test_fill_refuses_what_is_no_byte(context: Context, memory: Memory, byte: int) -> None:
    block = memory.block(16)
    with pytest.raises(NBXError):
        context.fill(block.address, byte, 16)


@keeps_data
@pytest.mark.parametrize("misalignment", [1, 2, 3, 7, 13])
def test_host_memory_may_be_unaligned(memory: Memory, misalignment: int) -> None:
    content = pattern(4099 + misalignment)
    source = content[misalignment:]
    block = memory.block(4099)
    block.write(source)
    to = np.zeros(4099 + misalignment, np.uint8)[misalignment:]
    block.context.copy_out(to.ctypes.data, block.address, 4099)
    np.testing.assert_array_equal(to, source)


@keeps_data
def test_large_copies(context: Context, memory: Memory) -> None:
    content = pattern(LARGE)
    first, second = memory.of(content), memory.filled(LARGE, GUARD)
    context.copy(second.address, first.address, LARGE)
    assert np.array_equal(second.read(), content)
    context.fill(first.address, 9, LARGE)
    assert (first.read() == 9).all()
    assert np.array_equal(second.read(), content)


@keeps_data
def test_offsets_beyond_4_gib(context: Context, memory: Memory) -> None:
    """Where the device has the room; only the ends of the allocations are touched."""
    nbytes = min((4 << 30) + 65536, context.memory_info()[0] // 4)
    first, second = memory.block(nbytes), memory.block(nbytes)
    content = pattern(4099)
    for block in (first, second):
        context.fill(block.address, GUARD, 4099)
    end = nbytes - 4099
    first.at(end).write(content)
    context.copy(second.address + end, first.address + end, 4099)
    np.testing.assert_array_equal(second.at(end).read(), content)
    context.fill(second.address + end, 7, 4099)
    assert (second.at(end).read() == 7).all()
    assert (first.read(count=4099) == GUARD).all() and (second.read(count=4099) == GUARD).all()


@keeps_data
def test_nothing_is_copied_for_no_bytes(context: Context, memory: Memory) -> None:
    content = pattern(64)
    block, other = memory.of(content), memory.filled(64, GUARD)
    host = np.full(64, GUARD, np.uint8)
    context.copy_in(block.address, host.ctypes.data, 0)
    context.copy_out(host.ctypes.data, block.address, 0)
    context.copy(block.address, other.address, 0)
    context.fill(block.address, GUARD, 0)
    np.testing.assert_array_equal(block.read(), content)
    assert (host == GUARD).all()


@keeps_data
@pytest.mark.parametrize("on_own_stream", [True, False])
def test_host_memory_is_reusable_after_copy_in(memory: Memory, streams: tuple[int, int], on_own_stream: bool) -> None:
    stream = None if on_own_stream else streams[0]
    nbytes = 8 << 20
    block = memory.block(nbytes)
    host = np.full(nbytes, 1, np.uint8)
    block.context.copy_in(block.address, host.ctypes.data, nbytes, stream)
    host[:] = 2
    assert (block.read(stream=stream) == 1).all()


@keeps_data
def test_copies_to_and_from_the_contexts_host_memory(context: Context, memory: Memory) -> None:
    nbytes = 1 << 20
    address = context.allocate_host(nbytes)
    try:
        host = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        host[:] = content = pattern(nbytes)
        block = memory.block(nbytes)
        context.copy_in(block.address, address, nbytes)
        host[:] = GUARD
        context.copy_out(address, block.address, nbytes)
        assert np.array_equal(host, content)
    finally:
        context.free_host(address)


@declares("host_addressable")
def test_host_reads_and_writes_device_addresses(context: Context, memory: Memory) -> None:
    content = pattern(4097)
    block = memory.of(content)
    context.synchronize()
    seen = np.ctypeslib.as_array((ctypes.c_uint8 * 4097).from_address(block.address))
    np.testing.assert_array_equal(seen, content)
    seen[:] = content[::-1]
    np.testing.assert_array_equal(block.read(), content[::-1])


@lacks("executes")
@lacks("host_addressable")
def test_a_device_without_data_is_neither_read_nor_written(context: Context, memory: Memory) -> None:
    block, host = memory.block(64), np.full(64, GUARD, np.uint8)
    with pytest.raises(DeviceError):
        context.copy_out(host.ctypes.data, block.address, 64)
    with pytest.raises(DeviceError):
        context.copy_in(block.address, host.ctypes.data, 64)
    assert (host == GUARD).all()
