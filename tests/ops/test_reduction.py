"""Reductions: exact sums, any axes, NaN and ties, long rows, the same bits every time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from nbxtensor.dtype import DType
from nbxtensor.errors import DTypeError, ShapeError
from nbxtensor.tensor import NBXTensor

Make = Callable[..., NBXTensor]
NAN, INF = float("nan"), float("inf")


# sums


def test_sums_of_integers_are_int64_and_exact(tensor: Make, integer: DType) -> None:
    x = tensor(np.full(3000, integer.max, integer.numpy))
    total = x.sum()
    assert total.dtype == ("uint64" if integer == "uint64" else "int64")
    assert total.item() == (3000 * int(integer.max)) % 2**64 - (2**64 if integer == "int64" else 0)
    assert tensor([2**24, 1, 1, 1], "int32").sum().item() == 2**24 + 3
    assert tensor([2**53, 1], "int64").sum().item() == 2**53 + 1
    assert tensor([2, 3, 4], integer).prod().item() == 24


def test_the_sum_of_bool_counts(tensor: Make) -> None:
    x = tensor(np.arange(1000) % 3 == 0)
    assert x.sum().dtype == "int64" and x.sum().item() == 334
    assert x.sum(dtype="float16").item() == 334.0 and x.mean().item() == pytest.approx(0.334)
    assert x.any().item() is True and x.all().item() is False


def test_half_sums_accumulate_in_float32(tensor: Make) -> None:
    for d in ("float16", "bfloat16"):
        x = tensor(np.ones(10000), d)
        assert x.mean().item() == 1.0 and x.sum(dtype="float32").item() == 10000.0
    large = tensor(np.array([60000.0, 60000.0, -60000.0]), "float16")
    assert large.sum().item() == 60000.0 and large.mean().item() == 20000.0
    assert tensor([60000.0, 60000.0], "float16").sum().item() == INF


def test_dtype_of_the_result(tensor: Make) -> None:
    x = tensor([1.5, 2.5])
    assert x.sum(dtype="float64").dtype == "float64" and x.sum(dtype="int32").tolist() == 3
    assert tensor([1, 2]).mean().dtype == "float32" and tensor([1, 2]).mean(dtype="float64").dtype == "float64"
    assert tensor([1, 2], "int8").sum(dtype="int8").dtype == "int8"
    with pytest.raises(DTypeError, match=r"sum: dtype='float31'"):
        x.sum(dtype="float31")


# axes


def test_every_set_of_axes(tensor: Make) -> None:
    host = np.arange(2 * 3 * 4 * 5, dtype=np.int64).reshape(2, 3, 4, 5) % 17
    for x, a in (
        (tensor(host), host),
        (tensor(host).permute(2, 0, 3, 1)[:, :, ::-2], host.transpose(2, 0, 3, 1)[:, :, ::-2]),
    ):
        for count in range(5):
            for axes in combinations(range(4), count):
                for keepdim in (False, True):
                    got = x.sum(axes, keepdim)
                    np.testing.assert_array_equal(got.numpy(), a.sum(axis=axes, keepdims=keepdim))
                    if axes:
                        np.testing.assert_array_equal(x.amax(axes, keepdim).numpy(), a.max(axis=axes, keepdims=keepdim))
    assert tensor(host).sum((-1, 0)).tolist() == host.sum(axis=(-1, 0)).tolist()
    assert tensor(host).sum([1]).tolist() == host.sum(axis=1).tolist()
    assert tensor(host).sum(()).tolist() == host.tolist()


def test_axes_that_cannot_be(tensor: Make) -> None:
    x = tensor(np.ones((2, 3)))
    refused: list[tuple[Any, str]] = [
        (2, r"sum: dim=2: must lie in -2..1 for 2 dimensions"), ((0, -2), r"sum: dim=\(0, -2\): names an axis twice"),
        (1.0, r"sum: dim=1.0: must be an integer"), ("0", r"sum: dim='0': must be an integer"),
    ]  # fmt: skip
    for dim, rule in refused:
        with pytest.raises(ShapeError, match=rule):
            x.sum(dim)
    with pytest.raises(ShapeError, match=r"sum: dim=0: a 0-d tensor has no axes"):
        tensor(1.0).sum(0)


def test_reductions_of_nothing(tensor: Make, launches: list[str]) -> None:
    x = tensor(np.ones((0, 3), np.float32))
    assert x.sum().item() == 0.0 and x.prod().item() == 1.0 and np.isnan(x.mean().item())
    assert x.sum(0).tolist() == [0.0] * 3 and np.isnan(x.mean(0).numpy()).all()
    assert x.any().item() is False and x.all().item() is True
    launched = len(launches)
    assert x.amax(1).shape == (0,) and x.sum(1).shape == (0,) and x.argmax(1).shape == (0,)
    assert len(launches) == launched  # nothing to write
    for call in (x.amax, x.amin, x.argmax, x.argmin):
        with pytest.raises(ShapeError, match=r"has no elements"):
            call(0)
        with pytest.raises(ShapeError, match=r"has no elements"):
            call()


# NaN, ties and positions


@pytest.mark.parametrize("row, largest, smallest", [
    ([NAN, 6, 8], 0, 0), ([INF, NAN], 1, 1), ([3, 3, 3], 0, 0), ([NAN, NAN, NAN], 0, 0), ([-INF] * 5, 0, 0),
    ([1, NAN, NAN, 9], 1, 1), ([-INF, INF, -INF, INF], 1, 0), ([0.0, -0.0], 0, 0), ([-0.0, 0.0], 0, 0),
    ([2, 7, 7, 1, 1], 1, 3),
])  # fmt: skip
def test_positions(tensor: Make, floating: DType, row: list[float], largest: int, smallest: int) -> None:
    x = tensor(row, floating)
    assert x.argmax().item() == largest and x.argmin().item() == smallest
    assert x.argmax().dtype == "int64"
    np.testing.assert_array_equal(x.amax().numpy().astype(np.float64), np.max(row))
    np.testing.assert_array_equal(x.amin().numpy().astype(np.float64), np.min(row))
    both = tensor(np.array([row, row[::-1]]), floating)
    np.testing.assert_array_equal(both.argmax(1).numpy(), np.argmax([row, row[::-1]], axis=1))
    np.testing.assert_array_equal(
        both.argmin(0, keepdim=True).numpy(), np.argmin([row, row[::-1]], axis=0, keepdims=True)
    )


@pytest.mark.parametrize("length", [1, 31, 1000, 5000, 70001])
def test_positions_in_long_rows(tensor: Make, length: int) -> None:
    """Rows are cut into tiles and pieces; the filling of the last tile never wins, and the first of equals does."""
    rng = np.random.default_rng(length)
    worst = tensor(np.full(length, -INF, np.float32))
    assert worst.argmax().item() == 0 and (-worst).argmin().item() == 0
    for values in (rng.integers(-3, 3, length), np.full(length, np.iinfo(np.int64).min), rng.normal(size=length)):
        x = tensor(values)
        assert x.argmax().item() == np.argmax(values) and x.argmin().item() == np.argmin(values)
    nan = rng.normal(size=length).astype(np.float32)
    nan[[length // 2, length - 1]] = NAN
    assert tensor(nan).argmax().item() == length // 2 and np.isnan(tensor(nan).amax().item())


def test_positions_count_in_c_order_whatever_the_strides(tensor: Make) -> None:
    host = np.random.default_rng(0).integers(0, 5, (6, 7, 8))
    for axes in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        view = host.transpose(axes)[::-1, :, ::3]
        x = tensor(host).permute(axes)[::-1, :, ::3]
        assert x.argmax().item() == np.argmax(view)
        np.testing.assert_array_equal(x.argmin(1).numpy(), np.argmin(view, axis=1))


def test_nan_and_infinity_in_sums(tensor: Make, floating: DType) -> None:
    assert np.isnan(tensor([1.0, NAN], floating).sum().item()) and np.isnan(tensor([INF, -INF], floating).sum().item())
    assert tensor([1.0, INF], floating).mean().item() == INF
    assert tensor([NAN, 0.0], floating).any().item() is True and tensor([NAN], floating).all().item() is True
    assert tensor([-0.0, 0.0], floating).any().item() is False


# length and order


@pytest.mark.parametrize("shape, dim", [((200_000,), 0), ((3, 70_000), 1), ((70_000, 3), 0), ((2, 300, 300), (1, 2))])
def test_long_reductions_are_split_and_repeat_bit_for_bit(tensor: Make, shape: tuple[int, ...], dim: Any) -> None:
    host = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x = tensor(host)
    first = x.sum(dim)
    exact = host.astype(np.float64).sum(axis=dim)
    # A few hundred roundings of partial sums, to both sides.
    bound = 2.0**-24 * 300 * np.abs(host).astype(np.float64).sum(axis=dim) / np.sqrt(host.size)
    assert (np.abs(first.numpy() - exact) <= bound).all()
    assert all(x.sum(dim).numpy().tobytes() == first.numpy().tobytes() for _ in range(3))
    np.testing.assert_array_equal(x.amax(dim).numpy(), host.max(axis=dim))
    np.testing.assert_array_equal((x > 1).sum(dim).numpy(), (host > 1).sum(axis=dim))


def test_complex_is_refused(tensor: Make) -> None:
    z = tensor(np.ones(3, np.complex64))
    for call in (z.sum, z.mean, z.amax, z.argmax, z.any):
        with pytest.raises(DTypeError, match=r"x=nbxtensor.complex64: not accepted"):
            call()
