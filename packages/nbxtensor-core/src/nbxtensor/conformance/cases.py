"""Cases of the operator table: what a sample becomes for a dtype, a memory layout and a filling, and whether an
operator's result on a device is what its oracle says.

`cases` gives the cases of an operator, `check` runs one and returns what is wrong with it; `check_error` does so for a
call that must be refused. Every case makes its numbers from its own description, so that one case repeats alone.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import DType, dtype, result_type
from nbxtensor.ops.table import ErrorSample, Input, Operator, Sample, Tolerance
from nbxtensor.tensor import NBXTensor, from_numpy

Array = Any

#: How the operands lie in memory: in C order; the dimensions stored in reverse order; every second element of the last
#: dimension; every dimension from its end; one element past an aligned address; one dimension repeated (stride 0).
LAYOUTS = ("contiguous", "transposed", "step", "negative", "offset", "broadcast")
#: What the operands hold: numbers around 0; zeros; the largest, smallest and subnormal numbers, with zeros of both
#: signs; random numbers with NaN and infinities among them.
FILLS = ("random", "zeros", "extremes", "nonfinite")

_BY_ORDER = "partial sums overflow or cancel by the order of the terms"
#: Floats that operators, by name or family, are not filled with, and why their results would be no guide.
UNFIT: Mapping[tuple[str, str], str] = {
    ("sum", "extremes"): _BY_ORDER,
    ("mean", "extremes"): _BY_ORDER,
    ("prod", "extremes"): _BY_ORDER,
    ("matmul", "extremes"): _BY_ORDER,
    ("attention", "extremes"): _BY_ORDER,
    ("attention", "nonfinite"): "what a mask hides need not be read, so that its NaN may or may not pass",
    ("norm", "extremes"): "the variance of equal large elements is nothing but rounding",
    ("floor_divide", "extremes"): "exact only while the quotient is below the float's last integer",
    ("remainder", "extremes"): "exact only while the quotient is below the float's last integer",
}
#: Families that sum along a 1-d operand; one of equal elements is worse conditioned than their tolerances expect.
_SUMMING = frozenset({"matmul", "norm"})
#: Operators that may return an operand itself, or a view of it.
MAY_ALIAS = frozenset({"cast", "contiguous", "reshape"})
#: Families whose results may keep the order of an operand's dimensions in memory.
_KEEPS_ORDER = frozenset({"attention"})
#: Families whose oracle takes the operands in their own dtype and gives every bit of the result.
_COPIES = frozenset({"copy"})
#: Standard deviation of random floats: where curves bend, and where a sum does not drown its terms.
_SPREAD = {"unary": 4.0}


class Case(NamedTuple):
    """A call of an operator: the ``sample``'s operands as ``dtype``, laid out and filled as the two names say."""

    operator: Operator
    dtype: DType
    sample: Sample
    layout: str
    fill: str

    def __str__(self) -> str:
        operands = ", ".join(_brief(o) for o in self.sample.operands)
        params = "".join(f", {name}={value!r}" for name, value in self.sample.params.items())
        return f"{self.operator.name}({operands}{params}) {self.dtype} {self.layout} {self.fill}"


def _brief(operand: Any) -> str:
    if isinstance(operand, tuple) and not isinstance(operand, Input):
        return f"[{', '.join(_brief(o) for o in operand)}]"
    return f"{operand.dtype or ''}{list(operand.shape)}" if isinstance(operand, Input) else repr(operand)


def pairwise(sizes: Sequence[int], seed: int = 0) -> list[tuple[int, ...]]:
    """Rows of choices, the i-th from ``range(sizes[i])``, in which every two choices of any two factors meet.

    Built factor by factor (IPO: Lei and Tai, 1998): the full product of the two largest, then each further factor is
    chosen for the pairs it completes, and rows are added for those that are left.
    """
    if not sizes or 0 in sizes:
        return []
    generator = random.Random(seed)
    order = sorted(range(len(sizes)), key=lambda f: -sizes[f])
    rows: list[list[int | None]] = [list(row) for row in product(*(range(sizes[f]) for f in order[:2]))]
    for new, factor in enumerate(order[2:], 2):
        missing = {(old, a, b) for old in range(new) for a in range(sizes[order[old]]) for b in range(sizes[factor])}
        for row in rows:
            choices = generator.sample(range(sizes[factor]), sizes[factor])
            gain = {b: sum((old, a, b) in missing for old, a in enumerate(row)) for b in choices}
            row.append(max(choices, key=gain.__getitem__))
            missing -= {(old, a, row[new]) for old, a in enumerate(row[:new])}
        added: list[list[int | None]] = []
        for old, a, b in sorted(missing):
            home = next((row for row in added if row[new] == b and row[old] in (None, a)), None)
            if home is None:
                added.append(home := [None] * new + [b])
            home[old] = a
        rows += [[generator.randrange(sizes[order[f]]) if a is None else a for f, a in enumerate(row)] for row in added]
    place = [order.index(f) for f in range(len(sizes))]
    return [tuple(int(row[p] or 0) for p in place) for row in rows]


