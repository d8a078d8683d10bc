"""Oracles of the reductions."""

from __future__ import annotations

from typing import Any

import numpy as np


def _axis(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, (list, tuple)) else dim


def _wide(x: Any) -> Any:
    x = np.asarray(x)
    return x if x.dtype.kind == "f" or x.dtype == np.uint64 else x.astype(np.int64)


def sum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    with np.errstate(all="ignore"):
        return np.sum(_wide(x), axis=_axis(dim), keepdims=keepdim)


def prod(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    with np.errstate(all="ignore"):
        return np.prod(_wide(x), axis=_axis(dim), keepdims=keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    x = np.asarray(x, np.float64)
    axes = _axis(dim)
    count = x.size if axes is None else np.prod([x.shape[a] for a in np.atleast_1d(axes)], dtype=np.int64)
    with np.errstate(all="ignore"):
        return np.sum(x, axis=axes, keepdims=keepdim) / np.float64(count)


def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.max(x, axis=_axis(dim), keepdims=keepdim)


def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.min(x, axis=_axis(dim), keepdims=keepdim)


def any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.any(np.asarray(x) != 0, axis=_axis(dim), keepdims=keepdim)


def all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.all(np.asarray(x) != 0, axis=_axis(dim), keepdims=keepdim)


def argmax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.asarray(np.argmax(x, axis=dim, keepdims=keepdim))


def argmin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.asarray(np.argmin(x, axis=dim, keepdims=keepdim))
