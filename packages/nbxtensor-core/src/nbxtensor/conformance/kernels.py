"""The Triton kernels of the conformance suite. Each isolates one duty of a compiler and its driver."""
# mypy: ignore-errors
# Triton's language, not Python's: its functions have no types of Python.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy(to, source, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + at, tl.load(source + at, mask=at < n), mask=at < n)


@triton.jit
def store_value(to, value):
    tl.store(to, value)


@triton.jit
def store_flag(to, flag):
    tl.store(to, tl.where(flag, 7, -7))


@triton.jit
def add_value(to, source, value, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + at, tl.load(source + at, mask=at < n) + value, mask=at < n)


@triton.jit
def subtract(to, a, b, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(to + at, tl.load(a + at, mask=inside) - tl.load(b + at, mask=inside), mask=inside)


@triton.jit
def gather_stride(to, source, step, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(to + at, tl.load(source + at * step, mask=at < n), mask=at < n)


@triton.jit
def copy_2d(to, source, shape, strides, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < shape[0]) & (columns < shape[1])
    tl.store(
        to + rows * shape[1] + columns,
        tl.load(source + rows * strides[0] + columns * strides[1], mask=inside),
        mask=inside,
    )


@triton.jit
def twice(x):
    return x + x


@triton.jit
def square(x):
    return x * x


@triton.jit
def apply(to, source, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + at, FUNCTION(tl.load(source + at, mask=at < n)), mask=at < n)


@triton.jit
def program_ids(to):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(to + at, x + 100 * y + 10000 * z)


@triton.jit
def row_sum(to, source, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(source + row * columns + at, mask=at < columns, other=0)
    tl.store(to + row, tl.sum(values, axis=0))


@triton.jit
def row_max(to, source, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(source + row * columns + at, mask=at < columns, other=float("-inf"))
    tl.store(to + row, tl.max(values, axis=0))


@triton.jit
def dot(to, a, b, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.arange(0, M)[:, None]
    columns = tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + rows * K + k[None, :], mask=k[None, :] < K, other=0)
        right = tl.load(b + k[:, None] * N + columns, mask=k[:, None] < K, other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(to + rows * N + columns, total)


@triton.jit
def iterate(to, steps):
    """A chain of ``steps`` dependent steps that no compiler can shorten: a kernel as long as one wants."""
    value = tl.load(to)
    for _ in range(steps):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    tl.store(to, value)


@triton.jit
def copy_after(to, source, delay, steps):
    """Runs ``steps`` steps first, whose result it keeps in ``delay``; then ``to = source + 1``."""
    value = tl.load(delay)
    for _ in range(steps):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    tl.store(delay, value)
    tl.store(to, tl.load(source) + 1)


@triton.jit
def copy_tile(to, source, rows, columns, BLOCK: tl.constexpr):
    """Copies through tensor descriptors made on the device, which some targets keep in global scratch memory."""
    left = tl.make_tensor_descriptor(source, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK, BLOCK])
    right = tl.make_tensor_descriptor(to, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK, BLOCK])
    y, x = tl.program_id(1) * BLOCK, tl.program_id(0) * BLOCK
    right.store([y, x], left.load([y, x]))


@triton.jit
def fails(to):
    tl.static_assert(False, "this kernel never compiles")
    tl.store(to, 1)
