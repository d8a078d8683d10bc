"""The reference driver: kernels, their faults, threads, and Triton left as it was."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driver.interpreted import Array, launch, variant
from driver.reference_context import loaded, place, read
from nbxtensor.backend.contract import Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.backend.reference.driver import ReferenceContext
from nbxtensor.errors import (
    CompileError,
    DeviceError,
    KernelFault,
    LaunchRefused,
    MemoryFault,
)

TESTS = Path(__file__).resolve().parents[1]


# kernels


def test_compile_errors_name_the_kernel(context: ReferenceContext) -> None:
    for module, name in (("driver.kernels_arithmetic", "no_such_kernel"), ("driver.no_such_module", "add")):
        with pytest.raises(CompileError) as caught:
            context.compile(Variant(Kernel(module, name, {}), (), (), (), ()))
        assert caught.value.kernel == name


def test_parameters_are_counted_against_the_function(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    made, _ = variant("kernels_arithmetic", "linger", out=out, steps=1)
    for parameters, words in (
        (made.parameters[:1], "steps"),
        ((*made.parameters, Parameter("extra", "i32", True)), "extra"),
        ((made.parameters[0], Parameter("steps", "i33", True)), "i33"),
    ):
        with pytest.raises(CompileError, match=words):
            context.compile(made._replace(parameters=parameters))


def test_artifacts_of_others_are_refused(context: ReferenceContext) -> None:
    made, _ = variant("kernels_arithmetic", "linger", out=np.zeros(1, np.int32), steps=1)
    artifact = context.compile(made)
    assert (artifact.kind, artifact.entry, artifact.payload) == ("python", "linger", made)
    for other in (artifact._replace(kind="cubin", payload=b""), artifact._replace(parameters=())):
        with pytest.raises(LaunchRefused):
            context.load(other)


def test_launches_that_cannot_be_are_refused(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    address = place(context, out)
    for grid, values in (
        ((1, 1, 1), (address,)),
        ((1, 1, 1), (address, 1, 2)),
        ((1, 1, 1), (address, 2**31)),
        ((0, 1, 1), (address, 1)),
        ((1, -1, 1), (address, 1)),
        ((2**31, 1, 1), (address, 1)),
    ):
        with pytest.raises(LaunchRefused):
            context.launch(kernel, grid, values, None, ())
    context.unload(kernel)
    with pytest.raises(DeviceError, match="not loaded"):
        context.launch(kernel, (1, 1, 1), (address, 1), None, ())
    assert read(context, address, out)[0] == 0


def test_a_float_beyond_its_parameters_range_is_infinite(context: ReferenceContext) -> None:
    out = np.zeros(4, np.float32)
    kernel = loaded(context, "kernels_arithmetic", "scalars", out=out, a=0.0, b=0.0, c=0.0, d=0.0)
    address = place(context, out)
    context.launch(kernel, (1, 1, 1), (address, 1e300, -1e300, 3, float("nan")), None, ())
    np.testing.assert_array_equal(read(context, address, out), [np.inf, -np.inf, 3, np.nan])


def test_folded_values_stand_in_the_launch_values(context: ReferenceContext) -> None:
    x = np.arange(8, dtype=np.float32)
    made, _ = variant("kernels_arithmetic", "copy_tile", out=x, x=x, rows=1, columns=8, so=(8, 1), sx=(8, 1), M=1, N=8)
    folded = tuple(p._replace(kept=p.name not in ("rows", "so.1", "sx.1")) for p in made.parameters)
    kernel = context.load(context.compile(made._replace(parameters=folded)))
    out = context.allocate(32)
    context.launch(kernel, (1, 1, 1), (out, place(context, x), 1, 8, 8, 1, 8, 1), None, ())
    np.testing.assert_array_equal(read(context, out, x), x)


def test_a_tuple_may_be_empty() -> None:
    out = np.zeros(200, np.int64)
    launch("kernels_blocks", "loops", out=out, n=2, shape=(), EMPTY=2)
    assert out[[0, 1, 2, 4]].tolist() == [1, 4 - 4 + 5, 3, 9]
    assert out[100:102].tolist() == [0, 1]


def test_unaligned_pointers(context: ReferenceContext) -> None:
    x = np.arange(64, dtype=np.float32)
    kernel = loaded(context, "kernels_arithmetic", "gather", out=x, x=x, index=np.zeros(64, np.int32), BLOCK=64)
    source, index = context.allocate(x.nbytes + 3), np.arange(63, -1, -1, dtype=np.int32)
    context.copy_in(source + 3, x.ctypes.data, x.nbytes)
    out = context.allocate(x.nbytes + 1)
    context.launch(kernel, (1, 1, 1), (out + 1, source + 3, place(context, index)), None, ())
    np.testing.assert_array_equal(read(context, out + 1, x), x[::-1])


def test_pointers_from_a_table_reach_several_allocations(context: ReferenceContext) -> None:
    rows = [np.arange(8, dtype=np.float32) + 10 * i for i in range(4)]
    table = np.array([place(context, row) for row in rows], np.int64)
    out = np.zeros((4, 8), np.float32)
    kernel = loaded(context, "kernels_arithmetic", "through_table", out=out, table=table, ROWS=4, COLUMNS=8)
    to, pointers = place(context, out), place(context, table)
    context.launch(kernel, (1, 1, 1), (to, pointers), None, ())
    np.testing.assert_array_equal(read(context, to, out), np.stack(rows))
    context.free(int(table[2]))
    with pytest.raises(MemoryFault) as caught:
        context.launch(kernel, (1, 1, 1), (to, pointers), None, ())
    assert int(table[2]) <= caught.value.address < int(table[2]) + 32
    assert caught.value.parameter is None


# faults


def test_a_fault_names_kernel_program_and_cause() -> None:
    out = np.zeros(1, np.int32)
    with pytest.raises(KernelFault, match="this program is not welcome") as caught:
        launch("kernels_arithmetic", "fails_in", (2, 4, 3), out=out, program=2)
    assert (caught.value.kernel, caught.value.program) == ("fails_in", (0, 2, 0))
    assert "kernels_arithmetic.py" in caught.value.cause


def test_an_exception_in_a_kernel_is_a_fault(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "raises", out=out)
    address = place(context, out)
    with pytest.raises(KernelFault, match="TypeError"):
        context.launch(kernel, (1, 1, 1), (address,), None, ())
    context.fill(address, 1, 4)  # the context still works


def test_a_load_past_the_end_names_parameter_and_address(context: ReferenceContext) -> None:
    x = np.arange(64, dtype=np.float32)
    kernel = loaded(context, "kernels_arithmetic", "past_the_end", out=x, x=x, n=0, BLOCK=64)
    out, source = context.allocate(x.nbytes), place(context, x)
    context.launch(kernel, (1, 1, 1), (out, source, 0), None, ())
    for n, first in ((1, source + 64 * 4), (64, source + 64 * 4), (-1, source - 4)):
        with pytest.raises(MemoryFault, match="parameter 'x'") as caught:
            context.launch(kernel, (1, 1, 1), (out, source, n), None, ())
        assert (caught.value.parameter, caught.value.address) == ("x", first)
        assert caught.value.kernel == "past_the_end"


def test_a_store_past_the_end_changes_nothing(context: ReferenceContext) -> None:
    out = np.full(20, -1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "ignores_its_mask", out=out, n=0, BLOCK=32)
    address = place(context, out)
    context.launch(kernel, (1, 1, 1), (address, 20), None, ())  # lanes that are masked out may point anywhere
    np.testing.assert_array_equal(read(context, address, out), np.arange(20))
    with pytest.raises(MemoryFault, match="store of 4 bytes"):
        context.launch(kernel, (1, 1, 1), (address, 21), None, ())
    np.testing.assert_array_equal(read(context, address, out), np.arange(20))


class Part:
    """A tensor in a part of an allocation, as a launch is told of it."""

    def __init__(self, address: int, nbytes: int):
        self.ptr, self.extent = address, (address, nbytes)


def test_a_launch_told_of_its_tensors_keeps_to_them(context: ReferenceContext) -> None:
    """A pool hands out parts of one allocation: what lies past a tensor there is live memory, and still not its own."""
    x = np.arange(128, dtype=np.float32)
    pool = place(context, x)
    kernel = loaded(context, "kernels_arithmetic", "past_the_end", out=x, x=x, n=0, BLOCK=16)
    tensors = (Part(pool + 256, 64), Part(pool, 64))
    context.launch(kernel, (1, 1, 1), (pool + 256, pool, 0), None, tensors)
    with pytest.raises(MemoryFault, match=f"{pool:#x}, {pool + 64:#x}"):
        context.launch(kernel, (1, 1, 1), (pool + 256, pool, 1), None, tensors)
    context.launch(kernel, (1, 1, 1), (pool + 256, pool, 1), None, ())


def test_freed_memory_is_not_touched(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    address = place(context, out)
    context.free(address)
    with pytest.raises(MemoryFault):
        context.launch(kernel, (1, 1, 1), (address, 1), None, ())


# threads, and Triton beside it


def test_eight_threads_on_one_context(context: ReferenceContext) -> None:
    x = [np.random.default_rng(i).standard_normal((3, 37)).astype(np.float32) for i in range(8)]
    kernel = loaded(context, "kernels_blocks", "softmax", out=x[0], x=x[0], n=37, BLOCK=64)

    def work(i: int) -> Array:
        source, out = place(context, x[i]), context.allocate(x[i].nbytes)
        for _ in range(10):
            context.launch(kernel, (3, 1, 1), (out, source, 37), None, ())
        return read(context, out, x[i])

    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(work, range(8))):
            e = np.exp(x[i] - x[i].max(1, keepdims=True))
            np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_eight_threads_on_contexts_of_their_own_with_different_kernels() -> None:
    barrier = threading.Barrier(8)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(5):
            if i % 2:
                out = np.zeros(4 * (i + 1), np.int32)
                launch("kernels_arithmetic", "ignores_its_mask", out=out, n=out.size, BLOCK=64)
                np.testing.assert_array_equal(out, np.arange(out.size))
            else:
                with pytest.raises(KernelFault) as caught:
                    launch("kernels_arithmetic", "fails_in", (1, i + 2), out=np.zeros(1, np.int32), program=i)
                assert caught.value.program == (0, i, 0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_launches_of_one_context_do_not_overlap(context: ReferenceContext) -> None:
    """Each launch adds 1 many times by loads and stores: a lost update would show."""
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    address = place(context, out)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: context.launch(kernel, (1, 1, 1), (address, 50), None, ()), range(16)))
    assert read(context, address, out)[0] == 16 * 50


def members(*owners: Any) -> dict[tuple[str, str], int]:
    return {(owner.__name__, name): id(value) for owner in owners for name, value in vars(owner).items()}


def test_triton_is_left_as_it_was() -> None:
    """Its own compiler works afterwards, and in other threads while kernels are interpreted."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    from nbxtensor.backend.compiler import compile_gpu, gpu_target

    owners = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.constexpr, JITFunction)
    before = members(*owners)
    x = np.zeros((8, 64), np.float32)
    made, _ = variant("kernels_blocks", "softmax", out=x, x=x, n=64, BLOCK=64)
    target = gpu_target("cuda", 80, 32)
    running = threading.Event()

    def interpret() -> None:
        while not running.is_set():
            launch("kernels_blocks", "softmax", (8,), out=np.zeros_like(x), x=x, n=64, BLOCK=64)

    with ThreadPoolExecutor(2) as pool:
        interpreting = pool.submit(interpret)
        try:
            artifact = compile_gpu(made, target)
        finally:
            running.set()
        interpreting.result()
    assert artifact.kind == "cubin"
    assert len(artifact.payload) > 1000
    assert {name for name, value in members(*owners).items() if before.get(name) != value} == set()


def test_kernel_modules_keep_their_globals() -> None:
    import driver.kernels_blocks as kernels

    before = dict(vars(kernels))
    out = np.zeros(200, np.int64)
    launch("kernels_blocks", "loops", out=out, n=2, shape=(3,), EMPTY=0)
    assert dict(vars(kernels)) == before


def test_addresses_are_the_hosts(context: ReferenceContext) -> None:
    assert context.capabilities.host_addressable
    address = context.allocate(8)
    ctypes.memset(address, 5, 8)
    assert (read(context, address, np.zeros(8, np.uint8)) == 5).all()


def test_capabilities_name_what_triton_can_hold(context: ReferenceContext) -> None:
    held = context.capabilities.dtypes
    assert {"bool", "int8", "uint64", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"} <= held
    assert not any(name.startswith("complex") for name in held)
    assert context.capabilities.executes
    assert not context.capabilities.binds_by_extent
