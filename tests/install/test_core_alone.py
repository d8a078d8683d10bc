"""Core without Triton and without a vendor: everything that runs no kernel works, and running one is refused by
name."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend import registry
from nbxtensor.errors import NBXError


def test_there_is_no_triton_here() -> None:
    assert importlib.util.find_spec("triton") is None


def test_dtypes_and_shapes() -> None:
    from nbxtensor.shape import broadcast_shapes

    assert nbx.result_type("float16", "bfloat16") == "float32"
    assert broadcast_shapes((2, 1), (3,)) == (2, 3)


def test_only_the_drivers_of_core() -> None:
    assert {entry.name: entry.error for entry in registry.drivers()} == {"reference": None, "meta": None}


def test_a_program_is_traced_without_a_device() -> None:
    a = nbx.empty((4, 3), dtype="float16", device="meta")
    assert ((a + a).shape, (a + a).dtype) == ((4, 3), "float16")


def test_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(NBXError, match=r"[Tt]riton"):
        a = nbx.from_numpy(np.ones(3, np.float32), device="cpu")
        a + a
