"""Attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nbxtensor import shape as _shape
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError
from nbxtensor.kernels import attention as kernel
from nbxtensor.kernels.plan import Plan, Ref
from nbxtensor.ops.dispatch import Dispatcher
from nbxtensor.ops.elementwise import accepted
from nbxtensor.ops.linalg import WideOperands
from nbxtensor.ops.oracles import attention as oracle
from nbxtensor.ops.table import (
    BOOL,
    FLOATS,
    ROUNDING,
    Cost,
    ErrorSample,
    Input,
    Operator,
    Sample,
    Tolerance,
    register,
)
from nbxtensor.tensor import NBXTensor, Spec, spec

_NAME = "scaled_dot_product_attention"


def _plan(
    query: Spec, key: Spec, value: Spec, attn_mask: Spec | None, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Plan:
    lead = _check(query, key, value, enable_gqa)
    length, keys, e = query.shape[-2], key.shape[-2], query.shape[-1]
    out = spec(query.device, query.dtype, shape := (*lead, length, value.shape[-1]), _layout(query, shape))
    refs: list[tuple[Ref, Spec]] = [
        (Ref("out", 0), out),
        *((Ref("in", i), s) for i, s in enumerate((query, key, value))),
    ]
    if attn_mask is not None:
        _check_mask(attn_mask, (*lead, length, keys))
        refs.append((Ref("in", 3), attn_mask))
    if enable_gqa:
        heads = key.shape[-3]
        refs = [(ref, _shared(s) if i in (2, 3) else _grouped(s, heads)) for i, (ref, s) in enumerate(refs)]
    wide = WideOperands(query.dtype)
    mask = wide.read(refs[4]) if attn_mask is not None else None
    if scale is None:
        scale = 1 / math.sqrt(e) if e else 1.0
    elif not isinstance(scale, (int, float)):
        raise DTypeError(_NAME, "scale", type(scale).__name__, "must be a Python number")
    result, q, k, v = refs[:4]
    step = kernel.step(query.device.facts, result, q, k, v, mask, scale=scale, causal=bool(is_causal))
    return Plan((out,), (*wide.steps, step), tuple(wide.work))


def _check(query: Spec, key: Spec, value: Spec, enable_gqa: bool) -> tuple[int, ...]:
    """The leading dimensions of the result."""
    for argument, s in (("query", query), ("key", key), ("value", value)):
        accepted(_NAME, argument, s.dtype, FLOATS)
        if s.dtype is not query.dtype:
            raise DTypeError(_NAME, argument, s.dtype, f"must be the {query.dtype} of query")
        if len(s.shape) < 2 + enable_gqa:
            needed = "[.., heads, length, size]" if enable_gqa else "[.., length, size]"
            raise ShapeError(_NAME, argument, s.shape, f"must have the dimensions {needed}")
    if key.shape[-1] != query.shape[-1]:
        raise ShapeError(_NAME, "key", key.shape, f"its last size must be the {query.shape[-1]} of query {query.shape}")
    if value.shape[-2] != key.shape[-2]:
        raise ShapeError(_NAME, "value", value.shape, f"its length must be the {key.shape[-2]} of key {key.shape}")
    leads = [s.shape[:-2] for s in (query, key, value)]
    if enable_gqa:
        heads, shared = query.shape[-3], key.shape[-3]
        if value.shape[-3] != shared:
            raise ShapeError(_NAME, "value", value.shape, f"must have the {shared} heads of key {key.shape}")
        if shared == 0 or heads % shared:
            raise ShapeError(_NAME, "query", query.shape, f"its {heads} heads must be a multiple of key's {shared}")
        leads = [(*lead[:-1], heads) for lead in leads]
    return _shape.broadcast_shapes(*leads, where=_NAME)


def _check_mask(mask: Spec, scores: tuple[int, ...]) -> None:
    accepted(_NAME, "attn_mask", mask.dtype, (*BOOL, *FLOATS))
    if len(mask.shape) > len(scores) or _shape.broadcast_shapes(mask.shape, scores, where=_NAME) != scores:
        raise ShapeError(_NAME, "attn_mask", mask.shape, f"must broadcast to the scores' shape {scores}")


def _layout(query: Spec, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the result: its dimensions lie in memory in the order of query's, so that heads split from a
    projection [batch, length, heads * size] merge again without a copy."""
    if query.shape[:-1] != shape[:-1]:
        return None
    order = sorted(range(len(shape) - 1), key=lambda d: -abs(query.strides[d]))
    strides, step = [1] * len(shape), shape[-1]
    for d in reversed(order):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def _grouped(s: Spec, heads: int) -> Spec:
    """[.., group * heads, a, b] as [.., heads, group, a, b]; a size of 1 and an absent dimension stay."""
    if len(s.shape) < 3:
        return s
    count, step = s.shape[-3], s.strides[-3]
    sizes = (1, 1) if count == 1 else (heads, count // heads)
    return s.with_strides(
        (*s.shape[:-3], *sizes, *s.shape[-2:]), (*s.strides[:-3], step * sizes[1], step, *s.strides[-2:])
    )


def _shared(s: Spec) -> Spec:
    """[.., heads, a, b] as [.., heads, 1, a, b]."""
    return s.with_strides((*s.shape[:-2], 1, *s.shape[-2:]), (*s.strides[:-2], 0, *s.strides[-2:]))


_attention = Dispatcher(
    _NAME,
    (("query", "tensor"), ("key", "tensor"), ("value", "tensor"), ("attn_mask", "tensor?"), ("is_causal", "param"),
     ("scale", "param"), ("enable_gqa", "param")),
    _plan,
).function()  # fmt: skip


def scaled_dot_product_attention(
    query: NBXTensor,
    key: NBXTensor,
    value: NBXTensor,
    attn_mask: NBXTensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> NBXTensor:
    """``softmax(scale * query @ key.mT + mask) @ value`` in one launch, the scores never in memory.

    query [.., L, E], key [.., S, E], value [.., S, V] to [.., L, V], of one floating dtype and any strides; leading
    dimensions broadcast. ``attn_mask`` broadcasts to [.., L, S]: of bool, True where a key takes part, or of floats
    that are added to the scores. ``is_causal`` lets row i see the keys 0 to i; with a mask both hold. ``scale`` is 1 /
    sqrt(E) unless given. With ``enable_gqa`` query has a multiple of the heads (dimension -3) of key and value, and
    consecutive heads share one of them.

    Scores and sums are float32 (float64 for float64), weights are rounded to value's dtype; float32 is multiplied as
    IEEE has it. A row without any key gives 0. The result lies in memory in the order of query's dimensions.
    ``dropout_p`` is there for programs that pass 0. Raises `ShapeError`, `DTypeError`, `ArgumentError`.
    """
    if dropout_p != 0:
        raise ArgumentError(_NAME, "dropout_p", dropout_p, "must be 0: this library is for inference")
    return _attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)  # type: ignore[no-any-return]


def _cost(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Mapping[str, Any]) -> Cost:
    """Operands read once, the result written once; a multiplication and an addition for each product of the two
    matrix products, of the keys that a causal row sees."""
    (*lead, length, v), keys, e = outputs[0].shape, inputs[1].shape[-2], inputs[0].shape[-1]
    pairs = length * keys
    if params.get("is_causal"):
        seen = min(length, keys)
        pairs = seen * (seen + 1) // 2 + (length - seen) * keys
    flops = 2 * (e + v) * pairs * _shape.numel(tuple(lead))
    return Cost(sum(s.nbytes for s in inputs), sum(s.nbytes for s in outputs), flops)


def _tolerance() -> dict[str, Tolerance]:
    """Weights sum to 1, so that their rounding to value's dtype is off by half a unit of the largest value at most;
    scores of up to 16 are off by as many units of float32, and so are their powers, relatively."""
    made = {}
    for name in FLOATS:
        rounding, eps = ROUNDING[name], 2.0**-52 if name == "float64" else 2.0**-23
        made[name] = Tolerance(
            rounding.rtol, 4 * (rounding.rtol + 16 * eps),
            "weights of sum 1 rounded to the dtype, values up to 4; scores up to 16; then one rounding to the dtype",
        )  # fmt: skip
    return made


def _sample(batch: tuple[int, ...], length: int, keys: int, e: int, v: int | None = None, mask: Any = None,
            **params: Any) -> Sample:  # fmt: skip
    q, k, x = (*batch, length, e), (*batch, keys, e), (*batch, keys, e if v is None else v)
    return Sample((Input(q), Input(k), Input(x), mask), params)


def _samples() -> list[Sample]:
    grouped = (Input((2, 6, 5, 16)), Input((2, 2, 9, 16)), Input((2, 2, 9, 8)))
    return [
        _sample((2, 3), 17, 33, 32),
        _sample((), 5, 7, 40, 24),
        _sample((2, 1, 3), 3, 200, 64, scale=0.3),
        _sample((2,), 130, 140, 8, is_causal=True),
        _sample((1, 2), 150, 20, 128, is_causal=True),
        *(_sample((2, 3), 5, 9, 16, mask=Input(m, "bool")) for m in ((5, 9), (2, 1, 1, 9), (1, 3, 5, 1), (2, 3, 5, 9))),
        *(_sample((2, 3), 5, 9, 16, mask=Input(m)) for m in ((9,), (2, 1, 5, 9), (3, 1, 9))),
        _sample((2, 3), 6, 6, 16, mask=Input((2, 1, 6, 6), "bool"), is_causal=True),
        Sample((*grouped, None), {"enable_gqa": True}),
        Sample((*grouped, Input((2, 6, 5, 9), "bool")), {"enable_gqa": True}),
        _sample((2,), 3, 0, 16),
        _sample((2,), 0, 3, 16),
        _sample((0,), 3, 3, 16),
        _sample((2,), 3, 3, 0, 4),
    ]


def _errors() -> list[ErrorSample]:
    x, flat = Input((2, 3, 4)), Input((3, 4))

    def refused(match: str, *operands: Any, error: type[Exception] = ShapeError, **params: Any) -> ErrorSample:
        return ErrorSample((*operands, None) if len(operands) == 3 else operands, params, error, match)

    return [
        refused("its last size must be the 4", x, Input((2, 3, 5)), x),
        refused("its length must be the 3", x, x, Input((2, 4, 4))),
        refused("broadcast", x, Input((3, 3, 4)), Input((3, 3, 4))),
        refused("must have the dimensions", Input((4,)), flat, flat),
        refused("must have the dimensions", flat, flat, flat, enable_gqa=True),
        refused("multiple of key's 3", x, Input((3, 3, 4)), Input((3, 3, 4)), enable_gqa=True),
        refused("must have the 2 heads", x, x, Input((1, 3, 4)), enable_gqa=True),
        refused("must broadcast to the scores' shape|broadcast", x, x, x, Input((2, 4), "bool")),
        refused("must broadcast to the scores' shape", x, x, x, Input((5, 2, 3, 3), "bool")),
        refused("not accepted", x, x, x, Input((3, 3), "int32"), error=DTypeError),
        refused("must be the float32 of query", x, Input((2, 3, 4), "float16"), x, error=DTypeError),
        refused("must be 0", x, x, x, error=ArgumentError, dropout_p=0.1),
        refused("must be a Python number", x, x, x, error=DTypeError, scale="1"),
        ErrorSample((x, x, x, None), {}, DTypeError, "not accepted", "int32"),
    ]


register(
    Operator(
        _NAME, "attention", scaled_dot_product_attention, ("query", "key", "value", "attn_mask"), FLOATS,
        lambda d, **_: d, oracle.scaled_dot_product_attention, _samples, _errors, _tolerance(), _cost,
    )
)  # fmt: skip
