"""Kernels of the interpreter's tests: elements, conversions, control flow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(out, x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)
