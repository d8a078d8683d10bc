"""Every operator of the table over its cases on the device, against the float64 oracle; and what it must refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nbxtensor.backend.contract import Driver
from nbxtensor.backend.runtime import Device
from nbxtensor.conformance.cases import cases, check, check_error
from nbxtensor.conformance.marks import executes
from nbxtensor.conformance.plugin import Subject
from nbxtensor.errors import DeviceError
from nbxtensor.ops.table import OPERATORS

pytestmark = [executes, pytest.mark.parametrize("operator", OPERATORS)]

SHOWN = 10


@pytest.fixture(scope="module")
def device(driver: Driver, subject: Subject) -> Iterator[Device]:
    device = Device(driver, subject.ordinal)
    yield device
    device.close()


def test_operator_agrees_with_its_oracle(device: Device, operator: str) -> None:
    wrong = []
    for case in cases(OPERATORS[operator], device):
        try:
            complaint = check(case, device)
        except DeviceError as error:
            complaint = f"{type(error).__name__}: {error}"
        if complaint is not None:
            wrong.append(f"{case}: {complaint}")
    device.synchronize()
    assert not wrong, "\n".join([f"{len(wrong)} cases are wrong:", *wrong[:SHOWN]])


def test_operator_refuses_what_it_must(device: Device, operator: str) -> None:
    entry = OPERATORS[operator]
    complaints = [(sample, check_error(entry, sample, device)) for sample in entry.errors()]
    assert [(sample, complaint) for sample, complaint in complaints if complaint is not None] == []
