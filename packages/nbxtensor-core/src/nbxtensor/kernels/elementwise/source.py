"""Element-wise kernels: one for operands that walk memory alike, one for any strides."""

from __future__ import annotations

import triton
import triton.language as tl

from nbxtensor.kernels.convert import convert
from nbxtensor.kernels.offsets import offsets


@triton.jit
def _operand(p, at, mask, SCALAR: tl.constexpr, COMPUTE: tl.constexpr):
    """A tile of a tensor operand, or a number, in the compute dtype (None: as it is)."""
    if SCALAR:
        value = tl.full(at.shape, p, p.dtype)
    else:
        value = tl.load(p + at, mask=mask)
    if COMPUTE is not None:
        value = convert(value, COMPUTE, False)
    return value


@triton.jit
def _apply(out, a, b, c, oo, oa, ob, oc, mask, OP: tl.constexpr, ARITY: tl.constexpr, SCALARS: tl.constexpr,
           COMPUTE: tl.constexpr, FIRST: tl.constexpr, SATURATE: tl.constexpr):  # fmt: skip
    x = _operand(a, oa, mask, SCALARS & 1, FIRST)
    if ARITY == 1:
        value = OP(x)
    elif ARITY == 2:
        value = OP(x, _operand(b, ob, mask, SCALARS & 2, COMPUTE))
    else:
        value = OP(x, _operand(b, ob, mask, SCALARS & 2, COMPUTE), _operand(c, oc, mask, SCALARS & 4, COMPUTE))
    tl.store(out + oo, convert(value, out.dtype.element_ty, SATURATE), mask=mask)


@triton.jit
def flat(out, a, b, c, n, OP: tl.constexpr, ARITY: tl.constexpr, SCALARS: tl.constexpr, COMPUTE: tl.constexpr,
         FIRST: tl.constexpr, SATURATE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """out[i] = OP(a[i], b[i], c[i]) for i < n. Bit k of ``SCALARS``: operand k is a number."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    i = program * BLOCK + tl.arange(0, BLOCK)
    _apply(out, a, b, c, i, i, i, i, i < n, OP, ARITY, SCALARS, COMPUTE, FIRST, SATURATE)


@triton.jit
def strided(out, a, b, c, n, shape, so, sa, sb, sc, NDIM: tl.constexpr, OP: tl.constexpr, ARITY: tl.constexpr,
            SCALARS: tl.constexpr, COMPUTE: tl.constexpr, FIRST: tl.constexpr, SATURATE: tl.constexpr,
            BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """The same for operands with strides of their own over a shared ``shape``; offsets are 64-bit with ``WIDE``."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    i = program * BLOCK + tl.arange(0, BLOCK)
    oo = offsets(i, shape, so, NDIM)
    oa = oo
    ob = oo
    oc = oo
    if not SCALARS & 1:
        oa = offsets(i, shape, sa, NDIM)
    if ARITY >= 2 and not SCALARS & 2:
        ob = offsets(i, shape, sb, NDIM)
    if ARITY >= 3 and not SCALARS & 4:
        oc = offsets(i, shape, sc, NDIM)
    _apply(out, a, b, c, oo, oa, ob, oc, i < n, OP, ARITY, SCALARS, COMPUTE, FIRST, SATURATE)


@triton.jit
def progression(out, n, start, step, COMPUTE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """out[i] = start + i * step for i < n."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    i = program * BLOCK + tl.arange(0, BLOCK)
    value = tl.full((BLOCK,), start, COMPUTE) + i.to(COMPUTE) * tl.full((BLOCK,), step, COMPUTE)
    tl.store(out + i, convert(value, out.dtype.element_ty, True), mask=i < n)
