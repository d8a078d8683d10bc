"""What only a GPU with much memory shows (40 GiB): tensors past 2**31 elements, memory's books, threads, a relaunch.

    python benchmarks/gpu_proof.py [--json FILE]

Each check is named and stands alone; exit status 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx
from nbxtensor.backend import launcher
from nbxtensor.errors import OutOfMemory

BIG = (1 << 31) + 4096 * 3  # elements, past what 32-bit offsets reach
CHECKS: list[Callable[[Any], None]] = []


def check(function: Callable[[Any], None]) -> Callable[[Any], None]:
    CHECKS.append(function)
    return function


def ends(x: Any) -> np.ndarray[Any, Any]:
    """The first and the last elements of a long vector."""
    return np.concatenate([x[:5].numpy(), x[-5:].numpy()])


@check
def elementwise(device: Any) -> None:
    x = nbx.full((BIG,), 3, dtype="int8", device=device)
    x[-2] = 7
    assert (ends(x + x) == [6] * 8 + [14, 6]).all()
    assert (ends(x * 2) == [6] * 8 + [14, 6]).all()
    assert (ends(x > 5) == [False] * 8 + [True, False]).all()


@check
def strided_copy(device: Any) -> None:
    x = nbx.full((BIG // 4096, 4096), 1, dtype="int8", device=device)
    x[-1, :] = 5
    x[:, -1] = 9
    y = x.T.contiguous()
    assert (y[0, -3:].numpy() == [1, 1, 5]).all() and (y[-1, :3].numpy() == 9).all() and y[-2, -1].item() == 5
    z = x[::-1, ::2].contiguous()
    assert (z[0, :3].numpy() == 5).all() and z[-1, -1].item() == 1


@check
def reductions(device: Any) -> None:
    x = nbx.full((BIG,), 1, dtype="int8", device=device)
    x[-3] = 100
    assert x.sum().item() == BIG + 99
    assert x.argmax().item() == BIG - 3
    assert x.amax().item() == 100


@check
def softmax_of_far_rows(device: Any) -> None:
    x = nbx.zeros((BIG // 1024, 1024), dtype="float16", device=device)
    x[-1, 7] = 5.0
    y = nbx.softmax(x, -1)
    exact = np.exp(np.where(np.arange(1024) == 7, 5.0, 0.0))
    assert np.allclose(y[-1].numpy().astype(np.float64), exact / exact.sum(), rtol=2e-3, atol=1e-7)
    assert np.allclose(y[0].numpy().astype(np.float64), 1 / 1024, rtol=1e-3)


@check
def embedding_of_far_rows(device: Any) -> None:
    rows = BIG // 384 + 1
    table = nbx.zeros((rows, 384), dtype="float16", device=device)
    table[-1] = 2.0
    found = nbx.embedding(table, nbx.from_numpy(np.array([0, rows - 1, 1]), device)).numpy()
    assert (found[1] == 2).all() and (found[[0, 2]] == 0).all()


@check
def matmul_of_far_rows(device: Any) -> None:
    a = nbx.zeros((BIG // 2048, 2048), dtype="float16", device=device)
    a[-1, :] = 1.0
    b = nbx.ones((2048, 16), dtype="float16", device=device)
    product = nbx.mm(a, b)
    assert (product[-1].numpy() == 2048).all() and (product[0].numpy() == 0).all()


@check
def memory_books(device: Any) -> None:
    sizes = np.random.default_rng(0).integers(1, 1 << 16, 1000)
    before = device.pool.statistics().live
    for n in sizes:
        x = nbx.ones((int(n),), device=device)
        (x + x) * x
    del x
    device.synchronize()
    assert device.pool.statistics().live == before
    free, total = device.context.memory_info()
    try:
        nbx.empty((total * 2,), dtype="int8", device=device)
    except OutOfMemory as error:
        assert error.requested >= total * 2 and error.total == total
    else:
        raise AssertionError("an absurd request was served")
    assert (nbx.ones((3,), device=device) + 1).numpy().tolist() == [2, 2, 2]
    del free
    big = nbx.empty((8 << 30,), dtype="int8", device=device)
    held = device.context.memory_info()[0]
    del big
    device.synchronize()
    assert device.pool.empty_cache() >= 8 << 30
    device.synchronize()
    assert device.context.memory_info()[0] >= held + (7 << 30)


@check
def threads(device: Any) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(500):
            a = rng.normal(size=rng.integers(1, 2000)).astype(np.float32)
            found = (nbx.from_numpy(a, device) * 2 + 1).numpy()
            if not np.allclose(found, a * 2 + 1):
                wrong.append((seed, a.shape))

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, wrong[:3]


@check
def relaunch(device: Any) -> None:
    x = nbx.from_numpy(np.random.default_rng(0).normal(size=(300, 700)).astype(np.float32), device)
    seen: list[Any] = []
    launcher.set_launch_recorder(lambda *launch: seen.append(launch))
    y = nbx.softmax(x, -1)
    launcher.set_launch_recorder(None)
    first = y.numpy()
    y.fill_(0.0)
    for prepared, grid, params, extents in seen:
        prepared.launch(grid, params, extents)
    assert (y.numpy() == first).all()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    device = nbx.device("cuda")
    results = {}
    for function in CHECKS:
        start = time.perf_counter()
        try:
            function(device)
            results[function.__name__] = "passed"
        except Exception as error:  # the next check still counts
            results[function.__name__] = f"{type(error).__name__}: {error}"[:500]
        device.pool.empty_cache()
        print(f"{function.__name__:24} {time.perf_counter() - start:6.1f} s  {results[function.__name__]}")
    if options.json:
        options.json.write_text(json.dumps({"gpu": device.info.name, "checks": results}, indent=2) + "\n")
    return int(any(result != "passed" for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
