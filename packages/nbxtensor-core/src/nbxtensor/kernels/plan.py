"""What one operator call does, said from specs alone: the outputs it allocates and the kernels it launches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from nbxtensor.backend.kernel_source import Kernel, KernelFunction, Scalar, TritonDType
from nbxtensor.dtype import DType
from nbxtensor.tensor import Spec


class Ref(NamedTuple):
    """A tensor or number of the call: ``kind`` "in" (argument), "out" (output), "work" (workspace), "value" (number) or
    "status" (the device's status word, two int64: a fault code and the value at fault).

    ``type`` is the Triton type of a value.
    """

    kind: str
    number: int
    type: str = ""


Argument = Ref | Scalar | KernelFunction | TritonDType | int | float | bool | str | tuple[int, ...] | None


class Step(NamedTuple):
    """One kernel launch of a plan: ``arguments`` by parameter name, ``options`` for the compiler (num_warps, ...)."""

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: Mapping[str, Argument]
    options: tuple[tuple[str, Hashable], ...] = ()


class Plan(NamedTuple):
    """What an operator call does. ``result`` is what it returns (all outputs by default); ``written`` the arguments it
    writes to; ``ranges`` the (low, high) that a value must lie in, those of the dtype, by the value's index; ``name``
    the operator's in the refusal of a value."""

    outputs: tuple[Spec, ...]
    steps: tuple[Step, ...]
    work: tuple[Spec, ...] = ()
    result: tuple[Ref, ...] | None = None
    written: tuple[int, ...] = ()
    ranges: Mapping[int, tuple[int, int, DType]] = {}
    name: str = "operator"
