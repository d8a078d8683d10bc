"""Offsets past 2**31 elements: every kernel family decides by the furthest element, and computes with 64 bits then."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend import compiler, launcher, runtime
from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import float32
from nbxtensor.kernels import elementwise
from nbxtensor.kernels.plan import Ref
from nbxtensor.tensor import NBXTensor, from_numpy, spec

Call = Callable[[Callable[..., NBXTensor]], Any]

# What is called on tensors without memory, and whether the first kernel that it launches needs 64 bits.
WIDE: dict[str, Call] = {
    "flat": lambda empty: empty(2**31) + 1,
    "a batch stride of 7864320, 319 times": lambda empty: empty(319, 7864320)[:, 0] + 1,
    "58 planes of 262144 rows": lambda empty: empty(58, 262144, 150)[..., ::75] + 1,
    "a negative stride": lambda empty: empty(3, 2**30)[::-1, ::2**29] + 1,
    "only the output is large": lambda empty: empty(4).expand(2**30, 4) + 1,
    "cast": lambda empty: empty(2**32).to("float16"),
    "writing": lambda empty: empty(3, 2**30)[:, :2].fill_(1),
    "arange": lambda empty: nbx.arange(2**31 + 5, dtype="int8", device="meta"),
    "a sum along a large stride": lambda empty: empty(3, 2**30)[:, ::2**29].sum(0),
    "a sum of many": lambda empty: empty(2**31 + 5).sum(),
    "argmax": lambda empty: empty(3, 2**30)[:, ::2**29].argmax(1),
    "softmax": lambda empty: empty(3, 2**30, dtype="float16")[:, ::2**29].softmax(),
    "softmax of many rows": lambda empty: empty(2**17, 2**15, dtype="float16").softmax(),
    "norm": lambda empty: nbx.rms_norm(empty(3, 2**30, dtype="float16")[:, ::2**29], 2, eps=1e-5),
    "a table of 2**32 elements": lambda empty: nbx.embedding(empty(2**16, 2**16), empty(3, dtype="int64")),
    "many rows picked": lambda empty: nbx.embedding(empty(2**14, 2**14), empty(2**18, dtype="int64")),
    "matmul": lambda empty: empty(2**16, 2**16) @ empty(2**16, 4),
    "a matmul's product": lambda empty: empty(2**16, 4) @ empty(4, 2**16),
}  # fmt: skip
NARROW: dict[str, Call] = {
    "flat": lambda empty: empty(2**30) + 1,
    "strided": lambda empty: empty(300, 7000000)[:, 0] + 1,
    "broadcast": lambda empty: empty(1).expand(2**20) + 1,
    "sum": lambda empty: empty(3, 2**29)[:, :: 2**28].sum(0),
    "argmax": lambda empty: empty(3, 2**29)[:, :: 2**28].argmax(1),
    "softmax": lambda empty: empty(2**10, 2**15, dtype="float16").softmax(),
    "norm": lambda empty: nbx.rms_norm(empty(2**10, 2**15, dtype="float16"), 2**15, eps=1e-5),
    "embedding": lambda empty: nbx.embedding(empty(2**14, 2**14), empty(2**10, dtype="int64")),
    "matmul": lambda empty: empty(2**12, 2**12) @ empty(2**12, 4),
}


def first_launch(call: Call) -> bool:
    """WIDE of the first kernel that the call launches on the device that executes nothing."""
    seen: list[bool] = []
    before = launcher.set_launch_recorder(lambda prepared, *_: seen.append(dict(prepared.variant.constants)["WIDE"]))
    try:
        call(lambda *shape, dtype="int8": nbx.empty(shape, dtype, "meta"))
    finally:
        launcher.set_launch_recorder(before)
    return seen[0]


@pytest.mark.parametrize("name", WIDE)
def test_far_elements_ask_for_64_bits(name: str) -> None:
    assert first_launch(WIDE[name]) is True


@pytest.mark.parametrize("name", NARROW)
def test_near_elements_do_not(name: str) -> None:
    assert first_launch(NARROW[name]) is False


def test_a_dimension_of_stride_0_reaches_nothing_far() -> None:
    """Sizes do not count, offsets do: the input's furthest element is its first."""
    meta = runtime.device("meta")
    far = spec(meta, float32, (2, 3), (2**31, 1))
    for source, wide in ((spec(meta, float32, (2, 3), (0, 0)), False), (far, True), (spec(meta, float32, (3,)), False)):
        step = elementwise.step(
            meta.facts, "exp", (Ref("out", 0), spec(meta, float32, (2, 3))), [(Ref("in", 0), source)], float32
        )
        assert step.arguments["WIDE"] is wide


@pytest.fixture
def huge() -> np.ndarray[Any, Any]:
    """2**31 + 2**20 bytes, of which the system gives memory only to the pages that are touched."""
    host = np.zeros(2**31 + 2**20, np.int8)
    host[[0, 2**30, 2**31, -1]] = 1, 5, 7, 3
    return host


def test_far_elements_are_read_and_written(huge: np.ndarray[Any, Any], target: Device) -> None:
    x = from_numpy(huge, target, copy=None)
    far = x[:: 2**30]
    assert (far + 1).tolist() == [2, 6, 8] and far.sum().item() == 13 and far.argmax().item() == 2
    assert x[::-1][:: 2**31 + 2**20 - 1].tolist() == [3, 1]
    assert (x[::-1][:: 2**31 + 2**20 - 1] + 1).tolist() == [4, 2]
    table = x[: 2**31 + 2**15].view(2**16 + 1, 2**15)
    assert nbx.embedding(table, nbx.asarray([2**16, 2**15], device=target))[:, 0].tolist() == [7, 5]
    assert far.float().softmax().argmax().item() == 2
    far.fill_(2)
    assert [x[at].item() for at in (0, 1, 2**30, 2**31 - 1, 2**31, -1)] == [2, 0, 2, 0, 2, 3]


@pytest.mark.parametrize("stride, bits", [(2**20, 32), (2**31, 64)])
def test_the_compiled_kernel_multiplies_with_as_many_bits(
    stride: int, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    meta, target = runtime.device("meta"), compiler.gpu_target("cuda", 90, 32)
    source = spec(meta, float32, (3, 5, 7), (stride, 64, 2))
    out = spec(meta, float32, source.shape)
    step = elementwise.step(meta.facts, "exp", (Ref("out", 0), out), [(Ref("in", 0), source)], float32)
    given = {k: launcher.Pointer("*fp32", True) if isinstance(v, Ref) else v for k, v in step.arguments.items()}
    variant, _ = launcher.specialise(step.kernel, given, step.options)
    options = compiler.compile_options(variant)
    compiled = triton.compile(compiler.ast_source(variant, target), target=target, options=options)
    products = re.findall(r"arith\.muli .*: tensor<\d+xi(\d+)>", compiled.asm["ttir"])
    assert len(products) >= 2 and set(products) == {str(bits)}
