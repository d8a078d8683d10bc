"""The device that the tests of operators run on."""

from __future__ import annotations

import pytest

from nbxtensor.backend import runtime


@pytest.fixture(scope="session")
def target(device: str) -> runtime.Device:
    """The open device of the option ``--device``."""
    return runtime.device(device)
