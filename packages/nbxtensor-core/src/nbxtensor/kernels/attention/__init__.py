"""Attention: the declaration, and which blocks a launch takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from nbxtensor import shape as _shape
from nbxtensor.backend.kernel_source import Kernel, Scalar, TritonDType
from nbxtensor.dtype import DType
from nbxtensor.kernels.matmul import SMALLEST, accumulator, side
from nbxtensor.kernels.plan import Ref, Step
from nbxtensor.tensor import Spec

if TYPE_CHECKING:
    from nbxtensor.backend.device_files import Facts

_STRIDES = ("so_l", "so_e", "sq_l", "sq_e", "sk_s", "sk_e", "sv_s", "sv_e", "sm_l", "sm_s")
_CONSTANTS = (
    "NBATCH", "ACC", "CAUSAL", "ROW", "WHOLE", "EDGE", "E", "V", "BLOCK_L", "BLOCK_S", "BLOCK_E", "BLOCK_V", "WIDE",
)  # fmt: skip
ATTENTION = Kernel(
    "nbxtensor.kernels.attention.source",
    "attention",
    {"out": "ptr", "q": "ptr", "k": "ptr", "v": "ptr", "mask": "operand", "scale": "operand", "L": "int", "S": "int",
     "batch": "ints", "so": "ints", "sq": "ints", "sk": "ints", "sv": "ints", "sm": "ints",
     **dict.fromkeys(_STRIDES, "int"), **dict.fromkeys(_CONSTANTS, "const")},
)  # fmt: skip

_INT32_LIMIT = 1 << 31


class Blocks(NamedTuple):
    """Queries and keys of a program's step, head sizes padded to powers of two, and how programs are run."""

    block_l: int
    block_s: int
    block_e: int
    block_v: int
    num_warps: int
    num_stages: int


def blocks(facts: Facts, length: int, keys: int, e: int, v: int, dtype: DType, mask: int = 0) -> Blocks:
    """The device file's settings, which are for 2-byte operands, made to fit the problem and the operands.

    Blocks shrink to the next power of two of the problem, then until scores and results take half of the registers at
    most. Operands that the matrix units do not take as they are sit in registers whole: a block then has one score for
    32 registers at most, and a warp fewer of them. Last, there are fewer stages, then smaller blocks, until the queries
    and all stages of keys, values and the mask, of ``mask`` bytes a score, fit in shared memory.
    """
    block_l, block_s = min(facts["flash.block_m"], side(length)), min(facts["flash.block_n"], side(keys))
    block_e, block_v, stages = side(e), side(v), facts["flash.num_stages"]
    registers, shared = facts.get("limits.max_registers_per_block"), facts["memory.max_shared_memory_per_block"]
    native = dtype.itemsize == 2

    def held() -> bool:
        if registers is None:
            return True
        nbytes = block_l * (block_s + block_v) * accumulator(dtype).itemsize
        return nbytes <= 2 * registers and (native or block_l * block_s * 32 <= registers)

    while max(block_l, block_s) > SMALLEST or stages > 2:
        loaded = (block_l * block_e + stages * block_s * (block_e + block_v)) * dtype.itemsize
        loaded += stages * block_l * block_s * mask
        if held() and loaded <= shared:
            break
        if stages > 2 and held():
            stages -= 1
        elif block_s >= block_l:
            block_s //= 2
        else:
            block_l //= 2
    warps = min(facts["flash.num_warps"], max(1, block_l * block_s // (1024 if native else 256)))
    return Blocks(block_l, block_s, block_e, block_v, warps, stages)


def step(
    facts: Facts,
    out: tuple[Ref, Spec],
    q: tuple[Ref, Spec],
    k: tuple[Ref, Spec],
    v: tuple[Ref, Spec],
    mask: tuple[Ref, Spec] | None,
    *,
    scale: float,
    causal: bool,
) -> Step:
    """One launch of ``out = softmax(scale * q @ k.mT + mask) @ v``.

    Specs are [.., L, V], [.., L, E], [.., S, E], [.., S, V] and [.., L, S]; the leading dimensions of all, and the
    mask's last two, broadcast to those of out and the scores.
    """
    operands = [out, q, k, v, *([] if mask is None else [mask])]
    length, e, keys, head = q[1].shape[-2], q[1].shape[-1], k[1].shape[-2], v[1].shape[-1]
    wanted = [(length, head), (length, e), (keys, e), (keys, head), (length, keys)]
    lead = out[1].shape[:-2]
    full = [_shape.broadcast_strides(s.shape, s.strides, (*lead, *last)) for (_, s), last in zip(operands, wanted)]
    batch, *batches = _shape.coalesce(lead, *(s[:-2] for s in full))
    if batch == (1,):
        batch, batches = (), [() for _ in batches]
    dtype = q[1].dtype
    row = mask is not None and full[4][-2] == 0
    chosen = blocks(facts, length, keys, e, head, dtype, 0 if mask is None or row else mask[1].dtype.itemsize)
    acc = accumulator(dtype)
    furthest = max(max(abs(s.lowest), abs(s.highest)) for _, s in operands)
    inner = [n for s in full for n in s[-2:]]
    arguments: dict[str, Any] = {
        **dict(zip(("out", "q", "k", "v", "mask"), (ref for ref, _ in operands))),
        "scale": Scalar(scale * math.log2(math.e), str(acc.triton)),
        "L": length, "S": keys, "batch": batch,
        **dict(zip(("so", "sq", "sk", "sv", "sm"), batches)),
        **dict(zip(_STRIDES, inner)),
        "NBATCH": len(batch), "ACC": TritonDType(str(acc.triton)), "CAUSAL": causal, "ROW": row,
        "WHOLE": keys >= chosen.block_s and (not causal or length > chosen.block_s),
        "EDGE": causal or keys % chosen.block_s != 0,
        "E": e, "V": head, "BLOCK_L": chosen.block_l, "BLOCK_S": chosen.block_s, "BLOCK_E": chosen.block_e,
        "BLOCK_V": chosen.block_v,
        "WIDE": max(furthest + 1, length + chosen.block_l, keys + chosen.block_s) >= _INT32_LIMIT,
    }  # fmt: skip
    if mask is None:
        arguments.update(mask=None, sm=(), sm_l=0, sm_s=0)
    programs = -(-length // chosen.block_l) * _shape.numel(batch)
    options = (("num_warps", chosen.num_warps), ("num_stages", chosen.num_stages), ("enable_fp_fusion", True))
    return Step(ATTENTION, (programs, 1, 1), arguments, options)
