"""Attention: heads read in place, rows without a key, causal rows, shared heads, every form of mask, GPU code."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend import launcher
from nbxtensor.dtype import DTYPES, DType
from nbxtensor.dtype import dtype as dtype_
from nbxtensor.kernels import attention as kernel
from nbxtensor.kernels.plan import Ref
from nbxtensor.ops.oracles import attention as oracle
from nbxtensor.ops.table import OPERATORS
from nbxtensor.tensor import NBXTensor, spec
from ops.gpu_targets import CARDS, compiled, facts

Make = Callable[..., NBXTensor]
INF, NAN = float("inf"), float("nan")
sdpa = nbx.scaled_dot_product_attention


def normal(*shape: int, d: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(DTYPES[d].numpy)


def close(got: NBXTensor, q: Any, k: Any, v: Any, mask: Any = None, **params: Any) -> None:
    """Scores of magnitude s are off by (E + 2) s units, and so is each weight, relatively; weights are rounded to the
    dtype; the result, an average of values, is off by the largest value as often, and rounded once."""
    wide = [x if x is None or x.dtype == bool else np.asarray(x, np.float64) for x in (q, k, v, mask)]
    wanted = oracle.scaled_dot_product_attention(*wide, **params)
    arithmetic = 2.0**-52 if got.dtype == "float64" else 2.0**-23
    scores = (np.abs(q).astype(np.float64).max() * np.abs(k).astype(np.float64).sum(-1).max()) / np.sqrt(q.shape[-1])
    relative = got.dtype.eps + (q.shape[-1] + 2) * scores * arithmetic / 8 + k.shape[-2] * arithmetic
    largest = np.abs(wide[2]).max(initial=1)
    np.testing.assert_allclose(got.numpy().astype(np.float64), wanted, rtol=0, atol=relative * largest)


# sizes and layouts


@pytest.mark.parametrize("e", [1, 16, 32, 40, 64, 80, 128])
@pytest.mark.parametrize("length, keys", [(1, 1), (17, 300), (130, 63)])
@pytest.mark.parametrize("causal", [False, True])
def test_head_sizes_and_lengths(tensor: Make, floating: DType, e: int, length: int, keys: int, causal: bool) -> None:
    q, k, v = normal(2, length, e, d=floating), normal(2, keys, e, d=floating), normal(2, keys, e, d=floating, seed=1)
    close(sdpa(tensor(q), tensor(k), tensor(v), is_causal=causal), q, k, v, is_causal=causal)


def test_heads_of_a_projection_are_read_in_place_and_merge_without_a_copy(tensor: Make, launches: list[str]) -> None:
    host = normal(2, 9, 3, 4, 16)  # batch, length, (query, key, value), heads, size
    q, k, v = (tensor(host)[:, :, i].transpose(1, 2) for i in range(3))
    launches.clear()
    got = sdpa(q, k, v)
    merged = got.transpose(1, 2).view(2, 9, 64)
    assert launches == ["attention"] and merged.is_contiguous() and merged.storage is got.storage
    close(got, *(host[:, :, i].swapaxes(1, 2) for i in range(3)))


LAYOUTS: dict[str, Callable[[NBXTensor], NBXTensor]] = {
    "contiguous": lambda x: x,
    "sizes before rows": lambda x: x.mT.contiguous().mT,
    "reversed": lambda x: x[:, ::-1, ::-1],
    "every other row": lambda x: nbx.cat([x, x * 0], -1).view(x.shape[0], x.shape[1], 2, x.shape[2])[:, :, 0],
    "one batch for all": lambda x: x[:1].expand(*x.shape),
    "one row for all": lambda x: x[:, :1].expand(*x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_any_strides_are_read_in_place(tensor: Make, launches: list[str], layout: str, which: tuple[int, ...]) -> None:
    made = [tensor(normal(3, 21, 24, seed=i)) for i in range(3)]
    operands = [LAYOUTS[layout](x) if i in which else x for i, x in enumerate(made)]
    launches.clear()
    got = sdpa(*operands)
    assert launches == ["attention"]
    close(got, *(x.numpy() for x in operands))


def test_leading_dimensions_broadcast(tensor: Make, launches: list[str]) -> None:
    q, k, v = normal(4, 1, 3, 5, 16), normal(2, 1, 7, 16), normal(3, 7, 8)
    got = sdpa(tensor(q), tensor(k), tensor(v))
    assert launches == ["attention"] and got.shape == (4, 2, 3, 5, 8)
    close(got, q, k, v)


# masks


@pytest.mark.parametrize("shape", [*itertools.product((1, 2), (1, 3), (1, 5), (1, 9)), (9,), (5, 9), (5, 1), (3, 1, 9)])
@pytest.mark.parametrize("mask_dtype", ["bool", "float32", "float16"])
def test_masks_broadcast_in_place(
    tensor: Make, launches: list[str], floating: DType, shape: tuple[int, ...], mask_dtype: str
) -> None:
    q, k, v = normal(2, 3, 5, 16, d=floating), normal(2, 3, 9, 16, d=floating), normal(2, 3, 9, 8, d=floating)
    mask = normal(*shape) > -0.5 if mask_dtype == "bool" else normal(*shape, d=mask_dtype)
    operands = [tensor(x) for x in (q, k, v, mask)]
    launches.clear()
    got = sdpa(*operands)
    assert launches[-1] == "attention" and len(launches) == 1 + (floating == "float64" and mask_dtype != "float32")
    close(got, q, k, v, mask)


def test_rows_without_a_key_are_0(tensor: Make, floating: DType) -> None:
    q, k, v = (tensor(normal(2, 150, 16, seed=i, d=floating)) for i in range(3))
    keep = np.ones((150, 150), bool)
    keep[[0, 70, 149]] = False
    for mask in (tensor(keep), tensor(np.where(keep, 0, -INF).astype(np.float32))):
        for causal in (False, True):
            got = sdpa(q, k, v, mask, is_causal=causal).numpy().astype(np.float64)
            assert not got[:, ~keep.any(1)].any() and np.isfinite(got).all() and got[:, keep.any(1)].any(-1).all()
    assert not sdpa(q, k, v, tensor(False)).numpy().astype(np.float64).any()
    assert not sdpa(q, k[:, :0], v[:, :0]).numpy().astype(np.float64).any()


def test_keys_that_are_masked_have_no_weight(tensor: Make) -> None:
    """Masking the last keys is leaving them out, whatever they and their values hold."""
    q, k, v = normal(2, 5, 16), normal(2, 200, 16), normal(2, 200, 16, seed=1)
    k[:, 140:] = 1e30
    got = sdpa(tensor(q), tensor(k), tensor(v), tensor(np.arange(200) < 140))
    np.testing.assert_allclose(
        got.numpy(), sdpa(*(tensor(x) for x in (q, k[:, :140], v[:, :140]))).numpy(), rtol=1e-5, atol=1e-6
    )


def test_a_mask_and_causal_rows_both_hold(tensor: Make) -> None:
    q, k, v = normal(2, 150, 16), normal(2, 140, 16), normal(2, 140, 16, seed=1)
    mask = normal(150, 140) > 0
    close(sdpa(tensor(q), tensor(k), tensor(v), tensor(mask), is_causal=True), q, k, v, mask, is_causal=True)


@pytest.mark.parametrize("length, keys", [(5, 5), (128, 128), (129, 257), (257, 129), (300, 1), (1, 300)])
def test_causal_rows_see_the_keys_before_them(tensor: Make, length: int, keys: int) -> None:
    """Row i sees the keys 0 to i, aligned at the top left: values of one key each tell which were seen."""
    q, k = tensor(np.zeros((length, 16), np.float32)), tensor(np.zeros((keys, 16), np.float32))
    got = sdpa(q, k, tensor(np.eye(keys, dtype=np.float32)), is_causal=True).numpy()
    seen = np.tri(length, keys)
    np.testing.assert_allclose(got, seen / seen.sum(1, keepdims=True), rtol=1e-6)


# heads


@pytest.mark.parametrize("heads, shared", [(6, 2), (4, 4), (5, 1), (8, 4)])
def test_consecutive_heads_share_keys_and_values(tensor: Make, launches: list[str], heads: int, shared: int) -> None:
    q, k, v = normal(2, heads, 11, 16), normal(2, shared, 13, 16), normal(2, shared, 13, 8)
    operands = [tensor(x) for x in (q, k, v)]
    repeated = [tensor(np.repeat(x, heads // shared, 1)) for x in (k, v)]
    for mask in (None, normal(2, heads, 11, 13), normal(heads, 1, 13) > 0, normal(2, 1, 11, 13), normal(11, 13) > 0):
        given = None if mask is None else tensor(mask)
        launches.clear()
        got = sdpa(*operands, given, enable_gqa=True)
        assert launches == ["attention"]
        close(got, q, k, v, mask, enable_gqa=True)
        np.testing.assert_array_equal(got.numpy(), sdpa(operands[0], *repeated, given).numpy())


# numbers


def test_large_scores_neither_overflow_nor_lose_the_largest(tensor: Make) -> None:
    q = np.full((1, 1, 16), 200, np.float16)
    k = np.stack([np.full(16, x) for x in (100, 200, 199)])[None].astype(np.float16)
    got = sdpa(tensor(q), tensor(k), tensor(np.eye(3, dtype=np.float16)[None]), scale=1.0)
    assert got.tolist() == [[[0.0, 1.0, 0.0]]]


def test_nan_stays_in_its_row(tensor: Make) -> None:
    q = normal(1, 4, 16)
    q[0, 2, 3] = NAN
    k, v = normal(1, 9, 16), normal(1, 9, 16, seed=1)
    assert (np.isnan(sdpa(tensor(q), tensor(k), tensor(v)).numpy()).all(-1) == [[False, False, True, False]]).all()


def test_a_scale_of_0_averages(tensor: Make) -> None:
    q, k, v = normal(2, 3, 16), normal(2, 200, 16), normal(2, 200, 16, seed=1)
    got = sdpa(tensor(q), tensor(k), tensor(v), scale=0)
    np.testing.assert_allclose(got.numpy(), np.broadcast_to(v.mean(1, keepdims=True), (2, 3, 16)), atol=1e-6)


def test_cost_counts_the_pairs_that_are_seen() -> None:
    meta, half = nbx.device("meta"), dtype_("float16")
    q, k, v, out = (spec(meta, half, (2, *s)) for s in ((5, 8), (3, 8), (3, 4), (5, 4)))
    cost = OPERATORS["scaled_dot_product_attention"].cost
    assert cost([q, k, v], [out], {}) == (2 * 2 * (40 + 24 + 12), 2 * 2 * 20, 2 * 2 * 12 * 15)
    assert cost([q, k, v], [out], {"is_causal": True}).flops == 2 * 2 * 12 * (1 + 2 + 3 + 3 + 3)


# blocks and GPU code


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("e, v", [(32, 32), (40, 64), (64, 64), (128, 128), (256, 256), (192, 128)])
def test_blocks_fit_registers_and_shared_memory(card: str, e: int, v: int) -> None:
    limits = facts(card)
    for name, length, mask in itertools.product(("float16", "float32", "float64"), (1, 100, 4096), (0, 1, 4)):
        d = dtype_(name)
        blocks = kernel.blocks(limits, length, 4096, e, v, d, mask)
        loaded = blocks.block_l * blocks.block_e + blocks.num_stages * blocks.block_s * (
            blocks.block_e + blocks.block_v
        )
        masked = blocks.num_stages * blocks.block_l * blocks.block_s * mask
        held = blocks.block_l * (blocks.block_s + blocks.block_v) * (8 if name == "float64" else 4)
        if (blocks.block_l, blocks.block_s) != (16, 16):
            assert loaded * d.itemsize + masked <= limits["memory.max_shared_memory_per_block"]
            assert held <= 2 * limits["limits.max_registers_per_block"]
        assert blocks.block_e >= e and blocks.block_v >= v and 1 <= blocks.num_warps <= limits["flash.num_warps"]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    "name, heads, length, e, causal, mask",
    [
        ("float16", 12, 128, 32, False, (1, 1, 1, 128)),  # MiniLM, padding masked
        ("float32", 12, 128, 32, False, (1, 1, 1, 128)),
        ("bfloat16", 32, 4096, 128, True, None),
        ("float16", 32, 4096, 128, False, (1, 1, 4096, 4096)),
        ("float64", 4, 100, 40, True, None),
    ],
)
def test_attention_compiles_for_gpus(
    card: str, name: str, heads: int, length: int, e: int, causal: bool, mask: tuple[int, ...] | None
) -> None:
    d, meta = dtype_(name), nbx.device("meta")
    x = spec(meta, d, (1, heads, length, e), (length * heads * e, e, heads * e, 1))
    refs = [Ref("out", 0), *(Ref("in", i) for i in range(4))]
    given = None if mask is None else (refs[4], spec(meta, dtype_("bool"), mask))
    step = kernel.step(
        facts(card), (refs[0], x), (refs[1], x), (refs[2], x), (refs[3], x), given, scale=0.1, causal=causal
    )
    artifact = compiled(step, {**dict.fromkeys(refs, d), refs[4]: dtype_("bool")}, card)
    assert artifact.kind == ("hsaco" if card.startswith("gfx") else "cubin") and len(artifact.payload) > 1000
    assert artifact.metadata["shared"] <= facts(card)["memory.max_shared_memory_per_block"]


@pytest.mark.parametrize("rows, wide", [(2**17, False), (2**17 + 1, True)])
def test_far_rows_ask_for_64_bits(rows: int, wide: bool) -> None:
    seen: list[bool] = []
    before = launcher.set_launch_recorder(lambda p, *_: seen.append(dict(p.variant.constants)["WIDE"]))
    try:
        q = nbx.empty((rows, 2**14), "float16", "meta")[:, :64]
        sdpa(q, q, q)
    finally:
        launcher.set_launch_recorder(before)
    assert seen == [wide]
