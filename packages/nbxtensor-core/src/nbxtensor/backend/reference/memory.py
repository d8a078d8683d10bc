"""The memory that kernels may touch: what is allocated or registered, found by address, seen as numpy arrays."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.backend.contract import ALIGNMENT
from nbxtensor.backend.reference.values import Array, Pointer, Shape

Box = tuple[slice, ...]


class Block(NamedTuple):
    """A range of memory: ``bytes`` is a byte array of exactly it, ``origin`` the verb that brought it."""

    start: int
    end: int
    bytes: Array
    origin: str
    writable: bool


class AccessError(Exception):
    """A kernel touched memory that is not its own: the ``address``, and the ``parameter`` it comes from, or None."""

    def __init__(self, address: int, parameter: str | None, text: str):
        self.address, self.parameter = address, parameter
        super().__init__(text)


def owned(nbytes: int, origin: str) -> Block:
    """New memory, uninitialised. Raises MemoryError."""
    room = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    start = room.ctypes.data + skip
    return Block(start, start + nbytes, room[skip : skip + nbytes], origin, True)


def foreign(address: int, nbytes: int, writable: bool) -> Block:
    """Memory of somebody else, who keeps it alive."""
    array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return Block(address, address + nbytes, array, "register", writable)


class AddressSpace:
    """Live blocks, none of which overlap. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: list[Block] = []

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def add(self, block: Block) -> None:
        """Raises ValueError where it would overlap a live block."""
        at = bisect.bisect_right(self._starts, block.start)
        if (at and self._blocks[at - 1].end > block.start) or (at < len(self._starts) and self._starts[at] < block.end):
            raise ValueError("overlaps live memory")
        self._starts.insert(at, block.start)
        self._blocks.insert(at, block)

    def remove(self, address: int, origin: str) -> Block | None:
        """The block of that origin that starts there, no longer live; else None."""
        at = bisect.bisect_left(self._starts, address)
        if at == len(self._starts) or self._starts[at] != address or self._blocks[at].origin != origin:
            return None
        del self._starts[at]
        return self._blocks.pop(at)

    def below(self, address: int) -> Block | None:
        """The last block that starts at the address or before it."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._blocks[at] if at >= 0 else None

    def find(self, start: int, end: int) -> Block | None:
        """The block that holds all of [start, end)."""
        block = self.below(start)
        return block if block is not None and end <= block.end else None

    def clear(self) -> None:
        self._starts.clear()
        self._blocks.clear()


class Accessor:
    """The loads and stores of one launch. ``extents`` confines a parameter's accesses to its (address, bytes)."""

    def __init__(self, space: AddressSpace, extents: Mapping[str | None, tuple[int, int]]):
        self._space = space
        self._limits = {name: (start, start + nbytes) for name, (start, nbytes) in extents.items()}
        self._recent: Block | None = None

    def load(self, pointer: Pointer, mask: Any, other: Any) -> Any:
        """The numbers at the addresses, ``other`` (None: 0) where the mask is false. A fresh array, or a scalar."""
        box = box_of(mask, pointer.shape)
        if box is not None and _extent(box) == pointer.shape:
            return self._read(pointer, box).copy()[()]
        result = np.empty(pointer.shape, pointer.pointee)
        result[...] = 0 if other is None else other
        if box is None:
            lanes = np.broadcast_to(mask, pointer.shape)
            result[lanes] = self._read(pointer, lanes)
        elif 0 not in _extent(box):
            result[box] = self._read(pointer, box)
        return result[()]

    def store(self, pointer: Pointer, value: Any, mask: Any) -> None:
        """Stores numbers of the pointee's dtype, which broadcast to the pointer's shape, where the mask is true."""
        box = box_of(mask, pointer.shape)
        index: Any = np.broadcast_to(mask, pointer.shape) if box is None else box
        if box is not None:
            if 0 in _extent(box):
                return
            window = self._window(pointer, box, True)
            if window is not None:
                window[...] = _part(value, pointer.shape, box)
                return
        addresses = pointer.full()[index]
        values = np.broadcast_to(_part(value, pointer.shape, index), addresses.shape).reshape(-1)
        for cells, at, lanes in self._cells(pointer, addresses.reshape(-1), True):
            cells[at] = values[lanes]

    def update(self, pointer: Pointer, mask: Any, change: Callable[[Any, int], Any]) -> Array:
        """Lane by lane, replaces the number by ``change(number, lane)`` where the mask is true; the numbers before."""
        addresses = pointer.full().reshape(-1)
        before = np.zeros(addresses.size, pointer.pointee)
        chosen = np.arange(addresses.size) if mask is None else np.flatnonzero(np.broadcast_to(mask, pointer.shape))
        for cells, at, lanes in self._cells(pointer, addresses[chosen], True):
            for cell, lane in zip(at.tolist(), chosen[lanes].tolist()):
                before[lane] = cells[cell]
                cells[cell] = change(before[lane], lane)
        return before.reshape(pointer.shape)

    def _read(self, pointer: Pointer, index: Box | Array) -> Array:
        """The numbers at a box of the addresses, as they stand in memory if may be, or at selected addresses."""
        if isinstance(index, tuple):
            window = self._window(pointer, index, False)
            if window is not None:
                return window
        addresses: Array = pointer.full()[index]
        values = np.empty(addresses.size, pointer.pointee)
        for cells, at, lanes in self._cells(pointer, addresses.reshape(-1), False):
            values[lanes] = cells[at]
        gathered: Array = values.reshape(addresses.shape)
        return gathered

    def _window(self, pointer: Pointer, box: Box, write: bool) -> Array | None:
        """A strided view of the addresses in the box; None when they are unevenly spaced or not all in one block."""
        low = high = first = pointer.base
        strides = [0] * len(box)
        for term in pointer.terms:
            varying = [axis for axis, n in enumerate(term.shape) if n != 1]
            if len(varying) > 1:
                return None
            axis = varying[0] if varying else 0
            line = term.reshape(-1)[box[axis]] if varying else term.reshape(-1)
            start, end = int(line[0]), int(line[-1])
            if line.size > 1:
                step = int(line[1]) - start
                if end - start != step * (line.size - 1) or (line.size > 2 and (line[1:] - line[:-1] != step).any()):
                    return None
                strides[axis] += step
            low, high, first = low + min(start, end), high + max(start, end), first + start
        block = self._block(pointer, low, high + pointer.pointee.itemsize, write)
        if block is None:
            return None
        window: Array = np.ndarray(_extent(box), pointer.pointee, block.bytes, first - block.start, strides)
        return window

    def _block(self, pointer: Pointer, start: int, end: int, write: bool) -> Block | None:
        """The block that holds [start, end) and that the pointer may access."""
        limits = self._limits.get(pointer.origin)
        if limits is not None and (start < limits[0] or end > limits[1]):
            return None
        block = self._recent
        if block is None or start < block.start or end > block.end:
            self._recent = block = self._space.find(start, end)
        return block if block is None or block.writable or not write else None

    def _cells(self, pointer: Pointer, addresses: Array, write: bool) -> Iterator[tuple[Array, Array, Any]]:
        """For each block that the addresses lie in: its elements, the elements' indices, and which addresses they
        are."""
        size = pointer.pointee.itemsize
        limits = self._limits.get(pointer.origin)
        if limits is not None:
            outside = (addresses < limits[0]) | (addresses + size > limits[1])
            if outside.any():
                raise self._refusal(pointer, int(addresses[outside.argmax()]), write)
        lanes = np.arange(addresses.size)
        while lanes.size:
            here = addresses[lanes]
            low, high = int(here.min()), int(here.max())
            block = self._block(pointer, low, high + size, write)
            chosen = lanes
            if block is None:  # no block holds them all, as behind a table of pointers
                block = self._block(pointer, int(here[0]), int(here[0]) + size, write)
                if block is None:
                    raise self._refusal(pointer, int(here[0]), write)
                inside = (here >= block.start) & (here + size <= block.end)
                chosen, here, lanes = lanes[inside], here[inside], lanes[~inside]
                low = int(here.min())
            else:
                lanes = lanes[:0]
            at = here - low
            step = 1 if (at % size).any() else size
            cells = ((block.end - low - size) // step + 1,)
            yield np.ndarray(cells, pointer.pointee, block.bytes, low - block.start, (step,)), at // step, chosen

    def _refusal(self, pointer: Pointer, address: int, write: bool) -> AccessError:
        size, origin = pointer.pointee.itemsize, pointer.origin
        what = f"{'store' if write else 'load'} of {size} bytes at {address:#x} through " + (
            f"parameter {origin!r}" if origin else "a computed pointer"
        )
        limits, block = self._limits.get(origin), self._space.below(address)
        if limits is not None and (address < limits[0] or address + size > limits[1]):
            return AccessError(address, origin, f"{what}: the tensor's memory is [{limits[0]:#x}, {limits[1]:#x})")
        if block is None:
            return AccessError(address, origin, f"{what}: no memory is allocated there")
        if address + size > block.end:
            below = f"[{block.start:#x}, {block.end:#x})"
            return AccessError(address, origin, f"{what}: the nearest memory below is {below}")
        return AccessError(address, origin, f"{what}: [{block.start:#x}, {block.end:#x}) is registered read-only")


def box_of(mask: Any, shape: Shape) -> Box | None:
    """The box of lanes that the mask selects (all without a mask, an empty one for none); None when they are no box."""
    if mask is None:
        return tuple(slice(0, n) for n in shape)
    if not mask.shape:
        return tuple(slice(0, n if mask else 0) for n in shape) if shape else (() if mask else _NOTHING)
    count = np.count_nonzero(mask)
    if count in (0, mask.size):
        return tuple(slice(0, n if count else 0) for n in shape)
    box, inside = [], 1
    for axis, n in enumerate(mask.shape):
        if n == 1:
            box.append(slice(0, shape[axis]))
            continue
        others = tuple(a for a in range(mask.ndim) if a != axis)
        line = mask.any(axis=others) if others else mask
        begin, end = int(line.argmax()), n - int(line[::-1].argmax())
        box.append(slice(begin, end))
        inside *= end - begin
    return tuple(box) if inside == count else None


_NOTHING: Box = (slice(0, 0),)  # of a scalar that is masked out


def _extent(box: Box) -> Shape:
    return tuple(s.stop - s.start for s in box)


def _part(value: Any, shape: Shape, index: Any) -> Any:
    """What of a value that broadcasts to the shape lies at the index, still broadcasting."""
    if not value.shape:
        return value
    return (value if value.shape == shape else np.broadcast_to(value, shape))[index]
