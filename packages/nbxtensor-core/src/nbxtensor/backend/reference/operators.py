"""The operators of an interpreted tensor.

What an operator means is asked of Triton's front end (``triton.language.semantic``). The common case, operands of one
dtype, needs no answer and takes a short way. Importing this module imports Triton.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl

from nbxtensor.backend.reference.builder import quotient
from nbxtensor.backend.reference.tensors import SEMANTIC, Descriptor, Spec, Tensor, adopt, shared, spec_of
from nbxtensor.backend.reference.values import Pointer, Value, convert, outer_sum

_NUMBERS, _BITS = frozenset({"int", "float", "small float"}), frozenset({"int", "bool"})
_INTEGERS, _FLOATS = frozenset({"int"}), frozenset({"float"})
_RANGES = {
    np.dtype(name): range(np.iinfo(name).min, np.iinfo(name).max + 1)
    for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
}
_WHOLE = slice(None)


def number(value: Any, spec: Spec) -> Any:
    """A Python number in the tensor's dtype, where the rules of promotion give it that; else None."""
    kind = type(value)
    if spec.kind == "int":
        return spec.numpy.type(value) if kind is int and value in _RANGES[spec.numpy] else None
    if spec.kind == "bool" or (kind is not float and kind is not int):
        return None
    return spec.numpy.type(value) if spec.kind == "float" else convert(np.float32(value), spec.numpy)


def operands(a: Tensor, b: Any, kinds: frozenset[str]) -> tuple[Any, Any, Spec] | None:
    """The data of two operands of one dtype of the ``kinds``, and the spec that they broadcast to; else None."""
    spec = a.spec
    if spec.kind not in kinds:
        return None
    if type(b) is Tensor:
        other = b.spec
        if other is spec:
            return a.handle.data, b.handle.data, spec
        if other.dtype is not spec.dtype:
            return None
        dims = shared(spec.dims, other.dims)
        if dims is None:
            return None
        return a.handle.data, b.handle.data, spec if dims == spec.dims else spec_of(spec.dtype, dims)
    value = number(b, spec)
    return None if value is None else (a.handle.data, value, spec)


def _operator(
    name: str, operation: Callable[[Any, Any], Any], kinds: frozenset[str], *, compares: bool = False
) -> Callable[[Tensor, Any], Any]:
    """The operator ``name``; ``operation`` is what it does to operands of one dtype of the ``kinds``."""
    slow = getattr(tl.tensor, name)
    reflected = name in ("__radd__", "__rsub__", "__rmul__", "__rtruediv__")

    def apply(self: Tensor, other: Any) -> Any:
        found = operands(self, other, kinds)
        if found is None:
            return adopt(slow(self, other, _semantic=SEMANTIC))
        a, b, spec = found
        data = operation(b, a) if reflected else operation(a, b)
        return Tensor(Value(data, spec.dims), spec.booleans if compares else spec)

    return apply


def _addition(name: str) -> Callable[[Tensor, Any], Any]:
    """``+`` of numbers, of a pointer and an offset, and of the offsets of rows and of columns, which stay a sum."""
    slow, of_numbers = getattr(tl.tensor, name), _operator(name, operator.add, _NUMBERS)

    def apply(self: Tensor, other: Any) -> Any:
        spec = self.spec
        if spec.kind == "pointer":
            moved = _moved(self, other)
            return adopt(slow(self, other, _semantic=SEMANTIC)) if moved is None else moved
        if spec.kind == "int" and type(other) is Tensor and other.spec.dtype is spec.dtype and spec.numpy.kind == "i":
            dims = shared(spec.dims, other.spec.dims)
            kept = None if dims is None else outer_sum(self.handle, other.handle, dims)
            if kept is not None:
                return Tensor(kept, spec_of(spec.dtype, kept.shape))
        return of_numbers(self, other)

    return apply


def _moved(pointer: Tensor, offset: Any) -> Tensor | None:
    """The pointer moved by a number of elements; None where that is left to the front end."""
    spec, handle = pointer.spec, pointer.handle
    if type(offset) is int:
        return Tensor(handle.plus(Value(np.int64(offset), ()), handle.shape), spec)
    if type(offset) is not Tensor or offset.spec.kind != "int" or offset.spec.numpy.kind != "i":
        return None
    dims = shared(spec.dims, offset.spec.dims)
    if dims is None:
        return None
    return Tensor(handle.plus(offset.handle, dims), spec if dims == spec.dims else spec_of(spec.dtype, dims))


def _getitem(self: Tensor, index: Any) -> Any:
    """``x[:, None]`` and its like."""
    handle, spec = self.handle, self.spec
    rest, dims = list(spec.dims), []
    for entry in index if isinstance(index, tuple) else (index,):
        if entry is None and spec.dims:
            dims.append(1)
        elif rest and entry == _WHOLE:
            dims.append(rest.pop(0))
        else:
            return adopt(tl.tensor.__getitem__(self, index, _semantic=SEMANTIC))
    shape = (*dims, *rest)

    def expand(data: Any) -> Any:
        return data[index] if data.shape else data

    made = handle.map(expand, shape) if isinstance(handle, Pointer) else Value(expand(handle.data), shape)
    return Tensor(made, spec_of(spec.dtype, shape))


def _method(member: Any) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return adopt(member(self, *args, _semantic=SEMANTIC, **kwargs))

    return call


_OPERATORS: dict[str, Callable[[Tensor, Any], Any]] = {
    "__add__": _addition("__add__"),
    "__radd__": _addition("__radd__"),
    "__getitem__": _getitem,
    **{
        name: _operator(name, operation, kinds)
        for name, operation, kinds in (
            ("__sub__", operator.sub, _NUMBERS),
            ("__rsub__", operator.sub, _NUMBERS),
            ("__mul__", operator.mul, _NUMBERS),
            ("__rmul__", operator.mul, _NUMBERS),
            ("__truediv__", operator.truediv, _FLOATS),
            ("__rtruediv__", operator.truediv, _FLOATS),
            ("__floordiv__", quotient, _INTEGERS),
            ("__mod__", np.fmod, _INTEGERS),
            ("__and__", operator.and_, _BITS),
            ("__or__", operator.or_, _BITS),
            ("__xor__", operator.xor, _BITS),
        )
    },
    **{
        f"__{name}__": _operator(f"__{name}__", getattr(operator, name), _NUMBERS, compares=True)
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    },
}

for _name, _member in _OPERATORS.items():
    setattr(Tensor, _name, _member)
for _class, _base in ((Tensor, tl.tensor), (Descriptor, tl.core.tensor_descriptor_base)):
    for _name, _member in vars(_base).items():
        if _name in vars(_class) or not isinstance(_member, FunctionType):
            continue
        if "_semantic" in signature(_member).parameters:
            setattr(_class, _name, _method(_member))
