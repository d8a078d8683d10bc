"""A context is thread-safe: no argument, allocation or event of one thread is another's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from nbxtensor.backend.contract import Context
from nbxtensor.conformance import variants
from nbxtensor.conformance.marks import executes, keeps_data
from nbxtensor.conformance.plugin import Load
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant

THREADS = 8
ROUNDS = 40
ONE = (1, 1, 1)


def in_threads(work: Callable[[int], None]) -> None:
    """Runs ``work(n)`` in threads that start together; the first exception of any is raised here."""
    barrier = threading.Barrier(THREADS)
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            barrier.wait()
            work(n)
        except BaseException as error:  # whatever it is, the test reports it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@executes
@pytest.mark.parametrize("own_streams", [True, False])
def test_arguments_of_concurrent_launches_do_not_mix(
    context: Context, memory: Memory, load: Load, own_streams: bool
) -> None:
    kernel = load(variant(variants.STORE_VALUE, {"to": "*i64", "value": "i64"}))
    outputs = [memory.filled(8 * ROUNDS, 0xFF) for _ in range(THREADS)]
    streams = [context.create_stream() if own_streams else None for _ in range(THREADS)]
    context.synchronize()

    def work(n: int) -> None:
        for i in range(ROUNDS):
            kernel(ONE, outputs[n].at(8 * i), n * 1000 + i, stream=streams[n])
        context.synchronize(streams[n])

    in_threads(work)
    for n, output in enumerate(outputs):
        np.testing.assert_array_equal(output.read(np.int64), n * 1000 + np.arange(ROUNDS), f"thread {n}")
    for stream in streams:
        if stream is not None:
            context.destroy_stream(stream)


@executes
def test_different_kernels_in_different_threads(context: Context, memory: Memory, load: Load) -> None:
    types = {"to": "*i32", "source": "*i32", "n": "i32"}
    functions = (variants.TWICE, variants.SQUARE)
    kernels = [load(variant(variants.APPLY, types, {"FUNCTION": f, "BLOCK": 64})) for f in functions]
    contents = [np.arange(n, n + 64, dtype=np.int32) for n in range(THREADS)]
    sources, outputs = [memory.of(c) for c in contents], [memory.filled(256, 0) for _ in contents]
    context.synchronize()

    def work(n: int) -> None:
        for _ in range(ROUNDS // 4):
            kernels[n % 2](ONE, outputs[n], sources[n], 64)

    in_threads(work)
    context.synchronize()
    for n, content in enumerate(contents):
        expected = content**2 if n % 2 else content * 2
        np.testing.assert_array_equal(outputs[n].read(np.int32), expected, f"thread {n}")


@executes
def test_threads_compile_and_load_at_once(context: Context, memory: Memory) -> None:
    outputs = [memory.filled(4, 0) for _ in range(THREADS)]
    context.synchronize()

    def work(n: int) -> None:
        kernel = LoadedKernel(context, variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"}, num_warps=1))
        kernel(ONE, outputs[n], n + 1)
        context.synchronize()
        context.unload(kernel.module)

    in_threads(work)
    assert [int(output.read(np.int32)[0]) for output in outputs] == list(range(1, THREADS + 1))


def test_concurrent_allocations_are_distinct(context: Context) -> None:
    held: list[list[int]] = [[] for _ in range(THREADS)]

    def work(n: int) -> None:
        for i in range(ROUNDS):
            held[n].append(context.allocate(256 + 64 * n))
            if i % 3 == 2:
                context.free(held[n].pop(0))

    in_threads(work)
    addresses = [address for mine in held for address in mine]
    for address in addresses:
        context.free(address)
    assert len(set(addresses)) == len(addresses)


@keeps_data
def test_concurrent_copies_keep_their_bytes(memory: Memory) -> None:
    nbytes = 100_001
    blocks = [memory.block(nbytes) for _ in range(THREADS)]

    def work(n: int) -> None:
        for i in range(ROUNDS // 4):
            content = np.full(nbytes, (n * 16 + i) % 256, np.uint8)
            blocks[n].write(content)
            assert np.array_equal(blocks[n].read(), content), f"thread {n}, round {i}"

    in_threads(work)
