"""Host work over cores: the bits are those of one thread, errors arrive, forks and nesting work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from nbxtensor import host
from nbxtensor.dtype import DTYPES, convert
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError

LONG = 2 * host.BLOCK + 12347  # three blocks, the last one partial; a multiple of 5


def numbers(name: str, count: int = LONG) -> np.ndarray:
    """Random bit patterns of a dtype: NaN, infinities and subnormals are among them."""
    rng = np.random.default_rng(7)
    if name == "bool":
        return rng.integers(0, 2, count, np.uint8).view(np.bool_)
    target = DTYPES[name].numpy
    return rng.integers(0, 256, count * target.itemsize, np.uint8).view(target)


@pytest.fixture
def cores(monkeypatch):
    """Makes the module believe in a number of cores; its pool is a new one before and after."""

    def believe(count: int) -> None:
        monkeypatch.setattr(host, "core_count", lambda: count)
        host._pool.forget()

    yield believe
    host._pool.forget()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("float32", "float8_e4m3fn"),
        ("bfloat16", "float32"),
        ("float16", "int8"),
        ("float64", "bool"),
        ("bool", "complex64"),
        ("int64", "uint8"),
    ],
)
def test_bits_do_not_depend_on_the_number_of_cores(cores, source, target, count):
    cores(count)
    array = numbers(source)
    expected = convert(array, target)
    result = host.convert(array, target)
    assert result.dtype == expected.dtype
    assert result.tobytes() == expected.tobytes()


def test_every_core_takes_part(cores):
    cores(3)
    barrier = threading.Barrier(3, timeout=60)  # broken, hence an error, unless three threads meet
    host.run_blocks(lambda begin, end: barrier.wait() and None, 3, block=1)


def test_convert_keeps_shape_and_writes_into_out(cores):
    cores(2)
    array = numbers("float32").reshape(5, -1)
    out = np.empty(array.shape, np.float16)
    assert host.convert(array, "float16", out) is out
    assert out.tobytes() == convert(array, "float16").tobytes()
    same = np.empty_like(array)
    host.convert(array, "float32", same)
    assert same.tobytes() == array.tobytes()
    assert host.convert(array, "float32") is array


VIEWS = [lambda a: a[::2], lambda a: a.reshape(5, -1).T, lambda a: a[:3], lambda a: a[:0], lambda a: a[0]]


@pytest.mark.parametrize("view", VIEWS)
def test_convert_takes_any_strides_and_sizes(view):
    array = view(numbers("float32"))
    assert host.convert(array, "bfloat16").tobytes() == convert(array, "bfloat16").tobytes()


def test_convert_where_out_overlaps_its_source(cores):
    cores(2)
    memory = np.zeros(4 * LONG + 4, np.uint8)
    array, out = memory[4:].view(np.float32), memory[: 2 * LONG].view(np.float16)
    array[:] = np.arange(LONG) % 1000
    expected = array.astype(np.float16)
    assert host.convert(array, "float16", out) is out
    assert np.array_equal(out, expected)


def test_copy_is_a_copy(cores):
    cores(2)
    source = numbers("bfloat16")
    destination = np.empty_like(source)
    host.copy(destination, source)
    assert destination.tobytes() == source.tobytes()
    transposed = source.reshape(5, -1).T
    destination = np.empty_like(transposed, order="C")
    host.copy(destination, transposed)
    assert destination.tobytes() == transposed.tobytes()


def test_copy_of_overlapping_arrays(cores):
    cores(2)
    array = np.arange(LONG + 1)
    host.copy(array[1:], array[:-1])
    assert array[0] == 0
    assert np.array_equal(array[1:], np.arange(LONG))


def test_refusals_are_typed_and_name_the_argument():
    big = numbers("float32")
    with pytest.raises(DTypeError, match=r"convert: to='float33'"):
        host.convert(big, "float33")
    with pytest.raises(DTypeError, match=r"convert: to=.*imaginary"):
        host.convert(numbers("complex64"), "float32")
    with pytest.raises(DTypeError, match=r"convert: out=.*must be .*float16"):
        host.convert(big, "float16", np.empty(big.shape, np.float32))
    with pytest.raises(DTypeError, match=r"convert: out=.*of shape"):
        host.convert(big, "float16", np.empty(big.size + 1, np.float16))
    with pytest.raises(ShapeError, match=r"copy: source=\(3,\)"):
        host.copy(np.empty(4), np.empty(3))
    with pytest.raises(DTypeError, match="copy: source="):
        host.copy(np.empty(3), np.empty(3, np.float32))
    with pytest.raises(ArgumentError, match="run_blocks: block=0"):
        host.run_blocks(lambda begin, end: None, 10, block=0)


def test_the_earliest_failure_is_raised_when_nothing_runs_any_more(cores):
    cores(2)
    running, finished = threading.Event(), []

    def task(begin: int, end: int) -> None:
        if begin == 0:
            running.wait(60)  # fails after the other block has started, and first of all
            raise ValueError("block 0")
        running.set()
        finished.append(begin)
        raise KeyError("block 1")

    with pytest.raises(ValueError, match="block 0"):
        host.run_blocks(task, 2, block=1)
    assert finished == [1]


def test_a_task_may_split_its_own_work(cores):
    cores(2)
    seen = []
    host.run_blocks(lambda b, e: host.run_blocks(lambda begin, end: seen.append((b, begin)), 4, block=1), 4, block=1)
    assert sorted(seen) == [(b, begin) for b in range(4) for begin in range(4)]


def test_core_count_is_the_affinity():
    assert host.core_count() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert host.core_count() == len(os.sched_getaffinity(0))


FORK = """
import os, sys, threading
import numpy as np
from nbxtensor import host
from nbxtensor.dtype import DTYPES, convert
host.core_count = lambda: 2
array = np.arange(3 * host.BLOCK, dtype=np.float32)
before = host.convert(array, "int32")
host._pool._lock.acquire()  # as if another thread were just starting the pool
child = os.fork()
if child == 0:
    same = np.array_equal(host.convert(array, "int32"), before)
    os._exit(0 if same and threading.active_count() > 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_threads_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK], check=True, timeout=120)


def test_the_name_of_release_0_0_2():
    from nbxtensor.backend.cpu import pool

    assert pool.convert is host.convert and pool.copy is host.copy
