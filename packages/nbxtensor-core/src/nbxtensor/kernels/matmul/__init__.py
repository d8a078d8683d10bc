"""The matrix product: the declaration, and which tiles a launch takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nbxtensor import shape as _shape
from nbxtensor.backend.kernel_source import Kernel, Scalar, TritonDType
from nbxtensor.dtype import DType, bfloat16, float16, float32, float64, int8, int32, int64
from nbxtensor.kernels import elementwise
from nbxtensor.kernels.plan import Ref, Step
from nbxtensor.tensor import Spec

if TYPE_CHECKING:
    from nbxtensor.backend.device_files import Facts

_STRIDES = ("so_m", "so_n", "sa_m", "sa_k", "sb_k", "sb_n", "sd_m", "sd_n")
_CONSTANTS = (
    "NBATCH", "COMPUTE", "ACC", "DOT", "PRECISION", "ACTIVATION", "ROW", "EVEN_K", "BLOCK_M", "BLOCK_N", "BLOCK_K",
    "GROUP_M", "WIDE",
)  # fmt: skip
MATMUL = Kernel(
    "nbxtensor.kernels.matmul.source",
    "matmul",
    {"out": "ptr", "a": "ptr", "b": "ptr", "addend": "operand", "alpha": "operand", "beta": "operand",
     "M": "int", "N": "int", "K": "int", "batch": "ints", "so": "ints", "sa": "ints", "sb": "ints", "sd": "ints",
     **dict.fromkeys(_STRIDES, "int"), **dict.fromkeys(_CONSTANTS, "const")},
)  # fmt: skip

#: What the epilogue can apply, by the name of the elementwise function.
ACTIVATIONS = ("identity", "relu", "gelu", "gelu_tanh", "silu")
#: How float32 operands are multiplied: as they are, or rounded to 11 significant bits for the matrix units.
PRECISIONS = ("ieee", "tf32")

SMALLEST = 16  #: the smallest side of a tile that the matrix units of every target take
_INT32_LIMIT = 1 << 31


class Tiles(NamedTuple):
    """Sides of a program's tile of the output, its step along K, and how programs are run."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_warps: int
    num_stages: int


def accumulator(dtype: DType) -> DType:
    """What sums of products of ``dtype`` are kept in. Integers wrap around, so that the width of the result is
    enough."""
    if dtype.kind == "float":
        return float64 if dtype is float64 else float32
    return int64 if dtype.itemsize == 8 else int32


