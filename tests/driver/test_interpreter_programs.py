"""Parameters, memory, control flow, reductions, shapes and products of interpreted kernels, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.interpreted import Array, Scalar, TritonDType, launch
from driver.interpreted_numbers import BF16, E4M3, E5M2, FLOATS, INTS, apply, numbers, rng
from nbxtensor.errors import KernelFault

# parameters


@pytest.mark.parametrize("type", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
def test_integer_parameters_keep_every_bit(type: str) -> None:
    dtype = np.dtype(("u" if type[0] == "u" else "i") + str(int(type[1:]) // 8))
    out = np.zeros(4, dtype)
    values = (np.iinfo(dtype).max, np.iinfo(dtype).min, 0, 77)
    launch(
        "kernels_arithmetic",
        "scalars",
        out=out,
        **{k: Scalar(int(v), type) for k, v in zip("abcd", values, strict=True)},
    )
    np.testing.assert_array_equal(out, np.array(values, dtype))


def test_float_parameters() -> None:
    out = np.zeros(4, np.float64)
    third = 1 / 3
    launch(
        "kernels_arithmetic",
        "scalars",
        out=out,
        a=Scalar(third, "fp64"),
        b=Scalar(third, "fp32"),
        c=Scalar(third, "fp16"),
        d=Scalar(third, "bf16"),
    )
    assert out.tolist() == [third, np.float32(third), np.float16(third), float(BF16(third))]


def test_bool_parameters() -> None:
    out = np.zeros(4, np.int32)
    launch("kernels_arithmetic", "scalars", out=out, a=Scalar(1, "u1"), b=Scalar(0, "u1"), c=Scalar(True, "i1"), d=-3)
    assert out.tolist() == [1, 0, 1, -3]


@pytest.mark.parametrize(
    ("flag", "name", "nothing", "more"), [(True, "yes", None, 1000), (True, "no", None, 0), (True, "yes", 0, 0)]
)
def test_constants_of_every_kind(flag: bool, name: str, nothing: Any, more: int) -> None:
    out = np.zeros(1, np.float32)
    launch("kernels_arithmetic", "constants", out=out, WHOLE=3, PART=0.25, FLAG=flag, NAME=name, NOTHING=nothing)
    assert out[0] == 3.25 + more


# memory


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS, E4M3, E5M2, np.bool_])
def test_masked_loads_and_stores(dtype: Any) -> None:
    x = np.resize(np.arange(100), 64).astype(dtype)
    masks = [
        rng().random(64) < 0.5,
        np.arange(64) < 17,
        (np.arange(64) > 5) & (np.arange(64) < 9),
        np.zeros(64, bool),
        np.ones(64, bool),
    ]
    for mask in masks:
        out = np.zeros(64, dtype)
        launch(
            "kernels_arithmetic",
            "masked",
            out=out,
            x=x,
            mask=mask,
            other=1 if np.dtype(dtype).kind in "iub" else 1.0,
            BLOCK=64,
        )
        np.testing.assert_array_equal(out, np.where(mask, x, np.ones(1, dtype)))
        out = np.ones(64, dtype)
        launch("kernels_arithmetic", "masked_store", out=out, x=x, mask=mask, BLOCK=64)
        np.testing.assert_array_equal(out, np.where(mask, x, np.ones(1, dtype)))


def test_any_byte_but_zero_is_a_true_bool() -> None:
    x = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    np.testing.assert_array_equal(apply("identity", x).view(np.uint8), [0, 1, 1, 1])


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from(["plain", "transposed", "reversed", "broadcast"]),
    st.sampled_from([np.float16, BF16, np.int64, np.uint8]),
)
def test_tiles_of_any_strides(shape: tuple[int, int], layout: str, dtype: Any) -> None:
    rows, columns = shape
    x = np.arange(rows * columns).astype(dtype).reshape(shape)
    strides = {"plain": (columns, 1), "transposed": (1, rows), "reversed": (columns, 1), "broadcast": (0, 1)}[layout]
    expected = np.lib.stride_tricks.as_strided(x, shape, [s * x.itemsize for s in strides])
    out = np.zeros(shape, dtype)
    so = (-columns, 1) if layout == "reversed" else (columns, 1)
    grid = (-(-rows // 4), -(-columns // 4))
    if layout == "reversed":  # from the last row backward: the addresses lie before the pointer
        flat = np.zeros((rows - 1) * columns, dtype)
        whole = np.concatenate([flat, np.zeros(columns, dtype)])
        index = np.array([(rows - 1 - r) * columns + c for r in range(rows) for c in range(columns)], np.int64)
        size = 1 << max(index.size - 1, 0).bit_length()
        padded = np.concatenate([index, np.full(size - index.size, index[-1])])
        source = np.concatenate([x.ravel(), np.full(size - index.size, x.ravel()[-1])])
        launch("kernels_arithmetic", "scatter", out=whole, x=source, index=padded, BLOCK=size)
        np.testing.assert_array_equal(whole.reshape(shape), x[::-1])
        return
    launch(
        "kernels_arithmetic", "copy_tile", grid, out=out, x=x, rows=rows, columns=columns, so=so, sx=strides, M=4, N=4
    )
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_gather_and_scatter(index_dtype: str) -> None:
    x, index = numbers(np.float32, 64), rng().permutation(64).astype(index_dtype)
    out = np.zeros(64, np.float32)
    launch("kernels_arithmetic", "gather", out=out, x=x, index=index, BLOCK=64)
    np.testing.assert_array_equal(out, x[index])
    launch("kernels_arithmetic", "scatter", out=out, x=x, index=index, BLOCK=64)
    np.testing.assert_array_equal(out[index], x)


def test_atomics() -> None:
    x, index = np.arange(16, dtype=np.float32) - 3, np.resize([0, 1, 1, 5], 16).astype(np.int32)
    out = np.zeros(12, np.float32)
    out[8:] = [2, 2, 0, 4]
    launch("kernels_arithmetic", "atomics", out=out, x=x, index=index, BLOCK=16)
    np.testing.assert_array_equal(out[:8], np.bincount(index, x, 8))
    assert out[8:].tolist() == [12, -3, 4, 5]


def test_integer_atomics() -> None:
    x = np.array([3, 6, -1, 2**31 - 1], np.int32)
    out, old = np.array([-1, 0, 0, -5, 7], np.int32), np.zeros(2, np.int32)
    launch("kernels_arithmetic", "integer_atomics", out=out, old=old, x=x, BLOCK=4)
    bits = [np.bitwise_and.reduce(x), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x)]
    assert out.tolist() == [*map(int, bits), 2**31 - 1, 8]
    assert old.tolist() == [7, 8]


def test_tensor_descriptors() -> None:
    x = np.arange(6 * 20, dtype=np.float32).reshape(6, 20)
    out = np.zeros_like(x)
    launch("kernels_arithmetic", "descriptor_copy", (2, 3), out=out, x=x, rows=6, columns=20, M=4, N=8)
    np.testing.assert_array_equal(out, x + 1)


# control flow


@pytest.mark.parametrize("n", [1, 7, 27])
def test_while_and_if(n: int) -> None:
    out = np.zeros(1, np.int32)
    launch("kernels_blocks", "collatz", out=out, x=np.array([n], np.int32))
    steps, value = 0, n
    while value != 1:
        value, steps = (value // 2 if value % 2 == 0 else 3 * value + 1), steps + 1
    assert out[0] == steps


def test_loops() -> None:
    out = np.zeros(200, np.int64)
    launch("kernels_blocks", "loops", out=out, n=5, shape=(2, 7, 5), EMPTY=0)
    assert out[[0, 1, 2, 4]].tolist() == [30, 5 * 16 + 4 * 8 + 3 * 4 + 2 * 2 + 1, 3 * 70, 9]
    assert not out[100:].any()


@pytest.mark.parametrize("flag", [True, False])
def test_conditions(flag: bool) -> None:
    x = np.arange(8, dtype=np.int32)
    out = np.zeros(22, np.int32)
    launch("kernels_blocks", "conditions", out=out, x=x, FLAG=flag)
    np.testing.assert_array_equal(out[:8], (x > 2) & (x < 6))
    np.testing.assert_array_equal(out[8:16], (x < 2) | (x >= 6))
    assert out[16:].tolist() == [7, 3 if flag else 4, 1 + 42, 51 if flag else 1, 5 + 1 + 3, int(not flag)]


def test_promotion_is_the_compilers() -> None:
    out = np.zeros(8, np.int32)
    launch("kernels_blocks", "promotion", out=out, x=np.ones(1, np.float16))
    assert out.tolist() == [1] * 8


@pytest.mark.parametrize("step", [3, 1 << 28, 1 << 30])
@pytest.mark.parametrize("shift", [0, -5, 2**31 - 1])
def test_sums_of_rows_and_columns_wrap_as_any_others(step: int, shift: int) -> None:
    out, far = np.zeros((3, 8, 4), np.int32), np.zeros((8, 4), np.int64)
    launch("kernels_blocks", "outer_sums", out=out, far=far, shift=shift, STEP=step)
    r, c = np.arange(8)[:, None], np.arange(4)[None, :]
    np.testing.assert_array_equal(out[0], (r * step + c * step + shift).astype(np.int32))
    np.testing.assert_array_equal(out[1], (r + c) * (r - c) + 1 + c + r + r)
    np.testing.assert_array_equal(out[2], np.where(r + c < 5, r + c, -(r + c)))
    np.testing.assert_array_equal(far, (r * step + c * step) * 4)


def test_a_block_is_no_condition() -> None:
    with pytest.raises(KernelFault, match="neither true nor false"):
        launch("kernels_blocks", "ambiguous", out=np.zeros(1, np.int32))


# reductions and scans


def reduced(x: Array, name: str, axis: int, out: Any) -> Array:
    result = np.zeros(x.shape[1 - axis], out)
    launch("kernels_blocks", "reduce_rows", out=result, x=x, ROWS=x.shape[0], COLUMNS=x.shape[1], AXIS=axis, NAME=name)
    return result


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", *FLOATS])
def test_sums_and_extremes(dtype: Any, axis: int) -> None:
    x = rng().integers(0, 9, (8, 16)).astype(dtype)
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else np.int64
    np.testing.assert_array_equal(reduced(x, "sum", axis, np.int64), x.astype(wide).sum(axis))
    np.testing.assert_array_equal(reduced(x, "max", axis, np.int64), x.astype(wide).max(axis))
    np.testing.assert_array_equal(reduced(x, "min", axis, np.int64), x.astype(wide).min(axis))
    np.testing.assert_array_equal(reduced(x, "argmax", axis, np.int64), x.astype(wide).argmax(axis))
    np.testing.assert_array_equal(reduced(x, "argmin", axis, np.int64), x.astype(wide).argmin(axis))


def test_sums_of_halves_are_rounded_at_each_step() -> None:
    """256 + 1 is 256 in bfloat16: a sum kept in float32 would see the ones."""
    x = np.array([[256, 1, 256, 1]], BF16)
    assert reduced(x, "sum", 1, np.float32)[0] == 512
    assert reduced(x.astype(np.float32), "sum", 1, np.float32)[0] == 514


def test_sums_of_small_integers_are_32_bits_wide() -> None:
    x = np.full((1, 128), 127, np.int8)
    assert reduced(x, "sum", 1, np.int64)[0] == 127 * 128
    assert reduced(np.full((1, 128), 2**31 - 1, np.int32), "sum", 1, np.int64)[0] == -128  # wraps


def test_reductions_of_all_elements() -> None:
    x = numbers(np.float32, 64).reshape(4, 16)
    np.testing.assert_allclose(reduced(x, "all", 0, np.float32)[0], x.sum(), rtol=1e-5)
    xor = numbers("int32", 64).reshape(4, 16)
    np.testing.assert_array_equal(reduced(xor, "xor", 1, np.int32), np.bitwise_xor.reduce(xor, 1))


def test_extremes_drop_nan() -> None:
    x = np.array([[1, np.nan, 3, 2], [np.nan, np.nan, np.nan, np.nan]], np.float32)
    np.testing.assert_array_equal(reduced(x, "max", 1, np.float32), [3, np.nan])
    np.testing.assert_array_equal(reduced(x, "min", 1, np.float32), [1, np.nan])


def test_index_of_an_extreme_follows_the_combining_function_with_nan() -> None:
    """NaN compares false, so that the right operand of a pair is taken: (NaN, 5) gives 5, (1, 2) gives 2, then 5."""
    x = np.array([[np.nan, 5, 1, 2]], np.float32)
    assert reduced(x, "argmax", 1, np.int32)[0] == 1


def test_extreme_with_its_index() -> None:
    x = np.array([3, 9, 9, 1], np.float32)
    out, index = np.zeros(1, np.float32), np.zeros(1, np.int32)
    launch("kernels_blocks", "max_with_index", out=out, index=index, x=x, N=4)
    assert (out[0], index[0]) == (9, 1)


def test_reduction_by_a_function_of_tuples() -> None:
    x = numbers(np.float32, 8 * 32).reshape(8, 32)
    mean, m2 = np.zeros(8, np.float32), np.zeros(8, np.float32)
    launch("kernels_blocks", "welford", mean=mean, m2=m2, x=x, ROWS=8, N=32)
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(m2, x.var(1) * 32, rtol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 16])
def test_scan_by_a_function_that_does_not_commute(n: int, reverse: bool) -> None:
    a, b = rng().uniform(0.5, 1, n).astype(np.float32), numbers(np.float32, n)
    out = np.zeros(n, np.float32)
    launch("kernels_blocks", "recurrence", out=out, a=a, b=b, N=n, REVERSE=reverse)
    expected, state = [], 0.0
    for factor, value in list(zip(a.tolist(), b.tolist(), strict=True))[:: -1 if reverse else 1]:
        state = factor * state + value
        expected.append(state)
    np.testing.assert_allclose(out, expected[:: -1 if reverse else 1], rtol=1e-4, atol=1e-5)


def test_reduction_keeps_the_order_of_the_elements() -> None:
    a, b = rng().uniform(0.5, 1, 16).astype(np.float32), numbers(np.float32, 16)
    out = np.zeros(2, np.float32)
    launch("kernels_blocks", "compose", out=out, a=a, b=b, N=16)
    state = 0.0
    for factor, value in zip(a.tolist(), b.tolist(), strict=True):
        state = factor * state + value
    np.testing.assert_allclose(out, [np.prod(a), state], rtol=1e-4)


def test_combining_function_that_branches() -> None:
    x = np.array([1, -7, 3, 6], np.float32)
    out = np.zeros(1, np.float32)
    launch("kernels_blocks", "branching_reduction", out=out, x=x, N=4)
    assert out[0] == -7


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float64])
def test_cumulative_sums_and_products(dtype: Any) -> None:
    x = rng().integers(-3, 4, (4, 16)).astype(dtype)
    sums, products, backward = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    launch("kernels_blocks", "scans", sums=sums, products=products, backward=backward, x=x, ROWS=4, N=16)
    np.testing.assert_array_equal(sums, np.cumsum(x, 1))
    np.testing.assert_array_equal(products, np.cumprod(x, 0))
    np.testing.assert_array_equal(backward, np.cumsum(x[:, ::-1], 1)[:, ::-1])


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16, np.int64])
def test_sort_and_flip(dtype: Any) -> None:
    x = numbers(dtype, 2 * 32).reshape(2, 32)
    out, backward, flipped = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    launch("kernels_blocks", "order", out=out, backward=backward, flipped=flipped, x=x, ROWS=2, N=32)
    np.testing.assert_array_equal(out, np.sort(x, 1))
    np.testing.assert_array_equal(backward, np.sort(x, 1)[:, ::-1])
    np.testing.assert_array_equal(flipped, x[:, ::-1])


def test_function_mapped_over_scalars() -> None:
    x = numbers(np.float32, 16)
    out = np.zeros(16, np.float32)
    launch("kernels_blocks", "mapped", out=out, x=x, slope=0.125, N=16)
    np.testing.assert_array_equal(out, np.where(x > 0, x, x * np.float32(0.125)))


# shapes


@pytest.mark.filterwarnings("ignore:tl.cat")
def test_shapes() -> None:
    n = 16
    x = np.arange(n, dtype=np.float32)
    out = np.zeros(13 * n, np.float32)
    launch("kernels_blocks", "shapes", out=out, x=x, N=n)
    at = lambda k, size: out[k * n : k * n + size]  # noqa: E731
    np.testing.assert_array_equal(at(0, n), x.reshape(4, 4).T.ravel())
    np.testing.assert_array_equal(at(1, n // 2), x[::2] * 10 + x[1::2])
    np.testing.assert_array_equal(at(2, 2 * n), np.stack([x, -x], 1).ravel())
    np.testing.assert_array_equal(np.sort(at(4, 2 * n)), np.concatenate([x, x + 100]))
    np.testing.assert_array_equal(at(6, n), x.reshape(2, 2, 4).transpose(2, 0, 1).ravel())
    np.testing.assert_array_equal(at(7, n), x[::-1])
    np.testing.assert_array_equal(at(8, n), 4 * x)
    np.testing.assert_array_equal(at(9, 4 * n).reshape(4, n), x + np.arange(4)[:, None])


def test_histogram_counts_what_lies_in_its_bins() -> None:
    x = rng().integers(-2, 12, 64).astype(np.int32)
    out = np.zeros(8, np.int32)
    launch("kernels_blocks", "histogram", out=out, x=x, N=64, BINS=8)
    np.testing.assert_array_equal(out, [(x == i).sum() for i in range(8)])


def test_random_numbers_are_uniform_and_repeatable() -> None:
    out, again = np.zeros(512, np.float32), np.zeros(512, np.float32)
    launch("kernels_blocks", "random", out=out, seed=5, N=256)
    launch("kernels_blocks", "random", out=again, seed=5, N=256)
    np.testing.assert_array_equal(out, again)
    assert 0 <= out[:256].min() < 0.05 < 0.95 < out[:256].max() < 1
    assert abs(out[:256].mean() - 0.5) < 0.05


# products


def matmul(a: Array, b: Array, out: Any, accumulator: str) -> Array:
    (m, k), n = a.shape, b.shape[1]
    result = np.zeros((m, n), out)
    launch(
        "kernels_blocks",
        "matmul",
        (-(-m // 16) * -(-n // 16),),
        out=result,
        a=a,
        b=b,
        m=m,
        n=n,
        k=k,
        BM=16,
        BN=16,
        BK=32,
        ACC=TritonDType(accumulator),
    )
    return result


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, E4M3, E5M2])
def test_dot_of_floats_is_summed_in_float32(dtype: Any) -> None:
    a = numbers(np.float32, 33 * 50).reshape(33, 50).astype(dtype)
    b = numbers(np.float32, 50 * 20, 1).reshape(50, 20).astype(dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(matmul(a, b, np.float32, "fp32"), exact, rtol=1e-5, atol=1e-4)


def test_dot_of_doubles() -> None:
    a, b = numbers(np.float64, 17 * 40).reshape(17, 40), numbers(np.float64, 40 * 9, 1).reshape(40, 9)
    np.testing.assert_allclose(matmul(a, b, np.float64, "fp64"), a @ b, rtol=1e-12)


def test_dot_of_bytes_is_exact() -> None:
    a, b = numbers(np.int8, 20 * 70).reshape(20, 70), numbers(np.int8, 70 * 18, 1).reshape(70, 18)
    np.testing.assert_array_equal(matmul(a, b, np.int32, "i32"), a.astype(np.int64) @ b.astype(np.int64))


def test_dot_with_a_half_accumulator_is_rounded_to_half() -> None:
    a = np.full((16, 32), 1, np.float16)
    b = np.full((32, 16), 1 + 2.0**-10, np.float16)
    out = matmul(a, b, np.float32, "fp16")
    assert (out == np.float32(np.float16(32 * (1 + 2.0**-10)))).all()


def test_dot_of_three_dimensions() -> None:
    a, b = numbers(np.float16, 2 * 256).reshape(2, 16, 16), numbers(np.float16, 2 * 256, 1).reshape(2, 16, 16)
    out = np.zeros((2, 16, 16), np.float32)
    launch("kernels_blocks", "batched_dot", out=out, a=a, b=b, B=2, S=16)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_softmax(dtype: Any) -> None:
    x = numbers(dtype, 5 * 37).reshape(5, 37)
    out = np.zeros((5, 37), np.float32)
    launch("kernels_blocks", "softmax", (5,), out=out, x=x, n=37, BLOCK=64)
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    heads, length, d = 2, 50, 16
    q, k, v = (numbers(np.float16, heads * length * d, s).reshape(heads, length, d) for s in range(3))
    out = np.zeros(q.shape, np.float16)
    arguments = {
        "out": out,
        "q": q,
        "k": k,
        "v": v,
        "length": length,
        "scale": 0.25,
        "CAUSAL": causal,
        "BM": 16,
        "BN": 32,
        "D": d,
    }
    launch("kernels_blocks", "attention", (4, heads), **arguments)
    score = np.einsum("hid,hjd->hij", q.astype(np.float64), k.astype(np.float64)) * 0.25
    if causal:
        score = np.where(np.tril(np.ones((length, length), bool)), score, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    expected = (p / p.sum(-1, keepdims=True)) @ v.astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2e-2, atol=2e-2)
