"""A context on the stand-in for each test, which must leave nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from nbxtensor.backend.cuda import CudaContext
from nbxtensor.conformance.variants import Memory
from standins.cuda.execute import Standin
from standins.cuda.subject import driver, prepare


@pytest.fixture(scope="session")
def standin() -> Standin:
    return prepare()


@pytest.fixture
def context(standin: Standin) -> Iterator[CudaContext]:
    """A context that lets go of everything: the driver holds afterwards what it held before."""
    before = standin.live()
    context = driver.open(0)
    yield context
    context.close()
    gc.collect()
    assert standin.live() == before


@pytest.fixture
def memory(context: CudaContext) -> Memory:
    return Memory(context)
