"""Numbers for the tests of what interpreted kernels compute."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from driver.interpreted import Array, launch, operation

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = (np.float16, BF16, np.float32, np.float64)
TRITON = {np.float16: "fp16", BF16: "bf16", np.float32: "fp32", np.float64: "fp64", E4M3: "fp8e4nv", E5M2: "fp8e5"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def numbers(dtype: Any, n: int = 128, seed: int = 0) -> Array:
    """Random numbers of the dtype; integers over its whole range."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng(seed).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, n, dtype, endpoint=True)
    return (rng(seed).standard_normal(n) * 4).astype(dtype)


def apply(name: str, *operands: Array, out: Any = None) -> Array:
    """The operation on arrays of one dimension, by programs of 32."""
    n = operands[0].size
    result = np.zeros(n, operands[0].dtype if out is None else out)
    kernel = {1: "unary", 2: "binary"}[len(operands)]
    named = dict(zip(("x", "y"), operands, strict=False))
    launch("kernels_arithmetic", kernel, (-(-n // 32),), out=result, **named, n=n, OP=operation(name), BLOCK=32)
    return result


def same(found: Array, expected: Array) -> None:
    """Equal bit by bit, but for which NaN it is."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(found.astype(np.float64)), np.signbit(expected.astype(np.float64)))
