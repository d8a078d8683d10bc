"""Host work on every core, under the name it had in release 0.0.2. It moved to `nbxtensor.host`."""

from __future__ import annotations

from nbxtensor.host import convert, copy, core_count, run_blocks

__all__ = ["convert", "copy", "core_count", "run_blocks"]
