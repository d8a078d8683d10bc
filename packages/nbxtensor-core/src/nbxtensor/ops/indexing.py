"""Operators that take an index tensor."""

from __future__ import annotations

from typing import Any

from nbxtensor.backend import launcher
from nbxtensor.dtype import int32, int64
from nbxtensor.errors import DTypeError, ShapeError
from nbxtensor.kernels import gather as kernel
from nbxtensor.kernels.plan import Plan, Ref
from nbxtensor.ops.dispatch import Dispatcher
from nbxtensor.ops.elementwise import accepted
from nbxtensor.ops.oracles import indexing as oracle
from nbxtensor.ops.table import (
    BOOL,
    FLOAT8,
    FLOATS,
    INTS,
    ROUNDING,
    Cost,
    ErrorSample,
    Input,
    Operator,
    Sample,
    register,
)
from nbxtensor.tensor import NBXTensor, Spec, spec

_FAULT = launcher.fault("embedding", "indices", "must be from 0 to the number of rows of weight less one")


def _plan_embedding(weight: Spec, indices: Spec) -> Plan:
    accepted("embedding", "weight", weight.dtype, (*FLOATS, *INTS, *BOOL, *FLOAT8))
    accepted("embedding", "indices", indices.dtype, (int32, int64))
    if len(weight.shape) != 2:
        raise ShapeError("embedding", "weight", weight.shape, "must have 2 dimensions: rows and features")
    out = spec(weight.device, weight.dtype, (*indices.shape, weight.shape[1]))
    if out.numel == 0:
        return Plan((out,), ())
    step = kernel.pick_rows_step(
        weight.device.facts, Ref("out", 0), (Ref("in", 0), weight), (Ref("in", 1), indices), _FAULT
    )
    return Plan((out,), (step,))


_embedding = Dispatcher("embedding", (("weight", "tensor"), ("indices", "tensor")), _plan_embedding).function()


def embedding(weight: NBXTensor, indices: NBXTensor) -> NBXTensor:
    """The rows of ``weight`` [rows, features] at ``indices`` (int32 or int64, any shape): shape ``indices.shape +
    (features,)``.

    An index out of range raises `IndexOutOfRange` at the next point where the host waits for the device (reading a
    result, ``synchronize``), naming the index."""
    return _embedding(weight, indices)  # type: ignore[no-any-return]


def _cost(inputs: Any, outputs: Any, params: Any) -> Cost:
    return Cost(outputs[0].nbytes + inputs[1].nbytes, outputs[0].nbytes, 0)


_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5, 4), ()), ((5, 4), (3,)), ((7, 33), (2, 3)), ((1, 1), (4,)), ((3, 700), (5, 2)), ((3, 4), (0,)), ((3, 0), (2,)),
)  # fmt: skip

register(
    Operator(
        "embedding", "indexing", embedding, ("weight", "indices"), (*FLOATS, *INTS, *BOOL, *FLOAT8), lambda d: d,
        oracle.embedding,
        lambda: [Sample((Input(w), Input(i, dtype, 0, w[0] - 1))) for dtype in ("int64", "int32") for w, i in _CASES],
        lambda: [
            ErrorSample((Input((4,)), Input((2,), "int64", 0, 1)), {}, ShapeError, "2 dimensions"),
            ErrorSample((Input((4, 2)), Input((2,))), {}, DTypeError, "indices.*not accepted"),
        ],
        ROUNDING, _cost,
    )
)  # fmt: skip
