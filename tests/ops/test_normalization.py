"""Softmax and norms: rows that overflow, underflow or hold nothing finite; wide rows; any strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.dtype import DType
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError
from nbxtensor.ops.oracles import normalization as oracle
from nbxtensor.tensor import NBXTensor

Make = Callable[..., NBXTensor]
NAN, INF = float("nan"), float("inf")


def close(got: NBXTensor, wanted: Any, ulps: float = 16) -> None:
    eps = max(got.dtype.eps, 2.0**-23 if got.dtype != "float64" else 2.0**-52)
    np.testing.assert_allclose(got.numpy().astype(np.float64), wanted, rtol=ulps * eps, atol=ulps * eps)


# softmax


def test_softmax_of_rows_that_hold_nothing_finite(tensor: Make, floating: DType) -> None:
    x = tensor([[-INF, -INF, -INF], [INF, 0, 0], [NAN, 0, 1], [-INF, 0, -INF]], floating)
    np.testing.assert_array_equal(x.softmax().numpy().astype(np.float64), [[NAN] * 3, [NAN] * 3, [NAN] * 3, [0, 1, 0]])
    np.testing.assert_array_equal(
        x.log_softmax().numpy().astype(np.float64)[[0, 2, 3]], [[NAN] * 3, [NAN] * 3, [-INF, 0, -INF]]
    )


@pytest.mark.parametrize("columns", [1, 2, 100, 4096, 20000])
def test_softmax_of_rows_of_any_width(tensor: Make, columns: int) -> None:
    """A row that no tile holds is walked twice, and is masked the same."""
    host = np.random.default_rng(columns).normal(size=(3, columns)).astype(np.float32) * 4
    host[1, : columns // 2] = -INF
    host[2] = -INF
    x = tensor(host)
    with np.errstate(invalid="ignore"):
        close(x.softmax(), oracle.softmax(host))
        close(x.log_softmax(), oracle.log_softmax(host), ulps=64)
    assert np.isnan(x.softmax().numpy()[2]).all()


def test_softmax_neither_overflows_nor_loses_small_differences(tensor: Make) -> None:
    big = tensor([[1e38, 1e38], [-1e38, 1e38], [3e38, -3e38]])
    assert big.softmax().tolist() == [[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]]
    half = tensor([[60000.0, 60000.0, -60000.0]], "float16")
    assert half.softmax().tolist() == [[0.5, 0.5, 0.0]]
    close(tensor([[1e-8, 0.0]], "float64").log_softmax(), oracle.log_softmax([[1e-8, 0.0]]))
    assert tensor([[0.0, -100.0]]).log_softmax().tolist() == [[0.0, -100.0]]


def test_softmax_along_any_axis_and_strides(tensor: Make) -> None:
    host = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
    x, a = tensor(host).permute(2, 0, 1)[::-1, :, ::2], host.transpose(2, 0, 1)[::-1, :, ::2]
    for dim in (0, 1, 2, -1):
        got = x.softmax(dim)
        assert got.is_contiguous() and got.shape == a.shape
        close(got, oracle.softmax(a, dim))
    assert tensor(3.0).softmax(0).item() == 1.0 and tensor(3.0).log_softmax(-1).item() == 0.0


def test_softmax_dtypes(tensor: Make) -> None:
    assert tensor([1, 2]).softmax().dtype == "float32"
    wide = tensor([1.0, 2.0], "float16").softmax(dtype="float32")
    assert wide.dtype == "float32"
    close(wide, oracle.softmax([1.0, 2.0]))
    with pytest.raises(DTypeError, match=r"softmax: dtype=nbxtensor.int32: not accepted"):
        tensor([1.0]).softmax(dtype="int32")
    with pytest.raises(ShapeError, match=r"softmax: dim=1: must lie in -1..0"):
        tensor([1.0]).softmax(1)


# norms


def test_half_rows_whose_squares_overflow(tensor: Make) -> None:
    for d in ("float16", "bfloat16"):
        for value, columns in ((200.0, 4096), (7600.0, 4096), (60000.0, 64)):
            host = np.full((2, columns), value)
            host[:, ::2] *= -1
            x = tensor(host, d)
            exact = x.numpy().astype(np.float64)
            close(nbx.rms_norm(x, columns, eps=1e-6), oracle.rms_norm(exact, None, (columns,), 1e-6), ulps=1)
            close(nbx.layer_norm(x, columns), oracle.layer_norm(exact, None, None, (columns,), 1e-5), ulps=1)


def test_epsilon_is_added_in_float32(tensor: Make) -> None:
    """1e-12 and the square of a small half are both 0 in float16."""
    zero = tensor(np.zeros((1, 8)), "float16")
    assert nbx.rms_norm(zero, 8, eps=1e-12).tolist() == [[0.0] * 8] == nbx.layer_norm(zero, 8, eps=1e-12).tolist()
    small = tensor(np.full((1, 8), 2.0**-24), "float16")
    close(nbx.rms_norm(small, 8, eps=1e-12), oracle.rms_norm(np.full((1, 8), 2.0**-24), None, (8,), 1e-12))
    assert nbx.rms_norm(small, 8, eps=0.0).tolist() == [[1.0] * 8]


def test_epsilon_by_default(tensor: Make, floating: DType) -> None:
    x = tensor([[0.5, -0.25, 2.0, 0.125]], floating)
    exact = x.numpy().astype(np.float64)
    close(nbx.rms_norm(x, 4), oracle.rms_norm(exact, None, (4,), floating.eps), ulps=1 if floating.bits == 16 else 4)
    assert nbx.rms_norm(x, 4).dtype is floating


def test_a_large_mean_does_not_drown_the_variance(tensor: Make) -> None:
    host = (10000 + np.random.default_rng(0).normal(size=(4, 1000))).astype(np.float32)
    wanted = oracle.layer_norm(host.astype(np.float64), None, None, (1000,), 1e-5)
    # The mean of float32 numbers near 10000 is known to a few of their units, 0.001 each.
    np.testing.assert_allclose(nbx.layer_norm(tensor(host), 1000).numpy(), wanted, atol=0.005)
    assert (nbx.layer_norm(tensor(np.full((1, 16), 4096.0, np.float32)), 16).numpy() == 0).all()


@pytest.mark.parametrize("columns", [1, 33, 5000, 20000])
def test_norms_of_rows_of_any_width(tensor: Make, columns: int) -> None:
    rng = np.random.default_rng(columns)
    host, weight, bias = (rng.normal(size=s).astype(np.float32) for s in ((3, columns), columns, columns))
    x, w, b = tensor(host), tensor(weight), tensor(bias)
    exact = [a.astype(np.float64) for a in (host, weight, bias)]
    close(nbx.rms_norm(x, columns, w, 1e-6), oracle.rms_norm(exact[0], exact[1], (columns,), 1e-6))
    if columns > 1:
        close(nbx.layer_norm(x, columns, w, b), oracle.layer_norm(*exact, (columns,), 1e-5), ulps=64)


def test_norms_over_several_dimensions_and_strides(tensor: Make) -> None:
    host = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    x, a = tensor(host).permute(1, 2, 0)[:, ::2], host.transpose(1, 2, 0)[:, ::2].astype(np.float64)
    weight = tensor(np.arange(12.0, dtype=np.float32).reshape(4, 3)).mT
    exact = weight.numpy().astype(np.float64)
    close(nbx.rms_norm(x, (3, 4), weight, 1e-6), oracle.rms_norm(a, exact, (3, 4), 1e-6))
    close(nbx.layer_norm(x, [3, 4], weight), oracle.layer_norm(a, exact, None, (3, 4), 1e-5))


def test_weights_of_another_dtype(tensor: Make) -> None:
    x = tensor([[1.0, 2.0, 3.0, 4.0]], "float16")
    got = nbx.rms_norm(x, 4, tensor([1.0, 2.0, 3.0, 4.0]), 1e-6)
    assert got.dtype == "float16"
    close(got, oracle.rms_norm(x.numpy().astype(np.float64), np.arange(1.0, 5.0), (4,), 1e-6), ulps=1)


def test_rows_with_nan_or_infinity(tensor: Make, floating: DType) -> None:
    x = tensor([[1.0, NAN], [INF, 1.0], [1.0, -1.0]], floating)
    got = nbx.layer_norm(x, 2).numpy().astype(np.float64)
    assert np.isnan(got[:2]).all() and np.isfinite(got[2]).all()
    rms = nbx.rms_norm(x, 2).numpy().astype(np.float64)
    assert np.isnan(rms[0]).all() and np.isnan(rms[1, 0]) and rms[1, 1] == 0.0


def test_norms_refuse(tensor: Make) -> None:
    x = tensor(np.ones((2, 3), np.float32))
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: nbx.layer_norm(x, 2), ShapeError, r"layer_norm: normalized_shape=\(2,\): must be the last sizes"),
        (lambda: nbx.rms_norm(x, ()), ShapeError, r"rms_norm: normalized_shape=\(\): must be the last sizes"),
        (lambda: nbx.rms_norm(x, (1, 2, 3)), ShapeError, r"rms_norm: normalized_shape="),
        (lambda: nbx.rms_norm(x, 3, x), ShapeError, r"rms_norm: weight=\(2, 3\): must be normalized_shape \(3,\)"),
        (lambda: nbx.layer_norm(x, 3, None, x[:, 0]), ShapeError, r"layer_norm: bias=\(2,\)"),
        (lambda: nbx.layer_norm(x.int(), 3), DTypeError, r"layer_norm: x=nbxtensor.int32: not accepted"),
        (lambda: nbx.rms_norm(x, 3, x[0].int()), DTypeError, r"rms_norm: weight=nbxtensor.int32: not accepted"),
        (lambda: nbx.rms_norm(x, 3, eps="1"), ArgumentError, r"rms_norm: eps='1': must be a number"),
        (lambda: nbx.rms_norm([1.0], 1, eps=0), DTypeError, r"rms_norm: x='list': must be a tensor"),
        (lambda: nbx.layer_norm(x, 3, eps=None), ArgumentError, r"layer_norm: eps=None: must be a number"),
        (lambda: nbx.layer_norm(x, 3.0), ShapeError, r"layer_norm: normalized_shape"),
    ]  # fmt: skip
    for call, error, rule in refused:
        with pytest.raises(error, match=rule):
            call()
