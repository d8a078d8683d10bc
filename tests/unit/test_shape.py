"""Shapes and views against numpy: every layout is laid over a buffer that holds its own offsets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbxtensor import shape as ns
from nbxtensor.errors import IndexOutOfRange, ShapeError

Layout = tuple[tuple[int, ...], tuple[int, ...]]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)


def offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The element offset at every index."""
    result = np.zeros(shape, np.int64)
    for axis, stride in enumerate(strides):
        result += (np.arange(shape[axis]) * stride).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return result


def view(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A numpy view of that layout, whose elements are their own offsets."""
    low, high = int(offsets(shape, strides).min(initial=0)), int(offsets(shape, strides).max(initial=0))
    buffer = np.arange(low, high + 1)
    return np.lib.stride_tricks.as_strided(buffer[-low:], shape, [8 * stride for stride in strides])


def layout_of(a: np.ndarray[Any, Any]) -> Layout:
    return a.shape, tuple(stride // a.itemsize for stride in a.strides)


@st.composite
def layouts(draw: st.DrawFn, max_dims: int = 5) -> Layout:
    """Views as users make them (slices, transposes, broadcasts of a contiguous tensor), or any strides at all."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=0, max_side=4))
    if draw(st.integers(0, 3)) == 0:
        return shape, tuple(draw(st.integers(-9, 9)) for _ in shape)
    a = np.empty(shape, np.int64)
    a = a[tuple(slice(None, None, draw(st.sampled_from([1, 1, 1, 2, -1, -2]))) for _ in shape)]
    a = a.transpose(draw(st.permutations(range(a.ndim))) if draw(st.booleans()) else None)
    for axis, size in enumerate(a.shape):
        if size == 1 and draw(st.booleans()):
            a = np.broadcast_to(a, (*a.shape[:axis], draw(st.integers(0, 3)), *a.shape[axis + 1 :]))
    return layout_of(a)


def test_contiguous_strides() -> None:
    assert ns.contiguous_strides(()) == ()
    assert ns.contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert ns.contiguous_strides((2, 0, 4)) == (4, 4, 1)
    assert (ns.numel(()), ns.numel((2, 3)), ns.numel((2, 0))) == (1, 6, 0)


@given(layouts())
@example(((1, 3), (77, 1)))
@example(((3, 0, 2), (5, 5, 5)))
@example(((0, 3, 2), (1, 5, 5)))
def test_is_contiguous(layout: Layout) -> None:
    shape, strides = layout
    assert ns.is_contiguous(shape, ns.contiguous_strides(shape))
    in_order = offsets(shape, strides).ravel().tolist() == list(range(ns.numel(shape)))
    assert ns.is_contiguous(shape, strides) is in_order is view(shape, strides).flags.c_contiguous


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_dims=4))
def test_broadcast(shapes: hnp.BroadcastableShapes) -> None:
    assert ns.broadcast_shapes(*shapes.input_shapes) == shapes.result_shape
    for shape in shapes.input_shapes:
        strides = ns.contiguous_strides(shape)
        target = ns.broadcast_strides(shape, strides, shapes.result_shape)
        wanted = np.broadcast_to(offsets(shape, strides), shapes.result_shape)
        np.testing.assert_array_equal(offsets(shapes.result_shape, target), wanted)
        sides = zip((1,) * (len(target) - len(shape)) + shape, shapes.result_shape, target, strict=True)
        assert all(stride == 0 for old, new, stride in sides if old != new)
        assert ns.expand(shape, strides, shapes.result_shape) == (shapes.result_shape, target)


@given(st.lists(SHAPES, max_size=3))
def test_broadcast_agrees_with_numpy_on_what_is_possible(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match=r"add: shapes=.*sizes \d and \d at axis -\d do not broadcast"):
            ns.broadcast_shapes(*shapes, where="add")
    else:
        assert ns.broadcast_shapes(*shapes) == expected


def test_expand() -> None:
    assert ns.expand((3, 1), (1, 9), (2, -1, 4)) == ((2, 3, 4), (0, 1, 0))
    assert ns.expand((), (), (2, 2)) == ((2, 2), (0, 0))
    assert ns.expand((1,), (1,), (0,)) == ((0,), (0,))
    for target in ((-1, 3, 4), (4,), (2, 4), (3, -2), (3, 1.0), "ab"):
        with pytest.raises(ShapeError, match="grow: shape="):
            ns.expand((3, 1), (1, 1), target, where="grow")
    with pytest.raises(ShapeError, match=r"mul: shape=\(3, 2\): does not broadcast to \(3, 4\)"):
        ns.broadcast_strides((3, 2), (2, 1), (3, 4), where="mul")
    with pytest.raises(ShapeError, match="does not broadcast"):
        ns.broadcast_strides((3, 2), (2, 1), (2,))


