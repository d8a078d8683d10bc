"""Attention with an online softmax: scores never leave the chip."""

from __future__ import annotations

import triton
import triton.language as tl

from nbxtensor.kernels.convert import convert
from nbxtensor.kernels.offsets import offsets


@triton.jit
def _blocks(acc, total, top, q, k, v, mask, scale, rows, first, last, L, S, sk_e, sk_s, sv_s, sv_e, sm_s,
            EDGE: tl.constexpr, CAUSAL: tl.constexpr, ROW: tl.constexpr, E: tl.constexpr, V: tl.constexpr,
            BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_V: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """The state after the keys ``first`` to ``last``: ``top`` is the largest score of a row so far, ``total`` the sum
    of 2**(score - top), ``acc`` the values weighted by them. ``EDGE``: keys beyond S, or beyond a causal row, are left
    out."""
    lanes = tl.arange(0, BLOCK_S)
    re = tl.arange(0, BLOCK_E)
    rv = tl.arange(0, BLOCK_V)
    if WIDE:
        lanes = lanes.to(tl.int64)
        re = re.to(tl.int64)
        rv = rv.to(tl.int64)
    for start in range(first, last, BLOCK_S):
        rs = start + lanes
        key = k + (re[:, None] * sk_e + rs[None, :] * sk_s)
        value = v + (rs[:, None] * sv_s + rv[None, :] * sv_e)
        if EDGE or E < BLOCK_E:
            keys = tl.load(key, mask=(re[:, None] < E) & (rs[None, :] < S), other=0.0)
        else:
            keys = tl.load(key)
        scores = tl.dot(q, keys, input_precision="ieee", out_dtype=acc.dtype) * scale
        if mask is not None:
            inside = rs[None, :] < S
            if not ROW:
                inside = inside & (rows[:, None] < L)
            given = tl.load(mask + rs[None, :] * sm_s, mask=inside, other=0)
            if given.dtype.is_floating():
                scores += given.to(acc.dtype) * 1.4426950408889634  # log2(e): powers are taken of 2
            else:
                scores = tl.where(given != 0, scores, float("-inf"))
        if EDGE:
            attended = rs[None, :] < S
            if CAUSAL:
                attended = attended & (rows[:, None] >= rs[None, :])
            scores = tl.where(attended, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(highest == float("-inf"), 0.0, highest)  # a row without a key so far: weights 0, not NaN
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - shift)
        total = total * fade + tl.sum(weights, 1)
        if EDGE or V < BLOCK_V:
            values = tl.load(value, mask=(rs[:, None] < S) & (rv[None, :] < V), other=0.0)
        else:
            values = tl.load(value)
        acc = tl.dot(weights.to(values.dtype), values, acc * fade[:, None], input_precision="ieee", out_dtype=acc.dtype)
        top = highest
    return acc, total, top


@triton.jit
def attention(out, q, k, v, mask, scale, L, S, batch, so, sq, sk, sv, sm, so_l, so_e, sq_l, sq_e, sk_s, sk_e, sv_s,
              sv_e, sm_l, sm_s, NBATCH: tl.constexpr, ACC: tl.constexpr, CAUSAL: tl.constexpr, ROW: tl.constexpr,
              WHOLE: tl.constexpr, EDGE: tl.constexpr, E: tl.constexpr, V: tl.constexpr, BLOCK_L: tl.constexpr,
              BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_V: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """out[.., l, :] = sum over s of softmax(scale * q k + mask)[.., l, s] * v[.., s, :]; a row without any key gives 0.

    q [.., L, E], k [.., S, E], v [.., S, V], mask [.., L, S], out [.., L, V]; ``batch`` is the shape of the leading
    dimensions. ``scale`` includes log2(e). ``ROW``: the mask is the same for every l. ``WHOLE``: some blocks of keys
    lie within S and every causal row; ``EDGE``: some do not.
    """
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    blocks = tl.cdiv(L, BLOCK_L)
    block = program % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest rows start first, so that short ones fill the end
    if NBATCH > 0:
        index = program // blocks
        out += offsets(index, batch, so, NBATCH)
        q += offsets(index, batch, sq, NBATCH)
        k += offsets(index, batch, sk, NBATCH)
        v += offsets(index, batch, sv, NBATCH)
    rows = block * BLOCK_L + tl.arange(0, BLOCK_L)
    if mask is not None:
        if NBATCH > 0:
            mask += offsets(index, batch, sm, NBATCH)
        if not ROW:
            mask += rows[:, None] * sm_l
    re = tl.arange(0, BLOCK_E)
    rv = tl.arange(0, BLOCK_V)
    if WIDE:
        re = re.to(tl.int64)
        rv = rv.to(tl.int64)
    query = tl.load(q + (rows[:, None] * sq_l + re[None, :] * sq_e), mask=(rows[:, None] < L) & (re[None, :] < E),
                    other=0.0)  # fmt: skip
    acc = tl.zeros((BLOCK_L, BLOCK_V), ACC)
    total = tl.zeros((BLOCK_L,), ACC)
    top = tl.full((BLOCK_L,), float("-inf"), ACC)
    whole = S // BLOCK_S * BLOCK_S
    last = S
    if CAUSAL:
        whole = tl.minimum(whole, block * BLOCK_L // BLOCK_S * BLOCK_S)
        last = tl.minimum(S, (block + 1) * BLOCK_L)
    if WHOLE:
        acc, total, top = _blocks(acc, total, top, query, k, v, mask, scale, rows, 0, whole, L, S, sk_e, sk_s, sv_s,
                                  sv_e, sm_s, False, CAUSAL, ROW, E, V, BLOCK_S, BLOCK_E, BLOCK_V, WIDE)  # fmt: skip
    if EDGE:
        acc, total, top = _blocks(acc, total, top, query, k, v, mask, scale, rows, whole, last, L, S, sk_e, sk_s, sv_s,
                                  sv_e, sm_s, True, CAUSAL, ROW, E, V, BLOCK_S, BLOCK_E, BLOCK_V, WIDE)  # fmt: skip
    empty = total == 0
    result = tl.where(empty[:, None], 0.0, acc / tl.where(empty, 1.0, total)[:, None])
    tl.store(out + (rows[:, None] * so_l + rv[None, :] * so_e), convert(result, out.dtype.element_ty, False),
             mask=(rows[:, None] < L) & (rv[None, :] < V))  # fmt: skip
