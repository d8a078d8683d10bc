"""Kernels of the interpreter's tests: control flow, reductions, scans, shapes, products."""

from __future__ import annotations

import triton
import triton.language as tl

SCALE: tl.constexpr = tl.constexpr(3)


@triton.jit
def reduce_rows(out, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr, NAME: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    value = tl.load(x + r[:, None] * COLUMNS + c[None, :])
    o = c if AXIS == 0 else r
    if NAME == "sum":
        tl.store(out + o, tl.sum(value, axis=AXIS))
    elif NAME == "max":
        tl.store(out + o, tl.max(value, AXIS))
    elif NAME == "min":
        tl.store(out + o, value.min(AXIS))
    elif NAME == "argmax":
        tl.store(out + o, tl.argmax(value, AXIS))
    elif NAME == "argmin":
        tl.store(out + o, tl.argmin(value, AXIS))
    elif NAME == "xor":
        tl.store(out + o, tl.xor_sum(value, AXIS))
    elif NAME == "all":
        tl.store(out, tl.sum(value))
    else:
        tl.static_assert(False, "no such reduction")


@triton.jit
def max_with_index(out, index, x, N: tl.constexpr):
    value, at = tl.max(tl.load(x + tl.arange(0, N)), axis=0, return_indices=True)
    tl.store(out, value)
    tl.store(index, at)


@triton.jit
def _welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def welford(mean, m2, x, ROWS: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, N)
    value = tl.load(x + r[:, None] * N + c[None, :])
    a, b, _n = tl.reduce(
        (value, tl.zeros_like(value), tl.full(value.shape, 1.0, tl.float32)), 1, _welford, keep_dims=True
    )
    tl.store(mean + r[:, None], a)
    tl.store(m2 + r[:, None], b)


@triton.jit
def _affine(a1, b1, a2, b2):
    # x -> a1 x + b1, then x -> a2 x + b2: associative, and its order matters
    return a1 * a2, a2 * b1 + b2


@triton.jit
def recurrence(out, a, b, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    _factor, value = tl.associative_scan((tl.load(a + i), tl.load(b + i)), 0, _affine, reverse=REVERSE)
    tl.store(out + i, value)


@triton.jit
def compose(out, a, b, N: tl.constexpr):
    i = tl.arange(0, N)
    factor, value = tl.reduce((tl.load(a + i), tl.load(b + i)), 0, _affine)
    tl.store(out, factor)
    tl.store(out + 1, value)


@triton.jit
def _larger_magnitude(a, b):
    if a * a > b * b:
        result = a
    else:
        result = b
    return result


@triton.jit
def branching_reduction(out, x, N: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, N)), 0, _larger_magnitude))


@triton.jit
def scans(sums, products, backward, x, ROWS: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, N)
    at = r[:, None] * N + c[None, :]
    value = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(value, 1))
    tl.store(products + at, tl.cumprod(value, axis=0))
    tl.store(backward + at, value.cumsum(1, reverse=True))


@triton.jit
def order(out, backward, flipped, x, ROWS: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + at)
    tl.store(out + at, tl.sort(value))
    tl.store(backward + at, tl.sort(value, descending=True))
    tl.store(flipped + at, tl.flip(value, 1))


@triton.jit
def _piecewise(x, slope):
    if x > 0:
        result = x
    else:
        result = slope * x
    return result


@triton.jit
def mapped(out, x, slope, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.map_elementwise(_piecewise, tl.load(x + i), slope))


