"""Copies: between layouts, dtypes and devices; joining; writing into a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbxtensor import shape as _shape
from nbxtensor.backend import runtime
from nbxtensor.backend.launcher import Plan, Ref
from nbxtensor.dtype import DTYPES, DType, DTypeLike, complex128, int64, promote_scalar, result_type
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError
from nbxtensor.kernels import elementwise as kernel
from nbxtensor.ops.dispatch import Dispatcher, Number
from nbxtensor.ops.oracles import copying as oracle
from nbxtensor.ops.table import ROUNDING, ErrorSample, Input, Operator, Sample, elementwise_cost, register
from nbxtensor.tensor import NBXTensor, Spec, empty_for, from_numpy, spec


def _moved_as(dtype: DType) -> DType | None:
    """Complex numbers are moved as integers of their width, which kernels have."""
    return int64 if dtype == "complex64" else None


def _copy_step(where: str, out: tuple[Ref, Spec], source: tuple[Ref, Spec]) -> list[Any]:
    """The launches that convert ``source``, broadcast, into ``out``."""
    (_, target), (_, given) = out, source
    if target.dtype.kind == "complex" or given.dtype.kind == "complex":
        if given.dtype.kind == "complex" and target.dtype.kind != "complex":
            raise DTypeError(where, "dtype", target.dtype, f"{given.dtype} has no conversion to real numbers; take real or imag")
        if target.dtype is not given.dtype:
            raise DTypeError(where, "dtype", target.dtype, f"conversion from {given.dtype} is not done on devices yet")
        if target.dtype is complex128:
            out, source = (out[0], _pairs(target)), (source[0], _pairs(given))
    raw = _moved_as(target.dtype) or (int64 if target.dtype is complex128 else None)
    same = target.dtype is given.dtype
    return [kernel.step(target.device.facts, "identity", out, [source], None, saturate=not same, raw=raw)]


def _pairs(s: Spec) -> Spec:
    """complex128 as pairs of 64-bit integers."""
    return spec(s.device, int64, (*s.shape, 2), (*(2 * n for n in s.strides), 1))


def _plan_cast(x: Spec, dtype: DType) -> Plan:
    out = spec(x.device, dtype, x.shape)
    return Plan((out,), tuple(_copy_step("to", (Ref("out", 0), out), (Ref("in", 0), x))))


def _plan_copy(target: Spec, source: Spec) -> Plan:
    if _shape.broadcast_shapes(target.shape, source.shape, where="copy_") != target.shape:
        raise ShapeError("copy_", "source", source.shape, f"must broadcast to the target's shape {target.shape}")
    return Plan(
        (), tuple(_copy_step("copy_", (Ref("in", 0), target), (Ref("in", 1), source))), result=(Ref("in", 0),), written=(0,)
    )


def _plan_fill(target: Spec, value: Number) -> Plan:
    dtype = target.dtype
    if dtype.kind == "complex":
        raise DTypeError("fill_", "self", dtype, "a complex tensor is filled from a tensor: copy_")
    number = ("fp64" if dtype.itemsize == 8 else "fp32") if dtype.kind == "float" else "u64" if dtype == "uint64" else "i64"
    ranges = {} if dtype.kind == "float" else {1: (int(dtype.min), int(dtype.max), dtype)}
    step = kernel.step(target.device.facts, "identity", (Ref("in", 0), target), [(Ref("value", 1, type=number), None)], None)
    return Plan((), (step,), result=(Ref("in", 0),), written=(0,), ranges=ranges)


_cast = Dispatcher("to", (("x", "tensor"), ("dtype", "param")), _plan_cast).function()
_copy = Dispatcher("copy_", (("target", "tensor"), ("source", "tensor")), _plan_copy).function()
_fill = Dispatcher("fill_", (("target", "tensor"), ("value", "operand")), _plan_fill).function()


def cast(x: NBXTensor, dtype: DTypeLike) -> NBXTensor:
    """``x`` as ``dtype`` by the rules of `nbxtensor.dtype.convert`; ``x`` itself where it has that dtype."""
    target = _dtype(dtype, where="cast")
    return x if x.dtype is target else _cast(x, target)  # type: ignore[no-any-return]


def clone(x: NBXTensor) -> NBXTensor:
    """A contiguous copy."""
    return _cast(x, x.dtype)  # type: ignore[no-any-return]


def contiguous(x: NBXTensor) -> NBXTensor:
    """``x`` itself where its elements follow each other in C order, else a copy that does."""
    return x if x.spec.contiguous else clone(x)


def reshape(x: NBXTensor, shape: int | Sequence[int], *more: int) -> NBXTensor:
    """The elements in C order under another shape (one size may be -1): a view where the strides allow, else a copy.

    The sizes are given as one sequence or one by one.
    """
    new = _shape.resolve_shape((shape, *more) if more else shape, x.size, where="reshape")
    return x.view(new) if _shape.view_strides(x.shape, x.strides, new) is not None else clone(x).view(new)


def copy_(target: NBXTensor, source: NBXTensor) -> NBXTensor:
    """Writes ``source``, broadcast and converted, into ``target`` and returns it. Overlapping memory is copied first;
    tensors of other devices are moved. Refused where ``target`` is read-only or has elements that share memory."""
    if not isinstance(source, NBXTensor):
        raise DTypeError("copy_", "source", type(source).__name__, "must be a tensor")
    _check_writable("copy_", target)
    if source.spec.device is not target.spec.device:
        source = to(source, target.spec.device)
    if source.storage is target.storage and source.ptr != target.ptr or source.strides != target.strides:
        if _overlap(target, source):
            source = clone(source)
    return _copy(target, source)  # type: ignore[no-any-return]


def fill_(target: NBXTensor, value: bool | int | float | complex) -> NBXTensor:
    """Writes a number into every element and returns the tensor. The number's kind must not be higher than the dtype's."""
    _check_writable("fill_", target)
    if isinstance(value, NBXTensor):
        raise DTypeError("fill_", "value", "NBXTensor", "must be a number; copy_ writes a tensor")
    kind = promote_scalar(target.dtype, value, where="fill_")
    if target.dtype.kind == "complex":
        import numpy as np

        return copy_(target, from_numpy(np.asarray(value, target.dtype.numpy), target.device))
    if kind.kind != target.dtype.kind and not (target.dtype.kind == "bool" and value in (0, 1)):
        raise DTypeError("fill_", "value", value, f"does not fit in dtype {target.dtype}")
    return _fill(target, value)  # type: ignore[no-any-return]


def to(x: NBXTensor, *targets: Any, dtype: DTypeLike | None = None, device: Any = None, copy: bool = False) -> NBXTensor:
    """``x`` with another dtype, on another device, or both: ``x.to("float16")``, ``x.to("cuda:0")``, ``x.to(device, dtype)``.

    Returns ``x`` itself where nothing changes, unless ``copy``. Between devices the data passes through the host.
    """
    for target in targets:
        if isinstance(target, runtime.Device) or (isinstance(target, str) and target not in DTYPES):
            device = target
        else:
            dtype = target
    moved = x
    if device is not None:
        chosen = runtime.device(device)
        if chosen is not x.spec.device:
            moved = from_numpy(x.numpy(), chosen)
    if dtype is not None:
        moved = cast(moved, dtype)
    return clone(moved) if copy and moved is x else moved


def assign(x: NBXTensor, key: Any, value: Any) -> None:
    """``x[key] = value``: a number or a tensor that broadcasts to ``x[key]``; basic indexing only."""
    target = x[key]
    if isinstance(value, NBXTensor):
        copy_(target, value)
    else:
        fill_(target, value)


def _check_writable(where: str, target: NBXTensor) -> None:
    if _shape.self_overlap(target.shape, target.strides):
        rule = f"its elements share memory (shape {target.shape}, strides {target.strides}); make it contiguous first"
        raise ShapeError(where, "target", "a tensor", rule)


def _overlap(a: NBXTensor, b: NBXTensor) -> bool:
    """Whether the memory of two tensors of one device may overlap; layouts of other item sizes count by their extents."""
    if a.dtype.itemsize == b.dtype.itemsize and (b.ptr - a.ptr) % a.itemsize == 0:
        return _shape.overlaps(a.shape, a.strides, b.shape, b.strides, (b.ptr - a.ptr) // a.itemsize)
    (low_a, high_a), (low_b, high_b) = _bytes(a), _bytes(b)
    return low_a < high_b and low_b < high_a


def _bytes(x: NBXTensor) -> tuple[int, int]:
    return x.ptr + x.spec.lowest * x.itemsize, x.ptr + (x.spec.highest + 1) * x.itemsize


def cat(tensors: Sequence[NBXTensor], dim: int = 0) -> NBXTensor:
    """Tensors joined along ``dim``. Their other sizes are equal; dtypes promote; tensors of shape (0,) are left out."""
    given = list(tensors)
    if not given:
        raise ArgumentError("cat", "tensors", tensors, "must name at least one tensor")
    for i, x in enumerate(given):
        if not isinstance(x, NBXTensor):
            raise DTypeError("cat", f"tensors[{i}]", type(x).__name__, "must be a tensor")
        if x.device is not given[0].device:
            raise ArgumentError("cat", f"tensors[{i}]", f"tensor on {x.device}", f"must be on {given[0].device}")
    parts = [x for x in given if x.shape != (0,)] or given[:1]
    first = parts[0].shape
    axis = _shape.normalize_axis(dim, len(first), where="cat", argument="dim")
    for i, x in enumerate(given):
        if x.shape != (0,) and (x.ndim != len(first) or any(a != b for d, (a, b) in enumerate(zip(x.shape, first)) if d != axis)):
            raise ShapeError("cat", f"tensors[{i}]", x.shape, f"must match {first} in all dimensions but {axis}")
    dtype = result_type(*(x.dtype for x in given), where="cat")
    total = sum(x.shape[axis] for x in parts)
    out = empty_for(spec(given[0].spec.device, dtype, (*first[:axis], total, *first[axis + 1 :])))
    start = 0
    for x in parts:
        _copy(out.narrow(axis, start, x.shape[axis]), x)
        start += x.shape[axis]
    return out


def stack(tensors: Sequence[NBXTensor], dim: int = 0) -> NBXTensor:
    """Tensors of one shape joined along a new dimension."""
    given = list(tensors)
    for i, x in enumerate(given):
        if x.shape != given[0].shape:
            raise ShapeError("stack", f"tensors[{i}]", x.shape, f"must have the shape {given[0].shape} of the first")
    return cat([x.unsqueeze(dim) for x in given], dim)


def _casts() -> dict[str, Any]:
    """``x.float()`` and its like: the engine authors' short names of `to`."""

    def short(name: str) -> Any:
        def method(self: NBXTensor) -> NBXTensor:
            return cast(self, name)

        method.__doc__ = f"This tensor as {name}."
        return method

    names = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32", "long": "int64"}
    return {method: short(name) for method, name in names.items()}


