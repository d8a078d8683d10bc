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

_FLOAT8_MAX = {NUMPY[name]: float(ml_dtypes.finfo(NUMPY[name]).max) for name in NUMPY if name.startswith("fp8")}
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


class Pointer:
    """Addresses: ``base`` plus byte offsets, one array for each pattern of axes along which they vary.

    Kept apart, the row and the column offsets of a tile show at once whether it is a rectangle of memory. ``origin`` is
    the kernel parameter that the address comes from.
    """

    __slots__ = ("base", "origin", "pointee", "shape", "terms")

    def __init__(self, base: int, terms: tuple[Array, ...], shape: Shape, pointee: np.dtype[Any], origin: str | None):
        self.base, self.terms, self.shape, self.pointee, self.origin = base, terms, shape, pointee, origin

    def plus(self, data: Any) -> Pointer:
        """The pointer moved by elements, a scalar or an array of its rank."""
        offsets = data.astype(ADDRESS) * self.pointee.itemsize
        if not offsets.shape:
            return Pointer(self.base + int(offsets), self.terms, self.shape, self.pointee, self.origin)
        terms = self.terms
        for i, term in enumerate(terms):
            if term.shape == offsets.shape:
                terms = (*terms[:i], term + offsets, *terms[i + 1 :])
                break
        else:
            terms = (*terms, offsets)
        return Pointer(self.base, terms, self.shape, self.pointee, self.origin)

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
