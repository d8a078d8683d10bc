"""What a tensor of the language holds while a kernel is interpreted: numbers, or addresses.

A value is kept as small as it can be: ``data`` is a numpy scalar, or an array of the tensor's rank whose axes have
length 1 where the tensor does not vary. Numpy's broadcasting does the rest, so that splats and broadcasts cost nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

#: Numpy's dtype of each dtype of the language, by its name there.
NUMPY: dict[str, np.dtype[Any]] = {
    "int1": np.dtype(np.bool_),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
ADDRESS = np.dtype(np.int64)

_finfo: Any = ml_dtypes.finfo
_FLOAT8_MAX = {NUMPY[name]: float(_finfo(NUMPY[name]).max) for name in NUMPY if name.startswith("fp8")}
#: Floats of fewer than 32 bits: they are computed with in float32 and rounded, as the hardware does.
SMALL_FLOATS = frozenset(NUMPY[name] for name in ("fp16", "bf16", "fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16"))


class IRType(NamedTuple):
    """What stands for a type of the compiler's IR: a numpy dtype and a block's shape; ``pointee`` makes it a
    pointer."""

    dtype: np.dtype[Any]
    shape: Shape = ()
    pointee: np.dtype[Any] | None = None


class Value:
    """Numbers: ``shape`` is the tensor's, which ``data`` broadcasts to."""

    __slots__ = ("data", "shape")

    def __init__(self, data: Any, shape: Shape):
        self.data, self.shape = data, shape

    def full(self) -> Array:
        """The numbers at the tensor's own shape; not to be written to."""
        data: Array = self.data
        return data if data.shape == self.shape else np.broadcast_to(data, self.shape)


class Sum(Value):
    """Signed integers that are a sum of arrays which vary along different axes, as the offsets of a tile's rows and of
    its columns. Kept apart, they show that the tile is a rectangle of memory. ``terms`` are int64."""

    __slots__ = ("_data", "dtype", "terms")

    def __init__(self, terms: tuple[Array, ...], shape: Shape, dtype: np.dtype[Any]):
        self.terms, self.shape, self.dtype = terms, shape, dtype
        self._data: Array | None = None

    @property
    def data(self) -> Any:
        if self._data is None:
            self._data = sum(self.terms[1:], self.terms[0]).astype(self.dtype)
        return self._data


def outer_sum(a: Value, b: Value, shape: Shape) -> Sum | None:
    """The sum of signed integers of one dtype, where it is worth keeping as a `Sum` and does not overflow; else
    None."""
    if type(a) is Value and type(b) is Value and (a.data.shape == b.data.shape or not a.data.shape or not b.data.shape):
        return None
    dtype = a.dtype if isinstance(a, Sum) else a.data.dtype
    terms: tuple[Array, ...] = ()
    low = high = 0
    for term in (*_terms(a), *_terms(b)):
        if dtype != ADDRESS:
            low, high = low + int(term.min()), high + int(term.max())
        terms = _with_term(terms, term)
    if dtype != ADDRESS and not (np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max):
        return None
    return Sum(terms, shape, dtype)


def _terms(value: Value) -> tuple[Array, ...]:
    return value.terms if isinstance(value, Sum) else (np.asarray(value.data, ADDRESS),)


def _with_term(terms: tuple[Array, ...], term: Array) -> tuple[Array, ...]:
    """One more term: added to the one that varies along the same axes; a scalar is added to the first."""
    for i, other in enumerate(terms):
        if other.shape == term.shape or not term.shape or not other.shape:
            return (*terms[:i], other + term, *terms[i + 1 :])
    return (*terms, term)


class Pointer:
    """Addresses: ``base`` plus byte offsets, one array for each pattern of axes along which they vary. ``origin`` is
    the kernel parameter that the address comes from."""

    __slots__ = ("base", "origin", "pointee", "shape", "terms")

    def __init__(self, base: int, terms: tuple[Array, ...], shape: Shape, pointee: np.dtype[Any], origin: str | None):
        self.base, self.terms, self.shape, self.pointee, self.origin = base, terms, shape, pointee, origin

    def plus(self, offsets: Value, shape: Shape) -> Pointer:
        """The pointer moved by signed numbers of elements; the two broadcast to the shape."""
        base, terms, size = self.base, self.terms, self.pointee.itemsize
        for term in _terms(offsets):
            if term.shape:
                terms = _with_term(terms, term * size)
            else:
                base += int(term) * size
        return Pointer(base, terms, shape, self.pointee, self.origin)

    def map(self, change: Any, shape: Shape) -> Pointer:
        """The pointer with each offset array changed, now of another shape."""
        return Pointer(self.base, tuple(change(t) for t in self.terms), shape, self.pointee, self.origin)

    def full(self) -> Array:
        """Every address."""
        total: Any = np.int64(self.base)
        for term in self.terms:
            total = total + term
        return np.broadcast_to(total, self.shape)

    @property
    def data(self) -> Any:
        return self.full() if self.shape else np.int64(self.base)


def pointer_of(addresses: Any, shape: Shape, pointee: np.dtype[Any], origin: str | None) -> Pointer:
    """A pointer from addresses, a scalar or an array of rank ``len(shape)``."""
    addresses = np.asarray(addresses).astype(ADDRESS)
    if addresses.size == 1:
        return Pointer(int(addresses.reshape(())), (), shape, pointee, origin)
    return Pointer(0, (addresses,), shape, pointee, origin)


def convert(data: Any, to: np.dtype[Any]) -> Any:
    """Numbers converted as the compiled kernel converts them: to nearest even, float8 saturating, float to integer by
    truncation. What the hardware leaves undefined is undefined here, too."""
    source = data.dtype
    if source == to:
        return data
    largest = _FLOAT8_MAX.get(to)
    if largest is not None:
        wide = data if source == np.float64 else data.astype(np.float32)
        return np.clip(wide, -largest, largest).astype(to)
    if source in SMALL_FLOATS and to.kind in "iub":
        data = data.astype(np.float32)
    return data.astype(to)


def toward_zero(data: Any, to: np.dtype[Any]) -> Any:
    """Floats converted to a narrower float, rounded toward zero."""
    exact = np.asarray(data, np.float64)
    bits = np.asarray(convert(data, to)).view(f"i{to.itemsize}")
    magnitude = np.abs(bits.view(to).astype(np.float64))
    bits = np.where(magnitude > np.abs(exact), bits - 1, bits)  # one step smaller: sign and magnitude
    return bits.astype(f"i{to.itemsize}").view(to)[()]
