"""Oracles of the element-wise operators. Floats arrive as float64, integers and bool as they are, already broadcast or
not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def _quiet(function: Callable[..., Array]) -> Callable[..., Array]:
    """Infinities and NaN are results here, not events to warn of."""

    def oracle(*operands: Array, **params: Any) -> Array:
        with np.errstate(all="ignore"):
            return function(*operands, **params)

    oracle.__name__ = function.__name__
    return oracle


def _float(x: Array) -> Array:
    return np.asarray(x, dtype=np.float64)


def _is_float(x: Array) -> bool:
    return np.asarray(x).dtype.kind == "f"


add = _quiet(np.add)
mul = _quiet(np.multiply)
sub = _quiet(np.subtract)
div = _quiet(lambda a, b: _float(a) / _float(b))
maximum, minimum = _quiet(np.maximum), _quiet(np.minimum)
eq, ne, lt, le, gt, ge = (
    _quiet(f) for f in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
)
bitwise_and, bitwise_or, bitwise_xor = _quiet(np.bitwise_and), _quiet(np.bitwise_or), _quiet(np.bitwise_xor)
floor_divide, remainder = _quiet(np.floor_divide), _quiet(np.remainder)
neg, absolute, bitwise_not = _quiet(np.negative), _quiet(np.abs), _quiet(np.invert)
logical_not = _quiet(np.logical_not)
exp, log, sqrt, tanh = (_quiet(lambda x, f=f: f(_float(x))) for f in (np.exp, np.log, np.sqrt, np.tanh))
rsqrt = _quiet(lambda x: 1 / np.sqrt(_float(x)))
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def erf(x: Array) -> Array:
    return _erf(_float(x))


@_quiet
def sigmoid(x: Array) -> Array:
    x = _float(x)
    t = np.exp(-np.abs(x))
    return np.where(x < 0, t, 1.0) / (1 + t)


@_quiet
def silu(x: Array) -> Array:
    return _float(x) * sigmoid(x)


def relu(x: Array) -> Array:
    return np.where(x < 0, np.zeros_like(x), x)


@_quiet
def gelu(x: Array, approximate: str = "none") -> Array:
    x = _float(x)
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def masked_fill(x: Array, mask: Array, value: Array) -> Array:
    return np.where(mask, np.asarray(value).astype(np.asarray(x).dtype).reshape(()), x)
