"""Kernels of the interpreter's tests: element by element, conversions, memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unary(out, x, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, OP(tl.load(x + i, inside)), inside)


@triton.jit
def binary(out, x, y, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, OP(tl.load(x + i, inside, other=1), tl.load(y + i, inside, other=1)), inside)


@triton.jit
def ternary(out, x, y, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@triton.jit
def convert(out, x, TO: tl.constexpr, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(TO, fp_downcast_rounding=ROUNDING))


@triton.jit
def reinterpret(out, x, TO: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(TO, bitcast=True))


@triton.jit
def masked(out, x, mask, other, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=tl.load(mask + i), other=other))


@triton.jit
def masked_store(out, x, mask, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i), mask=tl.load(mask + i))


@triton.jit
def copy_tile(out, x, rows, columns, so, sx, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * N + tl.arange(0, N)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    value = tl.load(x + r[:, None] * sx[0] + c[None, :] * sx[1], inside, other=0)
    tl.store(out + (r[:, None] * so[0] + c[None, :] * so[1]), value, inside)


@triton.jit
def gather(out, x, index, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + tl.load(index + i)))


@triton.jit
def scatter(out, x, index, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.load(index + i), tl.load(x + i))


@triton.jit
def through_table(out, table, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    rows = tl.load(table + r).to(tl.pointer_type(tl.float32))
    tl.store(out + r[:, None] * COLUMNS + c[None, :], tl.load(rows[:, None] + c[None, :]))


@triton.jit
def scalars(out, a, b, c, d):
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)


@triton.jit
def constants(
    out, WHOLE: tl.constexpr, PART: tl.constexpr, FLAG: tl.constexpr, NAME: tl.constexpr, NOTHING: tl.constexpr
):
    value = WHOLE + PART
    if FLAG and NAME == "yes" and NOTHING is None:
        value += 1000
    tl.store(out, value)


@triton.jit
def atomics(out, x, index, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.atomic_add(out + tl.load(index + i), value)
    tl.atomic_max(out + 8, tl.max(value, axis=0))
    tl.atomic_min(out + 9 + i * 0, value, mask=i % 2 == 0)
    tl.store(out + 10, tl.atomic_xchg(out + 11, 5.0))


@triton.jit
def integer_atomics(out, old, x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.atomic_and(out + i * 0, value)
    tl.atomic_or(out + 1 + i * 0, value)
    tl.atomic_xor(out + 2 + i * 0, value)
    tl.atomic_max(out + 3 + i * 0, value)
    tl.store(old, tl.atomic_cas(out + 4, 7, 8))
    tl.store(old + 1, tl.atomic_cas(out + 4, 7, 9))


@triton.jit
def descriptor_copy(out, x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    r, c = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([r, c], source.load([r, c]) + 1)


@triton.jit
def past_the_end(out, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + n + i))


@triton.jit
def ignores_its_mask(out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, i, mask=i < n)


@triton.jit
def fails_in(out, program):
    tl.device_assert(tl.program_id(1) != program, "this program is not welcome")
    tl.store(out, 1)


@triton.jit
def raises(out):
    tl.store(out, tl.load(out) @ 2)


@triton.jit
def assembly(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [i], tl.int32, True, 1)
    tl.store(out + i, value)


@triton.jit
def linger(out, steps):
    for _ in range(steps):
        tl.store(out, tl.load(out) + 1)
