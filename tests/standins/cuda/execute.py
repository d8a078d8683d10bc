"""Runs the stand-in's kernels with the reference driver's interpreter.

What a kernel is comes from the hash of its module, what it works on from the bytes that the driver packed. Memory is
the stand-in's allocations, which the interpreter checks every access against.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbxtensor.backend.contract import Artifact, Variant
from nbxtensor.backend.reference.driver import driver as reference
from nbxtensor.errors import DeviceError

ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719

_TYPES: dict[str, Any] = {
    "i1": ctypes.c_bool,
    "u1": ctypes.c_bool,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
_Sizes = ctypes.c_uint * 3
_RUNNER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.POINTER(_Sizes),
    ctypes.POINTER(_Sizes),
    ctypes.c_uint,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int,
)


class Launch(ctypes.Structure):
    """The last launch as the stand-in got it."""

    _fields_ = [
        ("grid", _Sizes),
        ("block", _Sizes),
        ("shared", ctypes.c_uint),
        ("cluster", _Sizes),
        ("cooperative", ctypes.c_int),
        ("policy", ctypes.c_int),
        ("dependent", ctypes.c_int),
    ]


class Standin:
    """A loaded stand-in: its controls and the kernels that it knows. ``faults`` are exceptions of failed kernels."""

    def __init__(self, path: Path):
        self.library = ctypes.CDLL(str(path))
        self.library.standin_hash.restype = ctypes.c_uint64
        for name in ("calls", "live", "legacy_uses", "peer_rights", "allocations"):
            getattr(self.library, f"standin_{name}").restype = ctypes.c_long
        self.faults: list[Exception] = []
        self.runs = 0
        self._context = reference.open(0)
        self._variants: dict[int, Variant] = {}
        self._kernels: dict[int, Any] = {}
        self._taught: dict[int, Callable[[list[int]], None]] = {}
        self._registered: set[tuple[int, int]] = set()
        self._runner = _RUNNER(self._run)
        self.library.standin_run_with(self._runner)

    def know(self, variant: Variant, artifact: Artifact) -> None:
        """From here on the binary of the artifact stands for the variant. Variants that compile to one binary do alike
        with the same bytes, as with signed and unsigned values: the first serves all."""
        self._variants.setdefault(self.library.standin_hash(artifact.payload), variant)

    def teach(self, artifact: Artifact, run: Callable[[list[int]], None]) -> None:
        """From here on the binary of the artifact stands for a function of the addresses of its arguments."""
        self._taught[self.library.standin_hash(artifact.payload)] = run

    def fail(self, function: str, nth: int = 1, code: int = 999) -> None:
        """The nth call of the function from now on returns ``code``; 0 takes that back."""
        self.library.standin_fail(function.encode(), ctypes.c_long(nth), code)

    def calls(self, function: str) -> int:
        return int(self.library.standin_calls(function.encode()))

    def live(self) -> dict[str, int]:
        """How many objects of each kind the driver holds."""
        kinds = ("allocations", "host", "streams", "events", "modules", "graphs", "executables", "contexts")
        return {kind: int(self.library.standin_live(kind.encode())) for kind in kinds}

    def last_launch(self) -> Launch:
        out = Launch()
        self.library.standin_last_launch(ctypes.byref(out))
        return out

    def _run(self, key: int, name: bytes, grid: Any, block: Any, shared: int, parameters: Any, count: int) -> int:
        try:
            if key in self._taught:
                self._taught[key](parameters[:count])
                return 0
            variant = self._variants[key]
            if key not in self._kernels:
                self._kernels[key] = self._context.load(self._context.compile(variant))
            kept = sum(parameter.kept for parameter in variant.parameters)
            assert count == kept + 2, f"{count} parameters for {kept} and two of scratch memory"
            packed = iter(parameters[:kept])
            values = tuple(_read(p.type, next(packed)) if p.kept else 1 for p in variant.parameters)
            self._register()
            self._context.launch(self._kernels[key], tuple(grid.contents), values, None, ())
            self.runs += 1
        except Exception as error:  # an exception cannot pass through C
            self.faults.append(error)
            traceback.print_exc()
            return ILLEGAL_ADDRESS if isinstance(error, DeviceError) else LAUNCH_FAILED
        return 0

    def _register(self) -> None:
        """Makes the interpreter's memory what the stand-in has allocated now."""
        room = 1 << 16
        table = (ctypes.c_uint64 * (2 * room))()
        count = self.library.standin_allocations(table, ctypes.c_long(room))
        assert count <= room
        live = set(zip(table[: 2 * count : 2], table[1 : 2 * count : 2], strict=True))
        for address, nbytes in self._registered - live:
            self._context.unregister(address, nbytes)
        for address, nbytes in live - self._registered:
            self._context.register(address, nbytes)
        self._registered = live


def _read(type: str, address: int) -> int | float:
    kind = ctypes.c_uint64 if type.startswith("*") else _TYPES[type]
    value: int | float = kind.from_address(address).value
    return value


def watch(standin: Standin) -> None:
    """Lets the stand-in know every kernel that this process compiles for a GPU."""
    from nbxtensor.backend import compiler

    compile_gpu = compiler.compile_gpu

    def compile_and_tell(variant: Variant, target: Any) -> Artifact:
        artifact = compile_gpu(variant, target)
        standin.know(variant, artifact)
        return artifact

    compiler.compile_gpu = compile_and_tell
