"""Every operator of the table over its cases on the device, against the float64 oracle; and what it must refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nbxtensor.backend.contract import Driver
from nbxtensor.backend.runtime import Device
from nbxtensor.conformance.cases import failures
from nbxtensor.conformance.marks import executes
from nbxtensor.conformance.plugin import Subject
from nbxtensor.ops.table import OPERATORS

pytestmark = [executes, pytest.mark.parametrize("operator", OPERATORS)]

SHOWN = 10


@pytest.fixture(scope="module")
def device(driver: Driver, subject: Subject) -> Iterator[Device]:
    device = Device(driver, subject.ordinal)
    yield device
    device.close()


def test_operator_agrees_with_its_oracle(device: Device, operator: str) -> None:
    wrong = failures(OPERATORS[operator], device)
    device.synchronize()
    assert not wrong, "\n".join([f"{len(wrong)} cases are wrong:", *wrong[:SHOWN]])
