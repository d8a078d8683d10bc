"""The matrix products under the name that the first release published."""

from __future__ import annotations

from nbxtensor.ops.linalg import addmm, baddbmm, bmm, dot, linear, matmul, mm, mv

__all__ = ["addmm", "baddbmm", "bmm", "dot", "linear", "matmul", "mm", "mv"]
