"""The element-wise operations as Triton functions: what an elementwise kernel is given as its ``OP``.

Operands arrive in the compute dtype; the kernel converts the result to the output's dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def identity(x):
    return x


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def sub(x, y):
    return x - y


@triton.jit
def mul(x, y):
    return x * y


@triton.jit
def div(x, y):
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)  # `/` is two units in the last place off on NVIDIA
    else:
        return x / y


@triton.jit
def _quotient(x, y):
    """Integer division that never traps: by 0 gives 0, and the smallest integer by -1 wraps."""
    zero = y == 0
    if x.dtype.is_int_signed():
        minus = y == -1
        quotient = x // tl.where(zero | minus, 1, y)
        quotient = tl.where(minus, 0 - x, quotient)
    else:
        quotient = x // tl.where(zero, 1, y)
    return tl.where(zero, 0, quotient)


@triton.jit
def _floor_and_rest(x, y):
    """Floor of x / y and x - floor * y for floats; exact while the quotient is below 2**24 (fp32) or 2**53 (fp64)."""
    floor = tl.floor(div(x, y))
    rest = tl.fma(-floor, y, x)
    # The rounded quotient can be one too high or too low: the exact remainder has the divisor's sign and is smaller.
    low = ((rest < 0) != (y < 0)) & (rest != 0)
    floor = tl.where(low, floor - 1, floor)
    rest = tl.where(low, rest + y, rest)
    high = tl.abs(rest) >= tl.abs(y)
    floor = tl.where(high, floor + 1, floor)
    rest = tl.where(high, rest - y, rest)
    # A finite number by infinity: 0 and itself, or -1 and the infinity where the signs differ.
    unbounded = (tl.abs(y) == float("inf")) & (tl.abs(x) < float("inf"))
    across = (x != 0) & ((x < 0) != (y < 0))
    floor = tl.where(unbounded, tl.where(across, -1.0, 0.0), floor)
    rest = tl.where(unbounded, tl.where(across, y, x), rest)
    return floor, rest


@triton.jit
def floor_divide(x, y):
    if x.dtype.is_floating():
        floor, _rest = _floor_and_rest(x, y)
        floor = tl.where(tl.abs(x) == float("inf"), float("nan"), floor)  # no integer, as Python has it
        return tl.where(y == 0, div(x, y), floor)
    else:
        quotient = _quotient(x, y)
        if x.dtype.is_int_signed():
            inexact = (quotient * y != x) & ((x < 0) != (y < 0)) & (y != 0)
            quotient = tl.where(inexact, quotient - 1, quotient)
        return quotient


@triton.jit
def remainder(x, y):
    if x.dtype.is_floating():
        _floor, rest = _floor_and_rest(x, y)
        return rest
    else:
        rest = tl.where(y == 0, 0, x - _quotient(x, y) * y)
        if x.dtype.is_int_signed():
            rest = tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
        return rest


@triton.jit
def maximum(x, y):
    if x.dtype.is_floating():
        return tl.where(x != x, x, tl.where(y != y, y, tl.where(x > y, x, y)))
    else:
        return tl.where(x > y, x, y)


@triton.jit
def minimum(x, y):
    if x.dtype.is_floating():
        return tl.where(x != x, x, tl.where(y != y, y, tl.where(x < y, x, y)))
    else:
        return tl.where(x < y, x, y)


@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def bitwise_and(x, y):
    return x & y


@triton.jit
def bitwise_or(x, y):
    return x | y


@triton.jit
def bitwise_xor(x, y):
    return x ^ y


@triton.jit
def bitwise_not(x):
    return 0 - x - 1  # two's complement; a negative constant does not mix with unsigned tensors


@triton.jit
def logical_not(x):
    return x == 0


@triton.jit
def where(condition, x, y):
    return tl.where(condition != 0, x, y)


@triton.jit
def masked_fill(x, mask, value):
    return tl.where(mask != 0, value, x)


@triton.jit
def neg(x):
    if x.dtype.is_floating():
        return -x  # 0 - x would lose the sign of zero
    else:
        return 0 - x


@triton.jit
def absolute(x):
    return tl.abs(x)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def sqrt(x):
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def tanh(x):
    # Near 0 the Taylor series, where 1 - exp(-2|x|) would cancel; beyond it exp(-2|x|) cannot overflow.
    a = tl.abs(x)
    s = x * x
    if x.dtype == tl.float64:
        p = 9.691537956929451e-05 * s - 0.00023912911424355248
        p = p * s + 0.000590027440945586
        p = p * s - 0.0014558343870513183
    else:
        p = s * 0 - 0.0014558343870513183
    p = p * s + 0.003592128036572481
    p = p * s - 0.008863235529902197
    p = p * s + 0.021869488536155203
    p = p * s - 0.05396825396825397
    p = p * s + 0.13333333333333333
    p = p * s - 0.3333333333333333
    t = tl.exp(-2.0 * a)
    far = div(1.0 - t, 1.0 + t)
    return tl.where(a < 0.25, x + x * s * p, tl.where(x < 0, -far, far))


@triton.jit
def sigmoid(x):
    # exp of a non-positive number only: no overflow on either side
    t = tl.exp(-tl.abs(x))
    return div(tl.where(x < 0, t, 1.0), 1.0 + t)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0, x)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def rsqrt(x):
    return div(tl.full(x.shape, 1.0, x.dtype), sqrt(x))
