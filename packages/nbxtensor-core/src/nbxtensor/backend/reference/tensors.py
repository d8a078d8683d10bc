"""The tensors of an interpreted kernel: Triton's own tensor class, whose operators act at once.

What an operator means is asked of Triton's front end (``triton.language.semantic``). The common case, operands of one
dtype, needs no answer and takes a short way. Importing this module imports Triton; nothing of Triton is changed. """

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic

from nbxtensor.backend.reference.builder import Builder, quotient
from nbxtensor.backend.reference.values import ADDRESS, NUMPY, SMALL_FLOATS, Pointer, Shape, Value, convert

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


_INT_RANGE = {
    np.dtype(name): range(np.iinfo(name).min, np.iinfo(name).max + 1)
    for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
}


def _number(value: Any, spec: Spec) -> Any:
    """A Python number in the tensor's dtype, where the rules of promotion say so; else None."""
    kind = type(value)
    if spec.kind == "int":
        return spec.numpy.type(value) if kind is int and value in _INT_RANGE[spec.numpy] else None
    if kind is not float and kind is not int:
        return None
    return spec.numpy.type(value) if spec.kind == "float" else convert(np.float32(value), spec.numpy)


def _operands(self: Tensor, other: Any, kinds: frozenset[str]) -> tuple[Any, Any, Spec] | None:
    spec = self.spec
    if spec.kind not in kinds:
        return None
    if type(other) is Tensor:
        theirs = other.spec
        if theirs is spec:
            return self.handle.data, other.handle.data, spec
        if theirs.dtype is not spec.dtype:
            return None
        dims = shared(spec.dims, theirs.dims)
        if dims is None:
            return None
        return self.handle.data, other.handle.data, spec if dims == spec.dims else spec_of(spec.dtype, dims)
    number = _number(other, spec)
    return None if number is None else (self.handle.data, number, spec)


def _operator(name: str, operation: Callable[[Any, Any], Any], kinds: frozenset[str], *, compares: bool = False) -> Any:
    """The operator ``name``; ``operation`` is what it does to operands of one dtype of the ``kinds``."""
    slow = getattr(tl.tensor, name)
    reflected = name in ("__radd__", "__rsub__", "__rmul__", "__rtruediv__")

    def apply(self: Tensor, other: Any) -> Any:
        found = _operands(self, other, kinds)
        if found is None:
            return adopt(slow(self, other, _semantic=SEMANTIC))
        a, b, spec = found
        data = operation(b, a) if reflected else operation(a, b)
        return Tensor(Value(data, spec.dims), spec.booleans if compares else spec)

    return apply


def _moved(name: str, slow: Any) -> Any:
    """``+`` and ``-``, where a pointer may be moved by an offset of the same or no rank."""
    operation = operator.sub if name == "__sub__" else operator.add
    numbers = _operator(name, operation, _NUMBERS)
    sign = -1 if name == "__sub__" else 1

    def apply(self: Tensor, other: Any) -> Any:
        spec = self.spec
        if spec.kind != "pointer":
            return numbers(self, other)
        handle = self.handle
        if type(other) is int:
            return Tensor(handle.plus(np.int64(sign * other)), spec)
        if type(other) is Tensor and other.spec.kind == "int" and other.spec.numpy.kind == "i":
            dims = shared(spec.dims, other.spec.dims)
            if dims is not None:
                data = other.handle.data
                moved = handle.plus(data if sign == 1 else -data.astype(np.int64))
                if dims == spec.dims:
                    return Tensor(moved, spec)
                moved.shape = dims
                return Tensor(moved, spec_of(spec.dtype, dims))
        return adopt(slow(self, other, _semantic=SEMANTIC))

    return apply


_NUMBERS, _BITS = frozenset({"int", "float", "small float"}), frozenset({"int", "bool"})
_INTEGERS, _FLOATS = frozenset({"int"}), frozenset({"float"})


def _getitem(self: Tensor, index: Any) -> Tensor:
    """``x[:, None]`` and its like."""
    handle, spec = self.handle, self.spec
    entries = index if isinstance(index, tuple) else (index,)
    if not spec.dims or any(e is not None and e != slice(None) for e in entries):
        return adopt(tl.tensor.__getitem__(self, index, _semantic=SEMANTIC))  # type: ignore[no-any-return]
    if sum(e is not None for e in entries) > len(spec.dims):
        return adopt(tl.tensor.__getitem__(self, index, _semantic=SEMANTIC))  # type: ignore[no-any-return]
    kept = iter(spec.dims)
    dims = tuple(1 if e is None else next(kept) for e in entries)
    dims = (*dims, *kept)

    def expand(data: Any) -> Any:
        return data[index] if data.shape else data

    if isinstance(handle, Pointer):
        return Tensor(handle.map(expand, dims), spec_of(spec.dtype, dims))
    return Tensor(Value(expand(handle.data), dims), spec_of(spec.dtype, dims))


def _bind(cls: type[Tensor]) -> None:
    """Gives the class the operators and methods of the language, acting at once."""
    for name in ("__add__", "__radd__", "__sub__"):
        setattr(cls, name, _moved(name, getattr(tl.tensor, name)))
    fast: list[tuple[str, Callable[[Any, Any], Any], frozenset[str], bool]] = [
        ("__rsub__", operator.sub, _NUMBERS, False),
        ("__mul__", operator.mul, _NUMBERS, False),
        ("__rmul__", operator.mul, _NUMBERS, False),
        ("__truediv__", operator.truediv, _FLOATS, False),
        ("__rtruediv__", operator.truediv, _FLOATS, False),
        ("__floordiv__", quotient, _INTEGERS, False),
        ("__mod__", np.fmod, _INTEGERS, False),
        ("__and__", operator.and_, _BITS, False),
        ("__or__", operator.or_, _BITS, False),
        ("__xor__", operator.xor, _BITS, False),
        ("__lt__", operator.lt, _NUMBERS, True),
        ("__le__", operator.le, _NUMBERS, True),
        ("__gt__", operator.gt, _NUMBERS, True),
        ("__ge__", operator.ge, _NUMBERS, True),
        ("__eq__", operator.eq, _NUMBERS, True),
        ("__ne__", operator.ne, _NUMBERS, True),
    ]
    for name, operation, kinds, compares in fast:
        setattr(cls, name, _operator(name, operation, kinds, compares=compares))
    cls.__getitem__ = _getitem  # type: ignore[method-assign]
    for cls_, base in ((cls, tl.tensor), (Descriptor, tl.core.tensor_descriptor_base)):
        for name, member in vars(base).items():
            if name in vars(cls_) or not isinstance(member, FunctionType):
                continue
            if "_semantic" in signature(member).parameters:
                setattr(cls_, name, _method(member))


def _method(member: Any) -> Any:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return adopt(member(self, *args, _semantic=SEMANTIC, **kwargs))

    return call


_bind(Tensor)