def cases(operator: Operator, device: Device, *, full: bool = False) -> Iterator[Case]:
    """The operator's cases for the dtypes of the device: every two of dtype, sample, layout and fill meet; with
    ``full`` all four in every combination."""
    able = device.context.capabilities.dtypes
    dtypes = [dtype(d) for d in operator.dtypes if dtype(d).real in able]
    factors: tuple[Sequence[Any], ...] = (dtypes, list(operator.samples()), LAYOUTS, FILLS)
    sizes = [len(factor) for factor in factors]
    rows = product(*map(range, sizes)) if full else pairwise(sizes, zlib.crc32(operator.name.encode()))
    for row in rows:
        d, sample, layout, fill = (factor[i] for factor, i in zip(factors, row))
        fixed = [i.dtype for i in inputs(sample.operands) if i.dtype is not None]
        if all(dtype(f).real in able for f in fixed + [v for v in sample.params.values() if v in operator.dtypes]):
            yield Case(operator, d, sample, layout, fill if _may_fill(operator, d, sample, fill) else "random")


def inputs(operands: Any) -> Iterator[Input]:
    """The tensors among a sample's operands, those of lists included."""
    for operand in operands:
        if isinstance(operand, Input):
            yield operand
        elif isinstance(operand, tuple):
            yield from inputs(operand)


def _result_dtype(operator: Operator, d: DType, sample: Sample) -> DType:
    """What the table says of the result for operands of dtype ``d``, promoted with the numbers among them."""
    numbers = [o for o in sample.operands if isinstance(o, (bool, int, float, complex))]
    return operator.out_dtype(result_type(d, *numbers), **sample.params)


def _may_fill(operator: Operator, d: DType, sample: Sample, fill: str) -> bool:
    inexact = _result_dtype(operator, d, sample).kind in ("float", "complex")
    return not inexact or not {(operator.name, fill), (operator.family, fill)} & UNFIT.keys()


# operands


def values(wanted: Input, case: Case, generator: np.random.Generator) -> Array:
    """A numpy array for an operand of a case, in C order."""
    d, fill = dtype(wanted.dtype or case.dtype), case.fill
    if d.kind == "complex":
        parts = [values(wanted._replace(dtype=d.real), case, generator) for _ in range(2)]
        made = np.empty(wanted.shape, d.numpy)
        made.real, made.imag = parts
        return made
    if d.kind == "bool":
        return np.zeros(wanted.shape, bool) if fill == "zeros" else generator.integers(0, 2, wanted.shape).astype(bool)
    if d.kind == "float":
        return _floats(wanted, d, fill, case.operator.family, generator)
    to_float = _result_dtype(case.operator, case.dtype, case.sample).kind == "float"
    return _integers(
        wanted, d, fill, 1 << 24 if to_float and case.operator.family not in _COPIES else 1 << 64, generator
    )


def _integers(wanted: Input, d: DType, fill: str, limit: int, generator: np.random.Generator) -> Array:
    """``limit`` bounds the extremes: what becomes a float32 is exact up to 2**24."""
    bounded = wanted.low is not None or wanted.high is not None
    low = wanted.low if wanted.low is not None else (0 if d.kind == "uint" else -5)
    high = wanted.high if wanted.high is not None else 9
    if fill == "zeros":
        return np.full(wanted.shape, min(max(0, low), high), d.numpy)
    if fill == "extremes":
        least, most = (low, high) if bounded else (max(int(d.min), -limit), min(int(d.max), limit))
        ends = [least, most] if bounded else [least, least + 1, 0, 1, most - 1, most, *([-1] if least < 0 else [])]
        return _choice(np.array(ends, dtype=d.numpy), wanted.shape, generator)
    return generator.integers(low, high + 1, wanted.shape).astype(d.numpy)


def _floats(wanted: Input, d: DType, fill: str, family: str, generator: np.random.Generator) -> Array:
    made = np.asarray(generator.normal(scale=_SPREAD.get(family, 1.0), size=wanted.shape))
    if fill == "zeros" and not wanted.positive:
        made[...] = 0
    elif fill == "extremes":
        ends = [d.max, d.smallest_subnormal, d.smallest_normal, 1.0, 1 + d.eps, 0.0, 3.0]
        made = _choice(np.array([*ends, *(-end for end in ends)]), wanted.shape, generator)
    elif fill == "nonfinite" and made.size:
        kinds = [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf, -np.inf]][generator.integers(5)]
        some = generator.random(wanted.shape) < max(0.02, min(0.5, 2 / made.size))
        made = np.where(some, _choice(np.array(kinds), wanted.shape, generator), made)
    if wanted.positive:
        made = np.maximum(np.abs(made), max(d.smallest_normal, 0.01))
    with np.errstate(all="ignore"):
        return np.asarray(made).astype(d.numpy)


