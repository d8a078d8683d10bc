"""The language's commonest functions, for operands of which the answer of Triton's front end is known.

Each stands for Triton's own function and hands over to it whatever it has no short way for: other dtypes, other
options, and everything that is an error. Importing this module imports Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from nbxtensor.backend.reference import mathematics
from nbxtensor.backend.reference.builder import EXECUTION
from nbxtensor.backend.reference.operators import operands
from nbxtensor.backend.reference.tensors import SEMANTIC, Spec, Tensor, adopt, shared, spec_of
from nbxtensor.backend.reference.values import NUMPY, Value, convert

_NUMBERS = frozenset({"int", "float", "small float"})
_ANY = _NUMBERS | {"bool"}
_FLOAT8 = frozenset(name for name in NUMPY if name.startswith("fp8"))
_INT32 = spec_of(tl.int32, ())


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def program_id(axis: Any) -> Any:
    if axis in (0, 1, 2):
        return Tensor(Value(np.int32(EXECUTION.program[_plain(axis)]), ()), _INT32)
    return adopt(tl.program_id(axis, _semantic=SEMANTIC))


def arange(start: Any, end: Any) -> Any:
    start, end = _plain(start), _plain(end)
    if type(start) is int and type(end) is int:
        return _arange(start, end)
    return adopt(tl.arange(start, end, _semantic=SEMANTIC))


@functools.lru_cache(256)
def _arange(start: int, end: int) -> Any:
    return adopt(tl.arange(start, end, _semantic=SEMANTIC))


def full(shape: Any, value: Any, dtype: Any) -> Any:
    dims, dtype = tuple(_plain(n) for n in _plain(shape)), _plain(dtype)
    if (type(value) is int or type(value) is float) and dtype.name in NUMPY and all(type(n) is int for n in dims):
        return _full(dims, value, type(value).__name__, dtype.name)
    return adopt(tl.full(shape, value, dtype, _semantic=SEMANTIC))


@functools.lru_cache(256)
def _full(dims: tuple[int, ...], value: Any, kind: str, dtype: str) -> Any:
    """A block of one number; ``kind`` tells 0 from 0.0."""
    return adopt(tl.full(dims, value, tl.dtype(dtype), _semantic=SEMANTIC))


def cast(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> Any:
    if type(input) is Tensor and type(dtype) is tl.dtype and fp_downcast_rounding is None and bitcast is False:
        if dtype is input.spec.dtype:
            return input
        if _is_conversion(input.spec.dtype.name, dtype.name):
            dims = input.spec.dims
            return Tensor(Value(convert(input.handle.data, NUMPY[dtype.name]), dims), spec_of(dtype, dims))
    return adopt(tl.cast(input, dtype, fp_downcast_rounding, bitcast, _semantic=SEMANTIC))


@functools.cache
def _is_conversion(source: str, to: str) -> bool:
    """Whether numbers can be converted so. Between float8 and integers there is no conversion."""
    if source not in NUMPY or to not in NUMPY:
        return False
    return not any(one in _FLOAT8 and NUMPY[other].kind in "iub" for one, other in ((source, to), (to, source)))


def where(condition: Any, x: Any, y: Any) -> Any:
    if type(condition) is Tensor and condition.spec.kind == "bool":
        found = _branches(x, y)
        dims = None if found is None else shared(found[2].dims, condition.spec.dims)
        if found is not None and dims is not None:
            a, b, spec = found
            return Tensor(Value(np.where(condition.handle.data, a, b)[()], dims), spec_of(spec.dtype, dims))
    return adopt(tl.where(condition, x, y, _semantic=SEMANTIC))


def _branches(x: Any, y: Any) -> tuple[Any, Any, Spec] | None:
    if type(x) is Tensor:
        return operands(x, y, _ANY)
    found = operands(y, x, _ANY) if type(y) is Tensor else None
    return None if found is None else (found[1], found[0], found[2])


def _extreme(original: Any, of_floats: np.ufunc, of_integers: np.ufunc) -> Callable[..., Any]:
    def call(x: Any, y: Any, propagate_nan: Any = tl.PropagateNan.NONE) -> Any:
        found = operands(x, y, _NUMBERS) if type(x) is Tensor and propagate_nan == tl.PropagateNan.NONE else None
        if found is None:
            return adopt(original(x, y, propagate_nan, _semantic=SEMANTIC))
        a, b, spec = found
        return Tensor(Value((of_integers if spec.kind == "int" else of_floats)(a, b), spec.dims), spec)

    return call


def _function(original: Any, operation: Callable[[Any], Any], *dtypes: str) -> Callable[..., Any]:
    accepted = frozenset(NUMPY[name] for name in dtypes)

    def call(x: Any) -> Any:
        if type(x) is Tensor and x.spec.numpy in accepted:
            return Tensor(Value(operation(x.handle.data), x.spec.dims), x.spec)
        return adopt(original(x, _semantic=SEMANTIC))

    return call


_products: dict[Any, Spec] = {}


def dot(input: Any, other: Any, acc: Any = None, *more: Any, **options: Any) -> Any:
    """The front end checks the operands once for each combination of types and options."""
    if more or not (type(input) is Tensor and type(other) is Tensor and (acc is None or type(acc) is Tensor)):
        return adopt(tl.dot(input, other, acc, *more, **options, _semantic=SEMANTIC))
    named = tuple((name, getattr(value, "name", value)) for name, value in options.items())
    key = (input.spec, other.spec, None if acc is None else acc.spec, named)
    spec = _products.get(key)
    if spec is None:
        result = adopt(tl.dot(input, other, acc, **options, _semantic=SEMANTIC))
        _products[key] = result.spec
        return result
    total = Value(spec.numpy.type(0), spec.dims) if acc is None else acc.handle
    return Tensor(SEMANTIC.builder.create_dot(input.handle, other.handle, total), spec)


#: Triton's function, and what stands for it.
SHORTCUTS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (tl.program_id, program_id),
    (tl.arange, arange),
    (tl.full, full),
    (tl.cast, cast),
    (tl.where, where),
    (tl.dot, dot),
    (tl.maximum, _extreme(tl.maximum, np.fmax, np.maximum)),
    (tl.minimum, _extreme(tl.minimum, np.fmin, np.minimum)),
    (tl.sqrt_rn, _function(tl.sqrt_rn, np.sqrt, "fp32")),
    *(
        (getattr(tl, name), _function(getattr(tl, name), operation, "fp32", "fp64"))
        for name, operation in (
            ("exp", np.exp),
            ("exp2", np.exp2),
            ("log", np.log),
            ("log2", np.log2),
            ("sqrt", np.sqrt),
            ("rsqrt", mathematics.rsqrt),
            ("erf", mathematics.erf),
            ("floor", np.floor),
            ("ceil", np.ceil),
            ("abs", np.abs),
        )
    ),
)
