"""Runs a specialised kernel for every program of a grid. Importing this module imports Triton."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from nbxtensor.backend.contract import Parameter, Variant
from nbxtensor.backend.reference.builder import EXECUTION
from nbxtensor.backend.reference.language import device_function, translate
from nbxtensor.backend.reference.memory import AccessError, Accessor, AddressSpace
from nbxtensor.backend.reference.tensors import Tensor, spec_of
from nbxtensor.backend.reference.values import NUMPY, Pointer, Value, convert
from nbxtensor.errors import CompileError, KernelFault, LaunchRefused, MemoryFault

_DTYPES = {"i": "int", "u": "uint"}


class InterpretedKernel:
    """A variant, ready to run. Raises `CompileError`, also where parameters and signature differ."""

    def __init__(self, variant: Variant):
        self.name = variant.kernel.name
        self.parameters = variant.parameters
        try:
            self._python = device_function(variant.kernel.jit()).python
            self._constants = {
                name: translate(value.jit() if hasattr(value, "jit") else value) for name, value in variant.constants
            }
            self._arguments = [_Argument(self.name, p) for p in variant.parameters]
        except (ImportError, AttributeError, SyntaxError, OSError, NotImplementedError) as error:
            raise CompileError(self.name, "reference", f"{type(error).__name__}: {error}") from error
        self._tuples = _tuples(variant.parameters)
        self._constants.update(_empty_tuples(variant, self._tuples, self._constants))
        self._check_signature()

    def run(
        self,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        space: AddressSpace,
        extents: tuple[tuple[int, int], ...],
    ) -> None:
        """Runs every program, one after another. ``extents`` confines the pointers, in their order, where given."""
        if len(values) != len(self._arguments):
            raise LaunchRefused(self.name, f"{len(values)} values for {len(self._arguments)} parameters")
        pointers = [p.name for p in self.parameters if p.type.startswith("*")]
        bounded: dict[str | None, tuple[int, int]] = dict(zip(pointers, extents))
        EXECUTION.memory, EXECUTION.grid = Accessor(space, bounded), grid
        python, (nx, ny, nz) = self._python, grid
        try:
            with np.errstate(all="ignore"):
                given = self._bind(values)
                for z in range(nz):
                    for y in range(ny):
                        for x in range(nx):
                            EXECUTION.program = (x, y, z)
                            python(**given)
        except LaunchRefused:
            raise
        except AccessError as error:
            raise MemoryFault(self.name, EXECUTION.program, _where(error), error.address, error.parameter) from error
        except Exception as error:
            raise KernelFault(self.name, EXECUTION.program, _where(error)) from error

    def _bind(self, values: tuple[int | float, ...]) -> dict[str, Any]:
        given = dict(self._constants)
        for argument, value in zip(self._arguments, values):
            given[argument.name] = argument.of(value)
        for name, count in self._tuples.items():
            given[name] = tuple(given.pop(f"{name}.{i}") for i in range(count))
        return given

    def _check_signature(self) -> None:
        signature = inspect.signature(self._python).parameters
        given = {p.name.partition(".")[0] for p in self.parameters} | set(self._constants)
        unknown = sorted(given - set(signature))
        missing = [n for n, p in signature.items() if n not in given and p.default is inspect.Parameter.empty]
        if unknown or missing:
            why = f"parameters {unknown} are not the function's; it lacks {missing}"
            raise CompileError(self.name, "reference", why)


class _Argument:
    """One launch value on its way to the kernel."""

    def __init__(self, kernel: str, parameter: Parameter):
        self._kernel, self.name, self._type, self._kept = kernel, parameter.name, parameter.type, parameter.kept
        element = _dtype(parameter.type.removeprefix("*").removeprefix("k"))
        if element is None:
            raise NotImplementedError(f"parameter {parameter.name} of type {parameter.type!r}")
        self._numpy = NUMPY[element.name]
        pointer = parameter.type.startswith("*")
        self._is_pointer = pointer
        dtype = tl.pointer_type(element, const=parameter.type.startswith("*k")) if pointer else element
        self._spec = spec_of(dtype, ())

    def of(self, value: int | float) -> Any:
        if not self._kept:
            return value
        if self._is_pointer:
            pointee = np.dtype(np.int8) if self._numpy == np.bool_ else self._numpy
            return Tensor(Pointer(int(value), (), (), pointee, self.name), self._spec)
        if self._numpy.kind in "iu" and not np.iinfo(self._numpy).min <= value <= np.iinfo(self._numpy).max:
            raise LaunchRefused(self._kernel, f"{self.name}={value} does not fit in {self._type}")
        wide = self._numpy if self._numpy.kind in "iub" or self._numpy == np.float64 else np.dtype(np.float32)
        return Tensor(Value(convert(np.array(value).astype(wide), self._numpy)[()], ()), self._spec)


def _dtype(type: str) -> Any:
    """Triton's dtype of a signature's type, as "i32" or "bf16"; None for an unknown one."""
    kind = type.rstrip("0123456789")
    name = "int1" if type in ("i1", "u1") else _DTYPES[kind] + type[len(kind) :] if kind in _DTYPES else type
    return tl.dtype(name) if name in NUMPY else None


def _tuples(parameters: tuple[Parameter, ...]) -> dict[str, int]:
    """Length of each tuple parameter."""
    lengths: dict[str, int] = {}
    for parameter in parameters:
        name, dot, _ = parameter.name.partition(".")
        if dot:
            lengths[name] = lengths.get(name, 0) + 1
    return lengths


def _empty_tuples(variant: Variant, tuples: Mapping[str, int], constants: Mapping[str, Any]) -> dict[str, Any]:
    """Tuple parameters of no elements, which the variant has no entry for."""
    declared = variant.kernel.parameters
    return {n: () for n, kind in declared.items() if kind == "ints" and n not in tuples and n not in constants}


def _where(error: BaseException) -> str:
    """The error, and the line of the kernel it comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THE_KERNELS)]
    line = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}: {error}{line}" if not isinstance(error, AccessError) else f"{error}{line}"


_NOT_THE_KERNELS = (os.path.dirname(__file__), os.path.dirname(triton.__file__))
