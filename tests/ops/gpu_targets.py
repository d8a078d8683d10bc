"""Kernels compiled for cards that need not be here: their facts, and the artifact of a step."""

from __future__ import annotations

from pathlib import Path

from nbxtensor.backend import compiler, launcher
from nbxtensor.backend.contract import Artifact
from nbxtensor.backend.device_files import Fact, Facts, load
from nbxtensor.dtype import DType
from nbxtensor.kernels.plan import Ref, Step

_HOPPER = load("nvidia/hopper")
#: By architecture: Triton's target, and the facts in which the card differs from Hopper.
CARDS: dict[str, tuple[tuple[str, int | str, int], dict[str, int]]] = {
    "sm_90": (("cuda", 90, 32), {}),
    "sm_80": (("cuda", 80, 32), {"memory.max_shared_memory_per_block": 166912, "gemm.block_n": 128}),
    "gfx942": (
        ("hip", "gfx942", 64),
        {
            "memory.max_shared_memory_per_block": 65536,
            "gemm.block_n": 128,
            "gemm.num_stages": 2,
            "flash.num_stages": 1,
        },
    ),
}


def facts(card: str) -> Facts:
    """Hopper's facts with the card's own limits."""
    values = {**{key: _HOPPER[key] for key in _HOPPER}, **CARDS[card][1]}
    return Facts(f"test/{card}", Path(card), {k: Fact(v, "a test", Path(card)) for k, v in values.items()}, {})


def compiled(step: Step, operands: dict[Ref, DType], card: str) -> Artifact:
    """The artifact of a step whose operands are tensors of the given dtypes, aligned to 16 bytes."""
    given = {
        name: launcher.Pointer(f"*{operands[value].triton}", True) if isinstance(value, Ref) else value
        for name, value in step.arguments.items()
    }
    variant, _ = launcher.specialise(step.kernel, given, step.options)
    return compiler.compile_gpu(variant, compiler.gpu_target(*CARDS[card][0]))
