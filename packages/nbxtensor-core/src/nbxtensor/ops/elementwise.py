"""Element-wise operators: arithmetic, comparison, selection, functions and activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nbxtensor import shape as _shape
from nbxtensor.dtype import DType, bool_, default_float, float32, float64, int32, promote_scalar, result_type
from nbxtensor.errors import DTypeError, ShapeError
from nbxtensor.kernels import elementwise as kernel
from nbxtensor.kernels.plan import Plan, Ref
from nbxtensor.ops.dispatch import Dispatcher, Number, Operand
from nbxtensor.ops.oracles import elementwise as oracle
from nbxtensor.ops.table import (
    BOOL,
    FLOAT8,
    FLOATS,
    INTS,
    ROUNDING,
    ErrorSample,
    Input,
    Operator,
    Sample,
    Tolerance,
    elementwise_cost,
    register,
    scaled,
)
from nbxtensor.tensor import NBXTensor, Spec, spec

Unary = Callable[[NBXTensor], NBXTensor]
Binary = Callable[[Operand, Operand], NBXTensor]


def compute_dtype(dtype: DType) -> DType:
    """What arithmetic on ``dtype`` is done in: float32 for the narrower floats, int32 for bool."""
    if dtype.kind == "float" and dtype.itemsize < 4:
        return float32
    return int32 if dtype is bool_ else dtype


def accepted(where: str, argument: str, dtype: DType, dtypes: Sequence[str]) -> None:
    """Refuses a dtype that the operator does not take."""
    if dtype not in dtypes:
        raise DTypeError(where, argument, dtype, f"not accepted; takes {', '.join(dtypes)}")


def to_float(dtype: DType) -> DType:
    """A floating dtype as it is, the default one for integers and bool."""
    return dtype if dtype.kind == "float" else default_float


def common_dtype(where: str, *operands: Spec | Number) -> DType:
    """The promoted dtype of tensors and numbers."""
    specs = [o.dtype for o in operands if isinstance(o, Spec)]
    joined = result_type(*specs, where=where)
    for operand in operands:
        if isinstance(operand, Number):
            joined = promote_scalar(joined, operand.value, where=where)
    return joined


def plan(
    operation: str,
    operands: Sequence[Spec | Number],
    out: DType,
    compute: DType | None,
    first: DType | None = None,
    name: str = "",
) -> Plan:
    """One launch of an element-wise operation over the broadcast shape of the operands; ``name`` is the operator's
    where it is not the operation's."""
    specs = [o for o in operands if isinstance(o, Spec)]
    device = specs[0].device
    shape = _shape.broadcast_shapes(*(s.shape for s in specs), where=operation)
    result = spec(device, out, shape)
    arithmetic = compute if compute is not None else out
    refs: list[tuple[Ref, Spec | None]] = []
    ranges: dict[int, tuple[int, int, DType]] = {}
    for i, operand in enumerate(operands):
        if isinstance(operand, Spec):
            refs.append((Ref("in", i), operand))
        elif arithmetic.kind == "float":
            refs.append((Ref("value", i, type="fp64" if arithmetic.itemsize == 8 else "fp32"), None))
            if isinstance(operand.value, int):  # Python's may be larger than any float
                ranges[i] = (-int(float64.max), int(float64.max), float64)
        else:
            refs.append((Ref("value", i, type="u64" if arithmetic == "uint64" else "i64"), None))
            ranges[i] = (int(arithmetic.min), int(arithmetic.max), arithmetic)
    step = kernel.step(device.facts, operation, (Ref("out", 0), result), refs, compute, first=first)
    return Plan((result,), (step,), ranges=ranges, name=name or operation)


_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (7,), (3, 4), (3, 0, 2), (2, 3, 5), (300, 70))
_PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()), ((7,), ()), ((0,), (1,)), ((3, 4), (3, 4)), ((3, 1), (4,)), ((2, 1, 5), (3, 1)), ((3, 0, 2), (2,)),
    ((64, 33), (33,)),
)  # fmt: skip


