"""Creation operators. They take ``dtype`` by name (float32 by default) and ``device`` as a device string or `Device`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbxtensor import shape as _shape
from nbxtensor.dtype import DType, DTypeLike, convert, default_float, promote_scalar, result_type
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, ShapeError
from nbxtensor.ops.copying import fill_
from nbxtensor.tensor import DeviceLike, NBXTensor, empty_for, from_numpy, spec

from nbxtensor.backend import runtime  # isort: skip

ShapeLike = "int | Sequence[int]"


def _target(where: str, shape: Any, dtype: DTypeLike | None, device: DeviceLike, default: DType = default_float) -> Any:
    sizes = _shape.check_shape((shape,) if isinstance(shape, (int, np.integer)) else shape, where=where)
    return spec(runtime.device(device), default if dtype is None else _dtype(dtype, where=where), sizes)


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
    shape: int | Sequence[int], value: bool | int | float | complex, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> NBXTensor:
    """A tensor filled with ``value``; its dtype is the value's kind (bool, int64, float32, complex64) unless given."""
    return fill_(empty_for(_target("full", shape, dtype, device, result_type(value, where="full"))), value)


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
    """``start``, ``start + step``, ... before ``stop``; one number is ``stop``, from 0. int64 for integers, else float32.

    Each element is ``start + i * step`` computed in float64 (integers exactly), then converted.
    """
    first, last = (0, start) if stop is None else (start, stop)
    for name, value in (("start", first), ("stop", last), ("step", step)):
        if isinstance(value, complex) or not np.isfinite(value):
            raise ArgumentError("arange", name, value, "must be a finite number")
    if step == 0:
        raise ArgumentError("arange", "step", step, "must not be 0")
    target = _dtype(dtype, where="arange") if dtype is not None else result_type(first, last, step, where="arange")
    return from_numpy(convert(np.arange(first, last, step), target), device)


def tensor(data: Any, dtype: DTypeLike | None = None, device: DeviceLike = None) -> NBXTensor:
    """A tensor of Python numbers in nested lists, a number, a numpy array or another tensor (always a copy).

    Numbers give bool, int64, float32 or complex64; arrays and tensors keep their dtype; ``dtype`` converts.
    """
    if isinstance(data, NBXTensor):
        moved = data.to(runtime.device(device)) if device is not None else data
        return moved.to(dtype).clone() if dtype is not None else moved.clone()
    if isinstance(data, (np.ndarray, np.generic)):
        array: np.ndarray[Any, Any] = np.asarray(data)
    else:
        try:
            array = np.asarray(data)
        except ValueError as error:
            raise ShapeError("tensor", "data", data, f"must be nested lists of equal lengths: {error}") from None
        narrow = {"f": default_float, "c": _dtype("complex64")}.get(array.dtype.kind)
        if dtype is None and narrow is not None:
            array = convert(array, narrow)
    return from_numpy(array if dtype is None else convert(array, _dtype(dtype, where="tensor")), device)


def _like(where: str, x: NBXTensor, dtype: DTypeLike | None, device: DeviceLike) -> Any:
    chosen = x.device if device is None else runtime.device(device)
    return spec(chosen, x.dtype if dtype is None else _dtype(dtype, where=where), x.shape)


def _cleared(x: NBXTensor) -> NBXTensor:
    if x.nbytes:
        x.device.context.fill(x.ptr, 0, x.nbytes, x.device.stream)
    return x


def _new(function: Any, name: str) -> Any:
    def method(self: NBXTensor, shape: int | Sequence[int], *value: Any, dtype: DTypeLike | None = None) -> NBXTensor:
        made = function(shape, *value, dtype=self.dtype if dtype is None else dtype, device=self.device)
        return made  # type: ignore[no-any-return]

    method.__name__ = name
    method.__doc__ = f"`nbxtensor.{function.__name__}` with this tensor's dtype (unless given) and device."
    return method


for _function in (empty, zeros, ones, full):
    setattr(NBXTensor, f"new_{_function.__name__}", _new(_function, f"new_{_function.__name__}"))

del promote_scalar
