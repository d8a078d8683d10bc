"""The suite's kernels as they are declared, their specialisations, and a memory block to launch them on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.backend.contract import Context, Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel, KernelFunction

Array = np.ndarray[Any, Any]

_SOURCE = "nbxtensor.conformance.kernels"


def _kernel(name: str, **parameters: str) -> Kernel:
    return Kernel(_SOURCE, name, parameters)


COPY = _kernel("copy", to="ptr", source="ptr", n="int", BLOCK="const")
STORE_VALUE = _kernel("store_value", to="ptr", value="operand")
STORE_FLAG = _kernel("store_flag", to="ptr", flag="u1")
ADD_VALUE = _kernel("add_value", to="ptr", source="ptr", value="operand", n="int", BLOCK="const")
SUBTRACT = _kernel("subtract", to="ptr", a="ptr", b="ptr", n="int", BLOCK="const")
GATHER_STRIDE = _kernel("gather_stride", to="ptr", source="ptr", step="int", n="int", BLOCK="const")
COPY_2D = _kernel("copy_2d", to="ptr", source="ptr", shape="ints", strides="ints", BLOCK="const")
APPLY = _kernel("apply", to="ptr", source="ptr", n="int", FUNCTION="const", BLOCK="const")
PROGRAM_IDS = _kernel("program_ids", to="ptr")
ROW_SUM = _kernel("row_sum", to="ptr", source="ptr", columns="int", BLOCK="const")
ROW_MAX = _kernel("row_max", to="ptr", source="ptr", columns="int", BLOCK="const")
DOT = _kernel("dot", to="ptr", a="ptr", b="ptr", K="int", M="const", N="const", BLOCK_K="const")
ITERATE = _kernel("iterate", to="ptr", steps="i32")
COPY_AFTER = _kernel("copy_after", to="ptr", source="ptr", delay="ptr", steps="i32")
COPY_TILE = _kernel("copy_tile", to="ptr", source="ptr", rows="i32", columns="i32", BLOCK="const")

KERNELS = tuple(value for value in list(vars().values()) if isinstance(value, Kernel))

TWICE = KernelFunction(_SOURCE, "twice")
SQUARE = KernelFunction(_SOURCE, "square")


def variant(
    kernel: Kernel,
    types: Mapping[str, str],
    constants: Mapping[str, Hashable] | None = None,
    *,
    folded: Iterable[str] = (),
    divisible: Iterable[str] = (),
    **options: Hashable,
) -> Variant:
    """A specialisation written out by hand. ``types`` gives Triton's type of every non-constexpr parameter in order, an
    element of a tuple as ``name.0``; ``folded`` names those that equal 1 and are not kept, ``divisible`` those that are
    multiples of 16."""
    gone = frozenset(folded)
    return Variant(
        kernel,
        tuple(Parameter(name, type, name not in gone) for name, type in types.items()),
        tuple((constants or {}).items()),
        tuple((name, "tt.divisibility", 16) for name in divisible),
        tuple(options.items()),
    )


class Block(NamedTuple):
    """A device allocation from ``offset`` bytes on: what a launch binds, with a host's way in and out."""

    context: Context
    address: int
    nbytes: int
    offset: int = 0

    @property
    def ptr(self) -> int:
        return self.address + self.offset

    @property
    def extent(self) -> tuple[int, int]:
        return self.address, self.nbytes

    def at(self, offset: int) -> Block:
        """The same allocation from ``offset`` bytes on."""
        return self._replace(offset=offset)

    def write(self, array: Array, stream: int | None = None) -> None:
        array = np.ascontiguousarray(array)
        self.context.copy_in(self.ptr, array.ctypes.data, array.nbytes, stream)

    def read(self, dtype: Any = np.uint8, count: int = -1, stream: int | None = None) -> Array:
        """``count`` elements, -1: all to the end."""
        dtype = np.dtype(dtype)
        array = np.empty((self.nbytes - self.offset) // dtype.itemsize if count < 0 else count, dtype)
        self.context.copy_out(array.ctypes.data, self.ptr, array.nbytes, stream)
        return array


class Memory:
    """The allocations of one test, freed together."""

    def __init__(self, context: Context):
        self.context = context
        self._addresses: list[int] = []

    def block(self, nbytes: int) -> Block:
        """Uninitialised."""
        address = self.context.allocate(nbytes)
        self._addresses.append(address)
        return Block(self.context, address, nbytes)

    def of(self, array: Array) -> Block:
        """A block that holds the array, written on the context's own stream."""
        block = self.block(array.nbytes)
        block.write(array)
        return block

    def filled(self, nbytes: int, byte: int) -> Block:
        block = self.block(nbytes)
        self.context.fill(block.address, byte, nbytes)
        return block

    def release(self) -> None:
        self.context.synchronize()
        while self._addresses:
            self.context.free(self._addresses.pop())


class LoadedKernel:
    """A variant compiled and loaded on a context. Called with its grid and a `Block` or number for each parameter."""

    def __init__(self, context: Context, variant: Variant):
        self.context = context
        self.artifact = context.compile(variant)
        self.module = context.load(self.artifact)

    def __call__(self, grid: tuple[int, int, int], *arguments: Block | int | float, stream: int | None = None) -> None:
        blocks = tuple(a for a in arguments if isinstance(a, Block))
        values = tuple(a.ptr if isinstance(a, Block) else a for a in arguments)
        self.context.launch(self.module, grid, values, stream, blocks)
