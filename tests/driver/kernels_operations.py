"""What the interpreter's tests apply element by element: constexpr arguments of the kernels in `kernels_arithmetic`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


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
    return x / y


@triton.jit
def floordiv(x, y):
    return x // y


@triton.jit
def mod(x, y):
    return x % y


@triton.jit
def shift_left(x, y):
    return x << y


@triton.jit
def shift_right(x, y):
    return x >> y


@triton.jit
def bit_and(x, y):
    return x & y


@triton.jit
def bit_or(x, y):
    return x | y


@triton.jit
def bit_xor(x, y):
    return x ^ y


@triton.jit
def less(x, y):
    return x < y


@triton.jit
def less_equal(x, y):
    return x <= y


@triton.jit
def greater(x, y):
    return x > y


@triton.jit
def greater_equal(x, y):
    return x >= y


@triton.jit
def equal(x, y):
    return x == y


@triton.jit
def not_equal(x, y):
    return x != y


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y)


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y)


@triton.jit
def minimum_nan(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def maximum_nan(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def umulhi(x, y):
    return tl.umulhi(x, y)


@triton.jit
def pow(x, y):
    return libdevice.pow(x, y)


@triton.jit
def identity(x):
    return x


@triton.jit
def negative(x):
    return -x


@triton.jit
def invert(x):
    return ~x


@triton.jit
def absolute(x):
    return tl.abs(x)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.math.exp2(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.math.log2(x)


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def sqrt(x):
    return tl.sqrt(x)


@triton.jit
def rsqrt(x):
    return x.rsqrt()


@triton.jit
def erf(x):
    return tl.math.erf(x)


@triton.jit
def floor(x):
    return tl.floor(x)


@triton.jit
def ceil(x):
    return tl.math.ceil(x)


@triton.jit
def sigmoid(x):
    return tl.sigmoid(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def log1p(x):
    return tl.extra.libdevice.log1p(x)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def rint(x):
    return libdevice.rint(x)


@triton.jit
def isnan(x):
    return libdevice.isnan(x) != 0


@triton.jit
def unknown_to_the_interpreter(x):
    return libdevice.j0(x)


@triton.jit
def half_plus(x):
    return x * 0.5 + 1


@triton.jit
def clamp(x):
    return tl.clamp(x, -1.0, 1.0)
