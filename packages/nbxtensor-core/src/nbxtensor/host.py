"""Host work on every core: copies and dtype conversions of big arrays, split over threads.

numpy releases the interpreter's lock inside its loops, so threads are enough. Work is cut into blocks whose borders
depend on the array alone; results are the same whatever the number of cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from nbxtensor.dtype import DTypeLike, dtype
from nbxtensor.dtype import convert as _convert
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError

__all__ = ["convert", "copy", "core_count", "run_blocks"]

Array = np.ndarray[Any, Any]

#: Elements of one block. Conversion needs a few temporaries of this length; they stay in a core's cache.
BLOCK = 1 << 18


class _Pool:
    """The threads of this process; made at the first use and again in a forked child, which inherits none of them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._worker = threading.local()

    def inside(self) -> bool:
        """Whether this thread is one of the pool's: waiting there for the pool could wait for ever."""
        return getattr(self._worker, "inside", False)

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(core_count(), "nbxtensor-host", initializer=self._enter)
            return self._executor

    def _enter(self) -> None:
        self._worker.inside = True


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def core_count() -> int:
    """The cores that this process may run on: its affinity where the system has one, else all."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_blocks(task: Callable[[int, int], None], length: int, block: int = BLOCK) -> None:
    """Calls ``task(begin, end)`` for consecutive ranges of at most ``block`` that cover ``range(length)``, on every
    core.

    One block, a single core, or a call from within a task runs in the calling thread. Returns when no task is running
    any more; the exception of the earliest failing block is then raised, and blocks that had not started are dropped.
    """
    if block < 1:
        raise ArgumentError("run_blocks", "block", block, "must be at least 1")
    ranges = [(begin, min(begin + block, length)) for begin in range(0, length, block)]
    if len(ranges) < 2 or core_count() == 1 or _pool.inside():
        for begin, end in ranges:
            task(begin, end)
        return
    executor = _pool.executor()
    futures: list[Future[None]] = [executor.submit(task, begin, end) for begin, end in ranges]
    try:
        for future in futures:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
        raise


def convert(array: Array, to: DTypeLike, out: Array | None = None) -> Array:
    """`nbxtensor.dtype.convert`, split over all cores when the arrays are contiguous (C order) and exceed a block.

    Same arguments, same bits, same errors: returns ``array`` itself where it has the dtype already and no ``out`` is
    given.
    """
    array = np.asarray(array)
    target = dtype(to, where="convert", argument="to")
    if array.size <= BLOCK or not array.flags.c_contiguous or (out is None and array.dtype == target.numpy):
        return _convert(array, target, out)
    if out is None:
        out = np.empty(array.shape, target.numpy)
    elif out.dtype != target.numpy or not _can_split(out, array):
        return _convert(array, target, out)
    source, result = array.reshape(-1), out.reshape(-1)

    def block(begin: int, end: int) -> None:
        _convert(source[begin:end], target, result[begin:end])

    run_blocks(block, source.size)
    return out


def copy(destination: Array, source: Array) -> None:
    """Copies ``source`` to ``destination``, of the same shape and dtype; split over all cores when both are contiguous.

    The arrays may overlap. Raises `ShapeError` and `DTypeError`.
    """
    if destination.shape != source.shape:
        raise ShapeError("copy", "source", source.shape, f"must have the destination's shape {destination.shape}")
    if destination.dtype != source.dtype:
        raise DTypeError("copy", "source", source.dtype, f"must have the destination's dtype {destination.dtype}")
    if source.size <= BLOCK or not source.flags.c_contiguous or not _can_split(destination, source):
        np.copyto(destination, source)
        return
    to, of = destination.reshape(-1), source.reshape(-1)

    def block(begin: int, end: int) -> None:
        to[begin:end] = of[begin:end]

    run_blocks(block, of.size)


def _can_split(out: Array, source: Array) -> bool:
    """Whether blocks of ``out`` can be written in any order: it is flat and none of them is a later block's source."""
    return out.shape == source.shape and out.flags.c_contiguous and not np.may_share_memory(out, source)
