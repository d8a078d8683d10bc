"""Reductions over any axes: the declaration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbxtensor import shape as _shape
from nbxtensor.backend.kernel_source import Kernel, KernelFunction, TritonDType
from nbxtensor.dtype import DType, int64
from nbxtensor.kernels.plan import Ref, Step
from nbxtensor.tensor import Spec, spec

if TYPE_CHECKING:
    from nbxtensor.backend.device_files import Facts

_SOURCE = "nbxtensor.kernels.reduction.source"
_LAYOUT = {
    "rows": "int", "columns": "int", "piece": "int", "outer_shape": "ints", "outer_strides": "ints",
    "inner_shape": "ints", "inner_strides": "ints", "OUTER": "const", "INNER": "const",
}  # fmt: skip
_TILE = {"ROWS": "const", "COLUMNS": "const", "SPLITS": "const", "WIDE": "const"}
REDUCE = Kernel(
    _SOURCE,
    "reduce",
    {"out": "ptr", "x": "ptr", **_LAYOUT, "COMBINE": "const", "FOLD": "const", "IDENTITY": "const", "TEST": "const",
     "ACCUMULATE": "const", "DIVISOR": "const", **_TILE},
)  # fmt: skip
POSITION = Kernel(
    _SOURCE,
    "position",
    {"out": "ptr", "best": "ptr", "x": "ptr", "given": "ptr", **_LAYOUT, "COMBINE": "const",
     "FOLD": "const", "IDENTITY": "const",
     "ACCUMULATE": "const", **_TILE},
)  # fmt: skip

_PIECE_TILES = 32  # column tiles that one program takes before a row is split among programs
_ENOUGH_PROGRAMS = 512  # row blocks that fill a device by themselves
_MOST_SPLITS = 1024


def function(name: str) -> KernelFunction:
    """A combiner of the reduction kernels."""
    return KernelFunction(_SOURCE, name)


class _Tiling(NamedTuple):
    rows: int
    columns: int
    piece: int
    splits: int
    arguments: dict[str, Any]
    grid: tuple[int, int, int]


def _tiling(facts: Facts, outer: tuple[Any, ...], inner: tuple[Any, ...], whole: bool = False) -> _Tiling:
    """Tile and split for (shape, strides) of the kept and of the reduced dimensions. ``whole``: rows are not split."""
    rows, columns = _shape.numel(outer[0]), _shape.numel(inner[0])
    tile = facts["reduction.block_rows"] * facts["reduction.block_columns"]
    across = abs(inner[1][-1]) != 1 and abs(outer[1][-1]) == 1  # neighbours in memory are neighbouring rows
    wide_rows = min(_power(rows), facts["reduction.block_columns"])
    block_columns = min(_power(columns), tile // wide_rows if across else facts["reduction.block_columns"])
    block_rows = min(_power(rows), max(1, tile // block_columns))
    blocks = -(-rows // block_rows)
    piece = columns if whole or blocks >= _ENOUGH_PROGRAMS else block_columns * _PIECE_TILES
    piece = max(piece, -(-columns // _MOST_SPLITS), 1)
    splits = max(1, -(-columns // piece))
    low, high = (sum(parts) for parts in zip(_shape.extent(*outer), _shape.extent(*inner)))
    furthest = max(abs(low), abs(high), blocks * block_rows * splits, columns + block_columns)
    arguments = {
        "rows": rows, "columns": columns, "piece": piece, "outer_shape": outer[0], "outer_strides": outer[1],
        "inner_shape": inner[0], "inner_strides": inner[1], "OUTER": len(outer[0]), "INNER": len(inner[0]),
        "ROWS": block_rows, "COLUMNS": block_columns, "SPLITS": splits, "WIDE": furthest >= 1 << 31,
    }  # fmt: skip
    return _Tiling(block_rows, block_columns, piece, splits, arguments, (blocks, splits, 1))


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _split_axes(x: Spec, axes: Sequence[int], ordered: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    kept = [d for d in range(len(x.shape)) if d not in axes]
    outer = _shape.coalesce(tuple(x.shape[d] for d in kept), tuple(x.strides[d] for d in kept))
    reduced = [d for d in range(len(x.shape)) if d in axes]
    inner = _shape.coalesce(
        tuple(x.shape[d] for d in reduced), tuple(x.strides[d] for d in reduced), sort_dims=not ordered
    )
    return outer, inner


def _options(facts: Facts) -> tuple[tuple[str, Any], ...]:
    return (("num_warps", facts["reduction.num_warps"]), ("enable_fp_fusion", False))


def steps(
    facts: Facts,
    combine: str,
    identity: Any,
    out: tuple[Ref, Spec],
    x: tuple[Ref, Spec],
    axes: Sequence[int],
    accumulate: DType,
    *,
    test: bool = False,
    mean: bool = False,
) -> tuple[tuple[Step, ...], tuple[Spec, ...]]:
    """The launches that reduce ``axes`` of ``x`` into the contiguous ``out``, and the workspace they need: long rows
    are split among programs, whose partial results a second launch combines in order."""
    outer, inner = _split_axes(x[1], axes, ordered=False)
    tiling = _tiling(facts, outer, inner)
    constants = {
        "COMBINE": function(combine),
        "FOLD": function(f"fold_{combine}"),
        "IDENTITY": identity,
        "ACCUMULATE": TritonDType(str(accumulate.triton)),
    }
    divisor = _shape.numel(inner[0]) if mean else None
    if tiling.splits == 1:
        arguments = {**tiling.arguments, **constants, "out": out[0], "x": x[0], "TEST": test, "DIVISOR": divisor}
        return (Step(REDUCE, tiling.grid, arguments, _options(facts)),), ()
    rows = tiling.arguments["rows"]
    partial = spec(x[1].device, accumulate, (rows, tiling.splits))
    first = {**tiling.arguments, **constants, "out": Ref("work", 0), "x": x[0], "TEST": test, "DIVISOR": None}
    last = _tiling(facts, ((rows,), (tiling.splits,)), ((tiling.splits,), (1,)), whole=True)
    second = {**last.arguments, **constants, "out": out[0], "x": Ref("work", 0), "TEST": False, "DIVISOR": divisor}
    made = (Step(REDUCE, tiling.grid, first, _options(facts)), Step(REDUCE, last.grid, second, _options(facts)))
    return made, (partial,)


def position_steps(
    facts: Facts, combine: str, identity: Any, out: Ref, x: tuple[Ref, Spec], axes: Sequence[int], accumulate: DType
) -> tuple[tuple[Step, ...], tuple[Spec, ...]]:
    """The same for positions: of the first best element along ``axes``, counted in C order."""
    outer, inner = _split_axes(x[1], axes, ordered=True)
    tiling = _tiling(facts, outer, inner)
    constants = {
        "COMBINE": function(combine),
        "FOLD": function(f"fold_{combine}"),
        "IDENTITY": identity,
        "ACCUMULATE": TritonDType(str(accumulate.triton)),
    }
    if tiling.splits == 1:
        arguments = {**tiling.arguments, **constants, "out": out, "best": None, "x": x[0], "given": None}
        return (Step(POSITION, tiling.grid, arguments, _options(facts)),), ()
    rows, device = tiling.arguments["rows"], x[1].device
    work = (spec(device, int64, (rows, tiling.splits)), spec(device, accumulate, (rows, tiling.splits)))
    first = {**tiling.arguments, **constants, "out": Ref("work", 0), "best": Ref("work", 1), "x": x[0], "given": None}
    last = _tiling(facts, ((rows,), (tiling.splits,)), ((tiling.splits,), (1,)), whole=True)
    second = {**last.arguments, **constants, "out": out, "best": None, "x": Ref("work", 1), "given": Ref("work", 0)}
    return (
        Step(POSITION, tiling.grid, first, _options(facts)),
        Step(POSITION, last.grid, second, _options(facts)),
    ), work
