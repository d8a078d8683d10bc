"""Shapes, strides and views: broadcasting, basic indexing, the one view rule, overlap. Pure arithmetic on ints.

Strides and offsets count elements and may be negative. Every refusal is a `ShapeError` (an index out of range: an
`IndexOutOfRange`) in the name of ``where``, the operator that asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from nbxtensor.errors import IndexOutOfRange, ShapeError

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def check_shape(shape: Any, *, where: str = "shape", argument: str = "shape") -> Shape:
    """``shape`` as a tuple of ints; an int n stands for (n,). Refuses negative sizes and what is no integer."""
    sizes = _integers(shape, where, argument)
    if any(size < 0 for size in sizes):
        raise ShapeError(where, argument, sizes, "sizes must not be negative")
    return sizes


def _integers(shape: Any, where: str, argument: str = "shape") -> tuple[int, ...]:
    try:
        return tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),)
    except TypeError:
        raise ShapeError(where, argument, shape, "sizes must be integers") from None


def numel(shape: Shape) -> int:
    """The number of elements."""
    return math.prod(shape)


def contiguous_strides(shape: Shape) -> Strides:
    """Row-major strides. A size of 0 counts as 1, so that they stay positive."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Strides) -> bool:
    """Whether the elements lie row-major without gaps. A size of 1 may have any stride; without elements: True."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return True
        if size != 1:
            if stride != step:
                return 0 in shape
            step *= size
    return True


def broadcast_shapes(*shapes: Shape, where: str = "broadcast_shapes") -> Shape:
    """The common shape, aligned at the right; a size of 1 stretches."""
    result = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis in range(-len(shape), 0):
            size = shape[axis]
            if size != 1 and size != result[axis]:
                if result[axis] != 1:
                    rule = f"sizes {result[axis]} and {size} at axis {axis} do not broadcast"
                    raise ShapeError(where, "shapes", shapes, rule)
                result[axis] = size
    return tuple(result)


def broadcast_strides(shape: Shape, strides: Strides, target: Shape, *, where: str = "broadcast_strides") -> Strides:
    """The strides that read ``shape`` as ``target``: 0 where a dimension is new or stretches."""
    new = len(target) - len(shape)
    if new < 0 or any(size not in (1, wanted) for size, wanted in zip(shape, target[new:], strict=True)):
        raise ShapeError(where, "shape", shape, f"does not broadcast to {target}")
    stretched = (
        stride if size == wanted else 0 for size, stride, wanted in zip(shape, strides, target[new:], strict=True)
    )
    return (0,) * new + tuple(stretched)


def expand(shape: Shape, strides: Strides, target: Any, *, where: str = "expand") -> tuple[Shape, Strides]:
    """``target`` and its strides, as `broadcast_strides`; a -1 in ``target`` keeps the size of an old dimension."""
    sizes = _integers(target, where)
    new = len(sizes) - len(shape)
    if new < 0 or -1 in sizes[:new]:
        raise ShapeError(
            where, "shape", sizes, f"must keep the {len(shape)} dimensions of {shape}; new ones need a size"
        )
    kept = tuple(old if size == -1 else size for size, old in zip(sizes[new:], shape, strict=True))
    wanted = check_shape(sizes[:new] + kept, where=where)
    return wanted, broadcast_strides(shape, strides, wanted, where=where)


def integer(value: Any, *, where: str = "integer", argument: str = "value") -> int:
    """``value`` as an int; what only looks like one, as 2.0, is refused."""
    try:
        return index(value)
    except TypeError:
        raise ShapeError(where, argument, value, "must be an integer") from None


def normalize_axis(axis: int, ndim: int, *, where: str = "normalize_axis", argument: str = "axis") -> int:
    """``axis`` counted from the front; negative ones count from the end."""
    number = integer(axis, where=where, argument=argument)
    if not -ndim <= number < ndim:
        rule = f"must lie in {-ndim}..{ndim - 1} for {ndim} dimensions" if ndim else "a 0-d tensor has no axes"
        raise ShapeError(where, argument, axis, rule)
    return number % ndim


def normalize_axes(axes: Any, ndim: int, *, where: str = "normalize_axes", argument: str = "axis") -> tuple[int, ...]:
    """``axes`` (None: all; an int; several ints) counted from the front, in that order. Refuses one named twice."""
    if axes is None:
        return tuple(range(ndim))
    items = axes if isinstance(axes, Iterable) else (axes,)
    result = tuple(normalize_axis(axis, ndim, where=where, argument=argument) for axis in items)
    if len(set(result)) != len(result):
        raise ShapeError(where, argument, axes, "names an axis twice")
    return result


def permute(shape: Shape, strides: Strides, axes: Sequence[int], *, where: str = "permute") -> tuple[Shape, Strides]:
    """Shape and strides with dimension i taken from ``axes[i]``. ``axes`` must name every axis once."""
    order = normalize_axes(axes, len(shape), where=where, argument="axes")
    if len(order) != len(shape):
        raise ShapeError(where, "axes", axes, f"must name each of the {len(shape)} axes once")
    return tuple(shape[i] for i in order), tuple(strides[i] for i in order)


def resolve_shape(shape: Any, count: int, *, where: str = "reshape") -> Shape:
    """``shape`` with its one -1, if any, replaced by the size that gives ``count`` elements."""
    sizes = _integers(shape, where)
    if sizes.count(-1) > 1:
        raise ShapeError(where, "shape", sizes, "at most one size can be -1")
    if -1 in sizes:
        at = sizes.index(-1)
        known = numel(check_shape(sizes[:at] + sizes[at + 1 :], where=where))
        if known == 0:
            raise ShapeError(where, "shape", sizes, "-1 is ambiguous beside a size of 0")
        if count % known:
            raise ShapeError(where, "shape", sizes, f"{count} elements are no multiple of {known}")
        sizes = sizes[:at] + (count // known,) + sizes[at + 1 :]
    elif numel(check_shape(sizes, where=where)) != count:
        raise ShapeError(where, "shape", sizes, f"has {numel(sizes)} elements, the tensor has {count}")
    return sizes


def view_strides(shape: Shape, strides: Strides, new_shape: Shape, *, where: str = "view") -> Strides | None:
    """The strides that show the same elements in the same order as ``new_shape``; None where no view can.

    A view exists iff every new dimension stays inside one run of old dimensions that walk memory as one (`coalesce`).
    Refuses a ``new_shape`` of another number of elements.
    """
    count = numel(shape)
    if numel(new_shape) != count:
        raise ShapeError(where, "shape", new_shape, f"has {numel(new_shape)} elements, the tensor {shape} has {count}")
    if count <= 1:
        return contiguous_strides(new_shape)
    runs, run_strides = coalesce(shape, strides)
    result = [0] * len(new_shape)
    axis = len(new_shape) - 1
    step = 1
    for length, step in zip(reversed(runs), reversed(run_strides), strict=True):
        covered = 1
        while covered < length:
            result[axis] = step
            step *= new_shape[axis]
            covered *= new_shape[axis]
            axis -= 1
        if covered > length:
            return None
    result[: axis + 1] = [step] * (axis + 1)  # leading sizes of 1
    return tuple(result)


def coalesce(shape: Shape, *strides: Strides, sort_dims: bool = False) -> tuple[tuple[int, ...], ...]:
    """(shape, strides...) of the same elements with as few dimensions as possible, for operands that share ``shape``.

    Drops sizes of 1 and merges neighbours that walk memory as one in every operand; the order of the elements stays.
    With ``sort_dims`` the dimensions are first put in falling order of stride in the first operand (usually the output;
    ties by the next ones), so that element-wise work on transposed operands coalesces too. At least one dimension
    remains: a single element is shape (1,) with strides (1,), no elements are shape (0,) with strides (1,).
    """
    if 0 in shape:
        return ((0,),) + ((1,),) * len(strides)
    dims = [(size, steps) for size, *steps in zip(shape, *strides, strict=True) if size != 1]
    if sort_dims:
        dims.sort(key=lambda dim: [-abs(step) for step in dim[1]])
    merged: list[tuple[int, list[int]]] = []
    for size, steps in dims:
        if merged and all(outer == inner * size for outer, inner in zip(merged[-1][1], steps, strict=True)):
            size *= merged.pop()[0]
        merged.append((size, steps))
    if not merged:
        return ((1,),) + ((1,),) * len(strides)
    return (tuple(size for size, _ in merged), *zip(*(steps for _, steps in merged), strict=True))


def extent(shape: Shape, strides: Strides) -> tuple[int, int]:
    """The lowest and highest offset touched, relative to the first element; (0, -1) where there are no elements."""
    if 0 in shape:
        return 0, -1
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)


def self_overlap(shape: Shape, strides: Strides) -> bool:
    """Whether two indices may share an element, which makes a write through this layout ambiguous.

    Never wrongly False. True for a few layouts without overlap whose dimensions interleave, such as (2, 3) by (3, 2).
    """
    if 0 in shape:
        return False
    inner = 0  # highest offset that the finer dimensions reach
    for stride, size in sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride <= inner:
            return True
        inner += (size - 1) * stride
    return False


def overlaps(shape_a: Shape, strides_a: Strides, shape_b: Shape, strides_b: Strides, distance: int) -> bool:
    """Whether two layouts over one buffer may share an element; b's first element lies ``distance`` elements after a's.

    Never wrongly False: it compares the extents, and the steps' greatest common divisor with the distance, which tells
    ``x[::2]`` from ``x[1::2]``.
    """
    low_a, high_a = extent(shape_a, strides_a)
    low_b, high_b = extent(shape_b, strides_b)
    if high_a < low_a or high_b < low_b or low_b + distance > high_a or high_b + distance < low_a:
        return False
    steps = [
        stride
        for size, stride in (*zip(shape_a, strides_a, strict=True), *zip(shape_b, strides_b, strict=True))
        if size > 1
    ]
    divisor = math.gcd(*steps)
    return distance % divisor == 0 if divisor else distance == 0


def basic_index(shape: Shape, strides: Strides, key: Any, *, where: str = "__getitem__") -> tuple[Shape, Strides, int]:
    """(shape, strides, offset) of the view ``tensor[key]``, by the rules of numpy's basic indexing.

    ``key`` is an integer, a slice of any step, Ellipsis, None, or a tuple of them. ``offset`` counts from the tensor's
    first element and is 0 where nothing is selected.
    """
    keys = key if isinstance(key, tuple) else (key,)
    consumed = sum(1 for item in keys if item is not None and item is not Ellipsis)
    if sum(1 for item in keys if item is Ellipsis) > 1:
        raise ShapeError(where, "key", key, "at most one Ellipsis is possible")
    if consumed > len(shape):
        raise ShapeError(where, "key", key, f"{consumed} indices for {len(shape)} dimensions of {shape}")
    if not any(item is Ellipsis for item in keys):
        keys += (Ellipsis,)
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset = axis = 0
    for item in keys:
        if item is Ellipsis:
            rest = axis + len(shape) - consumed
            new_shape += shape[axis:rest]
            new_strides += strides[axis:rest]
            axis = rest
        elif item is None:
            new_shape.append(1)
            new_strides.append(0)
        elif isinstance(item, slice):
            start, step, length = _slice(item, shape[axis], axis, where)
            new_shape.append(length)
            new_strides.append(strides[axis] * step)
            offset += start * strides[axis]
            axis += 1
        else:
            offset += _integer(item, shape[axis], axis, where) * strides[axis]
            axis += 1
    return tuple(new_shape), tuple(new_strides), 0 if 0 in new_shape else offset


def _slice(item: slice, size: int, axis: int, where: str) -> tuple[int, int, int]:
    """(start, step, length) of a slice of an axis; step 1 for a single element, lest a huge one give a huge stride."""
    argument = f"key[axis {axis}]"
    if item.step == 0:
        raise ShapeError(where, argument, item, "the step must not be 0")
    try:
        start, stop, step = item.indices(size)
    except TypeError:
        raise ShapeError(where, argument, item, "bounds and step must be integers or None") from None
    length = len(range(start, stop, step))
    return start, step if length > 1 else 1, length


def _integer(item: Any, size: int, axis: int, where: str) -> int:
    """The position, from the front, that an integer names on an axis."""
    argument = f"key[axis {axis}]"
    if isinstance(item, bool) or getattr(item, "dtype", None) == "bool":
        raise ShapeError(where, argument, item, "a boolean is no index; for a mask use where or masked_fill")
    try:
        position = index(item)
    except TypeError:
        rule = "must be an integer, slice, Ellipsis or None; for lists and tensors see index_select"
        raise ShapeError(where, argument, item, rule) from None
    if not -size <= position < size:
        rule = f"must lie in {-size}..{size - 1}, the axis has size {size}" if size else "the axis has size 0"
        raise IndexOutOfRange(where, argument, position, rule)
    return position % size
