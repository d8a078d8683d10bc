"""Reductions over any axes."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from nbxtensor import shape as _shape
from nbxtensor.dtype import DType, DTypeLike, bool_, float32, int32, int64
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ShapeError
from nbxtensor.kernels import reduction as kernel
from nbxtensor.kernels.plan import Plan, Ref
from nbxtensor.ops.dispatch import Dispatcher
from nbxtensor.ops.elementwise import accepted, to_float
from nbxtensor.ops.oracles import reduction as oracle
from nbxtensor.ops.table import (
    BOOL,
    FLOATS,
    INTS,
    ErrorSample,
    Input,
    Operator,
    Sample,
    Tolerance,
    elementwise_cost,
    register,
    scaled,
)
from nbxtensor.tensor import NBXTensor, Spec, spec

_REAL = (*FLOATS, *INTS, *BOOL)


def _reduced(where: str, x: Spec, dim: Any, keepdim: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(axes, shape of the result)."""
    axes = _shape.normalize_axes(dim, len(x.shape), where=where, argument="dim")
    if keepdim:
        return axes, tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    return axes, tuple(n for d, n in enumerate(x.shape) if d not in axes)


def _accumulator(dtype: DType) -> DType:
    """What sums are accumulated in: float32 (float64 for float64) or 64-bit integers."""
    if dtype.kind == "float":
        return float32 if dtype.itemsize < 4 else dtype
    return dtype if dtype == "uint64" else int64


def _sum_dtype(dtype: DType) -> DType:
    return dtype if dtype.kind == "float" or dtype == "uint64" else int64


def _plan(
    name: str, combine: str, identity: Callable[[DType], Any], result: Callable[[DType], DType], *,
    test: bool = False, mean: bool = False, needs_elements: bool = False, keeps: bool = False,
) -> Callable[..., Plan]:  # fmt: skip
    """The plan function of a reduction; ``keeps``: it accumulates in the element's own dtype."""

    def planned(x: Spec, dim: Any, keepdim: bool, dtype: DType | None) -> Plan:
        accepted(name, "x", x.dtype, _REAL)
        axes, shape = _reduced(name, x, dim, keepdim)
        if needs_elements and builtins.any(x.shape[d] == 0 for d in axes):
            raise ShapeError(name, "x", x.shape, f"has no elements along {axes}, and the operator no value for none")
        wanted = dtype if dtype is not None else result(x.dtype)
        accumulate = int32 if wanted is bool_ else _accumulator(wanted)
        if keeps:
            accumulate = (
                int32 if x.dtype is bool_ else float32 if x.dtype.kind == "float" and x.dtype.itemsize < 4 else x.dtype
            )
        out = spec(x.device, wanted, shape)
        steps, work = kernel.steps(
            x.device.facts, combine, identity(accumulate), (Ref("out", 0), out), (Ref("in", 0), x), axes, accumulate,
            test=test, mean=mean,
        )  # fmt: skip
        return Plan((out,), steps, work)

    return planned


def _lowest(dtype: DType) -> Any:
    return float("-inf") if dtype.kind == "float" else int(dtype.min)


def _highest(dtype: DType) -> Any:
    return float("inf") if dtype.kind == "float" else int(dtype.max)


def _dispatch(name: str, plan: Callable[..., Plan]) -> Callable[..., Any]:
    roles = (("x", "tensor"), ("dim", "param"), ("keepdim", "param"), ("dtype", "param"))
    return Dispatcher(name, roles, plan).function()


_sum = _dispatch("sum", _plan("sum", "total", lambda d: 0, _sum_dtype))
_prod = _dispatch("prod", _plan("prod", "product", lambda d: 1, _sum_dtype))
_mean = _dispatch("mean", _plan("mean", "total", lambda d: 0, to_float, mean=True))
_amax = _dispatch("amax", _plan("amax", "largest", _lowest, lambda d: d, needs_elements=True, keeps=True))
_amin = _dispatch("amin", _plan("amin", "smallest", _highest, lambda d: d, needs_elements=True, keeps=True))
_any = _dispatch("any", _plan("any", "either", lambda d: 0, lambda d: bool_, test=True))
_all = _dispatch("all", _plan("all", "both", lambda d: 1, lambda d: bool_, test=True))


