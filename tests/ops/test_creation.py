"""Creation operators: every one fills, takes dtype and device, and refuses what it cannot make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import DTYPES, DType
from nbxtensor.errors import ArgumentError, DTypeError, ScalarOverflow, ShapeError
from nbxtensor.tensor import NBXTensor

Make = Callable[..., NBXTensor]


def dirty(device: Device, nbytes: int = 4096) -> None:
    """Leaves blocks of 0xA5 in the pool, which a tensor that is not filled would show."""
    blocks = [nbx.empty(size, "uint8", device) for size in (1, 512, 1024, nbytes)]
    for block in blocks:
        device.context.fill(block.extent[0], 0xA5, block.extent[1], device.stream)


@pytest.mark.parametrize("d", DTYPES)
def test_every_creator_fills(d: str, target: Device, tensor: Make) -> None:
    shapes: list[Any] = [(), 3, (2, 3), (0, 4), (40, 5)]
    for shape in shapes:
        for name, value in (("zeros", 0), ("ones", 1), ("full", 1)):
            dirty(target)
            given = (value,) if name == "full" else ()
            made = getattr(nbx, name)(shape, *given, dtype=d, device=target)
            like = getattr(nbx, f"{name}_like")(made, *given)
            new = getattr(tensor([1.0]), f"new_{name}")(shape, *given, dtype=d)
            wanted = np.full(shape, value, DTYPES[d].numpy)
            for x in (made, like, new):
                assert x.dtype == d and x.device is target and x.is_contiguous() and x.shape == wanted.shape
                assert x.numpy().tobytes() == wanted.tobytes()


def test_defaults(target: Device, tensor: Make) -> None:
    with nbx.use_device(target):
        assert {nbx.zeros(1).dtype, nbx.ones(1).dtype, nbx.empty(1).dtype} == {nbx.float32}
        assert nbx.zeros(1).device is target
        kinds = {True: "bool", 7: "int64", 0.5: "float32", 2j: "complex64"}
        assert {value: nbx.full(1, value).dtype for value in kinds} == kinds
    half = tensor([1.0], "float16")
    assert half.new_zeros(3).dtype == "float16" and nbx.ones_like(half, dtype="int8").dtype == "int8"
    assert half.new_empty((2, 2)).shape == (2, 2) and half.new_full(2, 7).tolist() == [7.0, 7.0]
    assert nbx.empty_like(tensor(np.zeros((3, 4))).mT).is_contiguous()
    assert nbx.zeros_like(half, device="meta").device == "meta"


def test_full_is_bounded_by_its_own_dtype(target: Device) -> None:
    assert nbx.full(1, 2**64 - 1, "uint64", target).tolist() == [2**64 - 1]
    assert nbx.full(1, 10**30, "float32", target).tolist() == [float(np.float32(1e30))]
    for value, d in ((300, "uint8"), (-1, "uint64"), (2**63, "int64"), (10**400, "float32")):
        with pytest.raises(ScalarOverflow, match=r"scalar="):
            nbx.full(1, value, d, target)
    with pytest.raises(DTypeError, match=r"fill_: value=1.5: does not fit in dtype int32"):
        nbx.full(1, 1.5, "int32", target)


@pytest.mark.parametrize("shape, rule", [
    ((-1,), "sizes must not be negative"), ((2.0,), "sizes must be integers"), ("ab", "sizes must be integers"),
    (None, "sizes must be integers"), ((2**40, 2**40), r"must be from 0 to 2\*\*63 - 1"),
])  # fmt: skip
def test_shapes_that_cannot_be(shape: Any, rule: str, target: Device) -> None:
    live = target.pool.statistics().live
    with pytest.raises(ArgumentError, match=rule):
        nbx.zeros(shape, device=target)
    assert target.pool.statistics().live == live


def test_unknown_dtypes_and_devices(target: Device) -> None:
    with pytest.raises(DTypeError, match=r"zeros: dtype='float31': must be one of bool, uint8"):
        nbx.zeros(1, "float31", target)
    with pytest.raises(DTypeError, match=r"ones_like: dtype="):
        nbx.ones_like(nbx.zeros(1, device=target), dtype=object)
    for name in ("CPU", "cuda:-1", "cpu:01", "", "cuda 0", 3):
        with pytest.raises(ArgumentError, match=r"device: name=.*must be a device type or a driver's name"):
            nbx.zeros(1, device=name)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"device: name='tpu': no driver serves it; types served here: .*cpu"):
        nbx.zeros(1, device="tpu")
    with pytest.raises(ArgumentError, match=r"device: name='meta:7': driver meta has 1 device"):
        nbx.zeros(1, device="meta:7")


# ranges


@pytest.mark.parametrize("arguments", [
    (5,), (0,), (2, 7), (5, 0), (5, 0, -2), (0, 10, 3), (-3, 4), (2**53, 2**53 + 3), (0.0, 1.0, 0.25), (3.5,),
    (1, 0, -0.5), (2**31 - 2, 2**31 + 2), (0, 3000, 7), (-(2**63), -(2**63) + 3),
])  # fmt: skip
def test_arange(arguments: tuple[Any, ...], target: Device) -> None:
    wanted = np.arange(*arguments)
    got = nbx.arange(*arguments, device=target)
    assert got.dtype == ("int64" if wanted.dtype.kind == "i" else "float32")
    assert got.tolist() == wanted.tolist()


def test_arange_in_every_dtype(any_dtype: DType, target: Device) -> None:
    got = nbx.arange(3, dtype=any_dtype, device=target)
    assert got.dtype is any_dtype
    assert got.numpy().astype(np.float64).tolist() == ([0, 1, 1] if any_dtype == "bool" else [0, 1, 2])


def test_arange_of_many_elements(target: Device) -> None:
    """Each element is start + i * step: rounding does not add up."""
    wanted = (0.1 * np.arange(5000, dtype=np.float64)).astype(np.float32)
    np.testing.assert_allclose(nbx.arange(0, 500, 0.1, device=target).numpy(), wanted, rtol=1.2e-7)
    np.testing.assert_array_equal(nbx.arange(70000, dtype="int32", device=target).numpy(), np.arange(70000))


def test_arange_refuses(target: Device) -> None:
    with pytest.raises(ArgumentError, match=r"arange: step=0: must not be 0"):
        nbx.arange(0, 3, 0, device=target)
    for value in (float("inf"), float("nan"), 1j):
        with pytest.raises(ArgumentError, match=r"arange: stop=.*: must be a finite number"):
            nbx.arange(value, device=target)  # type: ignore[arg-type]


# asarray


@pytest.mark.parametrize("data, d", [
    (True, "bool"), (5, "int64"), (2.5, "float32"), (1 + 2j, "complex64"), ([], "float32"), ([[1, 2], [3, 4]], "int64"),
    ([1, 2.5], "float32"), ([True, False], "bool"), ((1, 2), "int64"), (np.float16(3), "float16"),
    (np.arange(3), "int64"), ([2**63], "uint64"),
])  # fmt: skip
def test_asarray(data: Any, d: str, target: Device) -> None:
    x = nbx.asarray(data, device=target)
    assert x.dtype == d and x.device is target and x.tolist() == np.asarray(data).tolist()
    if d != "complex64":
        assert nbx.asarray(data, "float64", target).dtype == "float64"


def test_asarray_of_tensors_and_arrays(target: Device, tensor: Make) -> None:
    x = tensor([1.0, 2.0])
    assert nbx.asarray(x) is x and nbx.asarray(x, device=target) is x
    assert nbx.asarray(x, copy=True).storage is not x.storage
    assert nbx.asarray(x, "int8").tolist() == [1, 2]
    with pytest.raises(ArgumentError, match=r"asarray: copy=False: another dtype or device needs a copy"):
        nbx.asarray(x, "int8", copy=False)
    with pytest.raises(ArgumentError, match=r"asarray: copy=False: only an array of that dtype can be shared"):
        nbx.asarray([1.0], copy=False, device=target)


@pytest.mark.parametrize("data, error, rule", [
    ([[1], [1, 2]], ShapeError, r"asarray: data=.*: must be nested lists of equal lengths"),
    ("text", DTypeError, r"asarray: data=.*: strings are not numbers"),
    (None, DTypeError, r"asarray: data=.*: Python objects have no fixed layout"),
    ([2**70], DTypeError, r"asarray: data=.*: Python objects have no fixed layout"),
    (np.array([1, 2], ">i4"), DTypeError, r"is not in this machine's byte order"),
    ({1: 2}, DTypeError, r"Python objects"),
])  # fmt: skip
def test_asarray_refuses(data: Any, error: type[Exception], rule: str, target: Device) -> None:
    with pytest.raises(error, match=rule):
        nbx.asarray(data, device=target)
