"""The matrix product: batched, for any strides, with an addend and an activation in its epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from nbxtensor.kernels.convert import convert
from nbxtensor.kernels.offsets import offsets


@triton.jit
def _tile(program, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """The tile of a program. Programs walk down ``GROUP_M`` rows of tiles before they go right, so that those that run
    at the same time share operands in the cache."""
    group = GROUP_M * tiles_n
    first = program // group * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    inside = program % group
    return first + inside % rows, inside // rows


@triton.jit
def _dot(acc, a, b, in_m, in_n, rk, K, step_a, step_b, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
         EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """``acc`` plus the product of the tiles that ``a`` and ``b`` walk through along K."""
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(a, mask=in_m[:, None], other=0.0)
            y = tl.load(b, mask=in_n[None, :], other=0.0)
        else:
            in_k = rk < K - k
            x = tl.load(a, mask=in_m[:, None] & in_k[None, :], other=0.0)
            y = tl.load(b, mask=in_k[:, None] & in_n[None, :], other=0.0)
        # Float8 units of some cards add in fewer than 32 bits unless told not to.
        acc = tl.dot(convert(x, COMPUTE, False), convert(y, COMPUTE, False), acc, input_precision=PRECISION,
                     max_num_imprecise_acc=0, out_dtype=acc.dtype)  # fmt: skip
        a += step_a
        b += step_b
    return acc


@triton.jit
def _outer(acc, a, b, in_m, in_n, K, step_a, step_b):
    """The same by one outer product for each k: for integers, which matrix units do not take."""
    for _ in range(K):
        x = tl.load(a, mask=in_m, other=0)
        y = tl.load(b, mask=in_n, other=0)
        acc += convert(x, acc.dtype, False)[:, None] * convert(y, acc.dtype, False)[None, :]
        a += step_a
        b += step_b
    return acc


@triton.jit
def matmul(out, a, b, addend, alpha, beta, M, N, K, batch, so, sa, sb, sd, so_m, so_n, sa_m, sa_k, sb_k, sb_n, sd_m,
           sd_n, NBATCH: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
           PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, ROW: tl.constexpr, EVEN_K: tl.constexpr,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
           WIDE: tl.constexpr):  # fmt: skip
    """out[.., m, n] = ACTIVATION(alpha * sum over k of a[.., m, k] * b[.., k, n] + beta * addend[.., m, n]).

    ``batch`` is the shape of the leading dimensions, with strides ``so``, ``sa``, ``sb``, ``sd``. Operands are read as
    ``COMPUTE``, sums are kept as ``ACC``. ``ROW``: the addend is the same for every m. Offsets are 64-bit with
    ``WIDE``.
    """
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    if NBATCH > 0:
        index = program // (tiles_m * tiles_n)
        program = program % (tiles_m * tiles_n)
        out += offsets(index, batch, so, NBATCH)
        a += offsets(index, batch, sa, NBATCH)
        b += offsets(index, batch, sb, NBATCH)
        if addend is not None:
            addend += offsets(index, batch, sd, NBATCH)
    tile_m, tile_n = _tile(program, tiles_m, tiles_n, GROUP_M)
    rm = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m = rm < M
    in_n = rn < N
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    if DOT:
        rk = tl.arange(0, BLOCK_K)
        a_tile = a + (rm[:, None] * sa_m + rk[None, :] * sa_k)
        b_tile = b + (rk[:, None] * sb_k + rn[None, :] * sb_n)
        acc = _dot(acc, a_tile, b_tile, in_m, in_n, rk, K, BLOCK_K * sa_k, BLOCK_K * sb_k, COMPUTE, PRECISION, EVEN_K,
                   BLOCK_K)  # fmt: skip
    else:
        acc = _outer(acc, a + rm * sa_m, b + rn * sb_n, in_m, in_n, K, sa_k, sb_k)
    inside = in_m[:, None] & in_n[None, :]
    if alpha is not None:
        acc = acc * alpha.to(ACC)
    if addend is not None:
        if ROW:
            extra = convert(tl.load(addend + rn * sd_n, mask=in_n, other=0.0), ACC, False)[None, :]
        else:
            extra = convert(
                tl.load(addend + (rm[:, None] * sd_m + rn[None, :] * sd_n), mask=inside, other=0.0), ACC, False
            )
        if beta is not None:
            extra = extra * beta.to(ACC)
        acc = acc + extra
    value = convert(ACTIVATION(acc), out.dtype.element_ty, False)
    tl.store(out + (rm[:, None] * so_m + rn[None, :] * so_n), value, mask=inside)
