"""Matrix products. float32 is multiplied as IEEE has it unless ``precision="tf32"`` is given; float16, bfloat16 and
float8 are summed in float32; integers wrap around as numpy's do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbxtensor import shape as _shape
from nbxtensor.dtype import DType, float32, float64, int64, result_type
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, DTypeError, ScalarOverflow, ShapeError
from nbxtensor.kernels import elementwise
from nbxtensor.kernels import matmul as kernel
from nbxtensor.kernels.plan import Plan, Ref, Step
from nbxtensor.ops.dispatch import Dispatcher
from nbxtensor.ops.elementwise import accepted
from nbxtensor.ops.oracles import linalg as oracle
from nbxtensor.ops.table import (
    FLOAT8,
    FLOATS,
    INTS,
    ROUNDING,
    Cost,
    ErrorSample,
    Input,
    Operator,
    Sample,
    Tolerance,
    register,
)
from nbxtensor.tensor import NBXTensor, Spec, spec

DTYPES = (*FLOATS, *INTS, *FLOAT8)

# plans


def product_dtype(dtype: DType, **_: Any) -> DType:
    """The dtype of a product of operands of ``dtype``: itself, but float32 for float8, whose sums it could not hold."""
    return float32 if dtype in FLOAT8 else dtype


def _product(
    where: str,
    shape: tuple[int, ...],
    a: Spec,
    b: Spec,
    *,
    precision: str,
    addend: tuple[Ref, Spec] | None = None,
    first: int = 0,
    **epilogue: Any,
) -> Plan:
    """The plan of ``a @ b`` of specs [.., M, K] and [.., K, N], with a result of ``shape``. ``first`` is a's position
    among the operands, b's is the next; ``epilogue`` is `kernel.step`'s. Integers are multiplied in the dtype of the
    result."""
    compute = result_type(a.dtype, b.dtype, where=where)
    accepted(where, "a, b", compute, DTYPES)
    if addend is not None and compute.kind != "float":
        compute = result_type(compute, addend[1].dtype, where=where)
    dtype = product_dtype(compute)
    if addend is not None:
        dtype = result_type(dtype, addend[1].dtype, where=where)
    accepted(where, "result", dtype, DTYPES)
    _check_precision(where, precision, a)
    batch = _shape.broadcast_shapes(a.shape[:-2], b.shape[:-2], where=where)
    result = spec(a.device, dtype, shape)
    matrices = result.with_strides(full := (*batch, a.shape[-2], b.shape[-1]), _shape.contiguous_strides(full))
    wide = WideOperands(compute)
    left, right = wide.read((Ref("in", first), a)), wide.read((Ref("in", first + 1), b))
    out = (Ref("out", 0), matrices)
    step = kernel.step(a.device.facts, out, left, right, compute, addend=addend, precision=precision, **epilogue)
    return Plan((result,), (*wide.steps, step), tuple(wide.work))


class WideOperands:
    """Operands of kernels that multiply as ``compute``. Those of less than 4 bytes are copied for float64 products, as
    integers or floats of 8 bytes: Triton 3.6 and 3.8 cannot lay out a float64 product that has narrower sources."""

    def __init__(self, compute: DType):
        self.compute = compute
        self.steps: list[Step] = []
        self.work: list[Spec] = []

    def read(self, operand: tuple[Ref, Spec]) -> tuple[Ref, Spec]:
        """The operand, or its copy in the plan's workspace."""
        _, given = operand
        if self.compute is not float64 or given.dtype.itemsize >= 4:
            return operand
        wide = spec(given.device, float64 if given.dtype.kind == "float" else int64, given.shape)
        copy = (Ref("work", len(self.work)), wide)
        self.work.append(wide)
        self.steps.append(elementwise.step(given.device.facts, "identity", copy, [operand], None))
        return copy


def _check_precision(where: str, precision: str, a: Spec) -> None:
    if precision not in kernel.PRECISIONS:
        raise ArgumentError(where, "precision", precision, f"must be one of {', '.join(kernel.PRECISIONS)}")
    if precision == "tf32" and a.device.facts.get("precision.tf32") is False:
        raise ArgumentError(where, "precision", precision, f"{a.device.name} ({a.device.info.name}) has no tf32 units")


