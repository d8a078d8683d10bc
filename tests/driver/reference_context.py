"""A context of the reference driver, and data on it, for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from driver.interpreted import Array, variant
from nbxtensor.backend.reference.driver import ReferenceContext, driver


@pytest.fixture
def context() -> Iterator[ReferenceContext]:
    context = driver.open(0)
    yield context
    context.close()


def place(context: ReferenceContext, array: Array) -> int:
    address = context.allocate(array.nbytes)
    context.copy_in(address, array.ctypes.data, array.nbytes)
    return address


def read(context: ReferenceContext, address: int, like: Array) -> Array:
    array = np.empty_like(like)
    context.copy_out(array.ctypes.data, address, array.nbytes)
    return array


def loaded(context: ReferenceContext, module: str, name: str, /, **arguments: Any) -> Any:
    made, _ = variant(module, name, **arguments)
    return context.load(context.compile(made))
