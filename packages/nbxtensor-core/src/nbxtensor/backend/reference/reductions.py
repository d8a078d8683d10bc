"""Reductions and scans, with any combining function.

A combining function is applied to whole halves at a time, neighbours first, which keeps the order of the elements and
takes log2(n) calls. Every result is rounded to the elements' dtype, as on the hardware. Triton's own sums, extremes and
products of wide numbers go to numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from nbxtensor.backend.reference.tensors import AmbiguousTruth, Tensor, spec_of
from nbxtensor.backend.reference.values import SMALL_FLOATS, Array, Pointer, Value

Combine = Callable[..., Any]


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """``tl.reduce`` of a tensor or a tuple of them; ``axis`` None reduces all elements."""
    single = isinstance(input, Tensor)
    inputs: tuple[Tensor, ...] = (input,) if single else tuple(input)
    axis, keep = _plain(axis), bool(_plain(keep_dims))
    dims = inputs[0].spec.dims
    arrays = _arrays(inputs)
    if axis is None:
        arrays, at, kept = [a.reshape(-1) for a in arrays], 0, (1,) * len(dims)
    else:
        at = _axis(axis, dims)
        kept = (*dims[:at], 1, *dims[at + 1 :])
    ufunc = _ufunc(combine_fn, arrays)
    if ufunc is not None:
        results = [ufunc.reduce(arrays[0], axis=at, dtype=arrays[0].dtype)]
    else:
        results = _tree(_combiner(combine_fn, inputs), [np.moveaxis(a, at, 0) for a in arrays])
    shape = kept if keep else () if axis is None else (*dims[:at], *dims[at + 1 :])
    tensors = tuple(_tensor(r.reshape(shape)[()], t, shape) for r, t in zip(results, inputs))
    return tensors[0] if single else tensors


def reduce_with_indices(input: Tensor, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """The reduction of (element, its index along the axis) that ``tl.argmax`` and its like are made of."""
    dims = input.spec.dims
    at = _axis(_plain(axis), dims)
    name = getattr(getattr(combine_fn, "raw", None), "__name__", "")
    extreme = _INDEXED.get(name) if _is_standard(combine_fn) else None
    data = input.handle.full()
    if extreme is not None and not (data != data).any():
        index = np.expand_dims(extreme(data, axis=at).astype(np.int32), at)
        value = np.take_along_axis(data, index, at)
        shape = (*dims[:at], *((1,) if _plain(keep_dims) else ()), *dims[at + 1 :])
        spec = spec_of(tl.int32, shape)
        return _tensor(value.reshape(shape)[()], input, shape), Tensor(Value(index.reshape(shape)[()], shape), spec)
    line = np.arange(dims[at], dtype=np.int32).reshape([-1 if a == at else 1 for a in range(len(dims))])
    return reduce((input, Tensor(Value(line, dims), spec_of(tl.int32, dims))), at, combine_fn, keep_dims)


def scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """``tl.associative_scan`` of a tensor or a tuple of them."""
    single = isinstance(input, Tensor)
    inputs: tuple[Tensor, ...] = (input,) if single else tuple(input)
    dims = inputs[0].spec.dims
    at, backward = _axis(_plain(axis), dims), bool(_plain(reverse))
    arrays = [np.moveaxis(a, at, 0) for a in _arrays(inputs)]
    if backward:
        arrays = [a[::-1] for a in arrays]
    ufunc = _ufunc(combine_fn, arrays)
    if ufunc is not None and arrays[0].dtype.kind in "iu":
        results = [ufunc.accumulate(arrays[0], axis=0, dtype=arrays[0].dtype)]
    else:
        results = _prefixes(_combiner(combine_fn, inputs), arrays)
    if backward:
        results = [r[::-1] for r in results]
    tensors = tuple(_tensor(np.moveaxis(r, 0, at), t, dims) for r, t in zip(results, inputs))
    return tensors[0] if single else tensors


def map_elementwise(scalar_fn: Any, *args: Tensor, pack: Any = 1) -> Any:
    """``tl.map_elementwise``: a function of scalars, called for each ``pack`` elements."""
    pack = _plain(pack)
    dims = np.broadcast_shapes(*(t.spec.dims for t in args))
    lines = [np.broadcast_to(t.handle.data, dims).reshape(-1) for t in args]
    collected: list[list[Any]] = []
    specs: list[Any] = []
    for i in range(0, lines[0].size, pack):
        scalars = [
            Tensor(Value(line[i + j], ()), spec_of(t.dtype, ())) for line, t in zip(lines, args) for j in range(pack)
        ]
        found = scalar_fn(*scalars)
        found = found if isinstance(found, tuple) else (found,)
        if not collected:
            collected, specs = [[] for _ in found[::pack]], [f.spec for f in found[::pack]]
        for k in range(len(collected)):
            collected[k].extend(f.handle.data for f in found[k * pack : (k + 1) * pack])
    tensors = tuple(
        Tensor(Value(np.array(data, s.numpy).reshape(dims), dims), spec_of(s.dtype, dims))
        for data, s in zip(collected, specs)
    )
    return tensors[0] if len(tensors) == 1 else tensors


def _tree(combine: Combine, arrays: list[Array]) -> list[Array]:
    """Reduces the first axis, whose length is a power of two."""
    while arrays[0].shape[0] > 1:
        arrays = combine([a[0::2] for a in arrays], [a[1::2] for a in arrays])
    return [a[0] if a.ndim > 1 else a for a in arrays]


def _prefixes(combine: Combine, arrays: list[Array]) -> list[Array]:
    """The inclusive scan along the first axis: that of the pairs, then one step on for the elements between."""
    n = arrays[0].shape[0]
    if n == 1:
        return arrays
    pairs = _prefixes(combine, combine([a[0::2] for a in arrays], [a[1::2] for a in arrays]))
    # The first of these is no prefix and is dropped; it keeps the length a power of two.
    before = [np.concatenate([p[-1:], p[:-1]]) for p in pairs]
    between = combine(before, [a[0::2] for a in arrays])
    results = []
    for array, odd, even in zip(arrays, pairs, between):
        result = np.empty_like(array)
        result[1::2], result[0::2], result[0] = odd, even, array[0]
        results.append(result)
    return results


def _combiner(function: Any, like: tuple[Tensor, ...]) -> Combine:
    """``function`` on lists of arrays."""

    def combine(left: list[Array], right: list[Array]) -> list[Array]:
        shape = left[0].shape
        operands = [_tensor(a, t, shape) for side in (left, right) for a, t in zip(side, like)]
        try:
            found = function(*operands)
        except AmbiguousTruth:  # it branches on its scalars: one lane after another
            return _lanes(function, left, right, like)
        found = found if isinstance(found, tuple) else (found,)
        return [np.broadcast_to(_result(f, t).data, shape) for f, t in zip(found, like)]

    return combine


def _lanes(function: Any, left: list[Array], right: list[Array], like: tuple[Tensor, ...]) -> list[Array]:
    results = [np.empty_like(a) for a in left]
    for index in np.ndindex(left[0].shape):
        operands = [_tensor(a[index], t, ()) for side in (left, right) for a, t in zip(side, like)]
        found = function(*operands)
        for result, f, t in zip(results, found if isinstance(found, tuple) else (found,), like):
            result[index] = _result(f, t).data
    return results


def _result(found: Tensor, like: Tensor) -> Any:
    if found.dtype != like.dtype:
        raise TypeError(f"the combining function returns {found.dtype} for {like.dtype}")
    return found.handle


def _arrays(inputs: tuple[Tensor, ...]) -> list[Array]:
    dims = inputs[0].spec.dims
    if not dims or any(t.spec.dims != dims for t in inputs):
        raise ValueError(f"blocks of one shape are reduced, not {[t.spec.dims for t in inputs]}")
    return [t.handle.full() for t in inputs]


def _tensor(data: Any, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    if isinstance(like.handle, Pointer):
        raise NotImplementedError("the reference driver does not reduce pointers")
    return Tensor(Value(data, shape), spec_of(like.dtype, shape))


def _axis(axis: int, dims: tuple[int, ...]) -> int:
    if not -len(dims) <= axis < len(dims):
        raise ValueError(f"axis {axis} is not one of a block of shape {dims}")
    return axis % len(dims)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


_FLOAT_UFUNCS: dict[str, np.ufunc] = {"_sum_combine": np.add, "_elementwise_max": np.fmax, "_elementwise_min": np.fmin}
_INT_UFUNCS: dict[str, np.ufunc] = {
    "_sum_combine": np.add,
    "_prod_combine": np.multiply,
    "_elementwise_max": np.maximum,
    "_elementwise_min": np.minimum,
    "_xor_combine": np.bitwise_xor,
    "_or_combine": np.bitwise_or,
}
_INDEXED: dict[str, Callable[..., Any]] = {
    "_argmax_combine_tie_break_left": np.argmax,
    "_argmax_combine_tie_break_fast": np.argmax,
    "_argmin_combine_tie_break_left": np.argmin,
    "_argmin_combine_tie_break_fast": np.argmin,
}


def _is_standard(function: Any) -> bool:
    return getattr(getattr(function, "raw", None), "__module__", "") == "triton.language.standard"


def _ufunc(function: Any, arrays: list[Array]) -> np.ufunc | None:
    """Numpy's equal of a combining function of Triton's standard library. Small floats have none: each step is
    rounded."""
    if not _is_standard(function):
        return None
    dtype = arrays[0].dtype
    if dtype in SMALL_FLOATS or dtype == np.bool_:
        return None
    return (_INT_UFUNCS if dtype.kind in "iu" else _FLOAT_UFUNCS).get(function.raw.__name__)
