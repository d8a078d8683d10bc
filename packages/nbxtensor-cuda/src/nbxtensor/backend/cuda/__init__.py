"""NVIDIA GPUs. ``driver`` is the `nbxtensor.backend.contract.Driver`; importing it opens nothing."""

from __future__ import annotations

from nbxtensor.backend.cuda.driver import CudaContext, CudaDriver, driver

__all__ = ["CudaContext", "CudaDriver", "driver"]
