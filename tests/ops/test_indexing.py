"""Embedding, and how an index out of range is told."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import DType
from nbxtensor.errors import DTypeError, IndexOutOfRange, ShapeError
from nbxtensor.tensor import NBXTensor

Make = Callable[..., NBXTensor]
RULE = r"embedding: indices={}: must be from 0 to the number of rows of weight less one"


def test_embedding(tensor: Make, any_dtype: DType) -> None:
    host = (np.arange(40).reshape(8, 5) % 2).astype(any_dtype.numpy)
    index = np.array([[7, 0, 3], [3, 1, 7]])
    for weight, rows in (
        (tensor(host), host),
        (tensor(host)[::-1, ::2], host[::-1, ::2]),
        (tensor(host.T.copy()).mT, host),
    ):
        got = nbx.embedding(weight, tensor(index))
        assert got.dtype is any_dtype and got.shape == (2, 3, rows.shape[1])
        assert got.numpy().tobytes() == rows[index].tobytes()
        assert nbx.embedding(weight, tensor(index, "int32").mT).numpy().tobytes() == rows[index.T].tobytes()
    assert nbx.embedding(tensor(host), tensor(3)).numpy().tobytes() == host[3].tobytes()
    assert nbx.embedding(tensor(host), tensor(index)[:0]).shape == (0, 3, 5)


@pytest.mark.parametrize("bad", [8, -1, 2**40, -(2**63)])
def test_an_index_out_of_range_is_told_where_the_host_waits(tensor: Make, target: Device, bad: int) -> None:
    weight = tensor(np.arange(40.0, dtype=np.float32).reshape(8, 5))
    index = tensor([1, bad, 2])
    for wait in (lambda x: x.numpy(), lambda x: x.item(), lambda x: target.synchronize(), lambda x: x.tolist()):
        result = nbx.embedding(weight, index)
        with pytest.raises(IndexOutOfRange, match=RULE.format(bad)):
            wait(result.sum() if wait.__code__.co_names == ("item",) else result)
        target.synchronize()  # told once
        assert nbx.embedding(weight, tensor([0])).tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]]


def test_rows_beside_a_bad_index_are_right(tensor: Make, target: Device) -> None:
    weight = tensor(np.arange(40.0, dtype=np.float32).reshape(8, 5))
    result = nbx.embedding(weight, tensor([1, 9, 2]))
    with pytest.raises(IndexOutOfRange):
        target.synchronize()
    assert result.numpy()[[0, 2]].tolist() == weight.numpy()[[1, 2]].tolist()


def test_a_table_without_rows(tensor: Make, target: Device) -> None:
    nbx.embedding(tensor(np.ones((0, 4), np.float32)), tensor([0]))
    with pytest.raises(IndexOutOfRange, match=RULE.format(0)):
        target.synchronize()


def test_other_threads_may_wait_too(tensor: Make, target: Device) -> None:
    weight = tensor(np.ones((2, 2), np.float32))
    told: list[BaseException] = []

    def work() -> None:
        nbx.embedding(weight, tensor([5]))
        try:
            target.synchronize()
        except IndexOutOfRange as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(told) == 1


def test_embedding_refuses(tensor: Make) -> None:
    weight, index = tensor(np.ones((3, 2), np.float32)), tensor([0])
    with pytest.raises(ShapeError, match=r"embedding: weight=\(2,\): must have 2 dimensions"):
        nbx.embedding(weight[0], index)
    with pytest.raises(DTypeError, match=r"embedding: indices=nbxtensor.float32: not accepted; takes int32, int64"):
        nbx.embedding(weight, tensor([0.0]))
    with pytest.raises(DTypeError, match=r"embedding: indices='list': must be a tensor"):
        nbx.embedding(weight, [0])  # type: ignore[arg-type]
