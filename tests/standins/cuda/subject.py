"""The CUDA driver on the stand-in: ``--driver-object standins.cuda.subject:driver`` of the conformance suite."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbxtensor.backend.contract import DeviceInfo
from nbxtensor.backend.cuda import CudaDriver
from nbxtensor.backend.cuda.library import VARIABLE

if TYPE_CHECKING:
    from standins.cuda.execute import Standin


@functools.cache
def _prepared(without: tuple[str, ...]) -> Standin:
    from standins.cuda import build, execute

    path = build.standin(without)
    os.environ[VARIABLE] = str(path)
    standin = execute.Standin(path)
    execute.watch(standin)
    return standin


_chosen: tuple[str, ...] = ()


def prepare(without: tuple[str, ...] | None = None) -> Standin:
    """Builds and names the library, and runs its kernels from here on; the same one in every call of a process.

    ``without`` names functions that it shall lack; the first call decides.
    """
    global _chosen
    if without is not None:
        _chosen = without
    return _prepared(_chosen)


class StandinDriver(CudaDriver):
    """`CudaDriver` itself; only the library that it finds is another."""

    def probe(self) -> Sequence[DeviceInfo]:
        prepare()
        return super().probe()


driver = StandinDriver()
