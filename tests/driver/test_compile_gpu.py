"""Every kernel family compiles for GPUs that this machine does not have: no card runs, the whole compiler does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget

import nbxtensor as nbx
from nbxtensor.backend import device_files, launcher

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
FLOATS = ("float16", "bfloat16", "float32", "float64")
Make = Callable[..., Any]


def cases() -> list[tuple[str, Callable[[Make], Any]]]:
    """(name, what makes the kernels compile, given a maker of empty tensors)."""
    found: list[tuple[str, Callable[[Make], Any]]] = [
        ("add int8", lambda t: t(7, 5, dtype="int8") + t(5, dtype="int8")),
        ("compare uint64", lambda t: t(64, dtype="uint64") < t(64, dtype="uint64")),
        ("where bool", lambda t: nbx.where(t(9, 3, dtype="bool"), t(9, 3), 0.0)),
        ("floor_divide int32", lambda t: t(64, dtype="int32") // 3),
        ("remainder float32", lambda t: t(64) % 3.0),
        ("any int32", lambda t: nbx.any(t(30, 70, dtype="int32"), dim=1)),
        ("sum uint8", lambda t: nbx.sum(t(30, 70, dtype="uint8"), dim=0)),
        ("split sum", lambda t: nbx.sum(t(1 << 21), dim=0)),
        ("split argmax", lambda t: nbx.argmax(t(1 << 21))),
        ("far offsets", lambda t: nbx.exp(t(1 << 20, 1 << 12, dtype="float16")[:, ::2])),
        ("wide softmax", lambda t: nbx.softmax(t(4, 200_000), -1)),
        ("wide layer_norm", lambda t: nbx.layer_norm(t(4, 100_000), 100_000)),
        ("embedding int32", lambda t: nbx.embedding(t(100, 33), t(7, dtype="int32"))),
        ("arange", lambda t: nbx.arange(0, 5, 0.5, device=t(1).device)),
        ("masked attention", masked_attention),
    ]
    for dtype in FLOATS:
        found += [(f"{work.__name__} {dtype}", partial(work, dtype=dtype)) for work in OF_FLOATS]
    return found


def masked_attention(t: Make) -> Any:
    q, k, v, mask = t(2, 4, 33, 40), t(2, 2, 50, 40), t(2, 2, 50, 24), t(2, 1, 33, 50, dtype="bool")
    return nbx.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def functions(t: Make, dtype: str) -> Any:
    x = t(7, 130, dtype=dtype)
    names = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "silu", "gelu", "relu")
    return [getattr(nbx, name)(x) for name in names]


def arithmetic(t: Make, dtype: str) -> Any:
    x = t(64, dtype=dtype)
    return x / x, x * 2.0, -x


def casts(t: Make, dtype: str) -> Any:
    names: tuple[str, ...] = (
        "bool",
        "int8",
        "uint64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float16",
        "bfloat16",
        "float64",
    )
    if t(1).device.context.target.arch == 80:  # Triton has this type for compute capability 8.9 and later
        names = tuple(name for name in names if name != "float8_e4m3fn")
    return [t(64, dtype=dtype).to(name) for name in names]


def reductions(t: Make, dtype: str) -> Any:
    x = t(30, 70, dtype=dtype)
    return [f(x, 1) for f in (nbx.sum, nbx.mean, nbx.prod, nbx.amax, nbx.argmax, nbx.argmin)]


def softmax(t: Make, dtype: str) -> Any:
    x = t(30, 70, dtype=dtype)
    return nbx.softmax(x, -1), nbx.log_softmax(x, 0)


def norms(t: Make, dtype: str) -> Any:
    x, w = t(30, 384, dtype=dtype), t(384, dtype=dtype)
    return nbx.layer_norm(x, 384, w, w), nbx.rms_norm(x, 384)


def products(t: Make, dtype: str) -> Any:
    odd = nbx.mm(t(65, 33, dtype=dtype), t(33, 63, dtype=dtype))
    return odd, nbx.linear(t(512, 384, dtype=dtype), t(1536, 384, dtype=dtype), t(1536, dtype=dtype), "gelu")


def attention(t: Make, dtype: str) -> Any:
    q = t(2, 12, 128, 32, dtype=dtype)
    return nbx.scaled_dot_product_attention(q, q, q, is_causal=True)


OF_FLOATS = (functions, arithmetic, casts, reductions, softmax, norms, products, attention)


@pytest.fixture(scope="module", params=TARGETS)
def maker(request: pytest.FixtureRequest) -> Make:
    device = launcher.bind_target(GPUTarget(*TARGETS[request.param]))
    device._facts = device_files.load("nvidia/hopper")  # tile sizes; only this card's device file states them yet

    def make(*shape: int, dtype: str = "float32") -> Any:
        return nbx.empty(shape, dtype=dtype, device=device)

    return make


@pytest.mark.parametrize("work", [pytest.param(work, id=name) for name, work in cases()])
def test_it_compiles(maker: Make, work: Callable[[Make], Any]) -> None:
    made = work(maker)
    device = maker(1).device
    assert made is not None and device.prepared
    for prepared in device.prepared.values():
        assert prepared.artifact.kind in ("cubin", "hsaco") and prepared.artifact.payload[:4] == b"\x7fELF"
