"""Tensors and Triton kernels for inference, without torch.

import nbxtensor as nbx

a = nbx.ones((256, 64), dtype="float16")
print((a + 1).device)
"""

from __future__ import annotations

from pkgutil import extend_path
from typing import TYPE_CHECKING

__path__ = extend_path(__path__, __name__)  # vendors' packages add to nbxtensor.backend, editable installs included
__version__ = "0.0.2"

from nbxtensor.backend.runtime import Device, current_device, default_device, device, use_device
from nbxtensor.dtype import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from nbxtensor.ops import *  # noqa: F403 - the operators are the package's vocabulary
from nbxtensor.ops import __all__ as _operators
from nbxtensor.tensor import NBXTensor, from_numpy

Tensor = NBXTensor

__all__ = [
    "DTYPES",
    "DType",
    "Device",
    "NBXTensor",
    "Tensor",
    "bfloat16",
    "bool_",
    "complex128",
    "complex64",
    "current_device",
    "default_device",
    "device",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "from_dlpack",
    "from_numpy",
    "int16",
    "int32",
    "int64",
    "int8",
    "result_type",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "use_device",
    *_operators,
]

if TYPE_CHECKING:
    from nbxtensor.dlpack import from_dlpack
else:

    def __getattr__(name: str) -> object:
        """Exchange needs ctypes, so it is imported at its first use."""
        if name == "from_dlpack":
            from nbxtensor.dlpack import from_dlpack

            return from_dlpack
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
