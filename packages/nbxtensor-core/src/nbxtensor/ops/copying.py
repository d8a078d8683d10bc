"""Copies: between layouts, dtypes and devices; joining; writing into a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbxtensor import shape as _shape
from nbxtensor.backend import runtime
from nbxtensor.dtype import DTYPES, DType, DTypeLike, bool_, convert, promote_scalar, result_type
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, DTypeError, ShapeError
from nbxtensor.kernels import elementwise as kernel
from nbxtensor.kernels.plan import Plan, Ref, Step
from nbxtensor.ops.dispatch import Dispatcher, Number
from nbxtensor.ops.oracles import copying as oracle
from nbxtensor.ops.table import COMPLEX, ROUNDING, ErrorSample, Input, Operator, Sample, elementwise_cost, register
from nbxtensor.tensor import NBXTensor, Spec, empty_for, from_numpy, spec


def _step(out: tuple[Ref, Spec], source: tuple[Ref, Spec]) -> Step:
    """The launch that converts ``source``, broadcast, into ``out``."""
    changed = out[1].dtype is not source[1].dtype
    return kernel.step(out[1].device.facts, "identity", out, [source], None, saturate=changed)


def _plan_cast(x: Spec, dtype: DType) -> Plan:
    out = spec(x.device, dtype, x.shape)
    return Plan((out,), (_step((Ref("out", 0), out), (Ref("in", 0), x)),))


def _plan_copy(target: Spec, source: Spec) -> Plan:
    return Plan((), (_step((Ref("in", 0), target), (Ref("in", 1), source)),), result=(Ref("in", 0),), written=(0,))


def _plan_fill(target: Spec, value: Number) -> Plan:
    dtype = target.dtype
    number = (
        ("fp64" if dtype.itemsize == 8 else "fp32") if dtype.kind == "float" else "u64" if dtype == "uint64" else "i64"
    )
    ranges = {} if dtype.kind == "float" else {1: (int(dtype.min), int(dtype.max), dtype)}
    step = kernel.step(
        target.device.facts, "identity", (Ref("in", 0), target), [(Ref("value", 1, type=number), None)], None
    )
    return Plan((), (step,), result=(Ref("in", 0),), written=(0,), ranges=ranges, name="fill_")


_cast = Dispatcher("to", (("x", "tensor"), ("dtype", "param")), _plan_cast).function()
_write = Dispatcher("copy_", (("target", "tensor"), ("source", "tensor")), _plan_copy).function()
_fill = Dispatcher("fill_", (("target", "tensor"), ("value", "operand")), _plan_fill).function()


def cast(x: NBXTensor, dtype: DTypeLike) -> NBXTensor:
    """``x`` as ``dtype`` by the rules of `nbxtensor.dtype.convert`; ``x`` itself where it has that dtype."""
    target = _dtype(dtype, where="cast")
    if not isinstance(x, NBXTensor):
        raise DTypeError("cast", "x", type(x).__name__, "must be a tensor")
    return x if x.dtype is target else _converted(x, target)


def clone(x: NBXTensor) -> NBXTensor:
    """A contiguous copy."""
    if not isinstance(x, NBXTensor):
        raise DTypeError("clone", "x", type(x).__name__, "must be a tensor")
    return _converted(x, x.dtype)


def _converted(x: NBXTensor, dtype: DType) -> NBXTensor:
    if dtype.kind == "complex" or x.dtype.kind == "complex":
        return _copy(empty_for(spec(x.spec.device, dtype, x.shape)), x, "cast")
    return _cast(x, dtype)  # type: ignore[no-any-return]


def _copy(target: NBXTensor, source: NBXTensor, where: str) -> NBXTensor:
    """Writes ``source``, broadcast and converted, into ``target``; complex numbers as pairs of floats."""
    if _shape.broadcast_shapes(target.shape, source.shape, where=where) != target.shape:
        raise ShapeError(where, "source", source.shape, f"must broadcast to the target's shape {target.shape}")
    if target.dtype.kind == "complex":
        if source.dtype.kind == "complex":
            _write(target.view_as_real(), source.view_as_real())
        else:
            _write(target.real, source)
            _fill(target.imag, 0.0)
        return target
    if source.dtype.kind == "complex":
        raise DTypeError(
            where, "dtype", target.dtype, f"{source.dtype} has no conversion to real numbers; take real or imag"
        )
    return _write(target, source)  # type: ignore[no-any-return]


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
    same = source.ptr == target.ptr and source.strides == target.strides and source.dtype is target.dtype
    if not same and _overlap(target, source):
        source = clone(source)
    return _copy(target, source, "copy_")


def fill_(target: NBXTensor, value: bool | int | float | complex) -> NBXTensor:
    """Writes a number into every element, converted as `nbxtensor.dtype.convert` has it, and returns the tensor. The
    number's kind must not be higher than the dtype's; a bool tensor takes 0 and 1 too."""
    _check_writable("fill_", target)
    if isinstance(value, NBXTensor):
        raise DTypeError("fill_", "value", "NBXTensor", "must be a number; copy_ writes a tensor")
    kind = promote_scalar(target.dtype, value, where="fill_")
    if target.dtype.kind == "complex":
        number = complex(value)
        fill_(target.real, number.real)
        fill_(target.imag, number.imag)
        return target
    if kind.kind != target.dtype.kind and not (target.dtype is bool_ and kind.kind == "int" and value in (0, 1)):
        raise DTypeError("fill_", "value", value, f"does not fit in dtype {target.dtype}")
    if kind.kind == "float":
        value = float(convert(np.asarray(value, np.float64), kind))
    return _fill(target, value)  # type: ignore[no-any-return]


def to(
    x: NBXTensor, *targets: Any, dtype: DTypeLike | None = None, device: Any = None, copy: bool = False
) -> NBXTensor:
    """``x`` with another dtype, on another device, or both: ``x.to("float16")``, ``x.to("cuda:0")``, ``x.to(device,
    dtype)``.

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
    elif isinstance(value, (bool, int, float, complex, np.generic)):
        fill_(target, value)  # type: ignore[arg-type]  # numpy's scalars count as numbers
    else:
        rule = "must be a number or a tensor; nbxtensor.asarray makes one of arrays and lists"
        raise DTypeError("__setitem__", "value", type(value).__name__, rule)


