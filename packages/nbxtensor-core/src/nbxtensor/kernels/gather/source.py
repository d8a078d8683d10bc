"""Rows picked by an index tensor."""

from __future__ import annotations

import triton
import triton.language as tl

from nbxtensor.kernels.offsets import offsets


@triton.jit
def pick_rows(out, table, index, status, rows, columns, limit, row_step, column_step, index_shape, index_strides,
              DIMS: tl.constexpr, FAULT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
              WIDE: tl.constexpr):  # fmt: skip
    """out[i, :] = table[index[i], :]. An index outside of [0, limit) is written to ``status`` with ``FAULT``, its row
    is not."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    picked = tl.load(index + offsets(row, index_shape, index_strides, DIMS), mask=inside, other=0).to(tl.int64)
    valid = (picked >= 0) & (picked < limit)
    wrong = inside & (valid == 0)
    tl.store(status + tl.zeros((ROWS,), tl.int32), tl.full((ROWS,), FAULT, tl.int64), mask=wrong)
    tl.store(status + tl.full((ROWS,), 1, tl.int32), picked, mask=wrong)
    if WIDE:
        column = column.to(tl.int64)
        start = picked * row_step
    else:
        start = picked.to(tl.int32) * row_step
    mask = (inside & valid)[:, None] & (column < columns)[None, :]
    value = tl.load(table + start[:, None] + (column * column_step)[None, :], mask=mask)
    tl.store(out + row[:, None] * columns + column[None, :], value, mask=mask)
