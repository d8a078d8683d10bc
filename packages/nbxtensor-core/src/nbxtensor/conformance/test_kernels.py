"""Kernels: what compiler and driver must do with dtypes, scalars, constants, attributes, grids, tiles and scratch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nbxtensor.backend.contract import Context
from nbxtensor.conformance import variants
from nbxtensor.conformance.marks import computes, executes
from nbxtensor.conformance.plugin import Load
from nbxtensor.conformance.variants import Array, LoadedKernel, Memory, variant
from nbxtensor.dtype import DTYPES
from nbxtensor.errors import DeviceError

pytestmark = executes

ONE = (1, 1, 1)


def bit_patterns(dtype: str) -> Array:
    """Every bit pattern of a type of at most 16 bits, many of a wider one, as unsigned integers."""
    bits = DTYPES[dtype].bits
    if dtype == "bool":
        return np.array([0, 1, 1, 0, 1], np.uint8)
    if bits <= 16:
        return np.arange(1 << bits, dtype=f"u{bits // 8}")
    special = [0, 1, 1 << (bits - 1), (1 << bits) - 1, (1 << (bits - 1)) - 1]
    random = (
        np.random.default_rng(7).integers(0, 1 << bits, 5000, dtype=f"u{bits // 8}", endpoint=False)
        if bits < 64
        else (np.frombuffer(np.random.default_rng(7).bytes(8 * 5000), np.uint64))
    )
    return np.concatenate([np.array(special, f"u{bits // 8}"), random])


def test_declarations_match_their_source() -> None:
    for kernel in variants.KERNELS:
        assert list(kernel.parameters) == list(kernel.jit().arg_names), kernel.name


def test_every_dtype_is_copied_bit_for_bit(memory: Memory, load: Load, dtype: str) -> None:
    content = bit_patterns(dtype)
    pointer = f"*{DTYPES[dtype].triton}"
    kernel = load(variant(variants.COPY, {"to": pointer, "source": pointer, "n": "i32"}, {"BLOCK": 1024}))
    source, to = memory.of(content), memory.filled(content.nbytes, 0xA5)
    kernel((-(-len(content) // 1024), 1, 1), to, source, len(content))
    np.testing.assert_array_equal(to.read(content.dtype), content)


SCALARS = [
    ("i32", "int32", (0, 1, -1, 16, -(2**31), 2**31 - 1)),
    ("i64", "int64", (0, 1, -1, 16, 2**31, -(2**31) - 1, -(2**63), 2**63 - 1)),
    ("u64", "uint64", (0, 1, 2**63 - 1, 2**63, 2**64 - 1)),
    (
        "fp32",
        "float32",
        (0.0, -0.0, 1.0, -1.5, 3.4028234663852886e38, 1e-45, float("inf"), float("-inf"), float("nan")),
    ),
    ("fp64", "float64", (0.0, -0.0, 1.0, 1 + 2**-52, -1.7976931348623157e308, 5e-324, float("inf"), float("nan"))),
]
SCALARS = [pytest.param(*case, marks=computes(case[1]), id=case[0]) for case in SCALARS]  # type: ignore[misc]


@pytest.mark.parametrize(("type", "dtype_name", "values"), SCALARS)
def test_scalars_arrive_exactly(
    memory: Memory, load: Load, type: str, dtype_name: str, values: tuple[int | float, ...]
) -> None:
    kernel = load(variant(variants.STORE_VALUE, {"to": f"*{type}", "value": type}))
    for value in values:
        to = memory.filled(24, 0xA5)
        kernel(ONE, to.at(8), value)
        expected = np.full(24, 0xA5, np.uint8)
        stored = np.array([value], dtype_name).view(np.uint8)
        expected[8 : 8 + len(stored)] = stored
        np.testing.assert_array_equal(to.read(), expected, f"value {value!r}")


@pytest.mark.parametrize("flag", [True, False, 1, 0])
def test_flags_arrive(memory: Memory, load: Load, flag: bool) -> None:
    kernel = load(variant(variants.STORE_FLAG, {"to": "*i32", "flag": "u1"}))
    to = memory.block(4)
    kernel(ONE, to, flag)
    assert to.read(np.int32)[0] == (7 if flag else -7)


def test_a_folded_one_stands_in_the_values_and_not_in_the_binary(memory: Memory, load: Load) -> None:
    types = {"to": "*i32", "source": "*i32", "step": "i32", "n": "i32"}
    source = memory.of(np.arange(300, dtype=np.int32))
    for folded, step in (((), 3), ((), 1), (("step",), 1)):
        kernel = load(variant(variants.GATHER_STRIDE, types, {"BLOCK": 128}, folded=folded))
        assert [p.kept for p in kernel.artifact.parameters] == [True, True, not folded, True]
        to = memory.block(400)
        kernel(ONE, to, source, step, 100)
        np.testing.assert_array_equal(to.read(np.int32), np.arange(100) * step)


def test_two_folded_parameters(memory: Memory, load: Load) -> None:
    types = {"to": "*i32", "source": "*i32", "step": "i32", "n": "i32"}
    kernel = load(variant(variants.GATHER_STRIDE, types, {"BLOCK": 16}, folded=("step", "n")))
    source, to = memory.of(np.arange(7, 71, dtype=np.int32)), memory.filled(64, 0)
    kernel(ONE, to, source, 1, 1)
    np.testing.assert_array_equal(to.read(np.int32), [7] + [0] * 15)


@pytest.mark.parametrize("folded", [(), ("strides.1",)])
def test_tuples_are_taken_apart(memory: Memory, load: Load, folded: tuple[str, ...]) -> None:
    types = {"to": "*i32", "source": "*i32", "shape.0": "i32", "shape.1": "i64", "strides.0": "i32", "strides.1": "i32"}
    kernel = load(variant(variants.COPY_2D, types, {"BLOCK": 16}, folded=folded))
    content = np.arange(400, dtype=np.int32)
    source = memory.of(content)
    for rows, columns, row_stride, column_stride in ((5, 7, 20, 1), (7, 5, 1, 1 if folded else 20), (1, 16, 3, 1)):
        to = memory.block(4 * rows * columns)
        kernel(ONE, to, source, rows, columns, row_stride, column_stride)
        view = np.lib.stride_tricks.as_strided(content, (rows, columns), (4 * row_stride, 4 * column_stride))
        np.testing.assert_array_equal(to.read(np.int32).reshape(rows, columns), view)


def test_a_function_is_a_constant(memory: Memory, load: Load) -> None:
    types = {"to": "*i32", "source": "*i32", "n": "i32"}
    content = np.arange(-50, 50, dtype=np.int32)
    source = memory.of(content)
    for function, expected in ((variants.TWICE, content * 2), (variants.SQUARE, content**2)):
        kernel = load(variant(variants.APPLY, types, {"FUNCTION": function, "BLOCK": 128}))
        to = memory.block(content.nbytes)
        kernel(ONE, to, source, 100)
        np.testing.assert_array_equal(to.read(np.int32), expected, function.name)


@pytest.mark.parametrize("type", ["*i8", "*i32", "*fp32"])
def test_divisibility_is_a_promise_and_not_a_demand(memory: Memory, load: Load, type: str) -> None:
    """With the attribute on aligned addresses, without it on any: the same bytes."""
    types, itemsize = {"to": type, "source": type, "n": "i32"}, 1 if type == "*i8" else 4
    content = np.random.default_rng(3).integers(0, 120, 4096 * itemsize, dtype=np.uint8)
    source = memory.of(content)
    promised = load(variant(variants.COPY, types, {"BLOCK": 256}, divisible=("to", "source", "n")))
    to = memory.filled(content.nbytes, 0xA5)
    promised((16, 1, 1), to, source, 4096)
    np.testing.assert_array_equal(to.read(), content)
    plain = load(variant(variants.COPY, types, {"BLOCK": 256}))
    for to_shift, source_shift in itertools.product((0, 1, 3), (0, 1, 2, 5)):
        n = 4096 - 8
        context_fill(memory.context, to.address, content.nbytes)
        plain((16, 1, 1), to.at(to_shift * itemsize), source.at(source_shift * itemsize), n)
        expected = np.full(content.nbytes, 0xA5, np.uint8)
        start, skip = to_shift * itemsize, source_shift * itemsize
        expected[start : start + n * itemsize] = content[skip : skip + n * itemsize]
        np.testing.assert_array_equal(to.read(), expected, f"shifted by {to_shift} and {source_shift} elements")


def context_fill(context: Context, address: int, nbytes: int) -> None:
    context.fill(address, 0xA5, nbytes)


@pytest.mark.parametrize("grid", [ONE, (5, 1, 1), (1, 4, 1), (1, 1, 3), (3, 4, 5)])
def test_programs_know_their_place_in_the_grid(memory: Memory, load: Load, grid: tuple[int, int, int]) -> None:
    x, y, z = grid
    to = memory.filled(4 * (x * y * z + 1), 0xFF)
    load(variant(variants.PROGRAM_IDS, {"to": "*i32"}))(grid, to)
    k, j, i = np.indices((z, y, x))
    np.testing.assert_array_equal(to.read(np.int32), [*(i + 100 * j + 10000 * k).ravel(), -1])


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 255, 1000])
def test_masked_lanes_touch_nothing(memory: Memory, load: Load, n: int) -> None:
    types = {"to": "*fp32", "source": "*fp32", "value": "fp32", "n": "i32"}
    kernel = load(variant(variants.ADD_VALUE, types, {"BLOCK": 128}))
    content = np.arange(1024, dtype=np.float32)
    source, to = memory.of(content), memory.of(np.full(1024, -1, np.float32))
    kernel((-(-n // 128), 1, 1), to, source, 0.5, n)
    np.testing.assert_array_equal(to.read(np.float32), [*(content[:n] + np.float32(0.5)), *[-1] * (1024 - n)])


def test_arguments_keep_their_places(memory: Memory, load: Load) -> None:
    types = {"to": "*i32", "a": "*i32", "b": "*i32", "n": "i32"}
    kernel = load(variant(variants.SUBTRACT, types, {"BLOCK": 128}))
    a, b = np.arange(100, dtype=np.int32), np.arange(100, dtype=np.int32) ** 2
    to = memory.block(400)
    kernel(ONE, to, memory.of(a), memory.of(b), 100)
    np.testing.assert_array_equal(to.read(np.int32), a - b)


@pytest.mark.parametrize("columns", [1, 3, 64, 100, 128])
def test_reductions(memory: Memory, load: Load, columns: int) -> None:
    types = {"to": "*fp32", "source": "*fp32", "columns": "i32"}
    content = np.random.default_rng(columns).integers(-1000, 0, (6, columns)).astype(np.float32)
    source, to = memory.of(content), memory.block(24)
    for kernel, expected in ((variants.ROW_SUM, content.sum(1)), (variants.ROW_MAX, content.max(1))):
        load(variant(kernel, types, {"BLOCK": 128}))((6, 1, 1), to, source, columns)
        np.testing.assert_array_equal(to.read(np.float32), expected, kernel.name)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_any_number_of_warps_gives_the_sum(memory: Memory, load: Load, warps: int) -> None:
    types = {"to": "*i32", "source": "*i32", "columns": "i32"}
    content = np.arange(3 * 1000, dtype=np.int32).reshape(3, 1000)
    source, to = memory.of(content), memory.block(12)
    load(variant(variants.ROW_SUM, types, {"BLOCK": 1024}, num_warps=warps))((3, 1, 1), to, source, 1000)
    np.testing.assert_array_equal(to.read(np.int32), content.sum(1))


def run_dot(memory: Memory, kernel: LoadedKernel, m: int, n: int, k: int, dtype: str) -> tuple[Array, Array]:
    """Result and expectation of a product of small integers, which every order of summation gives exactly."""
    rng = np.random.default_rng(k)
    a, b = (
        rng.integers(-3, 4, (m, k)).astype(DTYPES[dtype].numpy),
        rng.integers(-3, 4, (k, n)).astype(DTYPES[dtype].numpy),
    )
    to = memory.block(4 * m * n)
    kernel(ONE, to, memory.of(a), memory.of(b), k)
    return to.read(np.float32).reshape(m, n), a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("k", [16, 64, 72])
@pytest.mark.parametrize("name", [pytest.param(d, marks=computes(d)) for d in ("float16", "bfloat16", "float32")])
def test_dot_with_a_loop(memory: Memory, load: Load, name: str, k: int) -> None:
    pointer = f"*{DTYPES[name].triton}"
    types = {"to": "*fp32", "a": pointer, "b": pointer, "K": "i32"}
    kernel = load(variant(variants.DOT, types, {"M": 16, "N": 32, "BLOCK_K": 16}))
    np.testing.assert_array_equal(*run_dot(memory, kernel, 16, 32, k, name))


@computes("float32")
def test_dot_of_float32_is_not_rounded(memory: Memory, load: Load) -> None:
    """1 + 2**-20 survives a product with one: tf32 would lose it."""
    types = {"to": "*fp32", "a": "*fp32", "b": "*fp32", "K": "i32"}
    kernel = load(variant(variants.DOT, types, {"M": 16, "N": 16, "BLOCK_K": 16}))
    a = np.full((16, 16), 1 + 2.0**-20, np.float32)
    to = memory.block(4 * 256)
    kernel(ONE, to, memory.of(a), memory.of(np.eye(16, dtype=np.float32)), 16)
    np.testing.assert_array_equal(to.read(np.float32).reshape(16, 16), a)


@computes("float16")
@pytest.mark.parametrize("stages", [2, 4])
def test_a_tile_that_wants_much_shared_memory(memory: Memory, load: Load, stages: int) -> None:
    """More than the 48 KiB that a launch gets unasked: 2 operands x 16 KiB x stages on a GPU. It runs where it fits."""
    types = {"to": "*fp32", "a": "*fp16", "b": "*fp16", "K": "i32"}
    wanted = variant(
        variants.DOT,
        types,
        {"M": 128, "N": 128, "BLOCK_K": 64},
        divisible=("to", "a", "b", "K"),
        num_stages=stages,
        num_warps=8,
    )
    limit = memory.context.capabilities.max_shared
    try:
        kernel = load(wanted)
    except DeviceError:
        assert limit < 2 * 16384 * stages + 65536, (
            f"{limit} bytes of shared memory should hold the tiles of {stages} stages"
        )
        return
    np.testing.assert_array_equal(*run_dot(memory, kernel, 128, 128, 256, "float16"))


@computes("float32")
def test_too_much_shared_memory_is_refused_or_worked_around(memory: Memory, load: Load) -> None:
    """2 operands x 64 KiB x 4 stages: never a wrong result."""
    types = {"to": "*fp32", "a": "*fp32", "b": "*fp32", "K": "i32"}
    wanted = variant(
        variants.DOT,
        types,
        {"M": 128, "N": 128, "BLOCK_K": 128},
        divisible=("to", "a", "b", "K"),
        num_stages=5,
        num_warps=8,
    )
    try:
        result, expected = run_dot(memory, load(wanted), 128, 128, 640, "float32")
    except DeviceError as refusal:
        assert str(refusal)
        return
    np.testing.assert_array_equal(result, expected)


def test_global_scratch(memory: Memory, load: Load) -> None:
    """Tensor descriptors made by the kernel itself live in scratch memory on some targets."""
    types = {"to": "*fp32", "source": "*fp32", "rows": "i32", "columns": "i32"}
    kernel = load(variant(variants.COPY_TILE, types, {"BLOCK": 32}, divisible=("to", "source", "rows", "columns")))
    content = np.random.default_rng(1).random((48, 80), np.float32)
    source, to = memory.of(content), memory.block(content.nbytes)
    kernel((3, 2, 1), to, source, 48, 80)
    np.testing.assert_array_equal(to.read(np.float32).reshape(content.shape), content)