@triton.jit
def shapes(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    square = tl.reshape(value, (N // 4, 4))
    tl.store(out + i, tl.reshape(tl.trans(square), [N]))
    even, odd = tl.split(value.reshape(N // 2, 2))
    tl.store(out + N + tl.arange(0, N // 2), even * 10 + odd)
    tl.store(out + 2 * N + tl.arange(0, 2 * N), tl.interleave(value, -value))
    tl.store(out + 4 * N + tl.arange(0, 2 * N), tl.cat(value, value + 100, can_reorder=True))
    cube = tl.permute(value.reshape(2, N // 8, 4), (2, 0, 1))
    tl.store(out + 6 * N + i, tl.ravel(cube))
    tl.store(out + 7 * N + i, tl.gather(value, N - 1 - i, 0))
    tl.store(out + 8 * N + i, tl.sum(tl.broadcast_to(value[:, None], (N, 4)), 1))
    tl.store(
        out + 9 * N + tl.arange(0, 4)[:, None] * N + i[None, :], tl.expand_dims(value, 0) + tl.arange(0, 4)[:, None]
    )


@triton.jit
def histogram(out, x, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@triton.jit
def random(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.rand(seed, i))
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(out + N + i, (a ^ b ^ c ^ d).to(tl.uint32).to(tl.float32))


@triton.jit
def _swizzle(program, M, N, GROUP: tl.constexpr):
    width = GROUP * N
    first = program // width * GROUP
    height = min(M - first, GROUP)
    return first + program % width % height, program % width // height


@triton.jit
def matmul(out, a, b, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    row, column = _swizzle(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), 2)
    rm, rn, rk = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa, pb = a + rm[:, None] * k + rk[None, :], b + rk[:, None] * n + rn[None, :]
    total = tl.zeros((BM, BN), dtype=ACC)
    for step in range(tl.cdiv(k, BK)):
        left = k - step * BK
        x = tl.load(pa, mask=(rm[:, None] < m) & (rk[None, :] < left), other=0.0)
        y = tl.load(pb, mask=(rk[:, None] < left) & (rn[None, :] < n), other=0.0)
        total = tl.dot(x, y, total, out_dtype=ACC)
        pa += BK
        pb += BK * n
    inside = (rm[:, None] < m) & (rn[None, :] < n)
    tl.store(out + rm[:, None] * n + rn[None, :], total.to(out.dtype.element_ty), inside)


@triton.jit
def batched_dot(out, a, b, B: tl.constexpr, S: tl.constexpr):
    i, r, c = tl.arange(0, B)[:, None, None], tl.arange(0, S)[None, :, None], tl.arange(0, S)[None, None, :]
    at = i * S * S + r * S + c
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="tf32"))


@triton.jit
def softmax(out, x, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, i < n, other=float("-inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * n + i, value / tl.sum(value, 0), i < n)


@triton.jit
def _attend(
    total, weight, highest, q, k, v, rows, length, scale, CAUSAL: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    d = tl.arange(0, D)
    for start in tl.range(0, length, BN, num_stages=2):
        columns = start + tl.arange(0, BN)
        keys = tl.load(k + columns[None, :] * D + d[:, None], columns[None, :] < length, 0.0)
        seen = columns[None, :] < length
        if CAUSAL:
            seen = seen & (rows[:, None] >= columns[None, :])
        score = tl.where(seen, tl.dot(q, keys) * scale, float("-inf"))
        new = tl.maximum(highest, tl.max(score, 1))
        shrink = tl.math.exp2((highest - new) * 1.44269504)
        p = tl.math.exp2((score - new[:, None]) * 1.44269504)
        weight = weight * shrink + tl.sum(p, 1)
        values = tl.load(v + columns[:, None] * D + d[None, :], columns[:, None] < length, 0.0)
        total = total * shrink[:, None] + tl.dot(p.to(v.dtype.element_ty), values)
        highest = new
    return total, weight


@triton.jit
def attention(out, q, k, v, length, scale, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    head = tl.program_id(1) * length * D
    query = tl.load(q + head + rows[:, None] * D + d[None, :], rows[:, None] < length, 0.0)
    total, weight = tl.zeros([BM, D], tl.float32), tl.zeros([BM], tl.float32)
    highest = tl.full([BM], float("-inf"), tl.float32)
    total, weight = _attend(total, weight, highest, query, k + head, v + head, rows, length, scale, CAUSAL, BN, D)
    total = total / weight[:, None]
    tl.store(out + head + rows[:, None] * D + d[None, :], total.to(out.dtype.element_ty), rows[:, None] < length)


@triton.jit
def collatz(out, x):
    n = tl.load(x)
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    tl.store(out, steps)


@triton.jit
def loops(out, n, shape, EMPTY: tl.constexpr):
    total = tl.zeros((), tl.int64)
    for i in range(n):
        total += i.to(tl.int64) * i  # the counter is a tensor
    tl.store(out, total)
    backward = 0
    for i in range(n, 0, -1):
        backward = backward * 2 + i
    tl.store(out + 1, backward)
    product = SCALE
    for d in tl.static_range(len(shape)):
        product = product * shape[d]
    tl.store(out + 2, product)
    for i in tl.range(EMPTY):
        tl.store(out + 100 + i, i)
    count: tl.constexpr = 5
    tl.store(out + tl.arange(0, count + 3), 9, mask=tl.arange(0, 8) == 4)


@triton.jit
def _early(x):
    if x > 10:
        return x * 2
    return x


@triton.jit
def conditions(out, x, FLAG: tl.constexpr):
    i = tl.arange(0, 8)
    value = tl.load(x + i)
    tl.store(out + i, tl.where(value > 2 and value < 6, 1, 0))
    tl.store(out + 8 + i, tl.where(value < 2 or not value < 6, 1, 0))
    first = tl.load(x + 1)
    tl.store(out + 16, 7 if first == 1 else 8)
    tl.store(out + 17, 3 if FLAG else 4)
    tl.store(out + 18, _early(first) + _early(first + 20))
    other = first
    if first > 0 and (FLAG or first > 100):
        other += 50
    tl.store(out + 19, other)
    tl.store(out + 20, max(first, 5) + min(first, 5) + max(2, 3))
    tl.store(out + 21, not FLAG)


@triton.jit
def promotion(out, x):
    value = tl.load(x)
    number = 0.5
    tl.store(out, tl.where((value * 0.5).dtype == tl.float16, 1, 0))
    tl.store(out + 1, tl.where((value * number).dtype == tl.float32, 1, 0))
    tl.store(out + 2, tl.where((value / 2).dtype == tl.float32, 1, 0))
    whole = tl.load(out)
    tl.store(out + 3, tl.where((whole + 0.5).dtype == tl.float32, 1, 0))
    tl.store(out + 4, tl.where((whole.to(tl.uint8) + whole.to(tl.int8)).dtype == tl.uint8, 1, 0))
    tl.store(out + 5, tl.where((whole.to(tl.int64) + 1).dtype == tl.int64, 1, 0))
    tl.store(out + 7, tl.where(((whole > 0) & 1).dtype == tl.int32, 1, 0))
    tl.store(out + 6, tl.where(tl.sum(tl.arange(0, 4).to(tl.int8), 0).dtype == tl.int32, 1, 0))


@triton.jit
def outer_sums(out, far, shift, STEP: tl.constexpr):
    r, c = tl.arange(0, 8)[:, None], tl.arange(0, 4)[None, :]
    at = r * 4 + c
    total = r * STEP + (c * STEP + shift)
    tl.store(out + at, total)
    tl.store(out + 32 + at, (r + c) * (r - c) + (1 + (c + r)) + r)
    tl.store(out + 64 + at, tl.where(r + c < 5, r + c, -(r + c)))
    tl.store(far + at, (r.to(tl.int64) * STEP + c.to(tl.int64) * STEP) * 4)


@triton.jit
def ambiguous(out):
    if tl.arange(0, 4) > 2:
        tl.store(out, 1)
