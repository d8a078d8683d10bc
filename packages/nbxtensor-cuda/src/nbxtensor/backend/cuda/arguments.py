"""How a kernel's arguments lie in an argument arena, checked against the parameters that its binary states."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from nbxtensor.backend.contract import Artifact, Parameter, TensorDescriptor
from nbxtensor.backend.cuda import cubin, descriptors
from nbxtensor.backend.cuda.descriptors import Expansion, Slots
from nbxtensor.backend.cuda.library import Library
from nbxtensor.backend.cuda.session import SLOTS
from nbxtensor.errors import LaunchRefused, NBXError

#: struct's code and the size of a parameter by Triton's type; pointers are addresses.
_FORMATS = {
    "i1": ("B", 1), "u1": ("B", 1), "i8": ("b", 1), "u8": ("B", 1), "i16": ("h", 2), "u16": ("H", 2), "fp16": ("e", 2),
    "i32": ("i", 4), "u32": ("I", 4), "fp32": ("f", 4), "i64": ("q", 8), "u64": ("Q", 8), "fp64": ("d", 8),
}  # fmt: skip


class Layout:
    """The packing of a kernel's values, each into 8-byte slots of its own.

    ``format`` is struct's, without the two scratch pointers that follow; ``slots`` the first slot of each parameter of
    the binary, those two included; ``plain`` says that these are 0, 1, 2, ... For the generated launch function:
    ``names`` unpacks the values, ``packed`` lists what is packed, and ``scope`` holds what they refer to.
    """

    def __init__(self, kernel: str, parameters: tuple[Parameter, ...], expansions: dict[int, Expansion]):
        self.kernel, self.parameters, self._expansions = kernel, parameters, expansions
        sizes = [part for i, p in enumerate(parameters) if p.kept for part in self._parts(i, p)]
        self.format = "".join(_slot(*part) for part in sizes)
        slots = [0]
        for _, size in [*sizes, ("Q", 8)]:
            slots.append(slots[-1] + (size + 7) // 8)
        self.slots = tuple(slots)
        self.plain = self.slots == tuple(range(len(slots)))
        self.names = f"[{', '.join(f'v{i}' for i in range(len(parameters)))}]"
        texts = [f"*d{i}(v{i})" if i in expansions else f"v{i}" for i, p in enumerate(parameters) if p.kept]
        self.packed = ", ".join(texts)
        self.scope = {f"d{i}": expansion.parts for i, expansion in expansions.items()}

    def _parts(self, index: int, parameter: Parameter) -> Slots:
        return self._expansions[index].slots if index in self._expansions else [_format(parameter)]

    def sizes(self) -> list[tuple[str, int]]:
        """Name and size in bytes of each parameter that the binary must have, without the scratch pointers."""
        kept = [(i, p) for i, p in enumerate(self.parameters) if p.kept]
        return [(p.name, size) for i, p in kept for _, size in self._parts(i, p)]

    def refuse(self, values: tuple[Any, ...], error: Exception) -> NoReturn:
        """Names the value for which packing failed. An error of this library passes as it is."""
        if isinstance(error, NBXError):
            raise error
        if len(values) != len(self.parameters):
            why = f"{len(values)} values for {len(self.parameters)} parameters"
            raise LaunchRefused(self.kernel, why) from error
        for i, (parameter, value) in enumerate(zip(self.parameters, values, strict=True)):
            try:
                if i in self._expansions and not isinstance(value, TensorDescriptor):
                    raise TypeError("it must be a TensorDescriptor")
                if parameter.kept and i not in self._expansions:
                    struct.pack("=" + _format(parameter)[0], value)
            except (struct.error, OverflowError, TypeError, ValueError) as refusal:
                why = f"{parameter.name}={value!r} is not a value of type {parameter.type}: {refusal}"
                raise LaunchRefused(self.kernel, why) from refusal
        raise error


def layout(cuda: Library, artifact: Artifact) -> Layout:
    """The layout of an artifact's parameters. Raises `LaunchRefused` unless they, and Triton's two pointers to scratch
    memory behind them, are those that the binary states."""
    name = artifact.entry
    try:
        binary = cubin.parameters(artifact.payload, name)
    except ValueError as error:
        raise LaunchRefused(name, str(error)) from error
    unknown = sorted({p.type for p in artifact.parameters if p.kept and not _is_known(p)})
    if unknown:
        raise LaunchRefused(name, f"parameters of type {', '.join(unknown)} cannot be passed by value")
    found = Layout(name, artifact.parameters, _expansions(cuda, artifact))
    wanted = found.sizes()
    if len(binary) != len(wanted) + 2:
        why = f"the binary has {len(binary)} parameters; the artifact keeps {len(wanted)}, and 2 are for scratch memory"
        raise LaunchRefused(name, why)
    if found.slots[-1] >= SLOTS:
        raise LaunchRefused(name, f"its parameters take {8 * found.slots[-1]} bytes, at most {8 * SLOTS} can be passed")
    for (parameter, size), stated in zip(wanted, binary, strict=False):
        if size != stated.size:
            why = f"{parameter} has {size} bytes by its type, the binary's parameter {stated.size}"
            raise LaunchRefused(name, why)
    return found


def _expansions(cuda: Library, artifact: Artifact) -> dict[int, Expansion]:
    """The descriptor parameters by index."""
    indices = [i for i, p in enumerate(artifact.parameters) if p.kept and descriptors.is_descriptor(p)]
    if not indices:
        return {}
    metas = artifact.metadata["tensordesc_meta"] or [None] * len(indices)
    flags = descriptors.flags_of(artifact.metadata["triton_version"])
    return {
        i: descriptors.expansion(cuda, artifact.entry, artifact.parameters[i], meta, flags)
        for i, meta in zip(indices, metas, strict=True)
    }


def _is_known(parameter: Parameter) -> bool:
    return parameter.type.startswith("*") or parameter.type in _FORMATS or descriptors.is_descriptor(parameter)


def _format(parameter: Parameter) -> tuple[str, int]:
    return ("Q", 8) if parameter.type.startswith("*") else _FORMATS[parameter.type]


def _slot(code: str, size: int) -> str:
    """struct's format of a value with the padding that fills its last slot."""
    return code + (f"{-size % 8}x" if size % 8 else "")
