"""`nbxtensor.dtype.convert`, bit by bit, against an oracle in exact rational arithmetic that shares no code with it."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype import DTYPES, convert
from nbxtensor.errors import DTypeError

# (bits, exponent bits, mantissa bits, has infinity, overflow saturates)
FORMATS = {
    "float8_e4m3fn": (8, 4, 3, False, True),
    "float8_e5m2": (8, 5, 2, True, True),
    "float16": (16, 5, 10, True, True),
    "bfloat16": (16, 8, 7, True, False),
    "float32": (32, 8, 23, True, False),
    "float64": (64, 11, 52, True, False),
}
INTEGERS = {f"{sign}int{bits}": (bits, not sign) for sign in ("", "u") for bits in (8, 16, 32, 64)}
REAL = ["bool", *INTEGERS, *FORMATS]
NUMPY = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in REAL}

Number = Fraction | str  # a finite value, or "-0", "inf", "-inf", "nan", "-nan"


def decode(name: str, bits: int) -> Number:
    """The value of a bit pattern."""
    if name == "bool":
        return Fraction(bits)
    if name in INTEGERS:
        width, signed = INTEGERS[name]
        return Fraction(bits - (1 << width) if signed and bits >> (width - 1) else bits)
    width, exponent_bits, mantissa_bits, has_infinity, _ = FORMATS[name]
    sign = "-" if bits >> (width - 1) else ""
    exponent, mantissa = bits >> mantissa_bits & (2**exponent_bits - 1), bits & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1:
        if has_infinity:
            return sign + ("nan" if mantissa else "inf")
        if mantissa == 2**mantissa_bits - 1:
            return sign + "nan"
    scale = max(exponent, 1) - (2 ** (exponent_bits - 1) - 1) - mantissa_bits
    value = Fraction(mantissa + (2**mantissa_bits if exponent else 0)) * Fraction(2) ** scale
    return "-0" if sign and not value else -value if sign else value


def encode(name: str, value: Number) -> int:
    """The bit pattern nearest to a value, ties to even; a NaN by its sign and quiet bit alone."""
    if name == "bool":
        return int(value not in (Fraction(0), "-0"))
    if name in INTEGERS:
        width, signed = INTEGERS[name]
        high = (1 << (width - signed)) - 1
        low = -high - 1 if signed else 0
        special = {"-0": 0, "nan": 0, "-nan": 0, "inf": high, "-inf": low}
        whole = special[value] if isinstance(value, str) else min(max(math.trunc(value), low), high)
        return whole % (1 << width)
    width, exponent_bits, mantissa_bits, has_infinity, saturates = FORMATS[name]
    sign = 1 << (width - 1)
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    nan = infinity + (1 << (mantissa_bits - 1)) if has_infinity else sign - 1
    if isinstance(value, str):
        special = {"0": 0, "inf": infinity if has_infinity else nan, "nan": nan}
        return special[value.lstrip("-")] + sign * value.startswith("-")
    if not value:
        return 0
    bias = (1 << (exponent_bits - 1)) - 1
    largest = infinity - 1 if has_infinity else nan - 1
    power = value.numerator.bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** power:
        power -= 1
    power = max(power, 1 - bias)  # of the binade that holds the value
    steps = round(abs(value) / Fraction(2) ** (power - mantissa_bits))  # Python rounds a Fraction's ties to even
    magnitude = steps + ((power + bias - 1) << mantissa_bits)
    if magnitude > largest:
        magnitude = largest if saturates or not has_infinity else infinity
    return magnitude + sign * (value < 0)


def expected(source: str, bits: int, target: str) -> int:
    """The bit pattern that `convert` must give."""
    value = decode(source, bits)
    if source in INTEGERS and target in INTEGERS:
        return int(value) % (1 << INTEGERS[target][0])
    if target in ("bfloat16", "float8_e4m3fn", "float8_e5m2") and isinstance(value, Fraction):
        through = decode("float32", encode("float32", value))
        value = through if isinstance(through, Fraction) or target == "bfloat16" else value
    return encode(target, value)


def pattern(target: str, bits: int) -> int:
    """``bits``, or for a NaN its sign and quiet bit alone: the rest of the payload is not specified."""
    if target in FORMATS and str(decode(target, bits)).endswith("nan"):
        _, _, mantissa_bits, has_infinity, _ = FORMATS[target]
        if has_infinity:
            return bits & ~((1 << (mantissa_bits - 1)) - 1)
    return bits


def unsigned(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.view(f"u{a.dtype.itemsize}")


def from_bits(name: str, bits: Any) -> np.ndarray[Any, Any]:
    return np.array(bits, f"u{NUMPY[name].itemsize}").view(NUMPY[name])


@cache
def edges(name: str) -> tuple[int, ...]:
    """Bit patterns where conversions go wrong: limits and ties of every format, special values, subnormals."""
    if NUMPY[name].itemsize == 1:
        return tuple(range(2 if name == "bool" else 256))
    values = [Fraction(v) for v in (0, 1, -1, 2, 3, 300, -129, 3 * 10**9, 10**20, Fraction(1, 2), Fraction(5, 2))]
    for width, signed in INTEGERS.values():
        values += [Fraction(2 ** (width - signed) + d) for d in (-1, 0, 1)] + [Fraction(-(2 ** (width - signed)))]
    for fmt, (_, exponent_bits, mantissa_bits, has_infinity, _) in FORMATS.items():
        largest = decode(fmt, ((2**exponent_bits - 1) << mantissa_bits) - 1 if has_infinity else 0x7E)
        tiny = decode(fmt, 1)
        assert isinstance(largest, Fraction) and isinstance(tiny, Fraction)
        ulp = Fraction(1, 2**mantissa_bits)
        values += [largest, largest * (1 + ulp / 4), largest * (1 + ulp / 2), largest * 2]
        values += [tiny, tiny / 2, tiny * 3 / 2, tiny / 4, tiny * 2**mantissa_bits, tiny * (2**mantissa_bits - 1)]
        values += [1 + ulp, 1 + ulp / 2, 1 + ulp * 3 / 2, 1 + ulp / 2 + Fraction(1, 2**50), 2**40 + 2**40 * ulp / 2 + 1]
    values += [-v for v in values]
    bits = {encode(name, v) for v in values}
    if name in INTEGERS:
        width, signed = INTEGERS[name]
        return tuple(sorted(bits | {2**width - 1, 2 ** (width - 1), 2 ** (width - 1) - 1}))
    bits |= {encode(name, special) for special in ("inf", "-inf", "nan", "-nan", "-0")}
    width, _, mantissa_bits, _, _ = FORMATS[name]
    infinity = encode(name, "inf")
    bits |= {infinity + 1, infinity + 1 + (1 << (width - 1)), infinity + (1 << mantissa_bits) - 1}  # signalling NaN
    if name == "float32":
        bits |= {0x7F800001, 0x3E89CCD5, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF}
    return tuple(sorted(bits))


def check(source: str, bits: list[int], target: str) -> None:
    given_array = from_bits(source, bits)
    before = given_array.tobytes()
    result = convert(given_array, target)
    assert result.dtype == NUMPY[target]
    assert given_array.tobytes() == before
    got = [pattern(target, b) for b in unsigned(result).tolist()]
    wrong = [
        (hex(b), decode(source, b), hex(g), hex(e))
        for b, g in zip(bits, got, strict=True)
        if g != (e := expected(source, b, target))
    ]
    assert not wrong, wrong[:10]


@pytest.mark.parametrize("target", REAL)
@pytest.mark.parametrize("source", REAL)
def test_every_pair_on_edge_values(source: str, target: str) -> None:
    if source == target:
        array = from_bits(source, edges(source))
        assert convert(array, target) is array
    else:
        check(source, list(edges(source)), target)


@pytest.mark.parametrize("source", ["float32", "float64", "int32", "uint32", "int64", "uint64"])
@given(data=st.data())
def test_every_pair_on_random_patterns(source: str, data: st.DataObject) -> None:
    width = NUMPY[source].itemsize * 8
    bits = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=8))
    for target in REAL:
        if target != source:
            check(source, bits, target)


def test_the_oracle_knows_float64() -> None:
    for value in (1.0, -2.5, 5e-324, 1.7976931348623157e308, 0.1, math.inf, 2.2250738585072014e-308):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        decoded = decode("float64", bits)
        assert decoded == (Fraction(value) if math.isfinite(value) else "inf")
        assert encode("float64", decoded) == bits


# All patterns of the 16-bit types, vectorised: positive patterns of a format ascend with their values, so bisection
# among the midpoints, which float64 holds exactly, finds the nearest.


@cache
def values_of(name: str) -> np.ndarray[Any, Any]:
    """float64 values of all patterns of a type of at most 16 bits; NaN and infinity as such."""
    special = {"nan": math.nan, "-nan": -math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}
    values = (decode(name, bits) for bits in range(2 ** (NUMPY[name].itemsize * 8)))
    return np.array([special[v] if isinstance(v, str) else float(v) for v in values])


def nearest(values: np.ndarray[Any, Any], target: str) -> np.ndarray[Any, Any]:
    """Patterns of ``target`` nearest to finite float64 values."""
    width, exponent_bits, mantissa_bits, has_infinity, saturates = FORMATS[target]
    largest = ((2**exponent_bits - 1) << mantissa_bits) - 1 if has_infinity else 0x7E
    grid = values_of(target)[: largest + 1]
    midpoints = np.append((grid[1:] + grid[:-1]) / 2, grid[-1] + (grid[-1] - grid[-2]) / 2)
    index: np.ndarray[Any, Any] = np.searchsorted(midpoints, np.abs(values))
    tie = (index < len(midpoints)) & (midpoints[np.minimum(index, largest)] == np.abs(values))
    index = np.where(tie & (index % 2 == 1), index + 1, index)
    if saturates:
        index = np.minimum(index, largest)
    index += np.signbit(values).astype(np.int64) << (width - 1)
    return index


@pytest.mark.parametrize(
    ("source", "target"),
    [(source, target) for source in ("float16", "bfloat16") for target in REAL if source != target],
)
def test_all_patterns_of_the_16_bit_floats(source: str, target: str) -> None:
    values = values_of(source)
    result = convert(from_bits(source, range(2**16)), target)
    finite, nan = np.isfinite(values), np.isnan(values)
    if target == "bool":
        np.testing.assert_array_equal(result, nan | (values != 0))
    elif target in INTEGERS:
        info = np.iinfo(target)
        whole = (0 if math.isnan(v) else int(v) for v in np.clip(values, -1e20, 1e20).tolist())
        assert result.tolist() == [min(max(v, info.min), info.max) for v in whole]
    elif target in ("float32", "float64"):
        np.testing.assert_array_equal(unsigned(result)[~nan], unsigned(values.astype(target))[~nan])
        assert np.isnan(result[nan]).all()
    else:
        np.testing.assert_array_equal(unsigned(result)[finite], nearest(values[finite], target))
        infinite = np.isinf(values)
        assert (np.isnan if target == "float8_e4m3fn" else np.isinf)(result[infinite]).all()
        assert np.isnan(result[nan]).all()
    if target in FORMATS:
        np.testing.assert_array_equal(np.signbit(result.astype(np.float32)), np.arange(2**16) >= 2**15)


@pytest.mark.parametrize("source", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_widening_and_back_is_the_identity(source: str) -> None:
    array = from_bits(source, range(2 ** (8 * NUMPY[source].itemsize)))
    for wide in ("float32", "float64"):
        back = convert(convert(array, wide), source)
        numbers = ~np.isnan(values_of(source))
        np.testing.assert_array_equal(unsigned(back)[numbers], unsigned(array)[numbers])
        assert np.isnan(back[~numbers]).all()


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bfloat16_has_the_bits_of_ml_dtypes(low: int) -> None:
    bits = (np.arange(2**16, dtype=np.uint32) << 16) | np.uint32(low)
    array = bits.view(np.float32)
    with np.errstate(all="ignore"):
        reference = array.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(unsigned(convert(array, "bfloat16")), unsigned(reference))


def test_named_patterns() -> None:
    array = from_bits("float32", [0x7F800001, 0x3E89CCD5, 0x7F7FFFFF])
    assert unsigned(convert(array, "bfloat16")).tolist() == [0x7FC0, 0x3E8A, 0x7F80]
    floats = np.array([math.inf, -math.inf, math.nan, 300.0, -1.0, 3e9, 1e20])
    assert convert(floats, "uint8").tolist() == [255, 0, 0, 255, 0, 255, 255]
    assert convert(floats, "int32").tolist() == [2**31 - 1, -(2**31), 0, 300, -1, 2**31 - 1, 2**31 - 1]
    assert convert(floats, "int64").tolist() == [2**63 - 1, -(2**63), 0, 300, -1, 3 * 10**9, 2**63 - 1]
    assert convert(floats, "float16").tolist()[3:] == [300.0, -1.0, 65504.0, 65504.0]
    assert convert(np.array([300, -1, 2**31]), "uint8").tolist() == [44, 255, 0]


COMPLEX = np.array([complex(1, -2), complex(math.nan, 1), complex(0, 0), complex(-0.0, math.inf), complex(1e300, 0)])


@pytest.mark.parametrize("source", REAL)
@pytest.mark.parametrize("target", ["complex64", "complex128"])
def test_real_to_complex_has_the_converted_real_part(source: str, target: str) -> None:
    array = from_bits(source, edges(source))
    result = convert(array, target)
    component = DTYPES[target].real
    got = [pattern(component, b) for b in unsigned(result.real).tolist()]
    assert got == [expected(source, b, component) for b in edges(source)]
    assert not result.imag.any()


def test_complex_to_complex_and_bool() -> None:
    narrow = convert(COMPLEX, "complex64")
    assert narrow.dtype == np.complex64
    np.testing.assert_array_equal(narrow.real, np.array([1, math.nan, 0, -0.0, math.inf], np.float32))
    np.testing.assert_array_equal(narrow.imag, np.array([-2, 1, 0, math.inf, 0], np.float32))
    np.testing.assert_array_equal(convert(narrow, "complex128"), narrow)
    for array in (COMPLEX, narrow):
        assert convert(array, "bool").tolist() == [True, True, False, True, True]
    signalling = np.array([0x7F800001, 0], np.uint32).view(np.complex64)
    quiet = convert(np.asfortranarray([signalling, signalling]), "complex128").real
    assert [int(bits) >> 51 & 1 for bits in unsigned(quiet).ravel()] == [1, 1]


@pytest.mark.parametrize("target", [name for name in DTYPES if DTYPES[name].kind not in ("complex", "bool")])
def test_complex_to_real_is_refused(target: str) -> None:
    with pytest.raises(DTypeError, match=f"convert: to=nbxtensor.{target}: complex128 has an imaginary part"):
        convert(COMPLEX, target)


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", ["float32", "int64", "bfloat16", "bool"])
def test_any_layout(source: str, target: str) -> None:
    base = convert(np.arange(-30, 30).reshape(3, 4, 5), source)
    flat = convert(np.ascontiguousarray(base), target)
    layouts = (lambda a: a, lambda a: a.T, lambda a: a[::-1, 1::2, ::-2], lambda a: a[1, 2, 3], lambda a: a[:, :0])
    for layout in (*layouts, lambda a: np.broadcast_to(a[:, :1], (2, 3, 4, 5)), np.asfortranarray):
        result = convert(layout(base), target)
        assert type(result) is np.ndarray
        assert result.shape == layout(flat).shape
        assert result.tobytes() == layout(flat).tobytes()


def test_a_read_only_input_is_left_alone() -> None:
    array = np.array([1e9, math.nan, -3.0], np.float32)
    array.flags.writeable = False
    assert convert(array, "float16").tolist()[0] == 65504.0
    assert convert(array, "float32") is array


def test_out() -> None:
    array = np.array([[1.5, -2.5], [math.nan, 1e9]], np.float32)
    out = np.zeros((2, 2), np.int32)
    assert convert(array, "int32", out=out) is out
    assert out.tolist() == [[1, -2], [0, 10**9]]
    copy = np.empty_like(array)
    assert convert(array, "float32", out=copy) is copy
    np.testing.assert_array_equal(copy, array)
    shared = np.array([1, -1, 2**31 - 1], np.int32)
    convert(shared, "float32", out=shared.view(np.float32))  # input and output share memory
    assert shared.view(np.float32).tolist() == [1.0, -1.0, 2.0**31]


@pytest.mark.parametrize("out", [np.zeros((2, 2), np.int64), np.zeros(4, np.int32)])
def test_out_of_another_dtype_or_shape_is_refused(out: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DTypeError, match=r"convert: out=.*must be int32 of shape \(2, 2\)"):
        convert(np.ones((2, 2)), "int32", out=out)


def test_what_has_no_dtype_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"convert: array\.dtype=dtype\('>f4'\)"):
        convert(np.ones(2, ">f4"), "float64")
    with pytest.raises(DTypeError, match="convert: to='float31'"):
        convert(np.ones(2), "float31")
