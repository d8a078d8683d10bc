"""The operator table: one entry an operator, from which the methods, the documentation, the tests, the conformance
suite and the certifier are derived. Nothing about an operator is written twice.

An operator's public function is its documentation too: its docstring states shapes, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nbxtensor.dtype import DTYPES, DType, dtype
from nbxtensor.tensor import NBXTensor


class Input(NamedTuple):
    """A tensor operand of a sample. ``dtype`` None: the dtype of the case; else always this one. ``low`` and ``high``
    bound the random values of integer operands (indices); ``positive`` keeps floats above 0."""

    shape: tuple[int, ...]
    dtype: str | None = None
    low: int | None = None
    high: int | None = None
    positive: bool = False


class Sample(NamedTuple):
    """A valid call: operands in order (an `Input`, a Python number, or None) and the other parameters."""

    operands: tuple[Any, ...]
    params: Mapping[str, Any] = {}


class ErrorSample(NamedTuple):
    """A call that must be refused with ``error``, its message matching the regular expression ``match``. ``dtype`` is
    that of operands whose `Input` states none."""

    operands: tuple[Any, ...]
    params: Mapping[str, Any]
    error: type[Exception]
    match: str
    dtype: str = "float32"


class Cost(NamedTuple):
    """Exact work of a call: bytes read and written, and arithmetic operations."""

    bytes_read: int
    bytes_written: int
    flops: int


class Tolerance(NamedTuple):
    """How far a result may lie from the float64 oracle, relative (``rtol``) and absolute (``atol``), and why."""

    rtol: float
    atol: float
    reason: str


#: Rounding of the result to the dtype, where the arithmetic before it is exact or in a wider type.
ROUNDING: Mapping[str, Tolerance] = {
    name: Tolerance(
        d.eps / 2 * 1.01 if d.kind == "float" else 0.0,
        d.smallest_normal * d.eps if d.kind == "float" else 0.0,
        "one rounding to the dtype" if d.kind == "float" else "exact",
    )
    for name, d in DTYPES.items()
    if d.kind != "complex"
}


def scaled(ulps: float, atol: float = 0.0, reason: str = "", flushes: bool = False) -> dict[str, Tolerance]:
    """Tolerances of ``ulps`` units in the last place of float32 or float64 arithmetic and ``atol`` times its epsilon,
    plus the rounding to the dtype. ``flushes``: the function is a vendor's, whose float32 form may take a subnormal
    operand or result for 0."""
    made = {}
    for name, rounding in ROUNDING.items():
        d = dtype(name)
        if d.kind == "float":
            arithmetic = DTYPES["float64" if name == "float64" else "float32"]
            lost = float(arithmetic.smallest_normal) if flushes and name != "float64" else 0.0
            made[name] = Tolerance(
                rounding.rtol + ulps * arithmetic.eps,
                max(rounding.atol, atol * arithmetic.eps, 2 * lost),
                reason or f"{ulps:g} units in the last place of the arithmetic, then one rounding to the dtype",
            )
        else:
            made[name] = rounding
    return made


FLOATS: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
INTS: tuple[str, ...] = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
BOOL: tuple[str, ...] = ("bool",)
FLOAT8: tuple[str, ...] = ("float8_e4m3fn", "float8_e5m2")
COMPLEX: tuple[str, ...] = ("complex64", "complex128")


class Operator(NamedTuple):
    """An operator of the table.

    ``function`` is what users call; ``operands`` are the parameters that a sample's operands are for. ``dtypes`` are
    what the samples' main dtype may be. ``oracle`` takes the sample's operands as numpy arrays (floats as float64,
    integers as they are) and its parameters, and gives the exact result, as float64 or integers; where the result
    depends on the dtype it is asked for ``dtype``. ``out_dtype(dtype, **params)`` and ``out_shape(shapes, **params)``
    state the rules. ``methods`` are bound on `NBXTensor`. ``cost(inputs, outputs, params)`` takes specs."""

    name: str
    family: str
    function: Callable[..., Any]
    operands: tuple[str, ...]
    dtypes: tuple[str, ...]
    out_dtype: Callable[..., DType]
    oracle: Callable[..., Any]
    samples: Callable[[], Iterator[Sample]] | Callable[[], Sequence[Sample]]
    errors: Callable[[], Sequence[ErrorSample]]
    tolerance: Mapping[str, Tolerance]
    cost: Callable[..., Cost]
    methods: Mapping[str, Callable[..., Any]] = {}

    @property
    def doc(self) -> str:
        """The function's documentation."""
        return self.function.__doc__ or ""


OPERATORS: dict[str, Operator] = {}


def register(operator: Operator) -> Callable[..., Any]:
    """Enters an operator into the table, binds its methods and returns its public function."""
    if operator.name in OPERATORS:
        raise ValueError(f"operator {operator.name} is in the table already")
    OPERATORS[operator.name] = operator
    for method, function in operator.methods.items():
        setattr(NBXTensor, method, function)
    return operator.function


def elementwise_cost(inputs: Sequence[Any], outputs: Sequence[Any], params: Mapping[str, Any], flops: int = 1) -> Cost:
    """Every operand read once, every output written once, ``flops`` operations an element."""
    read = sum(s.nbytes for s in inputs)
    written = sum(s.nbytes for s in outputs)
    return Cost(read, written, flops * sum(s.numel for s in outputs))
