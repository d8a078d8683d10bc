"""The operators: what users call. Importing this package binds the operator methods to `NBXTensor`."""

from __future__ import annotations

from nbxtensor.ops import copying as copying
from nbxtensor.ops import creation as creation
from nbxtensor.ops import elementwise as elementwise
from nbxtensor.ops.copying import cast, cat, clone, contiguous, copy_, fill_, reshape, stack, to
from nbxtensor.ops.creation import (
    arange,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from nbxtensor.ops.elementwise import (
    abs,
    add,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    div,
    eq,
    erf,
    exp,
    floor_divide,
    ge,
    gelu,
    gt,
    le,
    log,
    logical_not,
    lt,
    masked_fill,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    relu,
    remainder,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    sub,
    tanh,
    where,
)

__all__ = [
    name for name, value in list(globals().items()) if not name.startswith("_") and getattr(value, "__module__", "").startswith("nbxtensor.ops.")
]