def test_axes() -> None:
    assert [ns.normalize_axis(axis, 3) for axis in (0, 2, -1, -3, np.int8(1))] == [0, 2, 2, 0, 1]
    assert ns.normalize_axes(None, 3) == (0, 1, 2)
    assert ns.normalize_axes(-1, 3) == (2,)
    assert ns.normalize_axes([2, 0], 3) == (2, 0)
    assert ns.normalize_axes((), 0) == ()
    refused: list[tuple[Any, int, str]] = [
        (3, 3, r"-3\.\.2 for 3"),
        (-4, 3, r"-3\.\.2"),
        (0, 0, "no axes"),
        (1.0, 3, "an integer"),
    ]
    for axis, ndim, rule in refused:
        with pytest.raises(ShapeError, match=f"sum: dim={axis}: .*{rule}"):
            ns.normalize_axis(axis, ndim, where="sum", argument="dim")
    with pytest.raises(ShapeError, match=r"sum: axis=\(1, -1\): names an axis twice"):
        ns.normalize_axes((1, -1), 2, where="sum")


def test_permute() -> None:
    assert ns.permute((2, 3, 4), (12, 4, 1), (2, 0, -2)) == ((4, 2, 3), (1, 12, 4))
    assert ns.permute((), (), ()) == ((), ())
    for axes in ((0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 0)):
        with pytest.raises(ShapeError, match="permute: axes="):
            ns.permute((2, 3, 4), (12, 4, 1), axes)


def test_check_shape() -> None:
    assert ns.check_shape(3) == (3,)
    assert ns.check_shape([2, np.int64(0)]) == (2, 0)
    assert [type(size) for size in ns.check_shape(np.array([2, 3]))] == [int, int]
    for shape in ((2, -1), (2.0,), 2.0, None, "2"):
        with pytest.raises(ShapeError, match="zeros: size="):
            ns.check_shape(shape, where="zeros", argument="size")


def test_resolve_shape() -> None:
    assert ns.resolve_shape((2, -1), 6) == (2, 3)
    assert ns.resolve_shape(-1, 6) == (6,)
    assert ns.resolve_shape([], 1) == ()
    assert ns.resolve_shape((-1, 4), 0) == (0, 4)
    assert ns.resolve_shape((0, 4), 0) == (0, 4)
    refused: list[tuple[Any, str]] = [
        ((-1, -1), "at most one size can be -1"),
        ((-2, -3), "negative"),
        ((4, -1), "6 elements are no multiple of 4"),
        ((-1, 0), "ambiguous"),
        ((7,), "has 7 elements"),
        ((2.0, 3), "integers"),
        ((-1.0, 6), "integers"),
    ]
    for shape, rule in refused:
        with pytest.raises(ShapeError, match=f"reshape: shape=.*{rule}"):
            ns.resolve_shape(shape, 6)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    """A layout and another shape of as many elements."""
    layout = draw(layouts())
    count = ns.numel(layout[0])
    if count == 0:
        new = draw(SHAPES)
        return layout, (*new, 0) if 0 not in new else new
    sizes = []
    while count > 1:
        sizes.append(draw(st.sampled_from([n for n in range(2, count + 1) if count % n == 0])))
        count //= sizes[-1]
    sizes += [1] * draw(st.integers(0, 2))
    return layout, tuple(draw(st.permutations(sizes)))


@given(reshapes())
@example((((4, 3), (1, 4)), (12,)))
@example((((4, 3), (3, 1)), (2, 6)))
@example((((4, 3), (6, 1)), (2, 2, 3)))
@example((((4, 3), (6, 1)), (6, 2)))
@example((((2, 1, 3), (3, 99, 1)), (6, 1)))
@example((((4,), (-1,)), (2, 2)))
@example((((2, 3), (0, 0)), (3, 2)))
@example((((2, 0), (7, 7)), (0, 5)))
@example((((1, 1), (9, 9)), ()))
def test_a_view_exists_exactly_where_numpy_finds_one(case: tuple[Layout, tuple[int, ...]]) -> None:
    (shape, strides), new_shape = case
    a = view(shape, strides)
    reshaped = a.reshape(new_shape)
    result = ns.view_strides(shape, strides, new_shape)
    if a.size:
        assert (result is not None) is np.shares_memory(a, reshaped)
    if result is None:
        assert a.size > 1
    else:
        np.testing.assert_array_equal(offsets(new_shape, result), reshaped)
    if ns.is_contiguous(shape, strides):
        assert result == ns.contiguous_strides(new_shape)