def _choice(ends: Array, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    return ends[generator.integers(0, len(ends), shape)]


def repeated(array: Array) -> Array:
    """The array with the first dimension longer than 1 made of copies of its first slice."""
    axis = next((axis for axis, size in enumerate(array.shape) if size > 1), None)
    if axis is None:
        return array
    return np.broadcast_to(array.take([0], axis), array.shape)


def place(array: Array, layout: str, device: Device) -> NBXTensor:
    """The array on a device, in that layout; ("broadcast": dimensions of stride 0 have it on the device too). What lies
    between the elements is unlike any of them."""
    if layout == "transposed":
        order = tuple(reversed(range(array.ndim)))
        return from_numpy(np.ascontiguousarray(array.transpose(order)).reshape(array.shape[::-1]), device).permute(
            order
        )
    if layout == "step" and array.ndim:
        wide = _poison((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return from_numpy(wide, device)[..., ::2]
    if layout == "negative":
        back = (slice(None, None, -1),) * array.ndim
        return from_numpy(array[back].copy(), device)[back]
    if layout == "offset":
        line = _poison((array.size + 1,), array.dtype)
        line[1:] = array.reshape(-1)
        return from_numpy(line, device)[1:].view(array.shape)
    if layout == "broadcast":
        small = tuple(
            slice(0, 1) if step == 0 and size else slice(None) for size, step in zip(array.shape, array.strides)
        )
        return from_numpy(array[small].copy(), device).expand(array.shape)
    return from_numpy(array, device)


def _poison(shape: tuple[int, ...], d: Any) -> Array:
    return np.full(shape, np.nan if dtype(d).kind in ("float", "complex") else dtype(d).max, d)


class Operands(NamedTuple):
    """A call's operands three times: numpy arrays, what the oracle takes, and tensors."""

    arrays: tuple[Any, ...]
    exact: tuple[Any, ...]
    tensors: tuple[Any, ...]


def operands(case: Case, device: Device) -> Operands:
    """The operands of a case; numbers and None as they are, a tuple of inputs as a tuple."""
    generator = np.random.default_rng(zlib.crc32(str(case).encode()))
    own = case.operator.family in _COPIES

    def make(operand: Any) -> tuple[Any, Any, Any]:
        if isinstance(operand, Input):
            array = values(operand, case, generator)
            if case.layout == "broadcast" and not (array.ndim == 1 and case.operator.family in _SUMMING):
                array = repeated(array)
            wide = array.astype(np.float64) if dtype(array.dtype).kind == "float" and not own else array
            return array, wide, place(array, case.layout, device)
        if isinstance(operand, tuple):
            made = [make(o) for o in operand]
            return tuple(m[0] for m in made), tuple(m[1] for m in made), tuple(m[2] for m in made)
        return operand, operand, operand

    made = [make(operand) for operand in case.sample.operands]
    return Operands(*(tuple(m[i] for m in made) for i in range(3)))


# results


def failures(operator: Operator, device: Device, *, full: bool = False) -> list[str]:
    """What is wrong with an operator on a device, a line each: its `cases`, and its calls that must be refused."""
    found = []
    for case in cases(operator, device, full=full):
        try:
            complaint = check(case, device)
        except Exception as error:  # an operator must answer every case; what it raised belongs to the case
            complaint = f"{type(error).__name__}: {error}"
        if complaint is not None:
            found.append(f"{case}: {complaint}")
    for sample in operator.errors():
        complaint = check_error(operator, sample, device)
        if complaint is not None:
            found.append(f"{sample}: {complaint}")
    return found


def check(case: Case, device: Device) -> str | None:
    """Runs a case; None, or what is wrong with the operator."""
    operator, params = case.operator, case.sample.params
    arrays, exact, tensors = operands(case, device)
    result = operator.function(**dict(zip(operator.operands, tensors)), **params)
    with np.errstate(all="ignore"):
        wanted = operator.oracle(*exact, **params)
    if not isinstance(result, NBXTensor):
        return f"returned {type(result).__name__}"
    if result.dtype != (stated := _result_dtype(operator, case.dtype, case.sample)):
        return f"dtype {result.dtype}, the table says {stated}"
    if result.device is not device:
        return f"on {result.device}, not on {device}"
    flat = list(_flat(arrays, tensors))
    aliases = any(result.storage is tensor.storage for _, tensor in flat)
    if aliases and operator.name not in MAY_ALIAS:
        return "shares the memory of an operand"
    if not aliases and not _dense(result, any_order=operator.family in _KEEPS_ORDER):
        return f"strides {result.strides} for shape {result.shape}: not contiguous"
    if any(tensor.numpy().tobytes() != np.ascontiguousarray(array).tobytes() for array, tensor in flat):
        return "changed an operand"
    tolerance = None if operator.family in _COPIES else operator.tolerance.get(result.dtype.real)
    return difference(result.numpy(), np.asarray(wanted), tolerance)


def _dense(x: NBXTensor, any_order: bool) -> bool:
    order = sorted(range(x.ndim), key=lambda d: -x.strides[d]) if any_order else range(x.ndim)
    return x.permute(tuple(order)).is_contiguous()


def _flat(arrays: Any, tensors: Any) -> Iterator[tuple[Array, NBXTensor]]:
    for array, tensor in zip(arrays, tensors):
        if isinstance(tensor, NBXTensor):
            yield array, tensor
        elif isinstance(tensor, tuple):
            yield from _flat(array, tensor)


def difference(got: Array, exact: Array, tolerance: Tolerance | None) -> str | None:
    """None where ``got`` is ``exact`` (of its dtype or a wider one) rounded to its dtype within the tolerance; else a
    description of the worst element. Without a tolerance floats are equal, the signs of zeros included; integers always
    are. NaN stand where the oracle has them; a number too large for the dtype is infinite, or NaN where the dtype has
    no infinity."""
    if got.shape != exact.shape:
        return f"shape {got.shape}, the oracle says {exact.shape}"
    if got.dtype.kind == "c":
        got, exact = (np.stack((x.real, x.imag), -1) for x in (got, exact))
    d = dtype(got.dtype)
    if d.kind != "float":
        wanted = exact.astype(got.dtype)
        right = got == wanted
        return None if right.all() else _worst(got, wanted, right, "equal")
    got, exact = got.astype(np.float64), exact.astype(np.float64)
    if tolerance is None:
        right = ((got == exact) & (np.signbit(got) == np.signbit(exact))) | (np.isnan(got) & np.isnan(exact))
        return None if right.all() else _worst(got, exact, right, "equal")
    right = _close(got, exact, d, tolerance)
    rule = f"{tolerance.rtol:.3g} relative and {tolerance.atol:.3g} absolute ({tolerance.reason})"
    return None if right.all() else _worst(got, exact, right, rule)


def _close(got: Array, exact: Array, d: DType, tolerance: Tolerance) -> Array:
    with np.errstate(all="ignore"):
        allowed = tolerance.atol + tolerance.rtol * np.where(np.isfinite(exact), np.abs(exact), 0)
        right = (got == exact) | (np.isnan(got) & np.isnan(exact)) | (np.abs(got - exact) <= allowed)
        # Rounding gives infinity from half a unit past the largest finite number on.
        beyond = np.abs(exact) + allowed >= float(d.max) * (1 + d.eps / 4 if d != "float64" else 1)
        if d == "float8_e4m3fn":
            return right | (beyond & np.isnan(got))
        return right | (beyond & np.isinf(got) & (np.signbit(got) == np.signbit(exact)))


def _worst(got: Array, exact: Array, right: Array, rule: str) -> str:
    with np.errstate(all="ignore"):
        gap = np.abs(np.subtract(got, exact, dtype=np.float64)) / np.abs(exact, dtype=np.float64)
    gap = np.where(right, -1.0, np.nan_to_num(gap, nan=np.inf))
    at = tuple(int(i) for i in np.unravel_index(np.argmax(gap), got.shape))
    return f"{np.sum(~right)} of {got.size} elements are off: [{at}] is {got[at]!s}, not {exact[at]!s}; rule: {rule}"


def check_error(operator: Operator, sample: ErrorSample, device: Device) -> str | None:
    """Makes a call that must be refused; None, or what is wrong: nothing or another error was raised, its message does
    not match, or memory stays allocated."""
    case = Case(operator, dtype(sample.dtype), Sample(sample.operands, sample.params), "contiguous", "random")
    call = dict(zip(operator.operands, operands(case, device).tensors))
    live = device.pool.statistics().live
    try:
        operator.function(**call, **sample.params)
    except Exception as error:
        if not isinstance(error, sample.error):
            return f"raised {type(error).__name__}, not {sample.error.__name__}: {error}"
        if not re.search(sample.match, str(error)):
            return f"the message {str(error)!r} does not match {sample.match!r}"
        del error
    else:
        return f"was accepted; must raise {sample.error.__name__} matching {sample.match!r}"
    held = device.pool.statistics().live - live
    return f"{held} bytes stay allocated" if held else None
