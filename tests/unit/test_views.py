"""Views share memory and never copy: chains of them against numpy, writes seen through them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbxtensor import shape as ns
from nbxtensor.errors import DTypeError, IndexOutOfRange, ShapeError
from nbxtensor.tensor import NBXTensor, from_numpy

Array = np.ndarray[Any, Any]


def shared(shape: tuple[int, ...]) -> tuple[Array, NBXTensor]:
    """An array of different numbers, and a tensor on its memory."""
    host = np.arange(1, ns.numel(shape) + 1, dtype=np.float32).reshape(shape)
    return host, from_numpy(host, "cpu", copy=False)


# One operation on both, chosen for the array as it is.
Step = Callable[[st.DataObject, Array, NBXTensor], tuple[Array, NBXTensor]]


def index(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    key = data.draw(hnp.basic_indices(a.shape, allow_newaxis=True, allow_ellipsis=True, max_dims=6))
    keys = key if isinstance(key, tuple) else (key,)
    # With an Ellipsis numpy gives a view also of one element, where it would give a number.
    return a[keys if Ellipsis in keys else (*keys, ...)], x[key]


def permute(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    order = data.draw(st.permutations(range(a.ndim)))
    signed = [d - a.ndim * data.draw(st.booleans()) for d in order]
    return a.transpose(order), x.permute(signed) if data.draw(st.booleans()) else x.permute(*signed)


def transpose(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    if a.ndim == 2:
        return a.T, data.draw(st.sampled_from([x.T, x.mT, x.t()]))
    if a.ndim < 2:
        return a, x.t()
    first, second = (data.draw(st.integers(-a.ndim, a.ndim - 1)) for _ in range(2))
    return a.swapaxes(first, second), x.transpose(first, second)


def movedim(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    count = data.draw(st.integers(0, a.ndim))
    source, to = (data.draw(st.permutations(range(a.ndim)))[:count] for _ in range(2))
    if count == 1 and data.draw(st.booleans()):
        return np.moveaxis(a, source[0], to[0]), x.movedim(source[0], to[0])
    return np.moveaxis(a, source, to), x.movedim(source, to)


def unsqueeze(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    dim = data.draw(st.integers(-a.ndim - 1, a.ndim))
    return np.expand_dims(a, dim), x.unsqueeze(dim)


def squeeze(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    if data.draw(st.booleans()) or a.ndim == 0:
        return a.squeeze(), x.squeeze()
    dims = data.draw(st.lists(st.integers(0, a.ndim - 1), unique=True))
    return a.squeeze(tuple(d for d in dims if a.shape[d] == 1)), x.squeeze(dims)


def narrow(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    if a.ndim == 0:
        return a, x
    dim = data.draw(st.integers(-a.ndim, a.ndim - 1))
    size = a.shape[dim]
    start = data.draw(st.integers(-size, size))
    length = data.draw(st.integers(0, size - start % size if size and start < size else 0))
    first = start + size if start < 0 else start
    return a[(slice(None),) * (dim % a.ndim) + (slice(first, first + length),)], x.narrow(dim, start, length)


def expand(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    lead = data.draw(st.lists(st.integers(0, 3), max_size=2))
    sizes = [data.draw(st.integers(0, 3)) if n == 1 else n for n in a.shape]
    kept = [-1 if n == old and data.draw(st.booleans()) else n for n, old in zip(sizes, a.shape)]
    return np.broadcast_to(a, (*lead, *sizes)), x.expand(*lead, *kept) if lead + kept else x.expand(())


def view(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    """The elements under another shape, where no copy is needed; else refused."""
    pieces = data.draw(st.permutations([n for size in a.shape for n in ([2, size // 2] if size % 2 == 0 else [size])]))
    cut = data.draw(st.integers(0, len(pieces)))
    shape = (*pieces[:cut], ns.numel(tuple(pieces[cut:])))
    if ns.view_strides(x.shape, x.strides, shape) is None:
        with pytest.raises(ShapeError, match=r"view: shape=.*: not possible without a copy for shape .* use reshape"):
            x.view(shape)
        assert x.reshape(shape).numpy().tobytes() == a.reshape(shape).tobytes()
        return a, x
    made = x.view(shape)
    return np.ndarray(shape, a.dtype, a, 0, [n * a.itemsize for n in made.strides]) if a.size else a.reshape(
        shape
    ), made


def item(data: st.DataObject, a: Array, x: NBXTensor) -> tuple[Array, NBXTensor]:
    if a.ndim == 0 or 0 in a.shape:
        return a, x
    dim = data.draw(st.integers(0, a.ndim - 1))
    at = data.draw(st.integers(-a.shape[dim], a.shape[dim] - 1))
    key = (slice(None),) * dim + (at, ...)
    return a[key], data.draw(st.sampled_from([x.select(dim, at), x.unbind(dim)[at]]))


STEPS: list[Step] = [index, permute, transpose, movedim, unsqueeze, squeeze, narrow, expand, item]


@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5), st.data())
def test_chains_of_views_are_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    host, tensor = shared(shape)
    a, x = host, tensor
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5)):
        a, x = step(data, a, x)
    assert x.shape == a.shape and x.storage is tensor.storage
    for size, steps, ours in zip(a.shape, a.strides, x.strides):
        assert size <= 1 or a.size == 0 or steps == ours * 4
    assert x.numpy().tobytes() == a.tobytes() and x.tolist() == a.tolist()
    assert x.is_contiguous() == a.flags.c_contiguous
    if any(steps == 0 and size > 1 for size, steps in zip(a.shape, a.strides)) and a.size:
        with pytest.raises(ShapeError, match=r"its elements share memory"):
            x.fill_(-1)
        return
    x.fill_(-1)
    assert (a == -1).all() and np.count_nonzero(host == -1) == a.size
    assert tensor.numpy().tobytes() == host.tobytes()


@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6), st.data())
def test_views_of_views_by_shape(shape: tuple[int, ...], data: st.DataObject) -> None:
    host, tensor = shared(shape)
    a, x = host, tensor
    for step in data.draw(st.lists(st.sampled_from([view, index, permute]), min_size=1, max_size=4)):
        if step is view and not a.flags.writeable:
            break
        a, x = step(data, a, x) if step is not view or a.flags.c_contiguous else (a, x)
    assert x.shape == a.shape and x.numpy().tobytes() == a.tobytes() and x.storage is tensor.storage


@given(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5), st.data())
def test_assignments_are_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    """To a view, from another view of the same memory that broadcasts to it, overlapping or not."""
    host, tensor = shared(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    source = data.draw(hnp.basic_indices(shape, allow_newaxis=False, allow_ellipsis=True))
    try:
        values = np.broadcast_to(host[source], host[key].shape).copy()
    except ValueError:
        with pytest.raises(ShapeError, match=r"broadcast"):
            tensor[key] = tensor[source]
        return
    tensor[key] = tensor[source]
    wanted = np.arange(1, ns.numel(shape) + 1, dtype=np.float32).reshape(shape)
    wanted[key] = values
    assert host.tolist() == wanted.tolist()


# one by one


def test_slices_step_clamp_and_turn() -> None:
    host, x = shared((4, 6))
    keys: list[Any] = [
        np.s_[::-1], np.s_[-100:4], np.s_[::-2, ::3], np.s_[3:0:-1, 5::-2], np.s_[10:20], np.s_[..., None, -1],
        np.s_[None, 1, ..., None], np.s_[-1, -6], np.s_[()], np.s_[..., 0], np.s_[2:2], np.s_[:, -3:-1],
        np.s_[1:-1, 1:-1],
    ]  # fmt: skip
    for key in keys:
        assert x[key].tolist() == host[key].tolist() and x[key].shape == host[key].shape
    assert x[np.int64(1), np.uint8(2)].item() == host[1, 2]
    assert x[from_numpy(np.array(3))].tolist() == host[3].tolist()
    assert x.T[1:-1, 1:-1].tolist() == host.T[1:-1, 1:-1].tolist()
    assert x.permute(1, 0).reshape(3, 8)[::-1].tolist() == host.T.reshape(3, 8)[::-1].tolist()


@pytest.mark.parametrize("key, error, rule", [
    (4, IndexOutOfRange, r"key\[axis 0\]=4: must lie in -4..3, the axis has size 4"),
    ((0, -7), IndexOutOfRange, r"key\[axis 1\]=-7: must lie in -6..5"),
    ((0, 0, 0), ShapeError, r"3 indices for 2 dimensions of \(4, 6\)"),
    ((..., 0, ...), ShapeError, r"at most one Ellipsis"), (slice(None, None, 0), ShapeError, r"the step must not be 0"),
    (1.0, ShapeError, r"must be an integer, slice, Ellipsis or None"), ("a", ShapeError, r"must be an integer"),
    (True, ShapeError, r"a boolean is no index; for a mask"), (np.bool_(True), ShapeError, r"a boolean is no index"),
    ([0, 1], ShapeError, r"for lists and tensors see index_select"),
    (slice("a", None), ShapeError, r"bounds and step must be integers or None"),
    (np.array([0, 1]), ShapeError, r"must be an integer"), ({}, ShapeError, r"must be an integer"),
])  # fmt: skip
def test_keys_that_are_refused(key: Any, error: type[Exception], rule: str) -> None:
    _, x = shared((4, 6))
    with pytest.raises(error, match=rf"__getitem__: .*{rule}"):
        x[key]
    with pytest.raises(error, match=rule):
        x[key] = 0


def test_masks_and_tensor_indices_are_refused() -> None:
    _, x = shared((4,))
    for key in (x > 2, x, x.long()):
        with pytest.raises((ShapeError, TypeError)):
            x[key]


@pytest.mark.parametrize("call, rule", [
    (lambda x: x.view(5), r"view: shape=\(5,\): has 5 elements, the tensor has 24"),
    (lambda x: x.view(-1, -1), r"view: shape=\(-1, -1\): at most one size can be -1"),
    (lambda x: x.view(7, -1), r"24 elements are no multiple of 7"), (lambda x: x.view(-2, 12), r"must not be negative"),
    (lambda x: x.view(2.0, 12), r"view: shape=\(2.0, 12\): sizes must be integers"),
    (lambda x: x.mT.view(24), r"not possible without a copy for shape \(2, 4, 3\) and strides \(12, 1, 4\)"),
    (lambda x: x.expand(2, 3, 5), r"expand: shape=.*does not broadcast to \(2, 3, 5\)"),
    (lambda x: x.expand(3, 4), r"expand: shape=\(3, 4\): must keep the 3 dimensions"),
    (lambda x: x.expand(-1, 2, 3, 4), r"expand: shape=.*new ones need a size"),
    (lambda x: x.expand(2, 3, 4.0), r"sizes must be integers"),
    (lambda x: x.expand(0, 3, 4), r"does not broadcast"),
    (lambda x: x.narrow(0, 0, 3), r"narrow: length=3: must be from 0 to 2 \(dimension 0 has size 2\)"),
    (lambda x: x.narrow(0, 3, 0), r"narrow: start=3: must lie within dimension 0 of size 2"),
    (lambda x: x.narrow(0, -3, 1), r"narrow: start=-3"), (lambda x: x.narrow(0, 0, -1), r"narrow: length=-1"),
    (lambda x: x.narrow(0, 0.5, 1), r"narrow: start=0.5: must be an integer"),
    (lambda x: x.narrow(3, 0, 1), r"narrow: dim=3: must lie in -3..2"),
    (lambda x: x.select(0, 2), r"must lie in -2..1"), (lambda x: x.unbind(4), r"unbind: dim=4"),
    (lambda x: x.permute(0, 1), r"permute: dims=\(0, 1\): must name each of the 3 dimensions once"),
    (lambda x: x.permute(0, 0, 1), r"permute: dims=\(0, 0, 1\): names an axis twice"),
    (lambda x: x.transpose(0, 3), r"transpose: dim1=3"), (lambda x: x.t(), r"t: self=\(2, 3, 4\): must have at most 2"),
    (lambda x: x.T, r"T: self=\(2, 3, 4\): must have 2 dimensions; use mT or permute"),
    (lambda x: x[0, 0].mT, r"mT: self=\(4,\): must have at least 2 dimensions"),
    (lambda x: x.movedim((0, 1), 2), r"movedim: destination=2: must name as many dimensions as source"),
    (lambda x: x.unsqueeze(4), r"unsqueeze: dim=4: must lie in -4..3"), (lambda x: x.squeeze(3), r"squeeze: dim=3"),
    (lambda x: x.flatten(2, 1), r"flatten: start_dim=2: must not lie after end_dim=1"),
    (lambda x: x.as_strided((2, 200), (1, 1)), r"as_strided: storage_offset=0: elements 0 to 200 are not all inside"),
    (lambda x: x.as_strided((2, 2), (-1, 1)), r"elements -1 to 1 are not all inside"),
    (lambda x: x.as_strided((2,), (1, 1)), r"as_strided: strides=\(1, 1\): must have the 1 entries"),
    (lambda x: x.as_strided((-2,), (1,)), r"as_strided: shape=\(-2,\): sizes must not be negative"),
    (lambda x: x.as_strided((2.0,), (1,)), r"sizes must be integers"),
    (lambda x: x.as_strided((2,), (1.5,)), r"as_strided: strides=1.5: must be an integer"),
])  # fmt: skip
def test_views_that_are_refused(call: Callable[[NBXTensor], Any], rule: str) -> None:
    _, x = shared((2, 3, 4))
    with pytest.raises((ShapeError, IndexOutOfRange), match=rule):
        call(x)


def test_expand_and_flatten() -> None:
    host, x = shared((2, 1, 3))
    wide = x.expand(4, 2, 5, -1)
    assert wide.shape == (4, 2, 5, 3) and wide.strides == (0, 3, 0, 1) and wide.storage is x.storage
    assert wide.tolist() == np.broadcast_to(host, (4, 2, 5, 3)).tolist()
    assert x.expand_as(wide).tolist() == wide.tolist() and x.view_as(wide[0, :, 0]).shape == (2, 3)
    assert x.flatten().shape == (6,) and x.flatten(1).shape == (2, 3) and x[0, 0, 0].flatten().shape == (1,)
    assert x.flatten(-2, -1).storage is x.storage and wide.flatten().storage is not x.storage


def test_as_strided_of_all_kinds() -> None:
    host, x = shared((24,))
    windows = x.as_strided((21, 4), (1, 1))
    assert windows.tolist() == np.lib.stride_tricks.sliding_window_view(host, 4).tolist()
    assert x.as_strided((3, 2), (-2, 1), 10).tolist() == [[11, 12], [9, 10], [7, 8]]
    assert x[4:].as_strided((2,), (1,)).tolist() == [5, 6] and x[4:].as_strided((2,), (1,), 0).tolist() == [1, 2]
    assert x.as_strided((0, 7), (100, 100)).shape == (0, 7) and x.as_strided((), (), 23).item() == 24


def test_a_view_under_another_dtype() -> None:
    host, x = shared((2, 3))
    bits = x.view("int32")
    assert bits.dtype == "int32" and bits.tolist() == host.view(np.int32).tolist() and bits.storage is x.storage
    bits[0, 0] = 0
    assert host[0, 0] == 0 and x.T.view("uint32").strides == (1, 3)
    with pytest.raises(DTypeError, match=r"view: dtype=nbxtensor.float64: must have the 4-byte items of float32"):
        x.view("float64")
    with pytest.raises(DTypeError, match=r"view: dtype='int31': must be one of"):
        x.view("int31")


def test_real_and_imaginary_parts_are_views() -> None:
    host = (np.arange(12) + 1j * np.arange(12, 24)).reshape(3, 4)
    x = from_numpy(host, "cpu", copy=False)
    for y, a in ((x, host), (x.mT[::-1, ::2], host.T[::-1, ::2])):
        assert y.real.tolist() == a.real.tolist() and y.imag.tolist() == a.imag.tolist()
        assert y.view_as_real().tolist() == np.stack([a.real, a.imag], -1).tolist()
        assert y.imag.storage is x.storage and y.real.dtype == "float64"
    x.imag.fill_(7)
    assert (host.imag == 7).all() and host.real.tolist() == np.arange(12.0).reshape(3, 4).tolist()
    plain = x.real
    assert plain.real is plain
    for call in (lambda: plain.imag, plain.view_as_real):
        with pytest.raises(DTypeError, match=r"view_as_real: self=nbxtensor.float64: must be complex"):
            call()


def test_a_view_keeps_the_memory_of_its_base() -> None:
    x = from_numpy(np.arange(5.0)) + 1
    view, live = x[1:3], x.device.pool.statistics().live
    del x
    assert view.tolist() == [2.0, 3.0] and view.device.pool.statistics().live == live
