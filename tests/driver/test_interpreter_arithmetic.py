"""Arithmetic, functions and conversions of interpreted kernels, against numpy, ml_dtypes and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.interpreted import Array, TritonDType, launch
from driver.interpreted_numbers import BF16, E4M3, E5M2, FLOATS, INTS, TRITON, apply, numbers, rng, same
from nbxtensor.errors import KernelFault

# arithmetic


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "bit_and", "bit_or", "bit_xor", "minimum", "maximum"])
def test_integer_arithmetic_wraps(name: str, dtype: str) -> None:
    x, y = numbers(dtype, 100), numbers(dtype, 100, 1)
    numpy = {
        "sub": "subtract",
        "mul": "multiply",
        "bit_and": "bitwise_and",
        "bit_or": "bitwise_or",
        "bit_xor": "bitwise_xor",
    }
    np.testing.assert_array_equal(apply(name, x, y), getattr(np, numpy.get(name, name))(x, y))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division_truncates_as_c_does(dtype: str) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    y[::2] = np.resize(np.array([3, 7, 100], dtype), y[::2].size)
    y[y == 0] = 5
    y[(y == np.array(-1).astype(dtype)) & (x == np.iinfo(dtype).min)] = 2
    quotients = [int(Fraction(int(a), int(b)).__trunc__()) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(apply("floordiv", x, y), np.array(quotients, dtype))
    rests = [int(a) - int(b) * q for a, b, q in zip(x, y, quotients, strict=True)]
    np.testing.assert_array_equal(apply("mod", x, y), np.array(rests, dtype))


@pytest.mark.parametrize("dtype", INTS)
def test_shifts(dtype: str) -> None:
    x = numbers(dtype)
    y = rng(1).integers(0, np.dtype(dtype).itemsize * 8, x.size).astype(dtype)
    np.testing.assert_array_equal(apply("shift_left", x, y), x << y)
    np.testing.assert_array_equal(apply("shift_right", x, y), x >> y)  # arithmetic for signed, logical for unsigned


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
def test_comparisons(name: str, dtype: Any) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    y[::3] = x[::3]
    if np.dtype(dtype).kind not in "iu":
        x[4], y[5], x[6], y[6] = np.nan, np.nan, np.nan, np.nan
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(x, y)
    np.testing.assert_array_equal(apply(name, x, y, out=np.bool_), expected)


def test_integers_of_one_bit_wrap_around() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    for name in ("add", "sub", "bit_xor"):
        np.testing.assert_array_equal(apply(name, x, y), x ^ y, name)
    for name in ("mul", "bit_and"):
        np.testing.assert_array_equal(apply(name, x, y), x & y, name)
    np.testing.assert_array_equal(apply("bit_or", x, y), x | y)
    np.testing.assert_array_equal(apply("invert", x), ~x)


@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint64", "int64"])
def test_high_half_of_a_product(dtype: str) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    bits = np.dtype(dtype).itemsize * 8
    expected = [((int(a) % 2**bits) * (int(b) % 2**bits)) >> bits for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(apply("umulhi", x, y), np.array(expected, f"u{bits // 8}").view(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_float_arithmetic_is_rounded_to_nearest_even(name: str, dtype: Any) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    operator = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]
    same(apply(name, x, y), operator(x.astype(np.float64), y.astype(np.float64)).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_division_of_halves_is_float32(dtype: Any) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    y[:2] = 0
    wide = np.float64 if dtype is np.float64 else np.float32
    with np.errstate(all="ignore"):
        same(apply("div", x, y, out=wide), x.astype(wide) / y.astype(wide))


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_drop_nan_unless_told_otherwise(dtype: Any) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    x[1], y[2], x[3], y[3] = np.nan, np.nan, np.nan, np.nan
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    same(apply("minimum", x, y), np.fmin(wide_x, wide_y).astype(dtype))
    same(apply("maximum", x, y), np.fmax(wide_x, wide_y).astype(dtype))
    same(apply("minimum_nan", x, y), np.minimum(wide_x, wide_y).astype(dtype))
    same(apply("maximum_nan", x, y), np.maximum(wide_x, wide_y).astype(dtype))
    same(apply("clamp", x.astype(np.float32)), np.fmin(np.fmax(x.astype(np.float32), -1), 1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_take_the_dtype_of_the_tensor(dtype: Any) -> None:
    x = numbers(dtype)
    half = (x.astype(np.float64) * 0.5).astype(dtype)
    same(apply("half_plus", x), (half.astype(np.float64) + 1).astype(dtype))
    same(apply("negative", x), -x)
    same(apply("absolute", x), np.abs(x))


FLOAT32 = st.floats(width=32, allow_nan=False)


@given(st.lists(st.tuples(FLOAT32, FLOAT32, FLOAT32), min_size=8, max_size=8))
def test_fma_is_rounded_once(rows: list[tuple[float, float, float]]) -> None:
    x, y, z = np.array(rows, np.float32).T.copy()
    result = np.zeros(8, np.float32)
    launch("kernels_arithmetic", "ternary", out=result, x=x, y=y, z=z, BLOCK=8)
    for found, a, b, c in zip(result, x, y, z, strict=True):
        if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, np.float32(np.float64(a) * np.float64(b) + np.float64(c)))
            continue
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
            assert math.isinf(found)
            continue
        error = abs(Fraction(float(found)) - exact)
        for neighbour in (np.nextafter(found, np.float32(-np.inf)), np.nextafter(found, np.float32(np.inf))):
            if math.isfinite(neighbour):
                other = abs(Fraction(float(neighbour)) - exact)
                assert error < other or (error == other and found.view(np.int32) % 2 == 0), (a, b, c, found)


def test_fma_of_doubles() -> None:
    x, y = np.full(4, 1 + 2.0**-30), np.full(4, 1 - 2.0**-30)
    result = np.zeros(4)
    launch("kernels_arithmetic", "ternary", out=result, x=x, y=y, z=np.full(4, -1.0), BLOCK=4)
    assert (result == -(2.0**-60)).all()


# functions


@pytest.mark.parametrize(
    ("name", "function", "low", "high"),
    [
        ("exp", math.exp, -20, 20),
        ("exp2", lambda v: 2.0**v, -20, 20),
        ("log", math.log, 1e-3, 50),
        ("log2", math.log2, 1e-3, 50),
        ("sin", math.sin, -6, 6),
        ("cos", math.cos, -6, 6),
        ("sqrt", math.sqrt, 0, 50),
        ("rsqrt", lambda v: 1 / math.sqrt(v), 1e-3, 50),
        ("erf", math.erf, -7, 7),
        ("floor", math.floor, -50, 50),
        ("ceil", math.ceil, -50, 50),
        ("sigmoid", lambda v: 1 / (1 + math.exp(-v)), -20, 20),
        ("tanh", math.tanh, -5, 5),
        ("log1p", math.log1p, -0.9, 5),
        ("erfc", math.erfc, -3, 3),
        ("rint", round, -50, 50),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions(name: str, function: Any, low: float, high: float, dtype: Any) -> None:
    x = rng().uniform(low, high, 256).astype(dtype)
    expected = np.array([function(float(v)) for v in x])
    np.testing.assert_allclose(
        apply(name, x), expected, rtol=4 * float(np.finfo(dtype).eps), atol=float(np.finfo(dtype).tiny)
    )


def test_erf_near_zero_and_at_the_ends() -> None:
    x = np.array([0.0, -0.0, 1e-30, -1e-8, np.inf, -np.inf, np.nan, 100.0])
    same(apply("erf", x), np.array([math.erf(v) for v in x]))


def test_library_functions_of_two_arguments_and_predicates() -> None:
    x, y = np.array([2.0, 3.0, np.nan, 9.0], np.float32), np.array([10.0, -1.0, 1.0, 0.5], np.float32)
    np.testing.assert_allclose(apply("pow", x, y), x**y, rtol=1e-6)
    np.testing.assert_array_equal(apply("isnan", x, out=np.bool_), np.isnan(x))


def test_what_is_not_interpreted_is_named() -> None:
    with pytest.raises(KernelFault, match="j0"):
        apply("unknown_to_the_interpreter", np.ones(4, np.float32))
    with pytest.raises(KernelFault, match="inline_asm"):
        launch("kernels_arithmetic", "assembly", out=np.zeros(4, np.int32), BLOCK=4)


# conversions


def converted(x: Array, to: Any, triton: str, rounding: str | None = None) -> Array:
    out = np.zeros(x.size, to)
    launch("kernels_arithmetic", "convert", out=out, x=x, TO=TritonDType(triton), ROUNDING=rounding, BLOCK=x.size)
    return out


def every_float(dtype: Any) -> Array:
    """Every number of 16 bits, and what lies between them: the middles and their neighbours."""
    bits = np.arange(0, 1 << 16, 7, dtype=np.uint16).view(dtype).astype(np.float32)
    bits = bits[np.isfinite(bits)][:1024]
    middle = (bits + np.roll(bits, 1)) / 2
    everything = np.concatenate(
        [bits, middle, np.nextafter(middle, np.float32(9)), np.nextafter(middle, np.float32(-9))]
    )
    special = np.array(
        [np.inf, -np.inf, np.nan, 0.0, -0.0, 65504, 65519.99, 65520, 3.4e38, 1e-45, 6e-8, -6e-8], np.float32
    )
    everything[: special.size] = special
    return everything[:4096]


@pytest.mark.parametrize("to", [np.float16, BF16])
def test_narrowing_rounds_to_nearest_even(to: Any) -> None:
    x = every_float(np.float16 if to is np.float16 else BF16)
    with np.errstate(all="ignore"):
        same(converted(x, to, TRITON[to]), x.astype(to))


def test_bfloat16_is_bit_identical_to_ml_dtypes() -> None:
    x = every_float(BF16)
    np.testing.assert_array_equal(converted(x, BF16, "bf16").view(np.uint16), x.astype(BF16).view(np.uint16))


@pytest.mark.parametrize("to", [E4M3, E5M2])
def test_float8_rounds_to_nearest_even_and_saturates(to: Any) -> None:
    codes = np.arange(256, dtype=np.uint8).view(to).astype(np.float64)
    finite = np.unique(codes[np.isfinite(codes)])
    middle = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([finite, middle, middle * (1 + 2.0**-20), middle * (1 - 2.0**-20), [1e9, -1e9, np.inf, -np.inf]])
    x = np.resize(x.astype(np.float32), 1024)
    distance = np.abs(np.clip(x.astype(np.float64), finite[0], finite[-1])[:, None] - finite[None, :])
    nearest = finite[distance.argmin(1)]
    second = np.where(distance == distance.min(1, keepdims=True), finite[None, :], -np.inf).max(1)
    even = (nearest.astype(to).view(np.uint8) & 1) == 0
    np.testing.assert_array_equal(converted(x, to, TRITON[to]).astype(np.float64), np.where(even, nearest, second))
    assert np.isnan(converted(np.full(4, np.nan, np.float32), to, TRITON[to]).astype(np.float32)).all()


@pytest.mark.parametrize("source", [E4M3, E5M2, BF16, np.float16])
@pytest.mark.parametrize("to", [np.float16, np.float32, np.float64, BF16])
def test_widening_is_exact(source: Any, to: Any) -> None:
    x = np.arange(256, dtype=np.uint8).view(E4M3 if source is E4M3 else E5M2).astype(source)
    same(converted(x, to, TRITON[to]), x.astype(to))


@pytest.mark.parametrize("to", [np.float16, BF16, E5M2])
def test_rounding_toward_zero(to: Any) -> None:
    x = (rng().standard_normal(1024) * 50).astype(np.float32)
    found = converted(x, to, TRITON[to], "rtz").astype(np.float64)
    up = np.nextafter(found.astype(to), np.where(x > 0, np.inf, -np.inf).astype(to)).astype(np.float64)
    assert (np.abs(found) <= np.abs(x)).all()
    assert (np.abs(up) > np.abs(x)).all()


@pytest.mark.parametrize("to", INTS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer_truncates(source: Any, to: str) -> None:
    x = (rng().uniform(0, 120, 64) * (1 if to[0] == "u" else np.resize([1, -1], 64))).astype(source)
    np.testing.assert_array_equal(
        converted(x, to, to[0] + to.lstrip("uint")), np.trunc(x.astype(np.float64)).astype(to)
    )


def test_conversions_without_a_meaning_warn_of_nothing() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32)
    for to in INTS:
        assert converted(x, to, to[0] + to.lstrip("uint")).dtype == to


@pytest.mark.parametrize("to", [*INTS, *FLOATS])
@pytest.mark.parametrize("source", [*INTS, np.bool_])
def test_integer_conversions(source: Any, to: Any) -> None:
    x = numbers(source, 64) if source is not np.bool_ else np.resize([True, False, True], 64)
    name = TRITON.get(to) or str(to)[0] + str(to).lstrip("uint")
    with np.errstate(over="ignore"):
        expected = x.astype(np.float32).astype(to) if to is BF16 else x.astype(to)
    np.testing.assert_array_equal(converted(x, to, name).astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("source", [*INTS, *FLOATS])
def test_conversion_to_bool_asks_whether_it_is_zero(source: Any) -> None:
    x = numbers(source, 64)
    x[::5] = 0
    np.testing.assert_array_equal(converted(x, np.bool_, "i1"), x != 0)


def test_bits_reinterpreted() -> None:
    x = numbers(np.float32, 64)
    out = np.zeros(64, np.int32)
    launch("kernels_arithmetic", "reinterpret", out=out, x=x, TO=TritonDType("i32"), BLOCK=64)
    np.testing.assert_array_equal(out, x.view(np.int32))
    back = np.zeros(64, BF16)
    launch("kernels_arithmetic", "reinterpret", out=back, x=numbers("int16", 64), TO=TritonDType("bf16"), BLOCK=64)
    np.testing.assert_array_equal(back.view(np.int16), numbers("int16", 64))
