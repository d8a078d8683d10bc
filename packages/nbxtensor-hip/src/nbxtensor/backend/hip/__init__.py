"""AMD GPUs. This release has no driver for them."""

from __future__ import annotations

from nbxtensor.backend.absent import AbsentDriver

driver = AbsentDriver(
    "hip",
    "hip",
    reason="no library",
    detail="this release of nbxtensor-hip has no HIP driver",
    fix='pass device="cpu" to run on the host',
)