def _unary(
    name: str,
    doc: str,
    exact: Callable[..., Any],
    dtypes: Sequence[str],
    *,
    tolerance: dict[str, Tolerance] | None = None,
    out: Callable[[DType], DType] = to_float,
    operation: Callable[[DType], str] | None = None,
    special: Sequence[str] = (),
    flops: int = 1,
) -> Unary:
    """Registers ``name(x)``; ``special`` are its special methods."""

    def planned(x: Spec) -> Plan:
        accepted(name, "x", x.dtype, dtypes)
        result = out(x.dtype)
        return plan(
            operation(x.dtype) if operation else name,
            [x],
            result,
            compute_dtype(x.dtype if result is bool_ else result),
        )

    dispatcher = Dispatcher(name, (("x", "tensor"),), planned)
    function = dispatcher.function()
    function.__doc__, function.__module__ = doc, __name__
    register(
        Operator(
            name, "unary", function, ("x",), tuple(dtypes), out, exact,
            lambda: [Sample((Input(s),)) for s in _SHAPES],
            lambda: _unary_errors(dtypes),
            tolerance or ROUNDING,
            lambda i, o, p: elementwise_cost(i, o, p, flops),
            {name: function, **{s: dispatcher.operator(s) for s in special}},
        )
    )  # fmt: skip
    return function


def _unary_errors(dtypes: Sequence[str]) -> list[ErrorSample]:
    refused = next(d for d in ("complex64", "bool", "float32") if d not in dtypes)
    return [
        ErrorSample((Input((2,)),), {}, DTypeError, "not accepted", refused),
        ErrorSample((2.0,), {}, DTypeError, "must be a tensor"),
    ]


def _binary(
    name: str,
    doc: str,
    exact: Callable[..., Any],
    dtypes: Sequence[str],
    *,
    tolerance: dict[str, Tolerance] | None = None,
    out: Callable[[DType], DType] = lambda d: d,
    special: str = "",
) -> Binary:
    """Registers ``name(a, b)`` with the special methods ``__special__`` and ``__rspecial__``."""

    def planned(a: Spec | Number, b: Spec | Number) -> Plan:
        common = common_dtype(name, a, b)
        accepted(name, "a, b", common, dtypes)
        result = out(common)
        if result is bool_ and common.kind == "float":
            compute = common  # the number is rounded to the tensor's dtype: a float16 tensor of 0.1 is equal to 0.1
        else:
            compute = compute_dtype(common if result is bool_ else result)
        return plan(name, [a, b], result, compute)

    dispatcher = Dispatcher(name, (("a", "operand"), ("b", "operand")), planned)
    function = dispatcher.function()
    function.__doc__, function.__module__ = doc, __name__
    methods = {name: function}
    if special:
        methods[f"__{special}__"] = dispatcher.operator(f"__{special}__")
        if special not in _COMPARISONS:  # Python reflects a comparison by its own mirror image
            methods[f"__r{special}__"] = dispatcher.reflected(f"__r{special}__")
    number = 3 if dtypes[0] in INTS or dtypes[0] in BOOL else 1.5
    register(
        Operator(
            name, "binary", function, ("a", "b"), tuple(dtypes), out, exact,
            lambda: [Sample((Input(s), Input(t))) for s, t in _PAIRS]
            + [Sample((Input((3, 4)), number)), Sample((number, Input((5,))))],
            lambda: _binary_errors(dtypes),
            tolerance or ROUNDING,
            elementwise_cost,
            methods,
        )
    )  # fmt: skip
    return function


def _binary_errors(dtypes: Sequence[str]) -> list[ErrorSample]:
    refused = next(d for d in ("complex64", "bool", "float32") if d not in dtypes)
    return [
        ErrorSample((Input((2,)), Input((3,))), {}, ShapeError, "broadcast", dtypes[0]),
        ErrorSample((Input((2,)), Input((2,))), {}, DTypeError, "not accepted", refused),
        ErrorSample((Input((2,)), "text"), {}, DTypeError, "must be a tensor or a Python number", dtypes[0]),
        ErrorSample((1, 2), {}, ValueError, "at least one operand must be a tensor", dtypes[0]),
    ]


_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_NUMBERS = (*FLOATS, *INTS)
_BROADCAST = "Broadcasts; dtypes promote by the Array API's table, a Python number keeps the tensor's kind."

