"""Softmax and norms: over rows, in float32 or better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbxtensor import shape as _shape
from nbxtensor.dtype import DType, DTypeLike
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError
from nbxtensor.kernels import rows as kernel
from nbxtensor.kernels.plan import Plan, Ref
from nbxtensor.ops.copying import contiguous
from nbxtensor.ops.dispatch import Dispatcher
from nbxtensor.ops.elementwise import accepted, compute_dtype, to_float
from nbxtensor.ops.oracles import normalization as oracle
from nbxtensor.ops.table import (
    BOOL,
    FLOATS,
    INTS,
    Cost,
    ErrorSample,
    Input,
    Operator,
    Sample,
    Tolerance,
    register,
    scaled,
)
from nbxtensor.tensor import NBXTensor, Spec, spec

_REAL = (*FLOATS, *INTS, *BOOL)


def _plan_softmax(name: str, log: bool) -> Any:
    def planned(x: Spec, dim: int, dtype: DType | None) -> Plan:
        accepted(name, "x", x.dtype, _REAL)
        result = to_float(x.dtype) if dtype is None else dtype
        accepted(name, "dtype", result, FLOATS)
        out = spec(x.device, result, x.shape)
        compute = compute_dtype(result if result.itemsize > x.dtype.itemsize else to_float(x.dtype))
        view = x if x.shape else x.with_strides((1,), (1,))
        target = out if x.shape else out.with_strides((1,), (1,))
        axis = _shape.normalize_axis(dim, len(view.shape), where=name, argument="dim")
        if x.numel == 0:
            return Plan((out,), ())
        step = kernel.softmax_step(x.device.facts, (Ref("out", 0), target), (Ref("in", 0), view), axis, compute, log)
        return Plan((out,), (step,))

    return planned


_SOFTMAX = (("x", "tensor"), ("dim", "param"), ("dtype", "param"))
_softmax = Dispatcher("softmax", _SOFTMAX, _plan_softmax("softmax", False)).function()
_log_softmax = Dispatcher("log_softmax", _SOFTMAX, _plan_softmax("log_softmax", True)).function()


def softmax(x: NBXTensor, dim: int = -1, dtype: DTypeLike | None = None) -> NBXTensor:
    """``exp(x) / sum(exp(x))`` along ``dim``, shifted by the largest element. Integers give float32; ``dtype`` is that
    of the result. A row of nothing but -inf gives NaN, as does one with NaN or +inf."""
    return _softmax(x, dim, None if dtype is None else _dtype(dtype, where="softmax"))  # type: ignore[no-any-return]


def log_softmax(x: NBXTensor, dim: int = -1, dtype: DTypeLike | None = None) -> NBXTensor:
    """The logarithm of `softmax`, computed without taking a logarithm of it."""
    return _log_softmax(x, dim, None if dtype is None else _dtype(dtype, where="log_softmax"))  # type: ignore[no-any-return]


def _normalized(where: str, x: Spec, normalized_shape: Any) -> int:
    sizes = _shape.check_shape(
        (normalized_shape,) if isinstance(normalized_shape, (int, np.integer)) else normalized_shape,
        where=where, argument="normalized_shape",
    )  # fmt: skip
    if not sizes or x.shape[-len(sizes) :] != sizes:
        rule = f"must be the last sizes of x's shape {x.shape}, at least one"
        raise ShapeError(where, "normalized_shape", tuple(sizes), rule)
    return len(sizes)


def _plan_norm(name: str, center: bool) -> Any:
    def planned(x: Spec, weight: Spec | None, bias: Spec | None, normalized_shape: Any) -> Plan:
        accepted(name, "x", x.dtype, FLOATS)
        last = _normalized(name, x, normalized_shape)
        for argument, given in (("weight", weight), ("bias", bias)):
            if given is not None:
                accepted(name, argument, given.dtype, FLOATS)
                if given.shape != x.shape[-last:]:
                    raise ShapeError(name, argument, given.shape, f"must be normalized_shape {x.shape[-last:]}")
        out = spec(x.device, x.dtype, x.shape)
        if x.numel == 0:
            return Plan((out,), ())
        step = kernel.norm_step(
            x.device.facts, Ref("out", 0), (Ref("in", 0), x), Ref("in", 1) if weight is not None else None,
            Ref("in", 2) if bias is not None else None, Ref("value", 3), last, compute_dtype(x.dtype), center,
        )  # fmt: skip
        return Plan((out,), (step,))

    return planned


_NORM = (("x", "tensor"), ("weight", "tensor?"), ("bias", "tensor?"), ("eps", "value"), ("normalized_shape", "param"))
_layer_norm = Dispatcher("layer_norm", _NORM, _plan_norm("layer_norm", True)).function()
_rms_norm = Dispatcher("rms_norm", _NORM, _plan_norm("rms_norm", False)).function()


def layer_norm(
    x: NBXTensor,
    normalized_shape: int | Sequence[int],
    weight: NBXTensor | None = None,
    bias: NBXTensor | None = None,
    eps: float = 1e-5,
) -> NBXTensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimensions, which are ``normalized_shape``.

    The variance is the biased one. Half types are computed in float32, eps included.
    """
    epsilon = _epsilon("layer_norm", eps)
    return _layer_norm(*_ready(x, weight, bias, normalized_shape), epsilon, normalized_shape)  # type: ignore[no-any-return]


