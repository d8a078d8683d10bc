"""Host cost of launches on an NVIDIA GPU, beside torch in the same process and run.

    python benchmarks/gpu_launch.py [--json FILE]

Measured: a bare cuLaunchKernel through the same cffi library; eager operators with their output's allocation; a node of
a replayed graph; a first compile from the disk cache and a process's first result, each in fresh processes, less cuInit
and context creation. Microseconds unless said; medians of nine bursts, shorter than the launch queue, that
take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx
from nbxtensor.backend import launcher

BURST, REPEATS = 300, 9
_INIT = """
import ctypes, time
start = time.perf_counter()
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print("init", time.perf_counter() - start)
"""
_OURS = """
import numpy as np, nbxtensor as nbx
a = nbx.from_numpy(np.ones((64, 64), np.float32), device="cuda")
assert (a + a).numpy()[3, 5] == 2
"""
_TORCH = """
import numpy as np, torch
a = torch.from_numpy(np.ones((64, 64), np.float32)).cuda()
assert (a + a).cpu().numpy()[3, 5] == 2
"""
_COMPILE = """
import time, numpy as np, nbxtensor as nbx
a = nbx.from_numpy(np.ones((64, 64), np.float32), device="cuda")
import triton
start = time.perf_counter(); a + a; print("compile", time.perf_counter() - start)
"""


def bursts(calls: dict[str, Callable[[], Any]], wait: Callable[[], Any]) -> dict[str, float]:
    """Microseconds a call on the host. The subjects take turns, so that a drift of the machine meets all of them; the
    queue is empty before each burst and not full after it."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(200):
            call()
    for _ in range(REPEATS):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(BURST):
                call()
            times[name].append((time.perf_counter() - start) / BURST * 1e6)
    wait()
    return {name: statistics.median(measured) for name, measured in times.items()}


def eager() -> dict[str, float]:
    import torch

    device = nbx.device("cuda")
    context: Any = device.context
    a, b = (nbx.ones((64, 64), device=device) for _ in range(2))
    x, y = (nbx.ones(shape, dtype="float16", device=device) for shape in ((16, 64), (64, 16)))
    seen: list[Any] = []
    launcher.set_launch_recorder(lambda prepared, grid, params, extents: seen.append((prepared, grid, params)))
    kept = a + b
    launcher.set_launch_recorder(None)
    prepared, grid, params = seen[0]
    loaded, values = prepared.loaded, tuple(value for _, value in params)
    raw, stream = context._raw, context._handle(None)
    pointers = context._ffi.new("void *[]", 16)
    cells = [
        context._ffi.new("unsigned long long *", int(v)) for v, p in zip(values, prepared.artifact.parameters) if p.kept
    ]
    zero = context._ffi.new("unsigned long long *", 0)
    for i, cell in enumerate([*cells, zero, zero]):
        pointers[i] = cell
    threads, shared = loaded.shape.threads, loaded.shape.shared
    ta, tb = (torch.ones(64, 64, device="cuda") for _ in range(2))
    tx, ty = (torch.ones(shape, device="cuda", dtype=torch.float16) for shape in ((16, 64), (64, 16)))
    null = context._ffi.NULL
    calls: dict[str, Callable[[], Any]] = {
        "bare cuLaunchKernel": lambda: raw.cuLaunchKernel(
            loaded.function, *grid, threads, 1, 1, shared, stream, pointers, null
        ),
        "driver launch": lambda: context.launch(loaded, grid, values, None, ()),
        "a + b": lambda: a + b,
        "torch a + b": lambda: ta + tb,
        "a * 2.0": lambda: a * 2.0,
        "torch a * 2.0": lambda: ta * 2.0,
        "mm 16x64x16": lambda: nbx.mm(x, y),
        "torch mm 16x64x16": lambda: torch.mm(tx, ty),
    }
    with torch.inference_mode():
        found = bursts(calls, torch.cuda.synchronize)
    nodes = 1000
    side = context.create_stream()
    context.graph_begin(side)
    for _ in range(nodes):
        context.launch(loaded, grid, values, side, ())
    graph = context.graph_end(side)
    context.graph_launch(graph, side)
    context.synchronize(side)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        context.graph_launch(graph, side)
        context.synchronize(side)
        times.append((time.perf_counter() - start) / nodes * 1e6)
    found["graph node"] = statistics.median(times)
    del kept
    return found


def child(program: str, count: int = 5) -> tuple[float, list[float]]:
    """(median seconds of the whole process, what it printed as the last word)."""
    times, said = [], []
    for _ in range(count):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - start)
        if done.stdout.split():
            said.append(float(done.stdout.split()[-1]))
    return statistics.median(times), said


def processes() -> dict[str, float]:
    nothing, _ = child("pass")
    _, init = child(_INIT)
    child(_OURS, 1)  # fills the disk cache
    ours, _ = child(_OURS)
    torch, _ = child(_TORCH, 3)
    _, compiled = child(_COMPILE)
    lost = statistics.median(init) + nothing
    return {
        "interpreter start, s": nothing,
        "cuInit and context, s": statistics.median(init),
        "first result less start and init, s": ours - lost,
        "torch first result less start and init, s": torch - lost,
        "first compile from the disk cache, ms": statistics.median(compiled) * 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = {**eager(), **processes()}
    import torch
    import triton

    bare = figures["bare cuLaunchKernel"]
    ratios = {
        "a + b above the bare call, us (target 1.5)": figures["a + b"] - bare,
        "a + b over torch (target 0.70)": figures["a + b"] / figures["torch a + b"],
        "mm over torch (target 0.60)": figures["mm 16x64x16"] / figures["torch mm 16x64x16"],
        "graph node, us (target 1.1)": figures["graph node"],
        "first compile, ms (target 50)": figures["first compile from the disk cache, ms"],
        "start over torch (target 0.25)": figures["first result less start and init, s"]
        / figures["torch first result less start and init, s"],
    }
    machine = {
        "gpu": nbx.device("cuda").info.name,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "triton": triton.__version__,
        "torch": torch.__version__,
        "nbxtensor": nbx.__version__,
        "date": date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    for name, value in {**figures, **ratios}.items():
        print(f"{name:48} {value:10.3f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "figures": figures, "ratios": ratios}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
