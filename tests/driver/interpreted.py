"""Launches a test kernel on the reference driver with numpy arrays as its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.backend.contract import Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel, KernelFunction, Scalar, TritonDType
from nbxtensor.backend.reference.driver import driver
from nbxtensor.dtype import dtype as dtype_of

Array = np.ndarray[Any, Any]


def operation(name: str) -> KernelFunction:
    return KernelFunction("driver.kernels_operations", name)


def variant(module: str, name: str, /, **arguments: Any) -> tuple[Variant, list[Any]]:
    """The variant for the arguments, and the launch value or array of each of its parameters. Names in capitals are
    constants, arrays are pointers, an int is an i32, a float an fp32, a `Scalar` what it says, a tuple its elements."""
    parameters: list[Parameter] = []
    constants: list[tuple[str, Any]] = []
    values: list[Any] = []
    kinds: dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            parameters.append(Parameter(name, "*" + str(dtype_of(value.dtype).triton), True))
        elif isinstance(value, Scalar):
            parameters.append(Parameter(name, value.type, True))
            value = value.value
        else:
            parameters.append(Parameter(name, "fp32" if isinstance(value, float) else "i32", True))
        values.append(value)

    for name_, value in arguments.items():
        kinds[name_] = "ptr" if isinstance(value, np.ndarray) else "ints" if isinstance(value, tuple) else "i32"
        if name_.isupper():
            kinds[name_] = "const"
            constants.append((name_, value))
        elif type(value) is tuple:
            for i, element in enumerate(value):
                add(f"{name_}.{i}", element)
        else:
            add(name_, value)
    return Variant(Kernel(f"driver.{module}", name, kinds), tuple(parameters), tuple(constants), (), ()), values


def launch(module: str, name: str, grid: tuple[int, ...] = (1,), /, **arguments: Any) -> None:
    """Runs the kernel; every array is copied in before and out after."""
    made, values = variant(module, name, **arguments)
    context = driver.open(0)
    try:
        loaded = context.load(context.compile(made))
        addresses = [context.allocate(max(v.nbytes, 1)) if isinstance(v, np.ndarray) else v for v in values]
        arrays = [(a, v) for a, v in zip(addresses, values, strict=True) if isinstance(v, np.ndarray)]
        for address, array in arrays:
            assert array.flags.c_contiguous
            context.copy_in(address, array.ctypes.data, array.nbytes)
        context.launch(loaded, (*grid, *(1,) * (3 - len(grid))), tuple(addresses), None, ())  # type: ignore[arg-type]
        for address, array in arrays:
            context.copy_out(array.ctypes.data, address, array.nbytes)
    finally:
        context.close()


__all__ = ["Scalar", "TritonDType", "launch", "operation", "variant"]