_ALL = tuple(DTYPES)
_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (7,), (3, 4), (3, 0, 2), (2, 3, 5), (70, 129))


def _entry(
    name: str, function: Any, operand: str, exact: Any, samples: Any, errors: Any, methods: dict[str, Any], out: Any
) -> None:
    register(Operator(name, "copy", function, (operand,), _ALL, out, exact, samples, errors, ROUNDING, elementwise_cost, methods))


_same = lambda dtype, **_: dtype  # noqa: E731 - a rule of the table
_entry(
    "cast", cast, "x", oracle.cast,
    lambda: [Sample((Input(s),), {"dtype": d}) for s in ((5,), (3, 4)) for d in _ALL if d not in ("complex64", "complex128")],
    lambda: [ErrorSample((Input((2,)),), {"dtype": "float31"}, DTypeError, "float31"),
             ErrorSample((Input((2,)),), {"dtype": "float32"}, DTypeError, "real", "complex64")],
    {"to": to, "type_as": lambda self, other: cast(self, other.dtype), **_casts()}, lambda d, dtype: _dtype(dtype),
)  # fmt: skip
_entry("clone", clone, "x", oracle.same, lambda: [Sample((Input(s),)) for s in _SHAPES], lambda: [], {"clone": clone}, _same)
_entry("contiguous", contiguous, "x", oracle.same, lambda: [Sample((Input(s),)) for s in _SHAPES], lambda: [],
       {"contiguous": contiguous}, _same)  # fmt: skip
