"""Functions that numpy lacks or rounds otherwise, and those of the device library."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nbxtensor.backend.reference.values import Array

_ERF_STEPS = 128  # nodes of the table for each 1
_ERF_END = 6  # erf is 1 in float64 from here on


@functools.cache
def _erf_table(terms: int) -> list[Array]:
    """The Taylor coefficients of erf at the nodes: one array for each power.

    Coefficient k is the k-th derivative over k!; the derivatives are Hermite polynomials times 2/sqrt(pi) exp(-x**2)
    (Abramowitz and Stegun, 7.2.8).
    """
    x = np.arange(_ERF_STEPS * _ERF_END + 1) / _ERF_STEPS
    scale = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    hermite, before = np.ones_like(x), np.zeros_like(x)
    table, factorial = [np.array([math.erf(v) for v in x])], 1.0
    for k in range(1, terms + 1):
        factorial *= k
        table.append((-1) ** (k - 1) * hermite * scale / factorial)
        hermite, before = 2 * x * hermite - 2 * (k - 1) * before, hermite
    return table


def erf(x: Any) -> Any:
    """The error function, to the last place but one."""
    table = _erf_table(4 if x.dtype == np.float32 else 7)
    magnitude = np.minimum(np.abs(np.asarray(x, np.float64)), _ERF_END)
    node = np.where(magnitude == magnitude, np.rint(magnitude * _ERF_STEPS), 0).astype(np.int64)
    d = magnitude - node / _ERF_STEPS
    total = table[-1][node]
    for coefficients in table[-2::-1]:
        total = total * d + coefficients[node]
    return np.copysign(total, x).astype(x.dtype)[()]


def rsqrt(x: Any) -> Any:
    return x.dtype.type(1) / np.sqrt(x)


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    if x.dtype == np.float64:
        function = _c_function("fma", 3)
        lanes = np.broadcast_arrays(x, y, z)
        return np.array([function(*v) for v in zip(*(a.ravel().tolist() for a in lanes))]).reshape(lanes[0].shape)[()]
    # The product is exact in float64. Where the sum is not, it is rounded to odd, which a second rounding cannot spoil.
    product, addend = np.multiply(x, y, dtype=np.float64), np.asarray(z, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    even = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    odd = np.where(even, bits + np.where(away, 1, -1), bits).view(np.float64)
    return odd.astype(x.dtype)[()]


def multiply_high(a: Any, b: Any) -> Any:
    """The upper half of the product of unsigned integers of 32 or 64 bits."""
    if a.dtype.itemsize == 4:
        return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(a.dtype)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    return a1 * b1 + (middle >> half) + (((middle & low) + a0 * b1) >> half)


@functools.cache
def _c_function(name: str, arguments: int) -> Callable[..., float]:
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * arguments
    return function  # type: ignore[no-any-return]


def _by_element(name: str) -> Callable[..., Any]:
    """A function of the C library, of one argument."""

    def apply(x: Any) -> Any:
        function = _c_function(name, 1)
        return np.array([function(v) for v in np.asarray(x, np.float64).ravel().tolist()]).reshape(x.shape)

    return apply


_LIBRARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": _by_element("erfc"),
    "exp": np.exp,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fabs": np.abs,
    "floor": np.floor,
    "fma": fma,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "isfinited": np.isfinite,
    "finite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "lgamma": _by_element("lgamma"),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "pow": np.power,
    "powi": np.power,
    "rint": np.rint,
    "round": _by_element("round"),
    "rsqrt": rsqrt,
    "signbit": np.signbit,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "tgamma": _by_element("tgamma"),
    "trunc": np.trunc,
}


def library_function(symbol: str) -> Callable[..., Any]:
    """The function behind a symbol of NVIDIA's device library, as "__nv_tanhf"."""
    name = symbol.removeprefix("__nv_")
    for spelling in (name, name.removesuffix("f"), name.removesuffix("d")):
        if spelling in _LIBRARY:
            return _LIBRARY[spelling]
    raise NotImplementedError(f"the reference driver does not interpret the device library's {symbol}")
