"""Oracles of the copying operators: operands as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype import convert


def same(x: Any) -> Any:
    return x


def cast(x: Any, dtype: str) -> Any:
    return convert(np.asarray(x), dtype)


def reshape(x: Any, shape: Any) -> Any:
    return np.reshape(x, shape)


def cat(tensors: Any, dim: int = 0) -> Any:
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return np.concatenate(kept, axis=dim)


def stack(tensors: Any, dim: int = 0) -> Any:
    return np.stack(tensors, axis=dim)
