"""Creation operators. They take ``dtype`` by name (float32 by default) and ``device`` as a device string or
`Device`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbxtensor import shape as _shape
from nbxtensor.backend import runtime
from nbxtensor.dtype import (
    DTypeLike,
    convert,
    default_complex,
    default_float,
    float32,
    float64,
    int64,
    result_type,
)
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError
from nbxtensor.kernels import elementwise as kernel
from nbxtensor.kernels.plan import Plan, Ref
from nbxtensor.ops.copying import fill_
from nbxtensor.ops.dispatch import Dispatcher, Number
from nbxtensor.tensor import DeviceLike, NBXTensor, Spec, empty_for, from_numpy, spec


def _target(where: str, shape: Any, dtype: DTypeLike | None, device: DeviceLike) -> Any:
    sizes = _shape.check_shape((shape,) if isinstance(shape, (int, np.integer)) else shape, where=where)
    return spec(runtime.device(device), default_float if dtype is None else _dtype(dtype, where=where), sizes)


def empty(shape: int | Sequence[int], dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """An uninitialised tensor of ``shape``."""
    return empty_for(_target("empty", shape, dtype, device))


def zeros(shape: int | Sequence[int], dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """A tensor of zeros (False for bool)."""
    return _cleared(empty_for(_target("zeros", shape, dtype, device)))


def ones(shape: int | Sequence[int], dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """A tensor of ones (True for bool)."""
    return fill_(empty_for(_target("ones", shape, dtype, device)), 1)


def full(
    shape: int | Sequence[int],
    value: bool | int | float | complex,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> NBXTensor:
    """A tensor filled with ``value``; its dtype is the value's kind (bool, int64, float32, complex64) unless given."""
    wanted = result_type(value, where="full") if dtype is None else dtype
    return fill_(empty_for(_target("full", shape, wanted, device)), value)


