"""Casts, copies between layouts and dtypes, writing into tensors, joining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import DTYPES, DType, convert
from nbxtensor.errors import ArgumentError, DTypeError, ScalarOverflow, ShapeError
from nbxtensor.tensor import NBXTensor, from_numpy

Make = Callable[..., NBXTensor]
NAN, INF = float("nan"), float("inf")


def same_bits(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    """Equal bit for bit, but for the payloads of NaN."""
    with np.errstate(invalid="ignore"):  # of signalling NaN
        nan = np.isnan(wanted)
        assert np.array_equal(np.isnan(got), nan)
    unsigned = f"u{wanted.dtype.itemsize}"
    np.testing.assert_array_equal(got[~nan].view(unsigned), wanted[~nan].view(unsigned))


# casts


def test_float_to_integer_saturates(tensor: Make, floating: DType, integer: DType) -> None:
    values = convert(np.array([INF, -INF, NAN, 300, -1, 1.99, -1.99, 3e9, 1e20, -1e20, 0.0]), floating)
    wanted = []
    for value in values.astype(np.float64):
        whole = 0 if np.isnan(value) else value if np.isinf(value) else int(value)
        wanted.append(int(min(max(whole, int(integer.min)), int(integer.max))))
    got = tensor(values).to(integer)
    assert got.dtype is integer and got.tolist() == wanted


@pytest.mark.parametrize("to", ["int8", "uint8", "int64", "uint64", "bool"])
def test_casts_agree_with_the_host_on_every_half(tensor: Make, to: str) -> None:
    for source in (np.float16, ml_dtypes.bfloat16):
        patterns = np.arange(2**16, dtype=np.uint16).view(source)
        np.testing.assert_array_equal(tensor(patterns).to(to).numpy(), convert(patterns, to))


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_convert_bit_for_bit(tensor: Make, source: str, to: str) -> None:
    d = DTYPES[source]
    patterns = np.arange(1 << d.bits, dtype=f"u{d.itemsize}").view(d.numpy)
    same_bits(tensor(patterns).to(to).numpy(), convert(patterns, to))


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_of_float32_is_to_nearest_even(tensor: Make, to: str) -> None:
    bits = [0x3E89CCD5, 0x7F800001, 0x7FC00000, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x00000001, 0x477FF000, 0x7F800000]
    rng = np.random.default_rng(0)
    ties = (rng.integers(0, 2**16, 5000, np.uint32) << 16) | 0x8000
    words = np.concatenate([np.array(bits, np.uint32), ties, rng.integers(0, 2**32, 20000, np.uint32)])
    values = np.concatenate([words, words | 0x80000000]).view(np.float32)
    same_bits(tensor(values).to(to).numpy(), convert(values, to))
    if to == "bfloat16":
        with np.errstate(invalid="ignore"):
            same_bits(tensor(values).to(to).numpy(), values.astype(ml_dtypes.bfloat16))


def test_integers_wrap_and_are_exact(tensor: Make) -> None:
    assert tensor([300, -1, 2**40 + 5]).to("uint8").tolist() == [44, 255, 5]
    assert tensor([2**63 - 1]).to("float64").item() == float(2**63 - 1)
    assert tensor([2**24 + 1]).to("float32").item() == 2**24
    assert tensor([-1, 0, 7]).to("bool").tolist() == [True, False, True]
    assert tensor([NAN, -0.0, 1e-40]).to("bool").tolist() == [True, False, True]
    assert tensor([True, False]).to("float16").tolist() == [1.0, 0.0]


def test_casts_have_short_names(tensor: Make) -> None:
    x = tensor([1.5])
    names = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "int": "int32", "long": "int64"}
    assert {name: getattr(x, name)().dtype for name in names} == names
    assert x.type_as(tensor([1], "int8")).dtype == "int8"


def test_to_returns_the_tensor_itself_where_nothing_changes(tensor: Make, target: Device) -> None:
    x = tensor([1.0])
    assert x.to("float32") is x and x.to(target) is x and x.to(target.name) is x and nbx.cast(x, "float32") is x
    for copy in (x.to("float32", copy=True), x.to(target, copy=True), x.clone()):
        assert copy is not x and copy.storage is not x.storage and copy.tolist() == [1.0]
    assert x.to(target, "float16").dtype == "float16" and x.to(dtype="int8", device=target).dtype == "int8"
    with pytest.raises(DTypeError, match=r"cast: dtype='float31': must be one of bool"):
        nbx.cast(x, "float31")
    with pytest.raises(ArgumentError, match=r"device: name='nowhere': no driver serves it"):
        x.to("nowhere")


def test_complex_to_real_is_refused(tensor: Make) -> None:
    z = tensor(np.array([1 + 2j], np.complex64))
    for call in (lambda: z.to("float32"), lambda: tensor([0.0]).copy_(z), lambda: z.float()):
        with pytest.raises(DTypeError, match=r"complex64 has no conversion to real numbers; take real or imag"):
            call()
    assert z.real.tolist() == [1.0] and z.imag.tolist() == [2.0]


# layouts


@pytest.mark.parametrize("d", DTYPES)
def test_a_strided_tensor_becomes_contiguous(tensor: Make, d: str) -> None:
    """Complex numbers too, whose imaginary parts must stay beside the real ones."""
    host = convert(np.arange(-60, 60).reshape(4, 5, 6), d)
    if DTYPES[d].kind == "complex":
        host = host + host.dtype.type(1j) * host[::-1]
    for view in (
        (slice(None), slice(None), slice(None, None, 2)),
        (slice(None, None, -1), 2),
        (..., slice(4, None, -3)),
    ):
        x = tensor(host)[view]
        made = x.contiguous()
        assert made.is_contiguous() and made.shape == x.shape
        assert made.numpy().tobytes() == np.ascontiguousarray(host[view]).tobytes() == x.numpy().tobytes()
    transposed = tensor(host).permute(2, 0, 1).contiguous()
    assert transposed.numpy().tobytes() == np.ascontiguousarray(host.transpose(2, 0, 1)).tobytes()


def test_contiguous_and_reshape_copy_only_where_they_must(tensor: Make) -> None:
    x = tensor(np.arange(12.0).reshape(3, 4))
    assert x.contiguous() is x and x.mT.contiguous().storage is not x.storage
    assert x.reshape(4, 3).storage is x.storage and x.reshape((2, -1)).shape == (2, 6)
    assert x.mT.reshape(12).storage is not x.storage
    assert x.mT.reshape(12).tolist() == np.arange(12.0).reshape(3, 4).T.reshape(12).tolist()
    assert x.flatten().storage is x.storage and x.mT.flatten().tolist() == x.mT.reshape(-1).tolist()
    assert tensor([[[1]]]).reshape(()).item() == 1
    with pytest.raises(ShapeError, match=r"reshape: shape=\(5, -1\): 12 elements are no multiple of 5"):
        x.reshape(5, -1)


# writing


def test_copy_converts_and_broadcasts(tensor: Make) -> None:
    x = tensor(np.zeros((2, 3)), "int8")
    assert x.copy_(tensor([1.9, -200.0, NAN])) is x
    assert x.tolist() == [[1, -128, 0]] * 2
    half = tensor([0.0], "float16")
    half.copy_(tensor([1e6]))
    assert half.tolist() == [65504.0]
    z = tensor(np.zeros(2, np.complex64))
    assert z.copy_(tensor([1.0, 2.0])).tolist() == [1 + 0j, 2 + 0j]
    with pytest.raises(ShapeError, match=r"copy_: source=\(4, 2, 3\): must broadcast to the target's shape \(2, 3\)"):
        x.copy_(tensor(np.zeros((4, 2, 3))))
    with pytest.raises(DTypeError, match=r"copy_: source='ndarray': must be a tensor"):
        x.copy_(np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "to, source",
    [
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(None), slice(None, None, -1)),
        (slice(None, 5), slice(None, None, 2)),
        (slice(5, None), slice(1, 6)),
        (slice(None, None, 2), slice(1, None, 2)),
    ],
)
def test_overlapping_copies_read_before_they_write(tensor: Make, to: slice, source: slice) -> None:
    host = np.arange(10.0)
    x = tensor(host)
    x[to] = x[source]
    host[to] = host[source].copy()
    assert x.tolist() == host.tolist()
    both = tensor(np.arange(9.0).reshape(3, 3))
    both.copy_(both.mT)
    assert both.tolist() == np.arange(9.0).reshape(3, 3).T.tolist()
    bits = tensor(np.arange(8, dtype=np.int32))
    bits.view("float32")[1:].copy_(bits[:-1])
    assert bits.view("float32").tolist()[1:] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_fill_converts_as_a_cast_does(tensor: Make, any_dtype: DType) -> None:
    x = tensor([0, 0, 0], any_dtype)
    assert x.fill_(1) is x and x.numpy().astype(np.float64).tolist() == [1.0] * 3
    if any_dtype.kind == "float":
        for value in (0.1, 1e6, -1e300, INF, NAN, 10**30, np.float32(2.5)):
            same_bits(x.fill_(value).numpy(), np.repeat(convert(np.array([value], np.float64), any_dtype), 3))


def test_fill_refuses_what_does_not_fit(tensor: Make) -> None:
    x = tensor([1, 2], "int8")
    refused: list[tuple[NBXTensor, Any, type[Exception], str]] = [
        (x, 1.5, DTypeError, r"fill_: value=1.5: does not fit in dtype int8"),
        (x, 128, ScalarOverflow, r"fill_: scalar=128: must lie in -128..127, the range of int8"),
        (x, 1j, DTypeError, r"fill_: value=1j: does not fit"),
        (x, "1", DTypeError, r"fill_: scalar='1': must be a bool, int, float or complex number"),
        (x, x[0], DTypeError, r"fill_: value='NBXTensor': must be a number; copy_ writes a tensor"),
        (tensor([True]), 2, DTypeError, r"fill_: value=2: does not fit in dtype bool"),
        (tensor([True]), 1.0, DTypeError, r"fill_: value=1.0: does not fit in dtype bool"),
        (tensor([1.0]), 10**400, ScalarOverflow, r"fill_: scalar=1000"),
        (x[:1].expand(4), 1, ShapeError, r"fill_: target=.*its elements share memory"),
    ]
    for target, value, error, rule in refused:
        with pytest.raises(error, match=rule):
            target.fill_(value)
    assert x.tolist() == [1, 2]


def test_assignment(tensor: Make) -> None:
    host = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    x = tensor(host)
    x[0, ..., ::2] = 1.5
    x[1:, -1] = tensor([1, 2, 3, 4])
    x[:, None, 1, ::-1] = tensor(np.arange(4.0))
    host[0, ..., ::2], host[1:, -1], host[:, None, 1, ::-1] = 1.5, [1, 2, 3, 4], np.arange(4.0)
    x[1, 0, 0] = np.float64(7)
    host[1, 0, 0] = 7
    x[:0] = 9
    assert x.tolist() == host.tolist()
    refused: list[tuple[Any, Any, type[Exception], str]] = [
        (0, [1, 2, 3, 4], DTypeError, r"__setitem__: value='list': must be a number or a tensor; nbxtensor.asarray"),
        (0, np.zeros(4), DTypeError, r"__setitem__: value='ndarray': must be a number or a tensor"),
        (0, None, DTypeError, r"__setitem__: value='NoneType'"),
        (0, 1j, DTypeError, r"fill_: value=1j: does not fit in dtype float32"),
        (0, tensor([1.0, 2.0]), ShapeError, r"do not broadcast"),
        (5, 1, IndexError, r"must lie in -2..1"),
        ([0], 1, ShapeError, r"must be an integer, slice, Ellipsis or None"),
    ]
    for key, value, error, rule in refused:
        with pytest.raises(error, match=rule):
            x[key] = value
    assert x.tolist() == host.tolist()


def test_a_read_only_array_stays_as_it_is() -> None:
    host = np.arange(6.0)
    host.flags.writeable = False
    x = from_numpy(host, "cpu", copy=False)
    for write in (lambda: x.fill_(1), lambda: x[1:].copy_(x[:1]), lambda: x.view(2, 3).__setitem__(0, 1)):
        with pytest.raises(ArgumentError, match=r"read-only"):
            write()
    assert (x + 1).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert host.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# joining


def test_cat_and_stack(tensor: Make) -> None:
    a, b = tensor(np.arange(6).reshape(2, 3)), tensor([[7], [8]], "int32")
    assert nbx.cat([a, b], 1).tolist() == [[0, 1, 2, 7], [3, 4, 5, 8]]
    assert nbx.cat([a.mT, b.mT[:, :2]]).shape == (4, 2)
    assert nbx.cat((tensor(np.zeros(0)), tensor([1, 2], "int8")), -1).dtype == "float64"
    assert nbx.stack([a, a + 10], dim=-1).tolist()[1][2] == [5, 15]
    assert nbx.cat([a]).storage is not a.storage
    many = nbx.cat([tensor([float(i)]) for i in range(40)])
    assert many.tolist() == [float(i) for i in range(40)]


def test_join_refuses(tensor: Make) -> None:
    a = tensor(np.zeros((2, 3)))
    refused: list[tuple[Any, str]] = [
        (lambda: nbx.cat([]), r"cat: tensors=\[\]: must name at least one tensor"),
        (lambda: nbx.stack([]), r"stack: tensors=\[\]: must name at least one tensor"),
        (lambda: nbx.cat([a, 1]), r"cat: tensors\[1\]='int': must be a tensor"),  # type: ignore[list-item]
        (lambda: nbx.stack([a, 1]), r"stack: tensors\[1\]='int': must be a tensor"),  # type: ignore[list-item]
        (lambda: nbx.cat([a, a[:1]], 1), r"cat: tensors\[1\]=\(1, 3\): must match \(2, 3\) in all dimensions but 1"),
        (lambda: nbx.cat([a, a], 2), r"cat: dim=2"),
        (lambda: nbx.stack([a, a[:1]]), r"stack: tensors\[1\]=\(1, 3\): must have the shape \(2, 3\) of the first"),
        (lambda: nbx.cat([a, nbx.empty((2, 3), device="meta")]), r"cat: tensors\[1\]='tensor on meta': must be on"),
        (lambda: nbx.cat([a[0, 0], a[0, 0]]), r"cat: dim=0: a 0-d tensor has no axes"),
    ]
    for call, rule in refused:
        with pytest.raises(ArgumentError, match=rule):
            call()
