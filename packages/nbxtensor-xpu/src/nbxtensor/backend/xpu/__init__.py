"""Intel GPUs. This release has no driver for them."""

from __future__ import annotations

from nbxtensor.backend.absent import AbsentDriver

driver = AbsentDriver(
    "xpu",
    "xpu",
    reason="no library",
    detail="this release of nbxtensor-xpu has no Level Zero driver",
    fix='pass device="cpu" to run on the host',
)
