"""Conversion between dtypes inside a kernel, by the rules of `nbxtensor.dtype.convert`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convert(x, TO: tl.constexpr, SATURATE: tl.constexpr):
    """``x`` as dtype ``TO``. Float to integer truncates and saturates, NaN gives 0; to bool is ``!= 0``. With
    ``SATURATE`` a finite value beyond float16 or float8 gives their largest finite value, as an explicit cast asks;
    without it, infinity as arithmetic asks."""
    if x.dtype == TO:
        return x
    else:
        return _convert(_wide(x), TO, SATURATE)


@triton.jit
def _wide(x):
    """float8 as float32 and bool as int32: compilers know few conversions of them."""
    if x.dtype.is_fp8():
        return x.to(tl.float32)
    elif x.dtype == tl.int1:
        return x.to(tl.int32)
    else:
        return x


@triton.jit
def _convert(x, TO: tl.constexpr, SATURATE: tl.constexpr):
    if x.dtype == TO:
        return x
    elif TO == tl.int1:
        return x != 0
    elif TO.is_fp8():
        return _to_float8(x, TO, SATURATE)
    elif TO.is_int() and x.dtype.is_floating():
        return _to_integer(x, TO)
    elif TO == tl.float16 and SATURATE:
        return _to_float16(x)
    elif TO == tl.bfloat16 and not (x.dtype.is_floating() and x.dtype.primitive_bitwidth <= 32):
        return x.to(tl.float32).to(TO)
    else:
        return x.to(TO)


@triton.jit
def _to_integer(x, TO: tl.constexpr):
    if x.dtype.primitive_bitwidth < 32:
        x = x.to(tl.float32)
    bits: tl.constexpr = TO.primitive_bitwidth
    if TO.is_int_signed():
        # Compared as floats: -2**(bits-1) is exact in every float, and 2**(bits-1) is the first value too large.
        top: tl.constexpr = 2.0 ** (bits - 1)
        low: tl.constexpr = -(2.0 ** (bits - 1))
        highest: tl.constexpr = 2 ** (bits - 1) - 1
        lowest: tl.constexpr = -(2 ** (bits - 1))
    else:
        top: tl.constexpr = 2.0**bits
        low: tl.constexpr = 0.0
        highest: tl.constexpr = 2**bits - 1
        lowest: tl.constexpr = 0
    inside = (x >= low) & (x < top)
    safe = tl.where(inside, x, 0.0)
    if bits < 32:
        result = safe.to(tl.int32).to(TO)
    else:
        result = safe.to(TO)
    result = tl.where(x >= top, tl.full(x.shape, highest, TO), result)
    return tl.where(x < low, tl.full(x.shape, lowest, TO), result)


@triton.jit
def _to_float16(x):
    if not x.dtype.is_floating():
        x = x.to(tl.float64) if x.dtype.primitive_bitwidth > 16 else x.to(tl.float32)
    elif x.dtype.primitive_bitwidth < 32:
        x = x.to(tl.float32)  # bfloat16 rounds the limit up
    finite = tl.abs(x) < float("inf")
    clipped = tl.where(x > 65504.0, 65504.0, tl.where(x < -65504.0, -65504.0, x))
    return tl.where(finite, clipped, x).to(tl.float16)


@triton.jit
def _to_float8(x, TO: tl.constexpr, SATURATE: tl.constexpr):
    """Nearest even by arithmetic on the bits of the float32 value, the same on devices with and without float8
    units."""
    if x.dtype == tl.int1:
        x = x.to(tl.int32)
    if SATURATE and x.dtype == tl.float64:  # the largest are infinite in float32
        far = (tl.abs(x) > 65536.0) & (tl.abs(x) < float("inf"))
        x = tl.where(far, tl.where(x < 0, -65536.0, 65536.0), x)
    x = x.to(tl.float32)
    mantissa: tl.constexpr = 3 if TO == tl.float8e4nv else 2
    smallest: tl.constexpr = -6 if TO == tl.float8e4nv else -14  # exponent of the smallest normal number
    nan: tl.constexpr = 0x7F
    infinite: tl.constexpr = 0x7F if TO == tl.float8e4nv else 0x7C
    a = tl.abs(x)
    bits = a.to(tl.int32, bitcast=True)
    # A subnormal result is a multiple of 2**(smallest - mantissa): adding 2**23 of that unit rounds to it.
    unit: tl.constexpr = 2.0 ** (smallest - mantissa)
    shifted = a + unit * 8388608.0
    small = shifted.to(tl.int32, bitcast=True) - tl.full(x.shape, unit * 8388608.0, tl.float32).to(
        tl.int32, bitcast=True
    )
    drop: tl.constexpr = 23 - mantissa
    rounded = bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)
    normal = (rounded >> drop) - ((127 + smallest - 1) << mantissa)
    code = tl.where(a < 2.0**smallest, small, normal)
    largest_code: tl.constexpr = 0x7E if TO == tl.float8e4nv else 0x7B
    over = code > largest_code
    if SATURATE:
        code = tl.where(over, largest_code, code)
    else:
        code = tl.where(over, infinite, code)
    code = tl.where(a == float("inf"), infinite, code)
    code = tl.where(x != x, nan, code)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8).to(TO, bitcast=True)
