"""Triton's language as rewritten kernels see it: namespaces in place of modules, functions that act at once.

A function of the language runs as Triton wrote it, with this interpreter's builder behind it; its standard library,
itself written in the language, is rewritten like any kernel. Own implementations stand for what needs a compiler
(ranges, reductions, scans) and for loads and stores. Importing this module imports Triton; nothing of Triton is
changed."""

from __future__ import annotations

import builtins
import functools
import importlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.runtime.jit import JITFunction

from nbxtensor.backend.reference import reductions, shortcuts
from nbxtensor.backend.reference.builder import EXECUTION
from nbxtensor.backend.reference.rewriting import rewrite
from nbxtensor.backend.reference.tensors import SEMANTIC, Tensor, adopt, constant, shared, spec_of
from nbxtensor.backend.reference.values import Pointer, Value

# Before Triton 3.9 a returned number became a tensor.
_RETURNS_TENSORS = not hasattr(CodeGenerator, "decide_return_type")
_LIBRARY_STUBS, _LIBRARY = "triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"
_lock = threading.RLock()


class DeviceFunction:
    """A ``triton.jit`` function, interpreted. It is rewritten at its first call."""

    def __init__(self, raw: types.FunctionType):
        self.raw, self.__name__ = raw, raw.__name__
        self._python: types.FunctionType | None = None

    @property
    def python(self) -> types.FunctionType:
        if self._python is None:
            with _lock:
                if self._python is None:
                    self._python = rewrite(self.raw, translate, _MEANINGS, returns_tensors=_RETURNS_TENSORS)
        return self._python

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.python(*args, **kwargs)


class Namespace:
    """A module, its members translated when they are first asked for."""

    def __init__(self, module: types.ModuleType):
        self.__module = module

    def __getattr__(self, name: str) -> Any:
        value = translate(getattr(self.__module, name))
        self.__dict__[name] = value
        return value


def device_function(function: Any) -> DeviceFunction:
    """The interpreted form of what ``triton.jit`` returned, also when TRITON_INTERPRET made that Triton's own."""
    while not isinstance(function, types.FunctionType):
        function = function.fn
    with _lock:
        found = _FUNCTIONS.get(function)
        if found is None:
            found = _FUNCTIONS[function] = DeviceFunction(function)
        return found


_FUNCTIONS: dict[types.FunctionType, DeviceFunction] = {}
_TRANSLATED: dict[int, tuple[Any, Any]] = {}  # by identity: (what it is of, kept alive; its meaning)


def translate(value: Any) -> Any:
    """What a global, a default or a constexpr means in an interpreted function."""
    known = _TRANSLATED.get(id(value))
    if known is not None:
        return known[1]
    if isinstance(value, tuple):
        elements = [translate(v) for v in value]
        return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)
    if isinstance(value, tl.constexpr):
        return translate(value.value)
    if isinstance(value, JITFunction) or type(value).__name__ == "InterpretedFunction":
        return device_function(value)
    if isinstance(value, types.ModuleType):
        source = importlib.import_module(_LIBRARY) if value.__name__ == _LIBRARY_STUBS else value
        meaning: Any = Namespace(source)
    elif isinstance(value, types.FunctionType) and value.__module__ == _LIBRARY_STUBS:
        meaning = translate(getattr(importlib.import_module(_LIBRARY), value.__name__))
    elif isinstance(value, types.FunctionType) and tl.core.is_builtin(value):
        meaning = _at_once(value)
    else:
        return value
    _TRANSLATED[id(value)] = value, meaning
    return meaning


def _at_once(member: Any) -> Callable[..., Any]:
    @functools.wraps(member)
    def call(*args: Any, **kwargs: Any) -> Any:
        return adopt(member(*args, _semantic=SEMANTIC, **kwargs))

    return call


# What rewritten code calls.


def assign(value: Any) -> Any:
    """An assigned value: a number becomes a tensor, in tuples too."""
    kind = type(value)
    if kind is Tensor:
        return value
    if kind is int or kind is float or kind is bool:
        return constant(value)
    if kind is tuple or kind is list or isinstance(value, tl.tuple):
        return tuple(assign(v) for v in value)
    if isinstance(value, tl.constexpr):
        return assign(value.value)
    return value


