"""The device that the tests of operators run on, and parameters that depend on what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbxtensor.backend import launcher, runtime
from nbxtensor.dtype import DTYPES, DType
from nbxtensor.tensor import NBXTensor, from_numpy

_KINDS = {
    "any_dtype": lambda d: d.kind != "complex",
    "floating": lambda d: d.kind == "float" and d.bits >= 16,
    "integer": lambda d: d.kind in ("int", "uint"),
    "signed": lambda d: d.kind == "int",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A parameter named as a kind of dtype stands for every one that the device computes."""
    for name, belongs in _KINDS.items():
        if name in metafunc.fixturenames:
            able = runtime.device(metafunc.config.getoption("device")).context.capabilities.dtypes
            metafunc.parametrize(name, [d for d in DTYPES.values() if belongs(d) and d in able])


@pytest.fixture(scope="session")
def target(device: str) -> runtime.Device:
    """The open device of the option ``--device``."""
    return runtime.device(device)


@pytest.fixture
def tensor(target: runtime.Device) -> Callable[..., NBXTensor]:
    """``tensor(values, dtype)``: a tensor on the device under test. Without a dtype an array keeps its own, and
    Python's floats become float32."""

    def make(values: Any, dtype: DType | str | None = None) -> NBXTensor:
        array = np.array(values, None if dtype is None else DTYPES[dtype].numpy)
        if dtype is None and array.dtype == np.float64 and not isinstance(values, np.ndarray):
            array = array.astype(np.float32)
        return from_numpy(array, target)

    return make


@pytest.fixture
def launches(request: pytest.FixtureRequest) -> list[str]:
    """The names of the kernels that the test's thread launches from here on."""
    seen: list[str] = []
    before = launcher.set_launch_recorder(lambda prepared, grid, params, extents: seen.append(prepared.name))
    request.addfinalizer(lambda: launcher.set_launch_recorder(before))
    return seen