def tiles(facts: Facts, m: int, n: int, k: int, dtype: DType) -> Tiles:
    """The device file's settings, which are for 2-byte operands, made to fit the problem and the operands.

    Sides shrink to the next power of two of the problem. The step along K is halved until all stages fit in shared
    memory, the tile until its accumulators take half of the registers at most; a quarter for operands that the matrix
    units do not take as they are, which sit in registers too. A warp has at least 1024 accumulators, or 256.
    """
    native = dtype in (float16, bfloat16, int8)
    block_m, block_n = min(facts["gemm.block_m"], side(m)), min(facts["gemm.block_n"], side(n))
    registers = facts.get("limits.max_registers_per_block")
    if registers is not None:
        budget = registers * (2 if native else 1)  # bytes; a register has 4
        while block_m * block_n * accumulator(dtype).itemsize > budget:
            block_m, block_n = (block_m // 2, block_n) if block_m > block_n else (block_m, block_n // 2)
    smallest = 32 if dtype.itemsize == 1 else SMALLEST
    stages, shared = facts["gemm.num_stages"], facts["memory.max_shared_memory_per_block"]
    block_k = max(smallest, min(facts["gemm.block_k"], side(k)))
    while block_k > smallest and stages * (block_m + block_n) * block_k * dtype.itemsize > shared:
        block_k //= 2
    warps = min(facts["gemm.num_warps"], max(1, block_m * block_n // (1024 if native else 256)))
    return Tiles(block_m, block_n, block_k, facts["gemm.group_m"], warps, stages)


def side(size: int) -> int:
    """The next power of two, at least the smallest side."""
    return max(SMALLEST, 1 << max(size - 1, 0).bit_length())


class _Problem:
    """Sizes and strides of a product, with as few batch dimensions as its operands allow.

    A batch that shares one ``b`` and whose matrices follow each other becomes more rows of one product. ``rows``,
    ``columns`` and ``batch_strides`` are those of out, a, b and the addend, in this order.
    """

    def __init__(self, out: Spec, a: Spec, b: Spec, addend: Spec | None):
        self.m, self.n, self.k = out.shape[-2], out.shape[-1], a.shape[-1]
        operands = [out, a, b] if addend is None else [out, a, b, addend]
        lead = out.shape[:-2]
        batches = [_shape.broadcast_strides(s.shape[:-2], s.strides[:-2], lead) for s in operands]
        shape, *strides = _shape.coalesce(lead, *batches)
        inner = [_shape.broadcast_strides(s.shape, s.strides, (*s.shape[:-2], *wanted))[-2:] for s, wanted in
                 zip(operands, ((self.m, self.n), (self.m, self.k), (self.k, self.n), (self.m, self.n)))]  # fmt: skip
        rows, self.columns = ([s[d] for s in inner] for d in range(2))
        last = [s[-1] for s in strides]
        while shape and last[2] == 0 and self._follow(rows, last):
            if self.m == 1:
                rows = [rows[i] if i == 2 else step for i, step in enumerate(last)]
            self.m, shape, strides = self.m * shape[-1], shape[:-1], [s[:-1] for s in strides]
            last = [s[-1] for s in strides] if shape else last
        if shape == (1,):
            shape, strides = (), [() for _ in strides]
        self.rows, self.batch, self.batch_strides = rows, shape, strides

    def _follow(self, rows: list[int], last: list[int]) -> bool:
        return self.m == 1 or all(last[i] == self.m * rows[i] for i in range(len(rows)) if i != 2)


def step(
    facts: Facts,
    out: tuple[Ref, Spec],
    a: tuple[Ref, Spec],
    b: tuple[Ref, Spec],
    compute: DType,
    *,
    addend: tuple[Ref, Spec] | None = None,
    alpha: int | float = 1,
    beta: int | float = 1,
    activation: str = "identity",
    precision: str = "ieee",
) -> Step:
    """One launch of ``out = activation(alpha * a @ b + beta * addend)``.

    Specs are [.., M, N], [.., M, K] and [.., K, N]; a, b and the addend broadcast to out's batch and shape. Operands
    are multiplied as ``compute``. With ``beta`` 0 the addend is not read.
    """
    addend = None if beta == 0 else addend
    specs = [s for _, s in (out, a, b, *([] if addend is None else [addend]))]
    problem = _Problem(out[1], a[1], b[1], None if addend is None else addend[1])
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    chosen = tiles(facts, m, n, k, compute)
    acc = accumulator(compute)
    programs = -(-m // chosen.block_m) * -(-n // chosen.block_n) * _shape.numel(batch)
    furthest = max(max(abs(s.lowest), abs(s.highest)) for s in specs)
    names = ("so", "sa", "sb", "sd")
    arguments: dict[str, Any] = {
        "out": out[0], "a": a[0], "b": b[0], "addend": None if addend is None else addend[0],
        "alpha": None if alpha == 1 else _scalar(alpha, acc),
        "beta": None if addend is None or beta == 1 else _scalar(beta, acc),
        "M": m, "N": n, "K": k, "batch": batch,
        **{name: problem.batch_strides[i] if i < len(specs) else () for i, name in enumerate(names)},
        **dict(zip(_STRIDES, (s for pair in zip(problem.rows, problem.columns) for s in pair))),
        "NBATCH": len(batch),
        "COMPUTE": TritonDType(str(compute.triton)), "ACC": TritonDType(str(acc.triton)),
        "DOT": compute.kind == "float" or compute is int8,
        "PRECISION": precision,
        "ACTIVATION": elementwise.function(activation),
        "ROW": addend is not None and problem.rows[3] == 0,
        "EVEN_K": k % chosen.block_k == 0,
        "BLOCK_M": chosen.block_m, "BLOCK_N": chosen.block_n, "BLOCK_K": chosen.block_k, "GROUP_M": chosen.group_m,
        "WIDE": max(furthest + 1, m + chosen.block_m, n + chosen.block_n) >= _INT32_LIMIT,
    }  # fmt: skip
    arguments.setdefault("sd_m", 0)
    arguments.setdefault("sd_n", 0)
    options = (("num_warps", chosen.num_warps), ("num_stages", chosen.num_stages), ("enable_fp_fusion", True))
    return Step(MATMUL, (programs, 1, 1), arguments, options)


def _scalar(value: int | float, acc: DType) -> Scalar:
    if acc.kind == "float":
        return Scalar(float(value), str(acc.triton))
    return Scalar(int(value), "i64")
