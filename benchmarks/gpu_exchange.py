"""DLPack between this library and torch, CuPy, JAX and numpy on an NVIDIA GPU: addresses, values, order, lifetimes.

    python benchmarks/gpu_exchange.py [--json FILE]

Each check is named and stands alone; exit status 1 when one fails.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def ours(*shape: int) -> Any:
    return nbx.arange(float(np.prod(shape)), device="cuda").view(shape)


@check
def torch_shares_our_memory() -> None:
    import torch

    x = ours(3, 4)
    t = torch.from_dlpack(x)
    assert t.data_ptr() == x.ptr and t.shape == (3, 4)
    assert torch.from_dlpack(x[::2, 1:]).tolist() == x[::2, 1:].tolist()
    t += 1
    torch.cuda.synchronize()
    assert x.numpy().tolist() == (np.arange(12).reshape(3, 4) + 1).tolist()


@check
def torch_memory_is_used_in_place() -> None:
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool):
        t = torch.ones(5, 6, device="cuda", dtype=dtype)[::2]
        x = nbx.from_dlpack(t)
        assert x.ptr == t.data_ptr() and x.strides == t.stride() and x.numpy().astype(float).sum() == 18


@check
def work_of_a_slow_producer_is_waited_for() -> None:
    import torch

    side = torch.cuda.Stream()
    for _ in range(10):
        t = torch.zeros(1 << 22, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            t += 7
            x = nbx.from_dlpack(t)
            y = x + 1
        assert (y.numpy() == 8).all()


@check
def a_consumer_sees_our_finished_work() -> None:
    import torch

    for _ in range(10):
        x = nbx.ones((1 << 22,), device="cuda")
        for _ in range(50):
            x = x + 1
        assert (torch.from_dlpack(x) == 51).all().item()


@check
def memory_lives_as_long_as_its_readers() -> None:
    import torch

    t = torch.full((1 << 20,), 3.0, device="cuda")
    x = nbx.from_dlpack(t)
    del t
    gc.collect()
    for _ in range(20):
        torch.zeros(1 << 20, device="cuda")
    assert (x.numpy() == 3).all()
    y = torch.from_dlpack(nbx.full((1 << 20,), 5.0, device="cuda"))
    gc.collect()
    for _ in range(20):
        nbx.zeros((1 << 20,), device="cuda")
    nbx.device("cuda").synchronize()
    assert (y == 5).all().item()


@check
def cupy_both_ways() -> None:
    import cupy

    x = ours(3, 4)
    c = cupy.from_dlpack(x)
    assert c.data.ptr == x.ptr and (cupy.asnumpy(c) == x.numpy()).all()
    back = nbx.from_dlpack(c * 2)
    assert (back.numpy() == x.numpy() * 2).all()


@check
def jax_both_ways() -> None:
    import jax

    x = ours(3, 4)
    j = jax.dlpack.from_dlpack(x)
    assert (np.asarray(j) == x.numpy()).all()
    back = nbx.from_dlpack(j + 1)
    assert (back.numpy() == x.numpy() + 1).all()


@check
def numpy_gets_a_copy_on_the_host() -> None:
    x = ours(3, 4)
    assert (np.from_dlpack(x, device="cpu") == x.numpy()).all()
    try:
        np.from_dlpack(x)
    except (BufferError, RuntimeError):
        pass
    else:
        raise AssertionError("numpy took device memory for the host's")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    results = {}
    for function in CHECKS:
        try:
            function()
            results[function.__name__] = "passed"
        except Exception as error:  # the next check still counts
            results[function.__name__] = f"{type(error).__name__}: {error}"[:300]
        print(f"{function.__name__:44} {results[function.__name__]}")
    if options.json:
        options.json.write_text(json.dumps({"gpu": nbx.device("cuda").info.name, "checks": results}, indent=2) + "\n")
    return int(any(result != "passed" for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