def sum(
    x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> NBXTensor:
    """The sum over ``dim`` (an axis, several, or all). Integers and bool give int64 (uint64 stays); floats keep their
    dtype and accumulate in float32, float64 in float64. ``dtype`` is that of the result. Nothing sums to 0."""
    return _sum(x, dim, keepdim, None if dtype is None else _dtype(dtype, where="sum"))  # type: ignore[no-any-return]


def prod(
    x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> NBXTensor:
    """The product over ``dim``, with the dtypes of `sum`. Nothing multiplies to 1."""
    return _prod(x, dim, keepdim, None if dtype is None else _dtype(dtype, where="prod"))  # type: ignore[no-any-return]


def mean(
    x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> NBXTensor:
    """The mean over ``dim``, in float32 or better; integers give float32. Of nothing NaN."""
    wanted = None if dtype is None else to_float(_dtype(dtype, where="mean"))
    return _mean(x, dim, keepdim, wanted)  # type: ignore[no-any-return]


def amax(x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> NBXTensor:
    """The largest element over ``dim``; NaN wins. Raises `ShapeError` for none."""
    return _amax(x, dim, keepdim, None)  # type: ignore[no-any-return]


def amin(x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> NBXTensor:
    """The smallest element over ``dim``; NaN wins. Raises `ShapeError` for none."""
    return _amin(x, dim, keepdim, None)  # type: ignore[no-any-return]


def any(x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> NBXTensor:
    """Whether an element over ``dim`` is not 0, as bool; NaN is not 0. Of nothing False."""
    return _any(x, dim, keepdim, None)  # type: ignore[no-any-return]


def all(x: NBXTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> NBXTensor:
    """Whether no element over ``dim`` is 0, as bool. Of nothing True."""
    return _all(x, dim, keepdim, None)  # type: ignore[no-any-return]


def _plan_position(name: str, combine: str, identity: Callable[[DType], Any]) -> Callable[..., Plan]:
    def planned(x: Spec, dim: int | None, keepdim: bool) -> Plan:
        accepted(name, "x", x.dtype, _REAL)
        axes, shape = _reduced(name, x, dim if dim is None else (dim,), keepdim)
        if x.numel == 0 and (_shape.numel(shape) or dim is None):
            raise ShapeError(name, "x", x.shape, "has no elements to choose from")
        accumulate = (
            int32 if x.dtype is bool_ else float32 if x.dtype.kind == "float" and x.dtype.itemsize < 4 else x.dtype
        )
        out = spec(x.device, int64, shape)
        steps, work = kernel.position_steps(
            x.device.facts, combine, identity(accumulate), Ref("out", 0), (Ref("in", 0), x), axes, accumulate
        )
        return Plan((out,), steps, work)

    return planned


_POSITION = (("x", "tensor"), ("dim", "param"), ("keepdim", "param"))
_argmax = Dispatcher("argmax", _POSITION, _plan_position("argmax", "first_largest", _lowest)).function()
_argmin = Dispatcher("argmin", _POSITION, _plan_position("argmin", "first_smallest", _highest)).function()


def argmax(x: NBXTensor, dim: int | None = None, keepdim: bool = False) -> NBXTensor:
    """The position of the largest element along ``dim``, or in C order among all; int64. NaN wins; of equals the
    first."""
    return _argmax(x, dim, keepdim)  # type: ignore[no-any-return]


def argmin(x: NBXTensor, dim: int | None = None, keepdim: bool = False) -> NBXTensor:
    """The position of the smallest element along ``dim``, or in C order among all; int64. NaN wins; of equals the
    first."""
    return _argmin(x, dim, keepdim)  # type: ignore[no-any-return]


_CASES: Sequence[tuple[tuple[int, ...], Any]] = (
    ((), None), ((7,), 0), ((3, 4), None), ((3, 4), 0), ((3, 4), -1), ((2, 3, 5), (0, 2)), ((2, 3, 5), 1), ((4, 0), 0),
    ((0, 3), 1), ((3, 700), 1), ((129, 33), 0), ((3000,), None),
)  # fmt: skip


def _samples(with_axes: bool, empty: bool) -> list[Sample]:
    cases = [(s, d) for s, d in _CASES if (with_axes or not isinstance(d, tuple)) and (empty or _reducible(s, d))]
    return [Sample((Input(s),), {"dim": d, "keepdim": k}) for s, d in cases for k in (False, True)]


def _reducible(shape: tuple[int, ...], dim: Any) -> bool:
    return 0 not in [shape[d] for d in _shape.normalize_axes(dim, len(shape))]


def _errors(with_axes: bool, empty: bool) -> list[ErrorSample]:
    errors = [
        ErrorSample((Input((2, 3)),), {"dim": 2}, ShapeError, "dim"),
        ErrorSample((Input((2,)),), {}, TypeError, "not accepted", "complex64"),
    ]
    if with_axes:
        errors.append(ErrorSample((Input((2, 3)),), {"dim": (0, 0)}, ShapeError, "twice"))
    if not empty:
        errors.append(ErrorSample((Input((0, 3)),), {"dim": 0}, ShapeError, "no elements"))
    return errors


def _sum_tolerance() -> dict[str, Tolerance]:
    why = "a few hundred float32 (float64) roundings of terms of size 1 to 10, then one rounding to the dtype"
    made = {}
    for name in _REAL:
        d = _dtype(name)
        eps = {"float64": 2.3e-16}.get(name, 1.2e-7)
        made[name] = Tolerance(d.eps if d.kind == "float" else 2e-7, 3000 * eps if d.kind == "float" else 3e-4, why)
    return made


_EXACT = {name: Tolerance(0.0, 0.0, "an element itself") for name in _REAL}
_PRODUCT = scaled(3000, reason="one rounding for every factor, up to 3000 of them")
_ENTRIES: tuple[tuple[Any, ...], ...] = (
    (sum, oracle.sum, lambda d, **p: _sum_dtype(d), _sum_tolerance(), True, True),
    (prod, oracle.prod, lambda d, **p: _sum_dtype(d), _PRODUCT, True, True),
    (mean, oracle.mean, lambda d, **p: to_float(d), _sum_tolerance(), True, True),
    (amax, oracle.amax, lambda d, **p: d, _EXACT, True, False),
    (amin, oracle.amin, lambda d, **p: d, _EXACT, True, False),
    (any, oracle.any, lambda d, **p: bool_, _EXACT, True, True),
    (all, oracle.all, lambda d, **p: bool_, _EXACT, True, True),
    (argmax, oracle.argmax, lambda d, **p: int64, _EXACT, False, False),
    (argmin, oracle.argmin, lambda d, **p: int64, _EXACT, False, False),
)


def _register(function: Any, exact: Any, out: Any, tolerance: Any, axes: bool, empty: bool) -> None:
    name = function.__name__
    register(
        Operator(
            name, "reduction", function, ("x",), _REAL, out, exact, lambda: _samples(axes, empty),
            lambda: _errors(axes, empty), tolerance,
            lambda i, o, p: elementwise_cost(i, o, p, 0)._replace(flops=i[0].numel), {name: function},
        )
    )  # fmt: skip


for _entry in _ENTRIES:
    _register(*_entry)