def _check_writable(where: str, target: NBXTensor) -> None:
    if _shape.self_overlap(target.shape, target.strides):
        rule = f"its elements share memory (shape {target.shape}, strides {target.strides}); make it contiguous first"
        raise ShapeError(where, "target", "a tensor", rule)


def _overlap(a: NBXTensor, b: NBXTensor) -> bool:
    """Whether the memory of two tensors of one device may overlap; layouts of other item sizes count by their
    extents."""
    if a.dtype.itemsize == b.dtype.itemsize and (b.ptr - a.ptr) % a.itemsize == 0:
        return _shape.overlaps(a.shape, a.strides, b.shape, b.strides, (b.ptr - a.ptr) // a.itemsize)
    (low_a, high_a), (low_b, high_b) = _bytes(a), _bytes(b)
    return low_a < high_b and low_b < high_a


def _bytes(x: NBXTensor) -> tuple[int, int]:
    return x.ptr + x.spec.lowest * x.itemsize, x.ptr + (x.spec.highest + 1) * x.itemsize


def _check_tensors(where: str, given: Sequence[Any]) -> None:
    if not given:
        raise ArgumentError(where, "tensors", given, "must name at least one tensor")
    for i, x in enumerate(given):
        if not isinstance(x, NBXTensor):
            raise DTypeError(where, f"tensors[{i}]", type(x).__name__, "must be a tensor")
        if x.device is not given[0].device:
            raise ArgumentError(where, f"tensors[{i}]", f"tensor on {x.device}", f"must be on {given[0].device}")


def cat(tensors: Sequence[NBXTensor], dim: int = 0) -> NBXTensor:
    """Tensors joined along ``dim``. Their other sizes are equal; dtypes promote; tensors of shape (0,) are left out."""
    given = list(tensors)
    _check_tensors("cat", given)
    parts = [x for x in given if x.shape != (0,)] or given[:1]
    first = parts[0].shape
    axis = _shape.normalize_axis(dim, len(first), where="cat", argument="dim")
    for i, x in enumerate(given):
        if x.shape != (0,) and (
            x.ndim != len(first) or any(a != b for d, (a, b) in enumerate(zip(x.shape, first)) if d != axis)
        ):
            raise ShapeError("cat", f"tensors[{i}]", x.shape, f"must match {first} in all dimensions but {axis}")
    dtype = result_type(*(x.dtype for x in given), where="cat")
    total = sum(x.shape[axis] for x in parts)
    out = empty_for(spec(given[0].spec.device, dtype, (*first[:axis], total, *first[axis + 1 :])))
    start = 0
    for x in parts:
        _copy(out.narrow(axis, start, x.shape[axis]), x, "cat")
        start += x.shape[axis]
    return out


def stack(tensors: Sequence[NBXTensor], dim: int = 0) -> NBXTensor:
    """Tensors of one shape joined along a new dimension."""
    given = list(tensors)
    _check_tensors("stack", given)
    for i, x in enumerate(given):
        if x.shape != given[0].shape:
            raise ShapeError("stack", f"tensors[{i}]", x.shape, f"must have the shape {given[0].shape} of the first")
    return cat([x.unsqueeze(dim) for x in given], dim)


def _type_as(x: NBXTensor, other: NBXTensor) -> NBXTensor:
    """``x`` with the dtype of ``other``."""
    return cast(x, other.dtype)


def _casts() -> dict[str, Any]:
    """``x.float()`` and its like: the engine authors' short names of `to`."""

    def short(name: str) -> Any:
        def method(self: NBXTensor) -> NBXTensor:
            return cast(self, name)

        method.__doc__ = f"This tensor as {name}."
        return method

    names = {
        "float": "float32",
        "double": "float64",
        "half": "float16",
        "bfloat16": "bfloat16",
        "int": "int32",
        "long": "int64",
    }
    return {method: short(name) for method, name in names.items()}


_ALL = tuple(DTYPES)
_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (7,), (3, 4), (3, 0, 2), (2, 3, 5), (70, 129))


