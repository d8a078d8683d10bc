"""How a kernel is declared before Triton is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

#: What a parameter can be declared as.
#: "ptr"        a tensor; the pointer's dtype and its divisibility by 16 are specialised
#: "int"        an integer, specialised: 1 is folded into the code, divisibility by 16 and 64-bit values make variants
#: "ints"       a tuple of integers; each element is specialised as an "int"
#: "i32" "i64" "u64" "fp32" "fp64" "u1"   a number of exactly this type, never specialised
#: "operand"    a tensor, or a number given as a `Scalar` of its own type
#: "const"      a constexpr; a Triton function is passed as a `KernelFunction`
KINDS = frozenset({"ptr", "int", "ints", "i32", "i64", "u64", "fp32", "fp64", "u1", "operand", "const"})


class KernelFunction(NamedTuple):
    """A ``triton.jit`` function that a kernel takes as a constexpr, named so that it hashes without Triton."""

    module: str
    name: str

    def jit(self) -> Any:
        """The function; imports its module, hence Triton."""
        return getattr(importlib.import_module(self.module), self.name)


class TritonDType(NamedTuple):
    """A dtype that a kernel takes as a constexpr, by Triton's short name ("fp32"), named so that it hashes without
    Triton."""

    name: str

    def jit(self) -> Any:
        """The ``triton.language.dtype``; imports Triton."""
        import triton.language as tl

        kind = self.name.rstrip("0123456789")
        spelled = {"i": "int", "u": "uint"}.get(kind, kind)
        return tl.dtype(spelled + self.name[len(kind) :])


class Scalar(NamedTuple):
    """A number for an "operand" parameter: ``type`` is "fp32", "fp64", "i32", "i64" or "u64"."""

    value: int | float
    type: str


class Kernel:
    """A kernel family's entry point: its name, its parameters in order, and the module that holds its Triton source.

    ``parameters`` maps each parameter of the Triton function, in its order, to one of `KINDS`. A test compares it with
    the function's own signature.
    """

    __slots__ = ("module", "name", "parameters")
    parameters: Mapping[str, str]

    def __init__(self, module: str, name: str, parameters: Mapping[str, str]):
        unknown = sorted(set(parameters.values()) - KINDS)
        if unknown:
            raise ValueError(f"kernel {name}: parameter kinds {unknown} are not of {sorted(KINDS)}")
        self.module, self.name, self.parameters = module, name, MappingProxyType(dict(parameters))

    def jit(self) -> Any:
        """The ``triton.jit`` function; imports its module, hence Triton."""
        return getattr(importlib.import_module(self.module), self.name)

    def __repr__(self) -> str:
        return f"Kernel({self.module}:{self.name})"
