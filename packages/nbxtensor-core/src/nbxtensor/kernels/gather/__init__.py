"""Rows picked by an index tensor: the declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbxtensor import shape as _shape
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.kernels.plan import Ref, Step
from nbxtensor.tensor import Spec

if TYPE_CHECKING:
    from nbxtensor.backend.device_files import Facts

PICK_ROWS = Kernel(
    "nbxtensor.kernels.gather.source",
    "pick_rows",
    {"out": "ptr", "table": "ptr", "index": "ptr", "status": "ptr", "rows": "int", "columns": "int", "limit": "int",
     "row_step": "int", "column_step": "int", "index_shape": "ints", "index_strides": "ints", "DIMS": "const",
     "FAULT": "const", "ROWS": "const", "BLOCK": "const", "WIDE": "const"},
)  # fmt: skip


def pick_rows_step(facts: Facts, out: Ref, table: tuple[Ref, Spec], index: tuple[Ref, Spec], fault: int) -> Step:
    """The launch of ``out[i, :] = table[index[i], :]`` for a 2-d table and any index; ``out`` is contiguous. ``fault``
    is the code that an index out of range leaves in the status word."""
    (rows, columns), (row_step, column_step) = table[1].shape, table[1].strides
    shape, strides = _shape.coalesce(index[1].shape, index[1].strides)
    count, tile = _shape.numel(shape), facts["elementwise.block"]
    block = min(1 << max(columns - 1, 0).bit_length(), tile)
    together = min(1 << max(count - 1, 0).bit_length(), max(1, tile // block))
    furthest = max(
        abs(table[1].lowest), abs(table[1].highest), count * columns, abs(index[1].highest), abs(index[1].lowest)
    )
    arguments = {
        "out": out, "table": table[0], "index": index[0], "status": Ref("status", 0), "rows": count, "columns": columns,
        "limit": rows, "row_step": row_step, "column_step": column_step, "index_shape": shape, "index_strides": strides,
        "DIMS": len(shape), "FAULT": fault, "ROWS": together, "BLOCK": block, "WIDE": furthest + tile >= 1 << 31,
    }  # fmt: skip
    options = (("num_warps", facts["elementwise.num_warps"]), ("enable_fp_fusion", False))
    return Step(PICK_ROWS, (-(-count // together), -(-columns // block), 1), arguments, options)
