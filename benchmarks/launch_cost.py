"""What one eager operator call costs on the host, allocation of its result included, when the device does nothing.

    python benchmarks/launch_cost.py [--json FILE]

Three drivers: `meta`, whose launch is one Python call; `packing`, which packs the arguments and calls a C function of
cuLaunchKernel's signature that returns at once, through cffi's ABI mode as a vendor's driver does (needs gcc); and
beside them the bare C call. Figures are microseconds, the median of several runs of many calls."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import timeit
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import cffi
import numpy as np

import nbxtensor as nbx
from nbxtensor.backend import meta, runtime

_SIGNATURE = (
    "int launch(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**)"
)
_FORMATS = {"i32": "i", "i64": "q", "u64": "Q", "fp32": "f", "fp64": "d", "u1": "?"}


def build(folder: Path) -> tuple[Any, Any]:
    """A library whose ``launch`` does nothing, opened through cffi."""
    source, library = folder / "noop.c", folder / "noop.so"
    names = iter("abcdefghijk")
    body = ", ".join(f"{part} {next(names)}" for part in _SIGNATURE[len("int launch(") : -1].split(", "))
    source.write_text(f"int launch({body}) {{ return 0; }}\n")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    ffi = cffi.FFI()
    ffi.cdef(_SIGNATURE + ";")
    return ffi, ffi.dlopen(str(library))


def packing_device(ffi: Any, library: Any) -> runtime.Device:
    """A meta device whose launch packs every value into a per-thread arena and calls the library."""
    device = runtime.Device(meta.driver)
    context: Any = device.context

    class Loaded:
        def __init__(self, parameters: Any):
            kept = [p for p in parameters if p.kept]
            formats = ["Q" if p.type.startswith("*") else _FORMATS[p.type] for p in kept] + ["Q", "Q"]
            packer, offsets, at = struct.Struct("<" + "".join(formats)), [], 0
            for letter in formats:
                offsets.append(at)
                at += struct.calcsize("<" + letter)
            positions = [i for i, p in enumerate(parameters) if p.kept]
            self.arenas = threading.local()
            self.pack, self.size, self.offsets, self.positions = packer.pack_into, at, offsets, positions
            self.whole = positions == list(range(len(parameters)))

        def arena(self) -> tuple[Any, Any, Any]:
            memory = ffi.new("char[]", self.size)
            base = ffi.cast("char*", memory)
            self.arenas.arena = (ffi.buffer(memory), ffi.new("void*[]", [base + at for at in self.offsets]), memory)
            found: tuple[Any, Any, Any] = self.arenas.arena
            return found

    call, null, function = library.launch, ffi.NULL, ffi.cast("void*", 1)

    def launch(loaded: Any, grid: Any, values: Any, stream: Any, tensors: Any) -> None:
        try:
            view, pointers, _ = loaded.arenas.arena
        except AttributeError:
            view, pointers, _ = loaded.arena()
        if not loaded.whole:
            values = [values[i] for i in loaded.positions]
        loaded.pack(view, 0, *values, 0, 0)
        x, y, z = grid
        if call(function, x, y, z, 128, 1, 1, 0, null, pointers, null):
            raise RuntimeError("the no-op library failed")

    context.load = lambda artifact: Loaded(artifact.parameters)
    context.launch = launch
    return device


def microseconds(call: Callable[[], Any], number: int, repeats: int) -> float:
    """The median over ``repeats`` of the mean time of ``number`` calls."""
    call()
    return statistics.median(timeit.repeat(call, number=number, repeat=repeats)) / number * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--number", type=int, default=50_000, help="calls a run")
    parser.add_argument("--repeats", type=int, default=9, help="runs, of which the median counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ffi, library = build(Path(folder))
        null, function, pointers = ffi.NULL, ffi.cast("void*", 1), ffi.new("void*[8]")
        launch = library.launch

        def bare() -> None:
            launch(function, 4, 1, 1, 128, 1, 1, 0, null, pointers, null)

        figures = {"bare cffi call": microseconds(bare, options.number, options.repeats)}
        for title, device in (
            ("no-op driver", runtime.device("meta")),
            ("packing driver", packing_device(ffi, library)),
        ):
            a, b = nbx.empty((64, 64), device=device), nbx.empty((64, 64), device=device)
            calls: dict[str, Callable[[], Any]] = {
                "a + b": lambda a=a, b=b: a + b,
                "a * 2.0": lambda a=a: a * 2.0,
                "exp(a)": lambda a=a: nbx.exp(a),
                "a @ b": lambda a=a, b=b: a @ b,
            }
            for name, call in calls.items():
                figures[f"{title}: {name}"] = microseconds(call, options.number, options.repeats)
    machine = {
        "processor": processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cffi": cffi.__version__,
        "nbxtensor": nbx.__version__,
        "date": date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    for name, value in figures.items():
        print(f"{name:32} {value:7.2f} us")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine, "microseconds": figures}, indent=2) + "\n")
    return 0


def processor() -> str:
    """The processor's name, with the number of cores this process may use."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return platform.processor()


if __name__ == "__main__":
    raise SystemExit(main())
