"""Reductions over any axes: one tile of rows (kept positions) by columns (reduced positions) a step, in a fixed
order."""

from __future__ import annotations

import triton
import triton.language as tl

from nbxtensor.kernels.convert import convert
from nbxtensor.kernels.elementwise.functions import div
from nbxtensor.kernels.offsets import offsets


@triton.jit
def total(a, b):
    return a + b


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def largest(a, b):
    """The larger one; NaN wins."""
    if a.dtype.is_floating():
        return tl.where((a > b) | (a != a), a, b)
    else:
        return tl.where(a > b, a, b)


@triton.jit
def smallest(a, b):
    """The smaller one; NaN wins."""
    if a.dtype.is_floating():
        return tl.where((a < b) | (a != a), a, b)
    else:
        return tl.where(a < b, a, b)


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def first_largest(a, i, b, j):
    """The larger value with its position; NaN wins, of equals the first."""
    if a.dtype.is_floating():
        a_nan = a != a
        b_nan = b != b
        tie = (a == b) | (a_nan & b_nan)
        left = (a_nan & (b == b)) | ((a > b) & (b == b))
    else:
        tie = a == b
        left = a > b
    left = left | (tie & (i < j))
    return tl.where(left, a, b), tl.where(left, i, j)


@triton.jit
def first_smallest(a, i, b, j):
    """The smaller value with its position; NaN wins, of equals the first."""
    if a.dtype.is_floating():
        a_nan = a != a
        b_nan = b != b
        tie = (a == b) | (a_nan & b_nan)
        left = (a_nan & (b == b)) | ((a < b) & (b == b))
    else:
        tie = a == b
        left = a < b
    left = left | (tie & (i < j))
    return tl.where(left, a, b), tl.where(left, i, j)


# A combiner that is itself a constexpr cannot be given to `tl.reduce`, so each has its fold of a tile's columns.


@triton.jit
def fold_total(x):
    return tl.reduce(x, 1, total)


@triton.jit
def fold_product(x):
    return tl.reduce(x, 1, product)


@triton.jit
def fold_largest(x):
    return tl.reduce(x, 1, largest)


@triton.jit
def fold_smallest(x):
    return tl.reduce(x, 1, smallest)


@triton.jit
def fold_either(x):
    return tl.reduce(x, 1, either)


@triton.jit
def fold_both(x):
    return tl.reduce(x, 1, both)


@triton.jit
def fold_first_largest(value, index):
    return tl.reduce((value, index), 1, first_largest)


@triton.jit
def fold_first_smallest(value, index):
    return tl.reduce((value, index), 1, first_smallest)


@triton.jit
def reduce(out, x, rows, columns, piece, outer_shape, outer_strides, inner_shape, inner_strides,
           OUTER: tl.constexpr, INNER: tl.constexpr, COMBINE: tl.constexpr, FOLD: tl.constexpr,
           IDENTITY: tl.constexpr, TEST: tl.constexpr,
           ACCUMULATE: tl.constexpr, DIVISOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
           SPLITS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """out[row, split] = the columns of the split combined; ``TEST`` reduces ``x != 0``; ``DIVISOR`` (or None)
    divides."""
    block = tl.program_id(0)
    split = tl.program_id(1)
    if WIDE:
        block = block.to(tl.int64)
        split = split.to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    start = x + offsets(row, outer_shape, outer_strides, OUTER)[:, None]
    end = tl.minimum(columns, (split + 1) * piece)
    accumulated = tl.full((ROWS, COLUMNS), IDENTITY, ACCUMULATE)
    for first in range(split * piece, end, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (column < end)[None, :]
        value = tl.load(start + offsets(column, inner_shape, inner_strides, INNER)[None, :], mask=mask, other=0)
        if TEST:
            value = value != 0
        value = tl.where(mask, convert(value, ACCUMULATE, False), tl.full((ROWS, COLUMNS), IDENTITY, ACCUMULATE))
        accumulated = COMBINE(accumulated, value)
    result = FOLD(accumulated)
    if DIVISOR is not None:
        result = div(result, tl.full((ROWS,), DIVISOR, ACCUMULATE))
    tl.store(out + row * SPLITS + split, convert(result, out.dtype.element_ty, False), mask=row < rows)


@triton.jit
def position(out, best, x, given, rows, columns, piece, outer_shape, outer_strides, inner_shape, inner_strides,
             OUTER: tl.constexpr, INNER: tl.constexpr, COMBINE: tl.constexpr, FOLD: tl.constexpr,
             IDENTITY: tl.constexpr,
             ACCUMULATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
             WIDE: tl.constexpr):  # fmt: skip
    """out[row, split] = the position of the best column of the split, and ``best`` (or None) its value; ``given`` (or
    None) holds the positions that the values of ``x`` came from."""
    block = tl.program_id(0)
    split = tl.program_id(1)
    if WIDE:
        block = block.to(tl.int64)
        split = split.to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    start = offsets(row, outer_shape, outer_strides, OUTER)[:, None]
    end = tl.minimum(columns, (split + 1) * piece)
    value = tl.full((ROWS, COLUMNS), IDENTITY, ACCUMULATE)
    index = tl.full((ROWS, COLUMNS), 0x7FFFFFFFFFFFFFFF, tl.int64)
    for first in range(split * piece, end, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (column < end)[None, :]
        at = start + offsets(column, inner_shape, inner_strides, INNER)[None, :]
        new = convert(tl.load(x + at, mask=mask, other=0), ACCUMULATE, False)
        new = tl.where(mask, new, tl.full((ROWS, COLUMNS), IDENTITY, ACCUMULATE))
        if given is None:
            where = tl.broadcast_to(column.to(tl.int64)[None, :], (ROWS, COLUMNS))
        else:
            where = tl.load(given + at, mask=mask, other=0)
        where = tl.where(mask, where, 0x7FFFFFFFFFFFFFFF)
        value, index = COMBINE(value, index, new, where)
    value, index = FOLD(value, index)
    at = row * SPLITS + split
    if best is not None:
        tl.store(best + at, convert(value, best.dtype.element_ty, False), mask=row < rows)
    tl.store(out + at, index, mask=row < rows)
