"""Strided addressing shared by the kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def offsets(linear, shape, strides, NDIM: tl.constexpr):
    """Element offsets of the row-major positions ``linear`` of ``shape`` under ``strides``, both tuples of NDIM
    integers."""
    found = linear * 0
    for d in tl.static_range(NDIM - 1, -1, -1):
        if d == 0:
            found += linear * strides[d]
        else:
            found += (linear % shape[d]) * strides[d]
            linear = linear // shape[d]
    return found
