"""The caching allocator of a device.

Blocks are kept by size class and handed out again without a driver call. A freed block goes back to its class the
moment its last tensor dies; it may be handed out at once because all work of a device's stream is ordered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from nbxtensor.errors import ArgumentError, OutOfMemory

_SMALL = 512  # classes are multiples of this up to _LARGE, bytes
_LARGE = 1 << 20  # and multiples of this above


class Bin(list[int]):
    """The free blocks of one size class: a list of device addresses. ``append`` and ``pop`` are atomic under the
    GIL."""

    __slots__ = ("size", "reserved")

    def __init__(self, size: int):
        super().__init__()
        self.size, self.reserved = size, 0


class Statistics(NamedTuple):
    """Bytes of a pool: ``reserved`` from the driver, of these ``cached`` free and ``live`` held by tensors; driver
    calls made."""

    reserved: int
    cached: int
    live: int
    allocations: int


class Pool:
    """Caches the blocks that ``allocate(nbytes) -> address`` gives and ``free(address)`` takes back.

    ``memory_info() -> (free, total)`` fills in the figures of an `OutOfMemory`.
    """

    def __init__(
        self,
        allocate: Callable[[int], int],
        free: Callable[[int], None],
        memory_info: Callable[[], tuple[int, int]],
    ):
        self._allocate, self._free, self._memory_info = allocate, free, memory_info
        self._bins: dict[int, Bin] = {}
        self._allocations = 0
        self._lock = threading.Lock()

    def bin(self, nbytes: int) -> Bin:
        """The size class that serves a request of ``nbytes``."""
        if nbytes < 0 or nbytes >= 1 << 63:
            raise ArgumentError("allocate", "nbytes", nbytes, "must be from 0 to 2**63 - 1")
        unit = _SMALL if nbytes <= _LARGE else _LARGE
        size = max(unit, (nbytes + unit - 1) // unit * unit)
        found = self._bins.get(size)
        if found is None:
            with self._lock:
                found = self._bins.setdefault(size, Bin(size))
        return found

    def grow(self, bin: Bin) -> int:
        """A new block of the class from the driver. When the driver has none left, the cached blocks are returned to it
        and the request is made once more. Raises `OutOfMemory`."""
        with self._lock:
            try:
                address = self._allocate(bin.size)
            except OutOfMemory:
                if not self._release():
                    raise self._out_of_memory(bin.size) from None
                try:
                    address = self._allocate(bin.size)
                except OutOfMemory:
                    raise self._out_of_memory(bin.size) from None
            bin.reserved += bin.size
            self._allocations += 1
            return address

    def empty_cache(self) -> int:
        """Returns all free blocks to the driver; the bytes returned."""
        with self._lock:
            return self._release()

    def statistics(self) -> Statistics:
        """The pool's figures now."""
        bins = list(self._bins.values())
        reserved = sum(b.reserved for b in bins)
        cached = sum(len(b) * b.size for b in bins)
        return Statistics(reserved, cached, reserved - cached, self._allocations)

    def _release(self) -> int:
        released = 0
        for bin in self._bins.values():
            while True:
                try:
                    address = bin.pop()  # another thread may take the last block between a test and a pop
                except IndexError:
                    break
                try:
                    self._free(address)
                except BaseException:
                    bin.append(address)  # it is still allocated
                    raise
                bin.reserved -= bin.size
                released += bin.size
        return released

    def _out_of_memory(self, requested: int) -> OutOfMemory:
        free, total = self._memory_info()
        stats = self.statistics()
        return OutOfMemory(requested, free, total, stats.live, stats.cached)
