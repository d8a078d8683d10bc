"""What a user may write, for type checkers alone: the session ``types`` checks it, nothing runs it."""

from __future__ import annotations

import numpy as np
from typing_extensions import assert_type

import nbxtensor as nbx
from nbxtensor.tensor import NBXTensor


def operators(t: nbx.Tensor, n: int) -> nbx.Tensor:
    assert_type(t.exp() + t.softmax(-1), NBXTensor)
    assert_type(1 + t * 2.5 - n, NBXTensor)
    assert_type((1 - t) / t // 2 % 3, NBXTensor)
    assert_type(t @ t.T, NBXTensor)
    assert_type(-abs(t), NBXTensor)
    assert_type((t == 0) | ~(t < 1), NBXTensor)
    t[0, ..., ::2] = 1.5
    t[1:] = t[:1]
    t += 1
    t.fill_(0).copy_(t.new_full((2, 3), n))
    return t.where(t > 0, 0).sum(dim=(0, 1), keepdim=True, dtype="float32")


def host(t: nbx.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    assert_type(t.shape, tuple[int, ...])
    assert_type(t.float().to("cpu").numel(), int)
    for row in t:
        assert_type(row, NBXTensor)
    float(t[0]), int(t[0]), bool(t[0]), complex(t[0]), range(10)[t[0]], np.asarray(t)
    return t.int().reshape(-1, 2).numpy()


def functions(t: nbx.Tensor) -> None:
    assert_type(nbx.add(t, 1), NBXTensor)
    assert_type(nbx.cat([t, nbx.zeros_like(t)], dim=1), NBXTensor)
    assert_type(nbx.rms_norm(t, 8, weight=nbx.ones(8, device=t.device)), NBXTensor)
    assert_type(nbx.exp(nbx.arange(3, dtype=nbx.float32)), NBXTensor)


def refused(t: nbx.Tensor) -> None:
    t.exp(1)  # type: ignore[call-arg]
    t + "text"  # type: ignore[operator]
    t.no_such_method()  # type: ignore[attr-defined]
    t.softmax(dim="last")  # type: ignore[arg-type]