_entry(
    "reshape", reshape, "x", oracle.reshape,
    lambda: [Sample((Input(s),), {"shape": n}) for s, n in
             (((6,), (2, 3)), ((3, 4), (-1,)), ((2, 3, 5), (5, -1)), ((0, 3), (3, 0)), ((), (1, 1)), ((1,), ()))],
    lambda: [ErrorSample((Input((6,)),), {"shape": (4,)}, ShapeError, "6"),
             ErrorSample((Input((6,)),), {"shape": (-1, -1)}, ShapeError, "at most one")],
    {"reshape": reshape, "copy_": copy_, "fill_": fill_, "__setitem__": assign}, _same,
)  # fmt: skip
_entry(
    "cat", cat, "tensors", oracle.cat,
    lambda: [Sample(((Input(a), Input(b)),), {"dim": d}) for a, b, d in
             (((2, 3), (4, 3), 0), ((2, 3), (2, 1), -1), ((0,), (3,), 0), ((2, 0, 3), (2, 5, 3), 1), ((0,), (2, 2), 0))],
    lambda: [ErrorSample(((Input((2, 3)), Input((2, 4))),), {"dim": 0}, ShapeError, "must match"),
             ErrorSample(((),), {}, ValueError, "at least one tensor"),
             ErrorSample(((Input((2, 3)),),), {"dim": 2}, ShapeError, "dim")],
    {}, _same,
)  # fmt: skip
_entry(
    "stack", stack, "tensors", oracle.stack,
    lambda: [Sample(((Input(s), Input(s), Input(s)),), {"dim": d}) for s, d in (((), 0), ((4,), -1), ((2, 3), 1), ((0, 2), 0))],
    lambda: [ErrorSample(((Input((2,)), Input((3,))),), {}, ShapeError, "must have the shape")],
    {}, _same,
)  # fmt: skip
