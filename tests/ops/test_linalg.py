"""Matrix products: layouts read in place, accuracy bounded for each element, epilogues, precision, tiles, GPU code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend import launcher
from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import DTYPES, DType
from nbxtensor.dtype import dtype as dtype_
from nbxtensor.errors import DTypeError, ShapeError
from nbxtensor.kernels import matmul as kernel
from nbxtensor.kernels.plan import Ref
from nbxtensor.ops.linalg_wrappers import mm
from nbxtensor.ops.oracles import linalg as oracle
from nbxtensor.ops.table import OPERATORS
from nbxtensor.tensor import NBXTensor, from_numpy, spec
from ops.gpu_targets import CARDS, compiled, facts

Make = Callable[..., NBXTensor]
NAN = float("nan")
SIZES = ((1, 1, 1), (65, 63, 33), (3, 200, 5), (129, 1, 257))


def normal(*shape: int, d: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(DTYPES[d].numpy)


def check(got: NBXTensor, a: Any, b: Any, addend: Any = 0, alpha: float = 1) -> None:
    """Any order of summing K products in a precision u is off by at most K u times the sum of their magnitudes
    (Higham, Accuracy and Stability of Numerical Algorithms, 3.5); the epilogue rounds three times more, the dtype
    once."""
    a, b, addend = (np.asarray(x, np.float64) for x in (a, b, addend))
    u = 2.0**-53 if got.dtype == "float64" else 2.0**-24
    magnitude = abs(alpha) * (np.abs(a) @ np.abs(b)) + np.abs(addend)
    wanted = alpha * (a @ b) + addend
    bound = (
        (a.shape[-1] + 3) * u * magnitude + got.dtype.eps / 2 * np.abs(wanted) * 1.001 + got.dtype.smallest_subnormal
    )
    wrong = np.abs(got.numpy().astype(np.float64) - wanted) > bound
    assert got.shape == wanted.shape and not wrong.any(), f"{wrong.sum()} of {wrong.size} elements are off"


# accuracy and layouts


@pytest.mark.parametrize("m, k, n", SIZES)
def test_each_element_is_within_the_bound_of_its_own_sum(tensor: Make, floating: DType, m: int, k: int, n: int) -> None:
    a, b = normal(m, k, d=floating), normal(k, n, d=floating, seed=1)
    check(mm(tensor(a), tensor(b)), a, b)


def test_float32_is_ieee_unless_asked(tensor: Make) -> None:
    x = normal(70, 40) * 1000
    assert (tensor(np.eye(70, dtype=np.float32)) @ tensor(x)).numpy().tobytes() == x.tobytes()
    seen: list[Any] = []
    before = launcher.set_launch_recorder(lambda p, *_: seen.append(dict(p.variant.constants)["PRECISION"]))
    try:
        a = tensor(x)
        for product in (mm, nbx.matmul):
            product(a, a.T)
            product(a, a.T, precision="tf32")
        nbx.linear(a, a)
        nbx.linear(a, a, precision="tf32")
    finally:
        launcher.set_launch_recorder(before)
    assert seen == ["ieee", "tf32"] * 3


def test_half_is_summed_in_float32(tensor: Make) -> None:
    """4096 ones: float16 sums would stop at 2048, bfloat16 ones at 256."""
    for d in ("float16", "bfloat16"):
        ones = tensor(np.ones((2, 4096)), d)
        assert (ones @ ones.T).tolist() == [[4096.0] * 2] * 2


def test_float8_gives_float32_without_a_rounding(tensor: Make) -> None:
    for d in ("float8_e4m3fn", "float8_e5m2"):
        a, b = (normal(20, 40, d=d, seed=seed) for seed in (0, 1))
        got = tensor(a) @ tensor(b).T
        assert got.dtype == "float32"
        check(got, a, b.T)


LAYOUTS: dict[str, Callable[[NBXTensor], NBXTensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other": lambda x: nbx.cat([x, x * 0], -1).view(*x.shape[:-1], 2, x.shape[-1])[..., 0, :],
    "reversed": lambda x: x.contiguous()[::-1, ::-1],
    "one row for all": lambda x: x[:1].expand(*x.shape),
    "one column for all": lambda x: x[:, 1:2].expand(*x.shape),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_any_strides_are_read_in_place(tensor: Make, launches: list[str], left: str, right: str) -> None:
    a, b = LAYOUTS[left](tensor(normal(19, 37))), LAYOUTS[right](tensor(normal(37, 21)))
    launches.clear()
    got = a @ b
    assert launches == ["matmul"]
    check(got, a.numpy(), b.numpy())


BATCHES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 5, 4, 6), (6, 7)), ((3, 1, 4, 6), (5, 6, 7)), ((2, 1, 3, 1, 4, 6), (5, 1, 2, 6, 7)), ((4, 6), (3, 6, 7)),
    ((3, 1, 6), (6, 7)), ((3, 5, 1, 6), (6, 7)),
)  # fmt: skip


@pytest.mark.parametrize("a, b", BATCHES)
def test_batches_broadcast_without_a_copy(
    tensor: Make, launches: list[str], a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    x, y = normal(*a), normal(*b)
    got = tensor(x) @ tensor(y)
    assert launches == ["matmul"]
    check(got, x, y)


def test_batches_of_one_matrix_become_rows(tensor: Make) -> None:
    """[3, 5, 4, 6] @ [6, 7] is one product of 60 rows; a transposed batch cannot be."""
    grids: list[tuple[int, int]] = []
    before = launcher.set_launch_recorder(
        lambda p, grid, *_: grids.append((grid[0], dict(p.variant.constants)["NBATCH"]))
    )
    try:
        x, w = normal(3, 5, 4, 6), normal(6, 7)
        check(tensor(x) @ tensor(w), x, w)
        check(tensor(x).transpose(0, 1) @ tensor(w), x.swapaxes(0, 1), w)
    finally:
        launcher.set_launch_recorder(before)
    assert grids == [(1, 0), (15, 2)]


# epilogues


@pytest.mark.parametrize("shape", [(5, 33), (33,), (2, 3, 4, 33), (7, 1, 33)])
def test_linear_is_one_launch(tensor: Make, launches: list[str], floating: DType, shape: tuple[int, ...]) -> None:
    x, w, b = normal(*shape, d=floating), normal(40, 33, d=floating), normal(40, d=floating)
    operands = [tensor(v) for v in (x, w, b)]
    launches.clear()
    got = nbx.linear(*operands)
    assert launches == ["matmul"] and got.dtype is floating
    check(got, x, w.T, b)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_an_activation_is_applied_before_the_rounding(tensor: Make, floating: DType, activation: str) -> None:
    x, w, b = (normal(*s, d=floating).astype(np.float64) for s in ((17, 33), (40, 33), (40,)))
    got = nbx.linear(*(tensor(v, floating) for v in (x, w, b)), activation=activation)
    wanted = oracle.linear(x, w, b, activation)
    arithmetic = 2.0**-52 if floating == "float64" else 2.0**-23
    # the sum is off by 36 roundings of magnitude 40, which the slope of an activation (below 1.13) carries on
    tolerance = 1.13 * 36 * 40 * arithmetic / 2 + 16 * arithmetic
    np.testing.assert_allclose(got.numpy().astype(np.float64), wanted, rtol=floating.eps / 2 * 1.001, atol=tolerance)


@pytest.mark.parametrize("alpha, beta", [(1, 1), (0.5, -2.0), (-1.25, 0), (0, 3)])
@pytest.mark.parametrize("shape", [(4,), (3, 1), (3, 4), (), (1, 4)])
def test_addmm(tensor: Make, floating: DType, shape: tuple[int, ...], alpha: float, beta: float) -> None:
    c, a, b = normal(*shape, d=floating), normal(3, 50, d=floating), normal(50, 4, d=floating)
    got = nbx.addmm(tensor(c), tensor(a), tensor(b), beta=beta, alpha=alpha)
    assert got.dtype is floating
    check(got, a, b, beta * c.astype(np.float64), alpha)


def test_an_addend_of_beta_0_is_not_read(tensor: Make) -> None:
    a = tensor(normal(3, 3))
    assert np.isfinite(nbx.addmm(tensor([NAN]), a, a, beta=0).numpy()).all()
    assert np.isnan(nbx.addmm(tensor([NAN]), a, a).numpy()).all()
    assert np.isnan(nbx.addmm(tensor([0.0]), a * NAN, a, alpha=0).numpy()).all()  # as numpy's 0 * NaN


# dtypes


@pytest.mark.parametrize(
    "a, b, wanted",
    [
        ("float16", "float32", "float32"), ("bfloat16", "float16", "float32"), ("int32", "float16", "float16"),
        ("float16", "float64", "float64"), ("int8", "float64", "float64"), ("uint8", "int8", "int16"),
        ("bool", "int32", "int32"), ("float8_e4m3fn", "float8_e5m2", "float16"),
        ("float8_e5m2", "bfloat16", "bfloat16"),
    ],
)  # fmt: skip
def test_dtypes_promote(tensor: Make, a: str, b: str, wanted: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (17, 33)).astype(dtype_(a).numpy), rng.integers(0, 5, (33, 9)).astype(dtype_(b).numpy)
    got = tensor(x) @ tensor(y)
    assert got.dtype == wanted
    np.testing.assert_array_equal(got.numpy().astype(np.float64), x.astype(np.float64) @ y.astype(np.float64))


def test_an_addend_takes_part_in_promotion(tensor: Make) -> None:
    a = tensor(np.full((2, 2), 100), "int8")
    assert (a @ a).tolist() == [[32] * 2] * 2  # 20000 modulo 256
    wide = nbx.addmm(tensor([1], "int32"), a, a)
    assert wide.dtype == "int32" and wide.tolist() == [[20001] * 2] * 2
    half = tensor(np.full((2, 2), 0.5), "float16")
    assert nbx.linear(half, half, tensor([0.25, 0.5])).dtype == "float32"
    assert nbx.addmm(tensor([0.5]), a, a).tolist() == [[20000.5] * 2] * 2


# empty ones, refusals, names


def test_nothing_is_launched_for_an_empty_result(tensor: Make, launches: list[str]) -> None:
    for a, b, shape in (((0, 5), (5, 2), (0, 2)), ((3, 5), (5, 0), (3, 0)), ((0, 3, 5), (5, 2), (0, 3, 2))):
        assert (tensor(np.ones(a)) @ tensor(np.ones(b))).shape == shape
    assert launches == []
    for d in DTYPES:
        if DTYPES[d].kind not in ("bool", "complex"):
            got = tensor(np.ones((3, 0)), d) @ tensor(np.ones((0, 4)), d)
            assert got.shape == (3, 4) and not got.numpy().astype(np.float64).any()


def test_operators_and_methods(tensor: Make) -> None:
    x, y, v = tensor(normal(3, 3)), tensor(normal(3, 3, seed=1)), tensor(normal(3))
    same = [x @ y, x.mm(y), x.matmul(y), nbx.mm(x, y), x[None].bmm(y[None])[0], (x * 0).addmm(x, y)]
    assert {p.numpy().tobytes() for p in same} == {same[0].numpy().tobytes()}
    np.testing.assert_array_equal(x.mv(v).numpy(), (x @ v).numpy())
    assert v.dot(v).shape == () and v.dot(v).item() == (v @ v).item()
    for other in (y.numpy(), "text"):
        with pytest.raises(TypeError):
            x @ other
        with pytest.raises(TypeError):
            other @ x
    with pytest.raises(DTypeError, match="matmul: b='int': must be a tensor"):
        x @ 2
    with pytest.raises(ShapeError, match=r"matmul: b=\(2, 3\): its inner size 2 must be the 3 of \(3, 3\)"):
        x @ tensor(normal(2, 3))


def test_cost_counts_products_and_the_addend() -> None:
    cpu = nbx.device("meta")
    x, w, b, out = (spec(cpu, dtype_("float16"), s) for s in ((2, 3, 5), (7, 5), (7,), (2, 3, 7)))
    assert OPERATORS["linear"].cost([x, w], [out], {}) == (2 * (30 + 35), 2 * 42, 2 * 5 * 42)
    assert OPERATORS["linear"].cost([x, w, b], [out], {}).flops == 2 * 5 * 42 + 42
    assert OPERATORS["addmm"].cost([b, spec(cpu, dtype_("float16"), (6, 5)), w], [out], {}).flops == 2 * 5 * 42 + 42


def test_far_elements_are_multiplied(target: Device) -> None:
    """2**31 + 16 bytes, of which the system gives memory only to the pages that are touched."""
    host = np.zeros(2**31 + 16, np.int8)
    rows = from_numpy(host, target, copy=None).as_strided((3, 16), (2**30, 1))
    wanted = np.arange(48, dtype=np.int8).reshape(3, 16)
    for i in range(3):
        rows[i].copy_(from_numpy(wanted[i], target))
    np.testing.assert_array_equal((rows @ rows.T).numpy(), wanted @ wanted.T)


# tiles and GPU code


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 4096, 4096), (128, 1536, 384), (8192, 8192, 8192), (5000, 3, 7)])
def test_tiles_fit_registers_and_shared_memory(card: str, m: int, n: int, k: int) -> None:
    limits = facts(card)
    for name in ("float16", "float32", "float64", "int8", "int64", "float8_e5m2"):
        d = dtype_(name)
        tiles = kernel.tiles(limits, m, n, k, d)
        for size, fact, problem in ((tiles.block_m, "m", m), (tiles.block_n, "n", n), (tiles.block_k, "k", k)):
            assert 16 <= size <= max(limits[f"gemm.block_{fact}"], 32) and size & (size - 1) == 0
            assert size < max(2 * problem, 33)
        loaded = tiles.num_stages * (tiles.block_m + tiles.block_n) * tiles.block_k * d.itemsize
        assert loaded <= limits["memory.max_shared_memory_per_block"]
        accumulators = tiles.block_m * tiles.block_n * kernel.accumulator(d).itemsize
        assert accumulators <= 2 * limits["limits.max_registers_per_block"]
        assert 1 <= tiles.num_warps <= limits["gemm.num_warps"]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "int32"])
def test_an_encoders_layer_compiles_for_gpus(card: str, name: str) -> None:
    """128 tokens of 384 to 1536 with a bias and GELU: a BERT layer of MiniLM's size."""
    d, meta = dtype_(name), nbx.device("meta")
    x, w, b, out = (spec(meta, d, *s) for s in (((128, 384),), ((384, 1536), (1, 384)), ((1536,),), ((128, 1536),)))
    refs = [Ref("out", 0), *(Ref("in", i) for i in range(3))]
    step = kernel.step(
        facts(card), (refs[0], out), (refs[1], x), (refs[2], w), d, addend=(refs[3], b),
        activation="gelu" if d.kind == "float" else "identity",
    )  # fmt: skip
    artifact = compiled(step, dict.fromkeys(refs, d), card)
    assert artifact.kind == ("hsaco" if card.startswith("gfx") else "cubin") and len(artifact.payload) > 1000
    assert artifact.metadata["shared"] <= facts(card)["memory.max_shared_memory_per_block"]


def test_narrow_operands_of_a_float64_product_are_copied_first(tensor: Make, launches: list[str]) -> None:
    a = np.arange(6).reshape(2, 3)
    for d in ("float16", "int8", "float8_e5m2"):
        x, y = tensor(a.astype(dtype_(d).numpy)), tensor(normal(3, 2, d="float64"))
        launches.clear()
        got = x @ y
        assert launches == ["flat", "matmul"]
        check(got, a, y.numpy())