def _has_dims(where: str, argument: str, s: Spec, ndim: int) -> None:
    if len(s.shape) != ndim:
        raise ShapeError(where, argument, s.shape, f"must have {ndim} dimension{'s' if ndim > 1 else ''}")


def _inner(where: str, argument: str, a: Spec, b: Spec, k: int) -> None:
    """Refuses factors whose inner sizes differ; ``k`` is b's."""
    if a.shape[-1] != k:
        raise ShapeError(where, argument, b.shape, f"its inner size {k} must be the {a.shape[-1]} of {a.shape}")


def _as_row(s: Spec) -> Spec:
    return s.with_strides((1, *s.shape), (0, *s.strides))


def _as_column(s: Spec) -> Spec:
    return s.with_strides((*s.shape, 1), (*s.strides, 0))


def _transposed(s: Spec) -> Spec:
    return s.with_strides((*s.shape[:-2], *s.shape[:-3:-1]), (*s.strides[:-2], *s.strides[:-3:-1]))


def _plan_matmul(a: Spec, b: Spec, precision: str = "ieee") -> Plan:
    for argument, s in (("a", a), ("b", b)):
        if not s.shape:
            raise ShapeError(
                "matmul", argument, s.shape, "must have at least 1 dimension; * multiplies by a 0-d tensor"
            )
    _inner("matmul", "b", a, b, b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    batch = _shape.broadcast_shapes(a.shape[:-2], b.shape[:-2], where="matmul")
    left, right = a if rows else _as_row(a), b if columns else _as_column(b)
    return _product("matmul", (*batch, *rows, *columns), left, right, precision=precision)


def _plan_mm(a: Spec, b: Spec, precision: str) -> Plan:
    _has_dims("mm", "a", a, 2)
    _has_dims("mm", "b", b, 2)
    _inner("mm", "b", a, b, b.shape[0])
    return _product("mm", (a.shape[0], b.shape[1]), a, b, precision=precision)


def _plan_bmm(a: Spec, b: Spec, precision: str) -> Plan:
    _check_batches("bmm", a, b)
    return _product("bmm", (*a.shape[:2], b.shape[2]), a, b, precision=precision)


def _check_batches(where: str, a: Spec, b: Spec) -> None:
    _has_dims(where, "a", a, 3)
    _has_dims(where, "b", b, 3)
    if a.shape[0] != b.shape[0]:
        raise ShapeError(
            where, "b", b.shape, f"must have the batch size {a.shape[0]} of a {a.shape}; matmul broadcasts"
        )
    _inner(where, "b", a, b, b.shape[1])


def _plan_mv(a: Spec, x: Spec, precision: str) -> Plan:
    _has_dims("mv", "a", a, 2)
    _has_dims("mv", "x", x, 1)
    _inner("mv", "x", a, x, x.shape[0])
    return _product("mv", a.shape[:1], a, _as_column(x), precision=precision)


def _plan_dot(a: Spec, b: Spec, precision: str) -> Plan:
    _has_dims("dot", "a", a, 1)
    _has_dims("dot", "b", b, 1)
    _inner("dot", "b", a, b, b.shape[0])
    return _product("dot", (), _as_row(a), _as_column(b), precision=precision)


def _plan_linear(x: Spec, weight: Spec, bias: Spec | None, activation: str | None, precision: str) -> Plan:
    if not x.shape:
        raise ShapeError("linear", "x", x.shape, "must have at least 1 dimension")
    _has_dims("linear", "weight", weight, 2)
    _inner("linear", "weight", x, weight, weight.shape[1])
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError("linear", "bias", bias.shape, f"must be {weight.shape[:1]}, one for each row of weight")
    names = [name for name in kernel.ACTIVATIONS if name != "identity"]
    if activation is not None and activation not in names:
        raise ArgumentError("linear", "activation", activation, f"must be None or one of {', '.join(names)}")
    if activation is not None and result_type(x.dtype, weight.dtype, where="linear").kind != "float":
        raise DTypeError(
            "linear", "activation", activation, f"needs floating operands, not {x.dtype} and {weight.dtype}"
        )
    left = x if len(x.shape) > 1 else _as_row(x)
    addend = None if bias is None else (Ref("in", 2), bias)
    return _product(
        "linear", (*x.shape[:-1], weight.shape[0]), left, _transposed(weight),
        precision=precision, addend=addend, activation=activation or "identity",
    )  # fmt: skip


def _plan_addmm(input: Spec, a: Spec, b: Spec, beta: int | float, alpha: int | float, precision: str) -> Plan:
    _has_dims("addmm", "a", a, 2)
    _has_dims("addmm", "b", b, 2)
    _inner("addmm", "b", a, b, b.shape[0])
    return _added("addmm", (a.shape[0], b.shape[1]), input, a, b, beta, alpha, precision)


def _plan_baddbmm(input: Spec, a: Spec, b: Spec, beta: int | float, alpha: int | float, precision: str) -> Plan:
    _check_batches("baddbmm", a, b)
    return _added("baddbmm", (*a.shape[:2], b.shape[2]), input, a, b, beta, alpha, precision)


def _added(
    where: str, shape: tuple[int, ...], input: Spec, a: Spec, b: Spec, beta: Any, alpha: Any, precision: str
) -> Plan:
    if _shape.broadcast_shapes(input.shape, shape, where=where) != shape:
        raise ShapeError(where, "input", input.shape, f"must broadcast to the product's shape {shape}")
    kind = result_type(a.dtype, b.dtype, input.dtype, where=where).kind
    for argument, value in (("beta", beta), ("alpha", alpha)):
        if not isinstance(value, (int, float)):
            raise DTypeError(where, argument, type(value).__name__, "must be a Python number")
        if kind != "float" and value != value // 1:
            raise DTypeError(where, argument, value, "must be an integer where the operands are")
        if kind != "float" and not -(1 << 63) <= value < 1 << 63:
            raise ScalarOverflow(where, argument, value, "must lie in the range of int64")
    return _product(
        where, shape, a, b, precision=precision, addend=(Ref("in", 0), input), first=1, alpha=alpha, beta=beta
    )


# what users call

_PRECISION = (("precision", "param"),)
_mm = Dispatcher("mm", (("a", "tensor"), ("b", "tensor"), *_PRECISION), _plan_mm, ("ieee",)).function()
_bmm = Dispatcher("bmm", (("a", "tensor"), ("b", "tensor"), *_PRECISION), _plan_bmm, ("ieee",)).function()
_matmul = Dispatcher("matmul", (("a", "tensor"), ("b", "tensor"), *_PRECISION), _plan_matmul, ("ieee",)).function()
_mv = Dispatcher("mv", (("a", "tensor"), ("x", "tensor"), *_PRECISION), _plan_mv, ("ieee",)).function()
_dot = Dispatcher("dot", (("a", "tensor"), ("b", "tensor"), *_PRECISION), _plan_dot, ("ieee",)).function()
_linear = Dispatcher(
    "linear",
    (("x", "tensor"), ("weight", "tensor"), ("bias", "tensor?"), ("activation", "param"), *_PRECISION),
    _plan_linear, (None, None, "ieee"),
).function()  # fmt: skip
_ADDED = (("input", "tensor"), ("a", "tensor"), ("b", "tensor"), ("beta", "param"), ("alpha", "param"), *_PRECISION)
_addmm = Dispatcher("addmm", _ADDED, _plan_addmm, (1, 1, "ieee")).function()
_baddbmm = Dispatcher("baddbmm", _ADDED, _plan_baddbmm, (1, 1, "ieee")).function()
_operator = Dispatcher("matmul", (("a", "tensor"), ("b", "tensor")), _plan_matmul)


def mm(a: NBXTensor, b: NBXTensor, precision: str = "ieee") -> NBXTensor:
    """The product of two matrices, [M, K] and [K, N] to [M, N]. Operands of any strides are read in place; K = 0 gives
    zeros.

    The result has the promoted dtype (float8: float32). float16, bfloat16 and float8 are summed in float32, integers
    wrap around. float32 is multiplied exactly ("ieee"); ``precision="tf32"`` rounds its factors to 11 significant bits
    first, on devices that have such units. Raises `ShapeError`; `DTypeError` for bool and complex.
    """
    return _mm(a, b, precision)  # type: ignore[no-any-return]


def bmm(a: NBXTensor, b: NBXTensor, precision: str = "ieee") -> NBXTensor:
    """The products of two batches of matrices, [B, M, K] and [B, K, N] to [B, M, N]. Batches of different sizes are
    refused; `matmul` broadcasts. Dtypes and ``precision`` as in `mm`."""
    return _bmm(a, b, precision)  # type: ignore[no-any-return]


def matmul(a: NBXTensor, b: NBXTensor, precision: str = "ieee") -> NBXTensor:
    """``a @ b`` by numpy's rules: [.., M, K] and [.., K, N] to [.., M, N], leading dimensions broadcast (without a
    copy), a 1-D operand is a row on the left, a column on the right, and its dimension is dropped from the result.

    Dtypes and ``precision`` as in `mm`. Raises `ShapeError` for other sizes and for 0-d operands.
    """
    return _matmul(a, b, precision)  # type: ignore[no-any-return]


def mv(a: NBXTensor, x: NBXTensor, precision: str = "ieee") -> NBXTensor:
    """The product of a matrix and a vector, [M, K] and [K] to [M]. Dtypes and ``precision`` as in `mm`."""
    return _mv(a, x, precision)  # type: ignore[no-any-return]


def dot(a: NBXTensor, b: NBXTensor, precision: str = "ieee") -> NBXTensor:
    """The inner product of two vectors of one length, a 0-d tensor. Dtypes and ``precision`` as in `mm`."""
    return _dot(a, b, precision)  # type: ignore[no-any-return]


def linear(
    x: NBXTensor,
    weight: NBXTensor,
    bias: NBXTensor | None = None,
    activation: str | None = None,
    precision: str = "ieee",
) -> NBXTensor:
    """``activation(x @ weight.T + bias)`` in one launch: x [.., K], weight [N, K], bias [N] to [.., N].

    ``activation`` is None, "relu", "gelu" (by erf), "gelu_tanh" or "silu", applied before the one rounding to the
    result's dtype: that of the product (see `mm`) promoted with the bias. Raises `ShapeError`, `DTypeError`,
    `ArgumentError`.
    """
    return _linear(x, weight, bias, activation, precision)  # type: ignore[no-any-return]


def addmm(
    input: NBXTensor,
    a: NBXTensor,
    b: NBXTensor,
    beta: int | float = 1,
    alpha: int | float = 1,
    precision: str = "ieee",
) -> NBXTensor:
    """``beta * input + alpha * (a @ b)`` with a [M, K], b [K, N] and an input that broadcasts to [M, N].

    With ``beta`` 0 the input is not read: its NaN do not pass. ``alpha`` and ``beta`` are integers where all operands
    are. Dtypes and ``precision`` as in `mm`; the input takes part in promotion.
    """
    return _addmm(input, a, b, beta, alpha, precision)  # type: ignore[no-any-return]


def baddbmm(
    input: NBXTensor,
    a: NBXTensor,
    b: NBXTensor,
    beta: int | float = 1,
    alpha: int | float = 1,
    precision: str = "ieee",
) -> NBXTensor:
    """`addmm` of batches: a [B, M, K], b [B, K, N] and an input that broadcasts to [B, M, N]."""
    return _baddbmm(input, a, b, beta, alpha, precision)  # type: ignore[no-any-return]


# the table

#: Shapes of a @ b: one element, a tile's edge on each side, many steps along K, and the empty ones.
_MATRICES: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = tuple(
    ((m, k), (k, n))
    for m, n, k in ((1, 1, 1), (65, 63, 33), (3, 5, 200), (129, 257, 1), (3, 4, 0), (0, 2, 5), (2, 0, 3))
)
_LARGEST_K = 200


def _tolerance() -> Mapping[str, Tolerance]:
    """A sum of K products of standard normal factors stays below 4 sqrt(K). Each of its K roundings is off by half a
    unit of it at most, to both sides, so that sqrt(K) of them remain."""
    made = dict(ROUNDING)
    for name in (*FLOATS, *FLOAT8):
        eps, words = (2.0**-52, "float64") if name == "float64" else (2.0**-23, "float32")
        rounding = ROUNDING[product_dtype(_dtype(name))]
        reason = f"{_LARGEST_K} roundings of a {words} sum, of random signs, then one rounding to the dtype"
        made[name] = Tolerance(rounding.rtol, 4 * _LARGEST_K * eps / 2, reason)
    return made


def _register(
    name: str,
    function: Callable[..., NBXTensor],
    operands: tuple[str, ...],
    samples: Sequence[Sample],
    errors: Sequence[ErrorSample],
    methods: Mapping[str, Callable[..., Any]] = {},
    factor: int = 0,
) -> None:
    """Enters a product whose operand ``factor`` has the summed size last. Its cost: operands read once, the result
    written once, two operations for each product and one for each element of an addend."""

    def cost(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Mapping[str, Any]) -> Cost:
        flops = (2 * inputs[factor].shape[-1] + (len(inputs) == 3)) * outputs[0].numel
        return Cost(sum(s.nbytes for s in inputs), sum(s.nbytes for s in outputs), flops)

    register(
        Operator(
            name, "matmul", function, operands, DTYPES, product_dtype, getattr(oracle, name), lambda: samples,
            lambda: errors, _tolerance(), cost, methods,
        )
    )  # fmt: skip


def _inputs(*shapes: tuple[int, ...]) -> tuple[Input, ...]:
    return tuple(map(Input, shapes))


def _pairs(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Sample]:
    return [Sample(_inputs(*pair)) for pair in shapes]


def _refused(shape_a: tuple[int, ...], shape_b: tuple[int, ...], *wrong: tuple[int, ...]) -> list[ErrorSample]:
    """Dtypes, precisions and arguments that every product of two operands refuses; ``wrong`` are shapes of the
    second."""
    both = _inputs(shape_a, shape_b)
    return [
        ErrorSample(both, {}, DTypeError, "not accepted", "bool"),
        ErrorSample(both, {}, DTypeError, "not accepted", "complex64"),
        ErrorSample(both, {"precision": "tf16"}, ArgumentError, "must be one of ieee, tf32"),
        ErrorSample((both[0], 2), {}, DTypeError, "must be a tensor"),
        *(ErrorSample(_inputs(shape_a, shape), {}, ShapeError, "must|broadcast") for shape in wrong),
    ]


_register("mm", mm, ("a", "b"), _pairs(*_MATRICES), _refused((2, 3), (3, 2), (2, 3), (3,), (1, 3, 2)), {"mm": mm})
_register(
    "bmm", bmm, ("a", "b"),
    _pairs(((1, 1, 1), (1, 1, 1)), ((3, 17, 5), (3, 5, 33)), ((2, 3, 0), (2, 0, 4)), ((0, 2, 3), (0, 3, 2))),
    _refused((2, 2, 3), (2, 3, 2), (3, 2), (1, 3, 2), (2, 2, 3)), {"bmm": bmm},
)  # fmt: skip
_register(
    "matmul", matmul, ("a", "b"),
    _pairs(
        *_MATRICES[:3],
        ((5,), (5,)), ((5,), (5, 3)), ((3, 5), (5,)), ((2, 3, 5), (5,)), ((5,), (2, 5, 3)),
        ((2, 3, 5), (5, 7)), ((4, 1, 3, 5), (2, 5, 7)), ((3, 5), (2, 4, 5, 1)), ((2, 1, 5), (5, 7)),
        ((0,), (0,)), ((0, 3, 5), (5, 2)), ((2, 3, 0), (0, 2)),
    ),
    [
        *_refused((2, 3), (3, 2), (2, 3), (), (2,)),
        ErrorSample(_inputs((2, 2, 3), (3, 3, 2)), {}, ShapeError, "broadcast"),
    ],
    {
        "matmul": matmul,
        "__matmul__": _operator.operator("__matmul__"),
        "__rmatmul__": _operator.reflected("__rmatmul__"),
    },
)  # fmt: skip
_register(
    "mv", mv, ("a", "x"),
    _pairs(((3, 5), (5,)), ((129, 200), (200,)), ((3, 0), (0,)), ((0, 3), (3,))),
    _refused((2, 3), (3,), (2,), (3, 1)), {"mv": mv},
)  # fmt: skip
_register(
    "dot", dot, ("a", "b"),
    _pairs(((1,), (1,)), ((200,), (200,)), ((0,), (0,))),
    _refused((3,), (3,), (2,), (3, 1)), {"dot": dot},
)  # fmt: skip
_register(
    "linear", linear, ("x", "weight", "bias"),
    [
        *(Sample((*_inputs(x, w), None)) for x, w in (((5,), (3, 5)), ((3, 5), (2, 5)), ((2, 3, 5), (7, 5)))),
        *(Sample(_inputs(x, (n, x[-1]), (n,))) for x, n in (((5,), 3), ((65, 33), 63), ((2, 3, 4, 5), 7))),
        Sample((*_inputs((0, 5), (3, 5)), None)), Sample(_inputs((3, 0), (2, 0), (2,))),
    ],
    [
        *_refused((2, 3), (4, 3), (4, 2), (3,)),
        ErrorSample(_inputs((2, 3), (4, 3), (1, 4)), {}, ShapeError, "one for each row of weight"),
        ErrorSample(_inputs((2, 3), (4, 3)), {"activation": "mish"}, ArgumentError, "must be None or one of relu"),
        ErrorSample(_inputs((2, 3), (4, 3)), {"activation": "relu"}, DTypeError, "needs floating", "int32"),
    ],
)  # fmt: skip
_EPILOGUES: tuple[tuple[tuple[int, ...], Mapping[str, int]], ...] = (
    ((4,), {}), ((3, 1), {"beta": 2, "alpha": -3}), ((3, 4), {"beta": 0}), ((), {"alpha": 0}),
)  # fmt: skip
_ADDMM = ((2,), (2, 3), (3, 2))
_register(
    "addmm", addmm, ("input", "a", "b"),
    [
        *(Sample(_inputs(input, (3, 5), (5, 4)), params) for input, params in _EPILOGUES),
        Sample(_inputs((4,), (3, 0), (0, 4)), {"beta": 3}), Sample(_inputs((4,), (0, 5), (5, 4))),
    ],
    [
        ErrorSample(_inputs((3,), (2, 3), (3, 2)), {}, ShapeError, "broadcast"),
        ErrorSample(_inputs((3, 2, 2), (2, 3), (3, 2)), {}, ShapeError, "broadcast to the product's shape"),
        ErrorSample(_inputs(*_ADDMM), {"alpha": 0.5}, DTypeError, "must be an integer", "int32"),
        ErrorSample(_inputs(*_ADDMM), {"beta": 1 << 63}, ScalarOverflow, "range of int64", "int64"),
        ErrorSample(_inputs(*_ADDMM), {"beta": "1"}, DTypeError, "must be a Python number"),
    ],
    {"addmm": addmm}, factor=1,
)  # fmt: skip
_register(
    "baddbmm", baddbmm, ("input", "a", "b"),
    [
        *(Sample(_inputs(input, (2, 3, 5), (2, 5, 4)), params) for input, params in _EPILOGUES),
        Sample(_inputs((2, 1, 4), (2, 3, 0), (2, 0, 4))), Sample(_inputs((4,), (0, 3, 5), (0, 5, 4))),
    ],
    [ErrorSample(_inputs((2,), (2, 2, 3), (3, 3, 2)), {}, ShapeError, "must have the batch size 2")],
    {"baddbmm": baddbmm}, factor=1,
)  # fmt: skip