def constexpr(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def both(a: Any, b: Any) -> Any:
    """``a and b`` of values that are there."""
    if not isinstance(a, Tensor):
        return b if a else a
    if not isinstance(b, Tensor):
        return a if b else b
    return a.logical_and(b)


def and_(a: Any, b: Callable[[], Any]) -> Any:
    return a if not isinstance(a, Tensor) and not a else both(a, b())


def or_(a: Any, b: Callable[[], Any]) -> Any:
    if not isinstance(a, Tensor):
        return a or b()
    other = b()
    if not isinstance(other, Tensor):
        return other or a
    return a.logical_or(other)


def not_(a: Any) -> Any:
    return a.__not__() if isinstance(a, Tensor) else not a


def choose(condition: Any, x: Callable[[], Any], y: Callable[[], Any]) -> Any:
    """``x if condition else y``."""
    chosen = x() if condition else y()
    return assign(chosen) if isinstance(condition, Tensor) else chosen


def assert_(condition: Any, message: Any = "") -> None:
    if not (np.all(condition.handle.data) if isinstance(condition, Tensor) else condition):
        raise AssertionError(message)


def loop(start: Any, stop: Any = None, step: Any = 1, **hints: Any) -> Iterator[Tensor]:
    """``range`` and ``tl.range``: the counter is a scalar tensor."""
    if stop is None:
        start, stop = 0, start
    bounds = [b if isinstance(b, Tensor) else constant(constexpr(b)) for b in (start, stop, step)]
    if not all(b.dtype.is_int() and not b.spec.dims for b in bounds):
        raise TypeError(f"the bounds and the step of a range must be integers, not {bounds}")
    dtype = functools.reduce(SEMANTIC.integer_promote_impl, (b.dtype for b in bounds))
    spec = spec_of(dtype, ())
    for i in builtins.range(*(int(b) for b in bounds)):
        yield Tensor(Value(spec.numpy.type(i), ()), spec)


def static_range(*bounds: Any, step: Any = None) -> range:
    return builtins.range(*(int(constexpr(b)) for b in bounds), *(() if step is None else (int(constexpr(step)),)))


def load(pointer: Tensor, mask: Any = None, other: Any = None, **policy: Any) -> Tensor:
    """``tl.load``. Where the mask is false and ``other`` is not given, 0 stands for what the hardware leaves
    undefined."""
    handle, element, pointer_dims = _accessed(pointer, policy)
    mask, other = constexpr(mask), constexpr(other)
    if mask is None and other is not None:
        raise ValueError("`other` cannot be provided without `mask`")
    dims, stored = pointer_dims, tl.int8 if element.is_bool() else element
    mask, dims = _mask(mask, dims)
    if isinstance(other, Tensor):
        dims = _broadcast(dims, other.spec.dims)
        other = adopt(SEMANTIC.cast(other, stored)).handle.data
    elif other is not None:
        other = _filler(other, type(other).__name__, stored.name)
    if dims != handle.shape:
        handle = Pointer(handle.base, handle.terms, dims, handle.pointee, handle.origin)
    data = EXECUTION.memory.load(handle, mask, other)
    if element.is_bool():
        data = data != 0
    return Tensor(Value(data, dims), spec_of(element, dims))


def store(pointer: Tensor, value: Any, mask: Any = None, **policy: Any) -> None:
    """``tl.store``."""
    handle, element, dims = _accessed(pointer, policy)
    if pointer.dtype.is_const():
        raise ValueError("Cannot store to a constant pointer")
    value = constexpr(value)
    value = value if isinstance(value, Tensor) else constant(value)
    mask, dims = _mask(constexpr(mask), dims)
    dims = _broadcast(dims, value.spec.dims)
    stored = tl.int8 if element.is_bool() else element
    if value.dtype is not stored:
        value = adopt(SEMANTIC.cast(value, stored))
    if dims != handle.shape:
        handle = Pointer(handle.base, handle.terms, dims, handle.pointee, handle.origin)
    EXECUTION.memory.store(handle, value.handle.data, mask)


@functools.lru_cache(256)
def _filler(value: Any, kind: str, dtype: str) -> Any:
    """A number in a dtype of the language; ``kind`` tells 0 from 0.0 and False."""
    return adopt(SEMANTIC.cast(constant(value), tl.dtype(dtype))).handle.data


def _accessed(pointer: Any, policy: dict[str, Any]) -> tuple[Pointer, Any, tuple[int, ...]]:
    if not isinstance(pointer, Tensor) or pointer.spec.kind != "pointer":
        raise TypeError(f"not a pointer: {pointer!r}")
    if policy.get("boundary_check"):
        raise NotImplementedError("the reference driver does not interpret block pointers")
    return pointer.handle, pointer.dtype.element_ty, pointer.spec.dims


def _mask(mask: Any, dims: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """The mask's data, and the shape of the access."""
    if mask is None:
        return None, dims
    if not isinstance(mask, Tensor):
        return np.bool_(mask), dims
    if mask.spec.kind != "bool":
        raise TypeError(f"a mask must be of int1, not {mask.dtype}")
    return mask.handle.data, _broadcast(dims, mask.spec.dims)


def _broadcast(dims: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    if not dims and others:
        raise ValueError("the access of one element cannot take a block as its mask or value")
    found = shared(dims, others)
    if found is None:
        raise ValueError(f"shapes {dims} and {others} do not broadcast")
    return found


def hint(x: Any, values: Any) -> Any:
    """What only helps the compiler."""
    return x


def static_assert(condition: Any, message: Any = "") -> None:
    if not condition:
        raise AssertionError(message)


def minimum(*values: Any) -> Any:
    """``min`` of scalars."""
    if _dynamic(values):
        return functools.reduce(translate(tl.minimum), values)
    return builtins.min(*map(constexpr, values))


def maximum(*values: Any) -> Any:
    if _dynamic(values):
        return functools.reduce(translate(tl.maximum), values)
    return builtins.max(*map(constexpr, values))


def _dynamic(values: tuple[Any, ...]) -> bool:
    return any(isinstance(v, Tensor) for v in values)


def _own(original: Any, meaning: Any) -> None:
    _TRANSLATED[id(original)] = original, meaning


def _reduction(original: Any, combine: str) -> Callable[..., Any]:
    """``tl.sum`` and its like, which widen small elements first: others are reduced as they are."""
    whole, combine_fn = device_function(original), device_function(getattr(tl.standard, combine))

    def call(input: Any, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        plain = not args and (not kwargs or kwargs.keys() == {"keep_dims"})
        if plain and type(input) is Tensor and input.spec.kind in ("float", "int") and input.spec.numpy.itemsize >= 4:
            return reductions.reduce(input, axis, combine_fn, **kwargs)
        return whole(input, axis, *args, **kwargs)

    return call


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return call


_MEANINGS: dict[str, Any] = {
    "assign": assign,
    "constexpr": constexpr,
    "both": both,
    "and": and_,
    "or": or_,
    "not": not_,
    "choose": choose,
    "assert": assert_,
    "range": loop,
    "min": minimum,
    "max": maximum,
    "print": _at_once(tl.device_print),
}

for _original, _meaning in (
    (tl.range, loop),
    (tl.static_range, static_range),
    (tl.load, load),
    (tl.store, store),
    (tl.multiple_of, hint),
    (tl.max_contiguous, hint),
    (tl.max_constancy, hint),
    (tl.static_assert, static_assert),
    (tl.static_print, print),
    (tl.reduce, reductions.reduce),
    (tl.associative_scan, reductions.scan),
    (tl.map_elementwise, reductions.map_elementwise),
    (tl.core._reduce_with_indices, reductions.reduce_with_indices),
    *shortcuts.SHORTCUTS,
):
    _own(_original, _meaning)
for _original, _combine in ((tl.sum, "_sum_combine"), (tl.max, "_elementwise_max"), (tl.min, "_elementwise_min")):
    _own(_original, _reduction(_original, _combine))

for _name, _member in vars(tl.tensor).items():
    if isinstance(_member, JITFunction) or type(_member).__name__ == "InterpretedFunction":
        setattr(Tensor, _name, _method(translate(_member)))
_METHODS: dict[str, Callable[..., Any]] = {
    **{original.__name__: meaning for original, meaning in shortcuts.SHORTCUTS if hasattr(Tensor, original.__name__)},
    "to": shortcuts.cast,
    "store": store,
    "reduce": reductions.reduce,
    "associative_scan": reductions.scan,
}
for _name, _function in _METHODS.items():
    setattr(Tensor, _name, _method(_function))
