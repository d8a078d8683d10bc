"""Row kernels: softmax and norms. A row that fits is kept in one tile; a wider one is walked in blocks, twice or three
times."""

from __future__ import annotations

import triton
import triton.language as tl

from nbxtensor.kernels.convert import convert
from nbxtensor.kernels.elementwise.functions import div, rsqrt
from nbxtensor.kernels.offsets import offsets


@triton.jit
def _largest(a, b):
    """NaN wins."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _rows(rows, ROWS: tl.constexpr, WIDE: tl.constexpr):
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    return block * ROWS + tl.arange(0, ROWS)


@triton.jit
def _finish(value, largest, total, LOG: tl.constexpr):
    """Softmax of a tile from its row's largest value and sum of exponentials."""
    if LOG:
        return (value - largest) - tl.log(total)
    else:
        return div(tl.exp(value - largest), total)


@triton.jit
def softmax(out, x, rows, columns, outer_shape, outer_out, outer_x, step_out, step_x, OUTER: tl.constexpr,
            COMPUTE: tl.constexpr, LOG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOOP: tl.constexpr,
            WIDE: tl.constexpr):  # fmt: skip
    """Softmax (``LOG``: its logarithm) of every row; the rows' columns are ``step`` elements apart."""
    row = _rows(rows, ROWS, WIDE)
    source = x + offsets(row, outer_shape, outer_x, OUTER)[:, None]
    target = out + offsets(row, outer_shape, outer_out, OUTER)[:, None]
    inside = (row < rows)[:, None]
    column = tl.arange(0, BLOCK)
    if WIDE:
        column = column.to(tl.int64)
    if LOOP:
        largest = tl.full((ROWS,), float("-inf"), COMPUTE)
        total = tl.full((ROWS,), 0.0, COMPUTE)
        for first in range(0, columns, BLOCK):
            at = (first + column)[None, :]
            mask = inside & (at < columns)
            value = convert(tl.load(source + at * step_x, mask=mask, other=0), COMPUTE, False)
            value = tl.where(mask, value, float("-inf"))
            best = _largest(largest, tl.reduce(value, 1, _largest))
            # While a row is all -inf so far its sum is 0: exp(-inf - -inf) would make it NaN too early.
            shift = tl.where(best == float("-inf"), 0.0, best)
            total = total * tl.exp(largest - shift) + tl.sum(tl.exp(value - shift[:, None]), 1)
            largest = best
        for first in range(0, columns, BLOCK):
            at = (first + column)[None, :]
            mask = inside & (at < columns)
            value = convert(tl.load(source + at * step_x, mask=mask, other=0), COMPUTE, False)
            result = _finish(value, largest[:, None], total[:, None], LOG)
            tl.store(target + at * step_out, convert(result, out.dtype.element_ty, False), mask=mask)
    else:
        at = column[None, :]
        mask = inside & (at < columns)
        value = convert(tl.load(source + at * step_x, mask=mask, other=0), COMPUTE, False)
        value = tl.where(mask, value, float("-inf"))
        largest = tl.reduce(value, 1, _largest)[:, None]
        total = tl.sum(tl.where(mask, tl.exp(value - largest), 0.0), 1)[:, None]
        result = _finish(value, largest, total, LOG)
        tl.store(target + at * step_out, convert(result, out.dtype.element_ty, False), mask=mask)


@triton.jit
def _affine(value, weight, bias, at, mask, COMPUTE: tl.constexpr):
    if weight is not None:
        value = value * convert(tl.load(weight + at, mask=mask, other=0), COMPUTE, False)
    if bias is not None:
        value = value + convert(tl.load(bias + at, mask=mask, other=0), COMPUTE, False)
    return value


@triton.jit
def norm(out, x, weight, bias, eps, rows, columns, outer_shape, outer_x, step_x, OUTER: tl.constexpr,
         COMPUTE: tl.constexpr, CENTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOOP: tl.constexpr,
         WIDE: tl.constexpr):  # fmt: skip
    """(x - mean) / sqrt(variance + eps) * weight + bias of every row (layer norm), or without ``CENTER``
    x / sqrt(mean(x * x) + eps) * weight (RMS norm). ``weight`` and ``bias`` may be None; ``out`` is contiguous."""
    row = _rows(rows, ROWS, WIDE)
    source = x + offsets(row, outer_shape, outer_x, OUTER)[:, None]
    target = out + row[:, None] * columns
    inside = (row < rows)[:, None]
    column = tl.arange(0, BLOCK)
    if WIDE:
        column = column.to(tl.int64)
    count = tl.full((ROWS, 1), 1.0, COMPUTE) * columns
    eps = tl.full((ROWS, 1), eps, COMPUTE)
    center = tl.full((ROWS, 1), 0.0, COMPUTE)
    if LOOP:
        if CENTER:
            summed = tl.full((ROWS, BLOCK), 0.0, COMPUTE)
            for first in range(0, columns, BLOCK):
                at = (first + column)[None, :]
                summed += convert(tl.load(source + at * step_x, mask=inside & (at < columns), other=0), COMPUTE, False)
            center = div(tl.sum(summed, 1)[:, None], count)
        summed = tl.full((ROWS, BLOCK), 0.0, COMPUTE)
        for first in range(0, columns, BLOCK):
            at = (first + column)[None, :]
            mask = inside & (at < columns)
            value = convert(tl.load(source + at * step_x, mask=mask, other=0), COMPUTE, False)
            value = tl.where(mask, value - center, 0.0)
            summed += value * value
        scale = rsqrt(div(tl.sum(summed, 1)[:, None], count) + eps)
        for first in range(0, columns, BLOCK):
            at = (first + column)[None, :]
            mask = inside & (at < columns)
            value = convert(tl.load(source + at * step_x, mask=mask, other=0), COMPUTE, False)
            value = _affine((value - center) * scale, weight, bias, at, at < columns, COMPUTE)
            tl.store(target + at, convert(value, out.dtype.element_ty, False), mask=mask)
    else:
        at = column[None, :]
        mask = inside & (at < columns)
        value = convert(tl.load(source + at * step_x, mask=mask, other=0), COMPUTE, False)
        if CENTER:
            center = div(tl.sum(value, 1)[:, None], count)
            value = tl.where(mask, value - center, 0.0)
        scale = rsqrt(div(tl.sum(value * value, 1)[:, None], count) + eps)
        value = _affine(value * scale, weight, bias, at, at < columns, COMPUTE)
        tl.store(target + at, convert(value, out.dtype.element_ty, False), mask=mask)
