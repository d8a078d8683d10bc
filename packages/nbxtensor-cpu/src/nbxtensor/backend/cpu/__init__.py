"""The host's CPU. This release compiles no kernel for it."""

from __future__ import annotations

from nbxtensor.backend.absent import AbsentDriver

driver = AbsentDriver(
    "cpu",
    "cpu",
    reason="no Triton backend",
    detail="this release has no native compiler for the host CPU",
    fix='nothing to do: device="cpu" is served by the reference driver of nbxtensor-core',
)
