"""How a tensor prints: values, dtype and device; of a large one the edges, and the shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nbxtensor.tensor import NBXTensor

_WHOLE = 1000  # elements that are printed in full
_EDGE = 4  # of a larger tensor's dimension, elements copied at each end: one more than is printed


def text(tensor: NBXTensor) -> str:
    """The tensor's ``repr``. Little of a large tensor is copied from its device."""
    tail = f", dtype={tensor.dtype}, device={tensor.device.name!r})"
    if not tensor.device.context.capabilities.executes:
        return f"tensor(..., shape={tensor.shape}{tail}"
    if tensor.size == 0:
        return f"tensor([], shape={tensor.shape}{tail}"
    cut = tensor.size > _WHOLE
    host = _edges(tensor) if cut else tensor.numpy()
    if tensor.dtype.kind == "float" and tensor.itemsize < 4:
        host = host.astype(np.float32)
    values = np.array2string(host, separator=", ", prefix="tensor(", threshold=0 if cut else _WHOLE)
    return f"tensor({values}{', shape=' + str(tensor.shape) if cut else ''}{tail}"


def _edges(tensor: NBXTensor) -> np.ndarray[Any, Any]:
    for dim, size in enumerate(tensor.shape):
        if size > 2 * _EDGE:
            ends = [tensor.narrow(dim, 0, _EDGE), tensor.narrow(dim, size - _EDGE, _EDGE)]
            return np.concatenate([_edges(end) for end in ends], axis=dim)
    return tensor.numpy()
