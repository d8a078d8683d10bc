"""Oracles of the matrix products. Floats arrive as float64; integers in their dtype, whose products wrap around."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nbxtensor.ops.oracles import elementwise

Array = Any
_ACTIVATIONS: Mapping[str, Callable[..., Array]] = {
    "relu": elementwise.relu,
    "gelu": elementwise.gelu,
    "gelu_tanh": lambda x: elementwise.gelu(x, "tanh"),
    "silu": elementwise.silu,
}


def matmul(a: Array, b: Array, precision: str = "ieee") -> Array:
    with np.errstate(all="ignore"):
        return np.matmul(a, b)


mm = bmm = mv = dot = matmul


def linear(
    x: Array, weight: Array, bias: Array = None, activation: str | None = None, precision: str = "ieee"
) -> Array:
    product = matmul(x, weight.T)
    if bias is not None:
        product = product + bias
    return product if activation is None else _ACTIVATIONS[activation](product)


def _number(value: int | float, like: Array) -> Array:
    """A number in the dtype of an operand; among integers it wraps around, as the products do."""
    dtype = np.asarray(like).dtype
    return value if dtype.kind == "f" else np.int64(value).astype(dtype)


def addmm(
    input: Array, a: Array, b: Array, beta: int | float = 1, alpha: int | float = 1, precision: str = "ieee"
) -> Array:
    product = np.multiply(matmul(a, b), _number(alpha, a))
    return product if beta == 0 else np.multiply(input, _number(beta, input)) + product


baddbmm = addmm
