"""Which contexts a test is for, by what they declare. The plug-in collects a test when all its marks hold."""

from __future__ import annotations

import pytest

from nbxtensor.backend.contract import Capabilities


def _executes(c: Capabilities) -> bool:
    return c.executes


def _keeps_data(c: Capabilities) -> bool:
    return c.executes or c.host_addressable


#: Kernels run.
executes = pytest.mark.needs.with_args(_executes)
#: Memory stands behind the addresses: kernels run on it, or the host reads it.
keeps_data = pytest.mark.needs.with_args(_keeps_data)


def declares(capability: str) -> pytest.MarkDecorator:
    """The context states this capability."""
    return pytest.mark.needs.with_args(lambda c: bool(getattr(c, capability)))


def lacks(capability: str) -> pytest.MarkDecorator:
    """The context states that it has not this capability."""
    return pytest.mark.needs.with_args(lambda c: not getattr(c, capability))


def computes(*dtypes: str) -> pytest.MarkDecorator:
    """Kernels run on all these dtypes."""
    return pytest.mark.needs.with_args(lambda c: c.executes and c.dtypes.issuperset(dtypes))