def rms_norm(
    x: NBXTensor, normalized_shape: int | Sequence[int], weight: NBXTensor | None = None, eps: float | None = None
) -> NBXTensor:
    """``x / sqrt(mean(x * x) + eps) * weight`` over the last dimensions, which are ``normalized_shape``.

    ``eps`` None is the epsilon of ``x``'s dtype. Half types are computed in float32, eps included.
    """
    x, weight, _ = _ready(x, weight, None, normalized_shape)
    if eps is None and isinstance(x, NBXTensor):
        eps = float(x.dtype.eps)
    return _rms_norm(x, weight, None, _epsilon("rms_norm", eps), normalized_shape)  # type: ignore[no-any-return]


def _epsilon(where: str, eps: Any) -> float:
    if not isinstance(eps, (int, float, np.floating)):
        raise ArgumentError(where, "eps", eps, "must be a number")
    return float(eps)


def _ready(x: Any, weight: Any, bias: Any, normalized_shape: Any) -> tuple[Any, Any, Any]:
    """The operands as the kernel takes them: one stride along the normalised dimensions, else a copy."""
    last = len(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else 1
    if isinstance(x, NBXTensor) and len(_shape.coalesce(x.shape[-last:], x.strides[-last:])[0]) > 1:
        x = contiguous(x)
    return (
        x,
        contiguous(weight) if isinstance(weight, NBXTensor) else weight,
        contiguous(bias) if isinstance(bias, NBXTensor) else bias,
    )


_ROWS: Sequence[tuple[int, ...]] = ((5,), (1,), (3, 4), (2, 3, 5), (4, 0), (0, 3), (3, 700), (70, 33))
_TOLERANCE = scaled(
    64,
    flushes=True,
    atol=8,
    reason="exponentials of up to 64 units in the last place, sums of a row, one rounding to the dtype",
)


def _cost(flops: int) -> Any:
    def cost(inputs: Sequence[Any], outputs: Sequence[Any], params: Any) -> Cost:
        read = 0
        for s in inputs:
            read += s.nbytes if s is not None else 0
        return Cost(read, outputs[0].nbytes, flops * outputs[0].numel)

    return cost


def _softmax_samples() -> list[Sample]:
    more = [Sample((Input((2, 3, 5)),), {"dim": d}) for d in (0, 1)] + [Sample((Input(()),), {"dim": 0})]
    return [Sample((Input(s),), {"dim": -1}) for s in _ROWS] + more


def _softmax_errors() -> list[ErrorSample]:
    return [
        ErrorSample((Input((2, 3)),), {"dim": 2}, ShapeError, "dim"),
        ErrorSample((Input((2, 3)),), {"dtype": "int32"}, DTypeError, "not accepted"),
        ErrorSample((Input((2, 3)),), {}, DTypeError, "not accepted", "complex64"),
    ]


def _register_softmax(function: Any, exact: Any) -> None:
    name = function.__name__
    register(
        Operator(
            name, "softmax", function, ("x",), _REAL, lambda d, **_: to_float(d), exact, _softmax_samples,
            _softmax_errors, _TOLERANCE, _cost(5), {name: function},
        )
    )  # fmt: skip


_register_softmax(softmax, oracle.softmax)
_register_softmax(log_softmax, oracle.log_softmax)


def _norm_tolerance() -> dict[str, Tolerance]:
    why = "mean and variance of a row in float32 (float64): a few roundings of values of size 1 to 10, then one more"
    return {
        d: Tolerance(t.rtol, max(t.atol, 40 * (2.3e-16 if d == "float64" else 1.2e-7)), why)
        for d, t in scaled(16).items()
    }


def _norm_samples(bias: bool) -> list[Sample]:
    made = []
    for shape, last in (((3, 4), 1), ((2, 3, 5), 2), ((5,), 1), ((4, 700), 1), ((0, 3), 1), ((70, 33), 1)):
        part = Input(shape[len(shape) - last :])
        params = {"normalized_shape": shape[len(shape) - last :], "eps": 1e-5}
        made += [
            Sample((Input(shape), None, *((None,) if bias else ())), params),
            Sample((Input(shape), part, *((part,) if bias else ())), params),
        ]
    return made


def _norm_errors(bias: bool) -> list[ErrorSample]:
    none = (None,) * (2 if bias else 1)
    return [
        ErrorSample((Input((2, 3)), *none), {"normalized_shape": (4,)}, ShapeError, "last sizes"),
        ErrorSample((Input((2, 3)), Input((2,)), *none[1:]), {"normalized_shape": (3,)}, ShapeError, "weight"),
        ErrorSample((Input((2, 3)), *none), {"normalized_shape": (3,)}, DTypeError, "not accepted", "int32"),
    ]


def _register_norm(function: Any, exact: Any, bias: bool) -> None:
    register(
        Operator(
            function.__name__, "norm", function, ("x", "weight", "bias") if bias else ("x", "weight"), FLOATS,
            lambda d, **_: d, exact, lambda: _norm_samples(bias), lambda: _norm_errors(bias), _norm_tolerance(),
            _cost(8),
        )
    )  # fmt: skip


_register_norm(layer_norm, oracle.layer_norm, True)
_register_norm(rms_norm, oracle.rms_norm, False)