def empty_like(x: NBXTensor, dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """An uninitialised contiguous tensor of ``x``'s shape, and its dtype and device unless given."""
    return empty_for(_like("empty_like", x, dtype, device))


def zeros_like(x: NBXTensor, dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """Zeros of ``x``'s shape, and its dtype and device unless given."""
    return _cleared(empty_for(_like("zeros_like", x, dtype, device)))


def ones_like(x: NBXTensor, dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """Ones of ``x``'s shape, and its dtype and device unless given."""
    return fill_(empty_for(_like("ones_like", x, dtype, device)), 1)


def full_like(
    x: NBXTensor, value: bool | int | float | complex, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> NBXTensor:
    """``value`` in ``x``'s shape, and its dtype and device unless given."""
    return fill_(empty_for(_like("full_like", x, dtype, device)), value)


def arange(
    start: int | float,
    stop: int | float | None = None,
    step: int | float = 1,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> NBXTensor:
    """``start``, ``start + step``, ... before ``stop``; one number is ``stop``, from 0. int64 for integers, else
    float32.

    Each element is ``start + i * step``, computed exactly for integers, else in float64 where the device has it, then
    converted.
    """
    first, last = (0, start) if stop is None else (start, stop)
    for name, value in (("start", first), ("stop", last), ("step", step)):
        if isinstance(value, complex) or not np.isfinite(value):
            raise ArgumentError("arange", name, value, "must be a finite number")
    if step == 0:
        raise ArgumentError("arange", "step", step, "must not be 0")
    target = _dtype(dtype, where="arange") if dtype is not None else result_type(first, last, step, where="arange")
    if target.kind == "complex":
        raise DTypeError("arange", "dtype", target, "must be a real dtype")
    if all(isinstance(n, (int, np.integer)) for n in (first, last, step)):
        count = len(range(int(first), int(last), int(step)))
    else:
        count = max(0, math.ceil((last - first) / step))
    made = empty_for(spec(runtime.device(device), target, (count,)))
    return made if count == 0 else _progress(made, first, step)


def _plan_progress(target: Spec, start: Number, step: Number) -> Plan:
    """Integers are computed exactly, other numbers in float64 where the device has it."""
    whole = all(isinstance(n.value, (int, np.integer)) for n in (start, step))
    wide = "float64" in target.device.context.capabilities.dtypes
    compute = int64 if whole else float64 if wide else float32
    number = "i64" if whole else "fp64" if wide else "fp32"
    refs = (Ref("value", 1, type=number), Ref("value", 2, type=number))
    made = kernel.progression_step(target.device.facts, (Ref("in", 0), target), *refs, compute)
    return Plan((), (made,), result=(Ref("in", 0),), written=(0,))


_progress = Dispatcher(
    "arange", (("target", "tensor"), ("start", "operand"), ("step", "operand")), _plan_progress
).function()


def asarray(
    data: Any, dtype: DTypeLike | None = None, device: DeviceLike = None, copy: bool | None = None
) -> NBXTensor:
    """A tensor of Python numbers in nested lists, a number, a numpy array or another tensor.

    Numbers give bool, int64, float32 or complex64; arrays and tensors keep their dtype; ``dtype`` converts. ``copy``
    None copies only where it must (a tensor that fits is returned itself), True always; False refuses what cannot be
    shared."""
    if isinstance(data, NBXTensor):
        moved = data if device is None else data.to(runtime.device(device))
        moved = moved if dtype is None else moved.to(dtype)
        if copy is False and moved is not data:
            raise ArgumentError("asarray", "copy", False, "another dtype or device needs a copy")
        return moved.clone() if copy and moved is data else moved
    array = _host_array(data, dtype)
    shared = isinstance(data, np.ndarray) and array is data
    if copy is False and not shared:
        raise ArgumentError("asarray", "copy", False, "only an array of that dtype can be shared")
    return from_numpy(array, device, copy=copy if shared and copy is not None else True)


def _host_array(data: Any, dtype: DTypeLike | None) -> np.ndarray[Any, Any]:
    target = None if dtype is None else _dtype(dtype, where="asarray")
    if isinstance(data, (np.ndarray, np.generic)):
        array: np.ndarray[Any, Any] = np.asarray(data)
        return array if target is None else convert(array, target)
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError("asarray", "data", data, f"must be nested lists of equal lengths: {error}") from None
    narrow = {"f": default_float, "c": default_complex}.get(array.dtype.kind)
    return convert(array, target or narrow or _dtype(array.dtype, where="asarray", argument="data"))


def _like(where: str, x: NBXTensor, dtype: DTypeLike | None, device: DeviceLike) -> Any:
    chosen = x.device if device is None else runtime.device(device)
    return spec(chosen, x.dtype if dtype is None else _dtype(dtype, where=where), x.shape)


def _cleared(x: NBXTensor) -> NBXTensor:
    if x.nbytes:
        x.device.context.fill(x.ptr, 0, x.nbytes, x.device.stream)
    return x


def _new(function: Any) -> Any:
    def method(self: NBXTensor, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> NBXTensor:
        wanted = self.dtype if dtype is None else dtype
        return function(shape, dtype=wanted, device=self.device)  # type: ignore[no-any-return]

    method.__doc__ = f"`nbxtensor.{function.__name__}` with this tensor's dtype (unless given) and device."
    return method


def _new_full(
    self: NBXTensor, shape: int | Sequence[int], value: bool | int | float | complex, dtype: DTypeLike | None = None
) -> NBXTensor:
    """`nbxtensor.full` with this tensor's dtype (unless given) and device."""
    return full(shape, value, dtype=self.dtype if dtype is None else dtype, device=self.device)


for _name, _method in {**{f.__name__: _new(f) for f in (empty, zeros, ones)}, "full": _new_full}.items():
    _method.__name__ = f"new_{_name}"
    setattr(NBXTensor, _method.__name__, _method)