# arithmetic

add = _binary("add", f"``a + b``. {_BROADCAST} bool with bool is the logical or.", oracle.add,
              (*_NUMBERS, *BOOL, *FLOAT8), special="add")  # fmt: skip
sub = _binary("sub", f"``a - b``. {_BROADCAST} bool is refused.", oracle.sub, (*_NUMBERS, *FLOAT8), special="sub")
mul = _binary("mul", f"``a * b``. {_BROADCAST} bool with bool is the logical and.", oracle.mul,
              (*_NUMBERS, *BOOL, *FLOAT8), special="mul")  # fmt: skip
div = _binary("div", f"``a / b``, true division: integers give float32. {_BROADCAST}", oracle.div,
              (*_NUMBERS, *BOOL), out=to_float, special="truediv", tolerance=scaled(2))  # fmt: skip
floor_divide = _binary(
    "floor_divide",
    f"The quotient rounded down, as Python's ``//``. {_BROADCAST} An integer by 0 gives 0. float16, bfloat16 and "
    "float32 quotients from 2**24 on (float64: 2**53) are rounded ones.",
    oracle.floor_divide, _NUMBERS, special="floordiv",
)  # fmt: skip
remainder = _binary(
    "remainder",
    f"``a - floor_divide(a, b) * b`` with the sign of ``b``, as Python's ``%``. {_BROADCAST} An integer by 0 gives 0. "
    "Exact while the quotient of floats is below 2**24 (float64: 2**53).",
    oracle.remainder, _NUMBERS, special="mod",
)  # fmt: skip
maximum = _binary("maximum", f"The larger element; NaN wins. {_BROADCAST}", oracle.maximum, _NUMBERS)
minimum = _binary("minimum", f"The smaller element; NaN wins. {_BROADCAST}", oracle.minimum, _NUMBERS)


def _compare(name: str, sign: str) -> Binary:
    return _binary(name, f"``a {sign} b`` as bool. {_BROADCAST} NaN is unequal to everything and in no order.",
                   getattr(oracle, name), (*_NUMBERS, *BOOL), out=lambda d: bool_, special=name)  # fmt: skip


eq, ne = _compare("eq", "=="), _compare("ne", "!=")
lt, le = _compare("lt", "<"), _compare("le", "<=")
gt, ge = _compare("gt", ">"), _compare("ge", ">=")


def _bitwise(name: str, sign: str, special: str) -> Binary:
    return _binary(name, f"``a {sign} b`` on the bits of integers, or logical on bool. {_BROADCAST}",
                   getattr(oracle, name), (*INTS, *BOOL), special=special)  # fmt: skip


bitwise_and = _bitwise("bitwise_and", "&", "and")
bitwise_or = _bitwise("bitwise_or", "|", "or")
bitwise_xor = _bitwise("bitwise_xor", "^", "xor")

# functions of one operand

neg = _unary("neg", "``-x``; unsigned integers wrap, bool is refused.", oracle.neg, (*_NUMBERS, *FLOAT8),
             out=lambda d: d, special=("__neg__",))  # fmt: skip
abs = _unary("abs", "The magnitude; the smallest signed integer stays itself.", oracle.absolute, _NUMBERS,
             out=lambda d: d, operation=lambda d: "absolute", special=("__abs__",))  # fmt: skip
bitwise_not = _unary("bitwise_not", "All bits inverted; the logical not of bool.", oracle.bitwise_not, (*INTS, *BOOL),
                     out=lambda d: d, special=("__invert__",),
                     operation=lambda d: "logical_not" if d is bool_ else "bitwise_not")  # fmt: skip
logical_not = _unary("logical_not", "Whether the element is 0, as bool.", oracle.logical_not, (*_NUMBERS, *BOOL),
                     out=lambda d: bool_)  # fmt: skip

_FLOAT_MATH = (*FLOATS, *INTS, *BOOL)
_INTEGERS = "Integers and bool give float32."
_EXP = scaled(
    64,
    flushes=True,
    reason="x * log2(e) is rounded before the power of two: an error of |x| units, 64 at most in range",
)
exp = _unary("exp", f"e to the power x. {_INTEGERS}", oracle.exp, _FLOAT_MATH, tolerance=_EXP)
log = _unary("log", f"The natural logarithm; of 0 -inf, of negative numbers NaN. {_INTEGERS}", oracle.log, _FLOAT_MATH,
             tolerance=scaled(4, atol=2, flushes=True))  # fmt: skip