def _entry(
    name: str, function: Any, operand: str, exact: Any, samples: Any, errors: Any, methods: dict[str, Any], out: Any,
    dtypes: tuple[str, ...] = _ALL,
) -> None:  # fmt: skip
    register(
        Operator(
            name, "copy", function, (operand,), dtypes, out, exact, samples, errors, ROUNDING, elementwise_cost, methods
        )
    )


_same = lambda dtype, **_: dtype  # noqa: E731 - a rule of the table
_entry(
    "cast", cast, "x", oracle.cast,
    lambda: [Sample((Input(s),), {"dtype": d}) for s in ((5,), (3, 4)) for d in _ALL]
    + [Sample((Input(s),), {"dtype": "float16"}) for s in ((), (0,), (2, 0, 3))],
    lambda: [ErrorSample((Input((2,)),), {"dtype": "float31"}, DTypeError, "float31"),
             ErrorSample((Input((2,)),), {"dtype": "float32"}, DTypeError, "real", "complex64")],
    {"to": to, "type_as": _type_as, **_casts()}, lambda d, dtype: _dtype(dtype),
    tuple(d for d in _ALL if d not in COMPLEX),
)  # fmt: skip
_entry(
    "clone",
    clone,
    "x",
    oracle.same,
    lambda: [Sample((Input(s),)) for s in _SHAPES],
    list,
    {"clone": clone},
    _same,
)
_entry("contiguous", contiguous, "x", oracle.same, lambda: [Sample((Input(s),)) for s in _SHAPES], list,
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
             (((2, 3), (4, 3), 0), ((2, 3), (2, 1), -1), ((0,), (3,), 0), ((2, 0, 3), (2, 5, 3), 1),
              ((0,), (2, 2), 0), ((0,), (0,), 0))],
    lambda: [ErrorSample(((Input((2, 3)), Input((2, 4))),), {"dim": 0}, ShapeError, "must match"),
             ErrorSample(((),), {}, ValueError, "at least one tensor"),
             ErrorSample(((Input((2, 3)),),), {"dim": 2}, ShapeError, "dim")],
    {}, _same,
)  # fmt: skip
_entry(
    "stack", stack, "tensors", oracle.stack,
    lambda: [Sample(((Input(s), Input(s), Input(s)),), {"dim": d}) for s, d in
             (((), 0), ((4,), -1), ((2, 3), 1), ((0, 2), 0))],
    lambda: [ErrorSample(((Input((2,)), Input((3,))),), {}, ShapeError, "must have the shape")],
    {}, _same,
)  # fmt: skip
