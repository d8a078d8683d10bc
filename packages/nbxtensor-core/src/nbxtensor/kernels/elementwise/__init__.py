"""Element-wise kernels: the declaration. The operation is a Triton function of `.functions`, passed as a constexpr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbxtensor import shape as _shape
from nbxtensor.backend.kernel_source import Kernel, KernelFunction, TritonDType
from nbxtensor.dtype import DType
from nbxtensor.kernels.plan import Ref, Step
from nbxtensor.tensor import Spec

if TYPE_CHECKING:
    from nbxtensor.backend.device_files import Facts

_OPERATION = {
    "OP": "const",
    "ARITY": "const",
    "SCALARS": "const",
    "COMPUTE": "const",
    "FIRST": "const",
    "SATURATE": "const",
}
_TENSORS = {"out": "ptr", "a": "operand", "b": "operand", "c": "operand", "n": "int"}
_TILE = {"BLOCK": "const", "WIDE": "const"}
FLAT = Kernel("nbxtensor.kernels.elementwise.source", "flat", {**_TENSORS, **_OPERATION, **_TILE})
STRIDED = Kernel(
    "nbxtensor.kernels.elementwise.source",
    "strided",
    {**_TENSORS, "shape": "ints", "so": "ints", "sa": "ints", "sb": "ints", "sc": "ints", "NDIM": "const",
     **_OPERATION, **_TILE},
)  # fmt: skip

PROGRESSION = Kernel(
    "nbxtensor.kernels.elementwise.source",
    "progression",
    {"out": "ptr", "n": "int", "start": "operand", "step": "operand", "COMPUTE": "const", **_TILE},
)

_INT32_LIMIT = 1 << 31


def function(name: str) -> KernelFunction:
    """The operation of that name."""
    return KernelFunction("nbxtensor.kernels.elementwise.functions", name)


def step(
    facts: Facts,
    operation: str,
    out: tuple[Ref, Spec],
    operands: Sequence[tuple[Ref, Spec | None]],
    compute: DType | None,
    *,
    first: DType | None = None,
    saturate: bool = False,
) -> Step:
    """One launch of ``out = operation(operands)``. An operand is a tensor with its spec, broadcast to the output's
    shape, or a number (spec None). Operands are converted to ``compute`` (None: left as they are), the first one to
    ``first`` where given, as for a condition. ``saturate`` makes the output's conversion that of an explicit cast."""
    ref_out, spec_out = out
    specs = [s for _, s in operands if s is not None]
    layouts = [_shape.broadcast_strides(s.shape, s.strides, spec_out.shape) for s in specs]
    shape, *strides = _shape.coalesce(spec_out.shape, spec_out.strides, *layouts, sort_dims=True)
    n = _shape.numel(shape)
    block = min(facts["elementwise.block"], 1 << max(n - 1, 0).bit_length())
    furthest = max(max(abs(low), abs(high)) for low, high in (_shape.extent(shape, s) for s in strides))
    arguments: dict[str, Any] = {
        "out": ref_out,
        **{name: operands[i][0] if i < len(operands) else None for i, name in enumerate("abc")},
        "n": n,
        "OP": function(operation),
        "ARITY": len(operands),
        "SCALARS": sum(1 << i for i, (_, s) in enumerate(operands) if s is None),
        "COMPUTE": _triton(compute),
        "FIRST": _triton(first if first is not None else compute),
        "SATURATE": saturate,
        "BLOCK": block,
        "WIDE": max(n + block, furthest + 1) >= _INT32_LIMIT,
    }
    grid = ((n + block - 1) // block, 1, 1)
    options = (("num_warps", facts["elementwise.num_warps"]), ("enable_fp_fusion", False))
    if len(shape) == 1 and all(s == (1,) for s in strides):
        return Step(FLAT, grid, arguments, options)
    by_operand = iter(strides[1:])
    own = [next(by_operand) if s is not None else None for _, s in operands]
    arguments.update(shape=shape, so=strides[0], NDIM=len(shape))
    arguments.update({f"s{name}": own[i] if i < len(own) else None for i, name in enumerate("abc")})
    return Step(STRIDED, grid, arguments, options)


def progression_step(facts: Facts, out: tuple[Ref, Spec], start: Ref, step: Ref, compute: DType) -> Step:
    """The launch of ``out[i] = start + i * step`` for a contiguous ``out``; the numbers have the dtype ``compute``."""
    n = out[1].numel
    block = min(facts["elementwise.block"], 1 << max(n - 1, 0).bit_length())
    arguments = {
        "out": out[0], "n": n, "start": start, "step": step, "COMPUTE": _triton(compute), "BLOCK": block,
        "WIDE": n + block >= _INT32_LIMIT,
    }  # fmt: skip
    options = (("num_warps", facts["elementwise.num_warps"]), ("enable_fp_fusion", False))
    return Step(PROGRESSION, ((n + block - 1) // block, 1, 1), arguments, options)


def _triton(dtype: DType | None) -> TritonDType | None:
    return None if dtype is None or dtype.triton is None else TritonDType(dtype.triton)
