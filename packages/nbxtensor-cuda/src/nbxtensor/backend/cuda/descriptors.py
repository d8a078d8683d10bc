"""Tensor descriptors made on the host: what a parameter of type "tensordesc<fp16[64, 32]>" becomes in the binary.

Where the GPU moves tiles by itself (sm_90 on), it is a 128-byte tensor map, the shape as 32-bit and the strides as
64-bit integers. Elsewhere it is an address, shape and strides as 64-bit integers, one or two flags, and both again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nbxtensor.backend.contract import Parameter, TensorDescriptor
from nbxtensor.backend.cuda import ffi
from nbxtensor.backend.cuda.library import Library
from nbxtensor.errors import LaunchRefused

_TYPE = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\].*>")
_CACHED = 256  # tensor maps that are kept for each parameter: the same tensors come again and again

# A compiler's number of an element type is the driver's, but for these (Triton 3.6 to 3.9).
_ELEMENT_TYPES = {
    8: ffi.CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ,
    9: ffi.CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    10: ffi.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}

Slots = list[tuple[str, int]]


class Expansion(NamedTuple):
    """A descriptor parameter in the binary: struct's code and the size of each part, and the parts of a value."""

    slots: Slots
    parts: Callable[[TensorDescriptor], tuple[Any, ...]]


def is_descriptor(parameter: Parameter) -> bool:
    """Whether the parameter's type is a descriptor's."""
    return parameter.type.startswith("tensordesc<")


def flags_of(triton_version: str) -> int:
    """How many flags a decomposed descriptor has: from Triton 3.8 on there is one for the rounding of float32."""
    major, minor = (int(part) for part in triton_version.split(".")[:2])
    return 2 if (major, minor) >= (3, 8) else 1


def expansion(
    cuda: Library, kernel: str, parameter: Parameter, meta: Mapping[str, Any] | None, flags: int
) -> Expansion:
    """``meta`` is Triton's description of the tensor map, None where the descriptor is decomposed."""
    match = _TYPE.fullmatch(parameter.type)
    if match is None:
        raise LaunchRefused(kernel, f"{parameter.name} is of type {parameter.type}, which is not understood")
    rank = match[2].count(",") + 1
    sizes: Slots = [("i", 4)] * rank + [("q", 8)] * rank

    def checked(value: Any) -> TensorDescriptor:
        if not isinstance(value, TensorDescriptor) or len(value.shape) != rank or len(value.strides) != rank:
            raise LaunchRefused(kernel, f"{parameter.name}={value!r}: must be a TensorDescriptor of {rank} dimensions")
        return value

    if meta is None:
        slots: Slots = [("Q", 8)] + [("q", 8)] * (2 * rank) + [("B", 1)] * flags + sizes
        rest = (0,) * (flags - 1)

        def decomposed(value: TensorDescriptor) -> tuple[Any, ...]:
            address, shape, strides, nan = checked(value)
            return address, *shape, *strides, nan, *rest, *shape, *strides

        return Expansion(slots, decomposed)

    if meta.get("fp4_padded") or meta.get("is_im2col"):
        raise LaunchRefused(kernel, f"{parameter.name}: packed 4-bit and im2col tensor maps are not made here")
    if not cuda.provides("tensor maps"):
        raise LaunchRefused(kernel, f"the driver at {cuda.path} lacks cuTensorMapEncodeTiled")

    @functools.lru_cache(_CACHED)
    def mapped(value: TensorDescriptor) -> tuple[Any, ...]:
        return _encode(cuda, kernel, parameter, meta, checked(value)), *value.shape, *value.strides

    return Expansion([("128s", 128), *sizes], mapped)


def _encode(
    cuda: Library, kernel: str, parameter: Parameter, meta: Mapping[str, Any], value: TensorDescriptor
) -> bytes:
    """The tensor map; the driver counts dimensions from the innermost."""
    rank, size, new = len(value.shape), int(meta["elem_size"]), cuda.ffi.new
    if value.strides[-1] != 1:
        raise LaunchRefused(kernel, f"{parameter.name}: strides {value.strides}: the last must be 1")
    out = new("CUtensorMap *")
    fill = ffi.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA if value.nan else ffi.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    code = cuda.raw.cuTensorMapEncodeTiled(
        out,
        _ELEMENT_TYPES.get(meta["elem_type"], meta["elem_type"]),
        rank,
        cuda.ffi.cast("void *", value.address),
        new("cuuint64_t[]", value.shape[::-1]),
        new("cuuint64_t[]", [stride * size for stride in value.strides[-2::-1]] or 1),
        new("cuuint32_t[]", list(meta["block_size"])[::-1]),
        new("cuuint32_t[]", [1] * rank),
        ffi.CU_TENSOR_MAP_INTERLEAVE_NONE,
        meta["swizzle"],
        ffi.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        fill,
    )
    if code:
        rule = "the address and the strides in bytes must be multiples of 16, no size 0"
        raise LaunchRefused(kernel, f"{parameter.name}={value}, elements of {size} bytes: {rule} ({cuda.name(code)})")
    return bytes(cuda.ffi.buffer(out))
