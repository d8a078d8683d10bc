"""The CUDA driver on the stand-in: ``--driver-object standins.cuda.subject:driver`` of the conformance suite."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from nbxtensor.backend.contract import DeviceInfo
from nbxtensor.backend.cuda import CudaDriver
from nbxtensor.backend.cuda.library import VARIABLE


@functools.cache
def prepare() -> None:
    """Builds and names the library, and runs its kernels from here on."""
    from standins.cuda import build, execute

    path = build.standin()
    os.environ[VARIABLE] = str(path)
    execute.watch(execute.Standin(path))


class StandinDriver(CudaDriver):
    """`CudaDriver` itself; only the library that it finds is another."""

    def probe(self) -> Sequence[DeviceInfo]:
        prepare()
        return super().probe()


driver = StandinDriver()
