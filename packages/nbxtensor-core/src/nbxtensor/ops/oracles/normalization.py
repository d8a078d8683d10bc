"""Oracles of softmax and the norms."""

from __future__ import annotations

from typing import Any

import numpy as np


def softmax(x: Any, dim: int = -1) -> Any:
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        if x.size == 0:
            return x
        e = np.exp(x - np.max(x, axis=dim if x.ndim else None, keepdims=True))
        return e / np.sum(e, axis=dim if x.ndim else None, keepdims=True)


def log_softmax(x: Any, dim: int = -1) -> Any:
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        if x.size == 0:
            return x
        shifted = x - np.max(x, axis=dim if x.ndim else None, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=dim if x.ndim else None, keepdims=True))


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    return x * (1.0 if weight is None else weight) + (0.0 if bias is None else bias)


def layer_norm(x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    axes = tuple(range(-len(normalized_shape), 0))
    with np.errstate(all="ignore"):
        centered = x - np.mean(x, axis=axes, keepdims=True)
        return _scaled(centered / np.sqrt(np.mean(centered**2, axis=axes, keepdims=True) + eps), weight, bias)


def rms_norm(x: Any, weight: Any, normalized_shape: Any, eps: float) -> Any:
    axes = tuple(range(-len(normalized_shape), 0))
    with np.errstate(all="ignore"):
        return _scaled(x / np.sqrt(np.mean(x**2, axis=axes, keepdims=True) + eps), weight, None)