def test_a_view_of_another_size_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"view: shape=\(5,\): has 5 elements, the tensor \(2, 3\) has 6"):
        ns.view_strides((2, 3), (3, 1), (5,))


@st.composite
def operands(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Layouts of one shape."""
    shape, strides = draw(layouts(max_dims=4))
    others = [ns.contiguous_strides(shape), strides, tuple(strides[i] if i else 0 for i in range(len(shape)))]
    return shape, [strides, *draw(st.lists(st.sampled_from(others), max_size=2))]


@given(operands(), st.booleans())
def test_coalesce(case: tuple[tuple[int, ...], list[tuple[int, ...]]], sort_dims: bool) -> None:
    shape, strides = case
    new_shape, *new_strides = ns.coalesce(shape, *strides, sort_dims=sort_dims)
    assert len(new_strides) == len(strides)

    def walk(shape: Any, all_strides: Any) -> list[tuple[int, ...]]:
        return list(zip(*(offsets(shape, s).ravel().tolist() for s in all_strides), strict=True))

    before, after = walk(shape, strides), walk(new_shape, new_strides)
    assert after == before or (sort_dims and sorted(after) == sorted(before))
    assert new_shape == (ns.numel(shape),) or min(new_shape) > 1
    if ns.numel(shape):
        for axis in range(len(new_shape) - 1):  # nothing is left to merge
            assert any(s[axis] != s[axis + 1] * new_shape[axis + 1] for s in new_strides)
    if sort_dims and 0 not in shape:
        assert sorted(map(abs, new_strides[0]), reverse=True) == [abs(s) for s in new_strides[0]]


def test_coalesce_examples() -> None:
    assert ns.coalesce((2, 3, 4), (12, 4, 1), (12, 4, 1)) == ((24,), (1,), (1,))
    assert ns.coalesce((2, 3, 4), (12, 4, 1), (0, 4, 1)) == ((2, 12), (12, 1), (0, 1))
    assert ns.coalesce((2, 3), (1, 2), (1, 2)) == ((2, 3), (1, 2), (1, 2))
    assert ns.coalesce((2, 3), (1, 2), (1, 2), sort_dims=True) == ((6,), (1,), (1,))
    assert ns.coalesce((), (), ()) == ns.coalesce((1, 1), (0, 7), (3, 3)) == ((1,), (1,), (1,))
    assert ns.coalesce((3, 0), (1, 1)) == ((0,), (1,))
    assert ns.coalesce((5,)) == ((5,),)


@given(layouts())
def test_extent(layout: Layout) -> None:
    every = offsets(*layout)
    assert ns.extent(*layout) == ((int(every.min()), int(every.max())) if every.size else (0, -1))


@given(layouts())
def test_self_overlap_is_never_missed(layout: Layout) -> None:
    every = offsets(*layout).ravel().tolist()
    if len(set(every)) < len(every):
        assert ns.self_overlap(*layout)


@given(SHAPES, st.data())
def test_views_of_a_contiguous_tensor_do_not_overlap_themselves(shape: tuple[int, ...], data: st.DataObject) -> None:
    a = np.empty(shape, np.int64)[data.draw(hnp.basic_indices(shape, allow_newaxis=True))]
    assert not ns.self_overlap(*layout_of(np.asarray(a).transpose(data.draw(st.permutations(range(np.ndim(a)))))))


def test_self_overlap_examples() -> None:
    assert ns.self_overlap((3,), (0,))
    assert ns.self_overlap((3, 2), (1, 1))  # a sliding window
    assert not ns.self_overlap((1, 3), (0, 1))
    assert not ns.self_overlap((0, 3), (1, 0))
    assert not ns.self_overlap((3, 2), (-2, 1))


@given(layouts(), layouts(), st.integers(-20, 20))
def test_overlap_is_never_missed(a: Layout, b: Layout, distance: int) -> None:
    shared = set(offsets(*a).ravel().tolist()) & set((offsets(*b) + distance).ravel().tolist())
    assert ns.overlaps(*a, *b, distance) or not shared
    if math.prod(a[0]) <= 1 and math.prod(b[0]) <= 1:
        assert ns.overlaps(*a, *b, distance) is bool(shared)


def test_overlap_examples() -> None:
    assert not ns.overlaps((4,), (1,), (4,), (1,), 4)
    assert ns.overlaps((4,), (1,), (4,), (1,), 3)
    assert ns.overlaps((4,), (1,), (4,), (-1,), 7) is False  # 7, 6, 5, 4
    assert ns.overlaps((4,), (1,), (4,), (-1,), 6)
    assert not ns.overlaps((3,), (2,), (3,), (2,), 1)  # x[::2] and x[1::2]
    assert not ns.overlaps((0,), (1,), (4,), (1,), 0)


@given(layouts(max_dims=4), st.data())
def test_basic_indexing_is_numpys(layout: Layout, data: st.DataObject) -> None:
    shape, strides = layout
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    new_shape, new_strides, offset = ns.basic_index(shape, strides, key)
    wanted = np.asarray(view(shape, strides)[key])
    assert new_shape == wanted.shape
    np.testing.assert_array_equal(offsets(new_shape, new_strides) + offset, wanted)
    low, high = ns.extent(shape, strides)
    if wanted.size:
        inner_low, inner_high = ns.extent(new_shape, new_strides)
        assert low <= inner_low + offset and inner_high + offset <= high
    else:
        assert offset == 0


BOUNDS = st.none() | st.integers(-7, 7)


@given(st.integers(0, 5), BOUNDS, BOUNDS, st.none() | st.integers(-7, 7).filter(bool))
@example(4, -100, 4, None)
@example(4, None, None, -1)
@example(4, 2**70, None, -(2**70))
def test_any_slice(size: int, start: int | None, stop: int | None, step: int | None) -> None:
    key = slice(start, stop, step)
    new_shape, new_strides, offset = ns.basic_index((size,), (3,), key)
    assert (offsets(new_shape, new_strides) + offset).tolist() == [3 * i for i in range(size)[key]]


def test_indices_that_are_not_python_ints() -> None:
    assert ns.basic_index((4, 5), (5, 1), (np.int8(-1), np.array(2))) == ((), (), 17)
    assert ns.basic_index((4,), (1,), slice(np.uint8(1), None, np.int64(2))) == ((2,), (2,), 1)
    assert ns.basic_index((4,), (1,), ()) == ((4,), (1,), 0)
    assert ns.basic_index((), (), ...) == ((), (), 0)
    assert ns.basic_index((4,), (1,), (None, ..., None)) == ((1, 4, 1), (0, 1, 0), 0)


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ((0, 0, 0), r"3 indices for 2 dimensions of \(4, 5\)"),
        ((..., 0, ...), "at most one Ellipsis"),
        (slice(None, None, 0), r"key\[axis 0\].*step must not be 0"),
        ((0, slice(0.5, None)), r"key\[axis 1\].*integers or None"),
        (slice(None, None, 1.0), "integers or None"),
        (True, "no index; for a mask use where"),
        (np.True_, "no index; for a mask use where"),
        (np.ones((4, 5), bool), "no index; for a mask use where"),
        ([0, 1], "index_select"),
        ((0, [1]), r"key\[axis 1\].*index_select"),
        (np.array([1]), "index_select"),
        (1.0, "must be an integer, slice, Ellipsis or None"),
        ("x", "must be an integer, slice, Ellipsis or None"),
    ],
)
def test_keys_that_are_refused(key: Any, rule: str) -> None:
    with pytest.raises(ShapeError, match=rf"(?s)select: .*{rule}"):
        ns.basic_index((4, 5), (5, 1), key, where="select")


@pytest.mark.parametrize(("key", "value", "axis"), [(4, 4, 0), (-5, -5, 0), ((..., 5), 5, 1), ((None, 0, -6), -6, 1)])
def test_an_index_out_of_range_names_axis_value_and_size(key: Any, value: int, axis: int) -> None:
    size = (4, 5)[axis]
    rule = rf"get: key\[axis {axis}\]={value}: must lie in -{size}\.\.{size - 1}, the axis has size {size}"
    with pytest.raises(IndexOutOfRange, match=rule) as caught:
        ns.basic_index((4, 5), (5, 1), key, where="get")
    assert isinstance(caught.value, IndexError)


def test_an_axis_of_size_0_has_no_index() -> None:
    with pytest.raises(IndexOutOfRange, match="the axis has size 0"):
        ns.basic_index((0,), (1,), 0)


def test_shapes_and_strides_must_belong_together() -> None:
    for call in (ns.is_contiguous, ns.extent, ns.self_overlap, ns.coalesce):
        with pytest.raises(ValueError, match="zip"):
            call((2, 3), (1,))
