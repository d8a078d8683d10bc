"""Row kernels, softmax and norms: the declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbxtensor import shape as _shape
from nbxtensor.backend.kernel_source import Kernel, TritonDType
from nbxtensor.dtype import DType
from nbxtensor.kernels.plan import Ref, Step
from nbxtensor.tensor import Spec

if TYPE_CHECKING:
    from nbxtensor.backend.device_files import Facts

_SOURCE = "nbxtensor.kernels.rows.source"
_TILE = {"ROWS": "const", "BLOCK": "const", "LOOP": "const", "WIDE": "const"}
SOFTMAX = Kernel(
    _SOURCE,
    "softmax",
    {"out": "ptr", "x": "ptr", "rows": "int", "columns": "int", "outer_shape": "ints", "outer_out": "ints",
     "outer_x": "ints", "step_out": "int", "step_x": "int", "OUTER": "const", "COMPUTE": "const", "LOG": "const",
     **_TILE},
)  # fmt: skip
NORM = Kernel(
    _SOURCE,
    "norm",
    {"out": "ptr", "x": "ptr", "weight": "ptr", "bias": "ptr", "eps": "fp64", "rows": "int", "columns": "int",
     "outer_shape": "ints", "outer_x": "ints", "step_x": "int", "OUTER": "const", "COMPUTE": "const",
     "CENTER": "const", **_TILE},
)  # fmt: skip


def _tile(facts: Facts, rows: int, columns: int, furthest: int) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """Tile constants and grid: short rows share a tile, a row past ``rows.max_block`` is walked in blocks."""
    width = 1 << max(columns - 1, 0).bit_length()
    block = min(width, facts["rows.max_block"])
    together = min(1 << max(rows - 1, 0).bit_length(), max(1, facts["rows.tile"] // block))
    wide = max(furthest, rows * columns, columns + block) >= 1 << 31
    blocks = -(-rows // together)
    return {"ROWS": together, "BLOCK": block, "LOOP": width > block, "WIDE": wide}, (blocks, 1, 1)


def _options(facts: Facts) -> tuple[tuple[str, Any], ...]:
    return (("num_warps", facts["rows.num_warps"]), ("enable_fp_fusion", False))


def softmax_step(
    facts: Facts, out: tuple[Ref, Spec], x: tuple[Ref, Spec], axis: int, compute: DType, log: bool
) -> Step:
    """The launch of a softmax along ``axis``; any strides on both sides."""
    source, target = x[1], out[1]
    kept = [d for d in range(len(source.shape)) if d != axis]
    shape, outer_out, outer_x = _shape.coalesce(
        tuple(source.shape[d] for d in kept),
        tuple(target.strides[d] for d in kept),
        tuple(source.strides[d] for d in kept),
    )
    columns = source.shape[axis]
    furthest = max(abs(source.lowest), abs(source.highest), abs(target.highest))
    tile, grid = _tile(facts, _shape.numel(shape), columns, furthest)
    arguments = {
        "out": out[0], "x": x[0], "rows": _shape.numel(shape), "columns": columns, "outer_shape": shape,
        "outer_out": outer_out, "outer_x": outer_x, "step_out": target.strides[axis], "step_x": source.strides[axis],
        "OUTER": len(shape), "COMPUTE": TritonDType(str(compute.triton)), "LOG": log, **tile,
    }  # fmt: skip
    return Step(SOFTMAX, grid, arguments, _options(facts))


def norm_step(
    facts: Facts,
    out: Ref,
    x: tuple[Ref, Spec],
    weight: Ref | None,
    bias: Ref | None,
    eps: Ref,
    last: int,
    compute: DType,
    center: bool,
) -> Step:
    """The launch of a layer norm (``center``) or RMS norm over the last ``last`` dimensions, which must walk memory
    with one stride."""
    s = x[1]
    split = len(s.shape) - last
    (columns,), (step,) = _shape.coalesce(s.shape[split:], s.strides[split:])
    shape, outer_x = _shape.coalesce(s.shape[:split], s.strides[:split])
    rows = _shape.numel(shape)
    tile, grid = _tile(facts, rows, columns, max(abs(s.lowest), abs(s.highest)))
    arguments = {
        "out": out, "x": x[0], "weight": weight, "bias": bias, "eps": eps, "rows": rows, "columns": columns,
        "outer_shape": shape, "outer_x": outer_x, "step_x": step, "OUTER": len(shape),
        "COMPUTE": TritonDType(str(compute.triton)), "CENTER": center, **tile,
    }  # fmt: skip
    return Step(NORM, grid, arguments, _options(facts))
