"""Apple GPUs. This release has no driver for them."""

from __future__ import annotations

from nbxtensor.backend.absent import AbsentDriver

driver = AbsentDriver(
    "metal",
    "metal",
    reason="no library",
    detail="this release of nbxtensor-metal has no Metal driver",
    fix='pass device="cpu" to run on the host',
)