sqrt = _unary("sqrt", f"The square root, correctly rounded; of negative numbers NaN. {_INTEGERS}", oracle.sqrt,
              _FLOAT_MATH, tolerance=scaled(1))  # fmt: skip
rsqrt = _unary("rsqrt", f"``1 / sqrt(x)``. {_INTEGERS}", oracle.rsqrt, _FLOAT_MATH, tolerance=scaled(2))
tanh = _unary("tanh", f"The hyperbolic tangent. {_INTEGERS}", oracle.tanh, _FLOAT_MATH,
              tolerance=scaled(8, flushes=True))  # fmt: skip
erf = _unary("erf", f"The error function. {_INTEGERS}", oracle.erf, _FLOAT_MATH,
             tolerance=scaled(4, flushes=True))  # fmt: skip
sigmoid = _unary(
    "sigmoid", f"``1 / (1 + exp(-x))`` without overflow. {_INTEGERS}", oracle.sigmoid, _FLOAT_MATH, tolerance=_EXP
)

# activations

relu = _unary("relu", "``x`` where it is not negative, else 0; NaN stays.", oracle.relu, _NUMBERS, out=lambda d: d)
silu = _unary("silu", f"``x * sigmoid(x)``. {_INTEGERS}", oracle.silu, _FLOAT_MATH, tolerance=_EXP)

_GELU = scaled(
    64, atol=8, flushes=True, reason="1 + erf cancels for negative x: a few units of |x| absolute, then one rounding"
)


def _plan_gelu(x: Spec, approximate: str) -> Plan:
    accepted("gelu", "x", x.dtype, FLOATS)
    if approximate not in ("none", "tanh"):
        raise DTypeError("gelu", "approximate", approximate, 'must be "none" or "tanh"')
    return plan("gelu" if approximate == "none" else "gelu_tanh", [x], x.dtype, compute_dtype(x.dtype))


_gelu = Dispatcher("gelu", (("x", "tensor"), ("approximate", "param")), _plan_gelu, ("none",)).function()


def gelu(x: NBXTensor, approximate: str = "none") -> NBXTensor:
    """The Gaussian error linear unit, ``x * Phi(x)``: exact by erf ("none") or by the tanh formula ("tanh")."""
    return _gelu(x, approximate)  # type: ignore[no-any-return]


register(
    Operator(
        "gelu", "unary", gelu, ("x",), FLOATS, lambda d, **_: d, oracle.gelu,
        lambda: [Sample((Input(s),), {"approximate": a}) for s in _SHAPES for a in ("none", "tanh")],
        lambda: [
            ErrorSample((Input((2,)),), {"approximate": "sigmoid"}, ValueError, 'must be "none" or "tanh"'),
            ErrorSample((Input((2,)),), {}, DTypeError, "not accepted", "int32"),
        ],
        _GELU,
        lambda i, o, p: elementwise_cost(i, o, p, 8),
        {"gelu": gelu},
    )
)  # fmt: skip

# selection


def _plan_where(condition: Spec, a: Spec | Number, b: Spec | Number) -> Plan:
    accepted("where", "condition", condition.dtype, BOOL)
    if not isinstance(a, Spec) and not isinstance(b, Spec):
        kinds = result_type(a.value, b.value, where="where")
        return plan("where", [condition, a, b], kinds, compute_dtype(kinds), first=bool_)
    common = common_dtype("where", a, b)
    accepted("where", "a, b", common, (*_NUMBERS, *BOOL, *FLOAT8))
    return plan("where", [condition, a, b], common, compute_dtype(common), first=bool_)


_where = Dispatcher("where", (("condition", "tensor"), ("a", "operand"), ("b", "operand")), _plan_where).function()


def where(condition: NBXTensor, a: Operand, b: Operand) -> NBXTensor:
    """``a`` where the bool tensor ``condition`` holds, else ``b``. The three broadcast; ``a`` and ``b`` promote."""
    return _where(condition, a, b)  # type: ignore[no-any-return]


