"""The tensors of an interpreted kernel: Triton's own tensor class, whose operators act at once.

Their operators are in `nbxtensor.backend.reference.operators`. Importing this module imports Triton; nothing of Triton
is changed.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic

from nbxtensor.backend.reference.builder import Builder
from nbxtensor.backend.reference.values import ADDRESS, NUMPY, SMALL_FLOATS, Shape, Value

SEMANTIC = TritonSemantic(Builder())


class AmbiguousTruth(ValueError):
    """A block of several elements was used as a condition."""


class Spec:
    """A type, interned: equal types are one object. ``dims`` are the block's lengths as plain integers."""

    __slots__ = ("booleans", "dims", "dtype", "kind", "numel", "numpy", "shape", "type")

    def __init__(self, dtype: Any, dims: Shape):
        self.type = tl.block_type(dtype, list(dims)) if dims else dtype
        like = tl.tensor(None, self.type)
        self.dtype, self.dims, self.shape, self.numel = dtype, dims, like.shape, like.numel
        self.numpy = ADDRESS if dtype.is_ptr() else NUMPY[dtype.name]
        self.kind = (
            "pointer"
            if dtype.is_ptr()
            else "bool"
            if dtype.is_bool()
            else "int"
            if dtype.is_int()
            else "small float"
            if self.numpy in SMALL_FLOATS
            else "float"
        )
        self.booleans: Spec = self if self.kind == "bool" else spec_of(tl.int1, dims)


_SPECS: dict[tuple[str, Shape], Spec] = {}
_DTYPES: dict[str, Any] = {name: tl.dtype(name) for name in NUMPY}


def spec_of(dtype: Any, dims: Shape) -> Spec:
    """The spec of a scalar dtype and a block shape, () for a scalar."""
    spec = _SPECS.get((dtype.name, dims))
    if spec is None:
        if not dtype.is_ptr() and dtype.name not in NUMPY:
            raise NotImplementedError(f"the reference driver does not interpret the dtype {dtype.name}")
        spec = _SPECS.setdefault((dtype.name, dims), Spec(_DTYPES.get(dtype.name, dtype), dims))
    return spec


class Tensor(tl.tensor):  # type: ignore[misc]
    """A tensor that holds a `Value` or a `Pointer`, as its ``handle``."""

    __slots__ = ("handle", "spec")

    def __init__(self, handle: Any, spec: Spec):
        self.handle, self.spec = handle, spec

    type = property(operator.attrgetter("spec.type"))
    dtype = property(operator.attrgetter("spec.dtype"))
    shape = property(operator.attrgetter("spec.shape"))
    numel = property(operator.attrgetter("spec.numel"))

    def __bool__(self) -> bool:
        if self.handle.shape and self.numel.value != 1:
            raise AmbiguousTruth(f"a block of shape {self.spec.dims} is neither true nor false")
        return bool(np.asarray(self.handle.data).reshape(-1)[0])

    def __index__(self) -> int:
        if self.handle.shape:
            raise TypeError(f"a block of shape {self.spec.dims} is not an integer")
        return int(self.handle.data)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.spec.dims)}: {self.handle.data}"

    __str__ = __repr__

    @property
    def T(self) -> Tensor:
        return adopt(SEMANTIC.permute(self, tuple(range(len(self.spec.dims)))[::-1]))  # type: ignore[no-any-return]


class Descriptor(tl.tensor_descriptor):  # type: ignore[misc]
    """A tensor descriptor whose loads and stores act at once."""


def adopt(result: Any) -> Any:
    """What a function of the language returns, its tensors made `Tensor` with numbers of exactly their dtype."""
    kind = type(result)
    if kind is tl.tensor:
        if result.type is tl.void or result.handle is None:
            return None
        spec = spec_of(result.type.scalar, result.handle.shape)
        return Tensor(_exact(result.handle, spec), spec)
    if kind is tuple or isinstance(result, tl.tuple):
        return tuple(adopt(r) for r in result)
    if isinstance(result, tl.constexpr):
        return result.value
    if isinstance(result, tl.tensor_descriptor):
        result.__class__ = Descriptor
    return result


def _exact(handle: Any, spec: Spec) -> Any:
    """The handle with its integers viewed as signed or unsigned, as the type says."""
    if spec.kind == "pointer" or handle.data.dtype == spec.numpy:
        return handle
    return Value(handle.data.view(spec.numpy), handle.shape)


def constant(value: int | float | bool) -> Tensor:
    """A number as the tensor that Triton makes of it."""
    return adopt(SEMANTIC.to_tensor(value))  # type: ignore[no-any-return]


_SHAPES: dict[tuple[Shape, Shape], Shape | None] = {}


def _common(a: Shape, b: Shape) -> Shape | None:
    """The shape that two blocks of one rank broadcast to; None where that is left to the front end."""
    if not b or a == b:
        return a
    if not a:
        return b
    if len(a) != len(b):
        return None
    shape = tuple(y if x == 1 else x for x, y in zip(a, b))
    return shape if all(y in (1, s) for y, s in zip(b, shape)) else None


def shared(a: Shape, b: Shape) -> Shape | None:
    key = (a, b)
    if key not in _SHAPES:
        _SHAPES[key] = _common(a, b)
    return _SHAPES[key]