def _where_method(self: NBXTensor, condition: NBXTensor, other: Operand) -> NBXTensor:
    """``self`` where ``condition`` holds, else ``other``."""
    return _where(condition, self, other)  # type: ignore[no-any-return]


register(
    Operator(
        "where", "ternary", where, ("condition", "a", "b"), (*_NUMBERS, *BOOL, *FLOAT8), lambda d: d, oracle.where,
        lambda: [Sample((Input(c, "bool"), Input(s), Input(t))) for c, s, t in
                 (((), (), ()), ((7,), (7,), (7,)), ((3, 1), (4,), (2, 1, 1)), ((0,), (1,), (0,)),
                  ((64, 33), (33,), ()))]
        + [Sample((Input((3, 4), "bool"), Input((3, 4)), 1)), Sample((Input((3, 4), "bool"), 0, Input((4,))))],
        lambda: [
            ErrorSample((Input((2,)), Input((2,)), Input((2,))), {}, DTypeError, "condition.*not accepted"),
            ErrorSample((Input((2,), "bool"), Input((3,)), Input((2,))), {}, ShapeError, "broadcast"),
        ],
        ROUNDING,
        elementwise_cost,
        {"where": _where_method},
    )
)  # fmt: skip


def _plan_masked_fill(x: Spec, mask: Spec, value: Spec | Number) -> Plan:
    accepted("masked_fill", "mask", mask.dtype, BOOL)
    accepted("masked_fill", "x", x.dtype, (*_NUMBERS, *BOOL, *FLOAT8))
    if isinstance(value, Spec) and value.numel != 1:
        raise ShapeError("masked_fill", "value", value.shape, "must be a number or a tensor of one element")
    if common_dtype("masked_fill", x, value) != x.dtype:
        kind = value.dtype if isinstance(value, Spec) else type(value.value).__name__
        raise DTypeError("masked_fill", "value", kind, f"does not fit in x's dtype {x.dtype}")
    if _shape.broadcast_shapes(x.shape, mask.shape, where="masked_fill") != x.shape:
        raise ShapeError("masked_fill", "mask", mask.shape, f"must broadcast to x's shape {x.shape}")
    operands = [mask, value.with_strides((), ()) if isinstance(value, Spec) else value, x]
    return plan("where", operands, x.dtype, compute_dtype(x.dtype), first=bool_, name="masked_fill")


_masked_fill = Dispatcher(
    "masked_fill", (("mask", "tensor"), ("value", "operand"), ("x", "tensor")),
    lambda mask, value, x: _plan_masked_fill(x, mask, value),
).function()  # fmt: skip


def masked_fill(x: NBXTensor, mask: NBXTensor, value: Operand) -> NBXTensor:
    """``x`` with ``value`` (a number or a tensor of one element) where the bool ``mask``, broadcast to ``x``, holds."""
    return _masked_fill(mask, value, x)  # type: ignore[no-any-return]


register(
    Operator(
        "masked_fill", "ternary", masked_fill, ("x", "mask", "value"), (*_NUMBERS, *BOOL, *FLOAT8), lambda d: d,
        oracle.masked_fill,
        lambda: [Sample((Input(s), Input(m, "bool"), True)) for s, m in
                 (((), ()), ((7,), (7,)), ((3, 4), (4,)), ((3, 0), (3, 1)), ((2, 3, 5), (3, 1)))]
        + [Sample((Input((3, 4)), Input((3, 4), "bool"), Input(())))],
        lambda: [
            ErrorSample((Input((2,)), Input((2,)), 1), {}, DTypeError, "mask.*not accepted"),
            ErrorSample((Input((2,)), Input((3, 2), "bool"), 1), {}, ShapeError, "must broadcast to x's shape"),
            ErrorSample((Input((2,)), Input((2,), "bool"), 1.5), {}, DTypeError, "does not fit", "int32"),
            ErrorSample((Input((2,)), Input((2,), "bool"), Input((2,))), {}, ShapeError, "of one element"),
        ],
        ROUNDING,
        elementwise_cost,
        {"masked_fill": masked_fill},
    )
)  # fmt: skip
