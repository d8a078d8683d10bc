"""The builder that Triton's front end calls: each operation of the IR, done at once with numpy.

Triton checks and promotes the operands (``triton.language.semantic``), as it does for a compile, and calls the method
of the operation. Signedness is the operation's, not the value's, as in the IR: unsigned operations read their operands
as unsigned."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from nbxtensor.backend.reference import mathematics
from nbxtensor.backend.reference.memory import Accessor
from nbxtensor.backend.reference.values import (
    NUMPY,
    SMALL_FLOATS,
    Array,
    IRType,
    Pointer,
    Shape,
    Value,
    convert,
    pointer_of,
    toward_zero,
)

Handle = Any  # a Value or a Pointer


class Execution(threading.local):
    """Where this thread is in its launch."""

    program: tuple[int, int, int] = (0, 0, 0)
    grid: tuple[int, int, int] = (1, 1, 1)
    memory: Accessor


EXECUTION = Execution()


def _unsigned(data: Any) -> Any:
    return data.view(f"u{data.dtype.itemsize}") if data.dtype.kind == "i" else data


def _signed(data: Any) -> Any:
    return data.view(f"i{data.dtype.itemsize}") if data.dtype.kind == "u" else data


def _same(data: Any) -> Any:
    return data


def _one_bit(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Arithmetic on one-bit integers wraps around, as on any others; numpy's on bool does not."""

    def apply(a: Any, b: Any) -> Any:
        if a.dtype == np.bool_:
            return (operation(a.astype(np.int8), b.astype(np.int8)) & 1).astype(np.bool_)
        return operation(a, b)

    return apply


def quotient(a: Any, b: Any) -> Any:
    """Integer division that truncates."""
    return (a - np.fmod(a, b)) // b


def _shift_left(a: Any, b: Any) -> Any:
    return np.left_shift(a, b).astype(a.dtype)


def _shift_right(a: Any, b: Any) -> Any:
    return np.right_shift(a, b.astype(a.dtype))


def _binary(operation: Callable[[Any, Any], Any], view: Callable[[Any], Any] | None = None) -> Any:
    """An operation on operands seen by ``view``; without one, the right operand is seen as the left one is."""

    def create(self: Builder, a: Handle, b: Handle) -> Value:
        x, y = a.data, b.data
        if view is not None:
            x, y = view(x), view(y)
        elif x.dtype != y.dtype:
            y = y.view(x.dtype)
        return Value(operation(x, y), a.shape)

    return create


def _unary(operation: Callable[[Any], Any]) -> Any:
    def create(self: Builder, a: Value) -> Value:
        return Value(operation(a.data), a.shape)

    return create


def _constant(name: str) -> Any:
    dtype = NUMPY[name]
    via = np.dtype(np.float32) if dtype in SMALL_FLOATS else dtype

    def get(self: Builder, value: int | float) -> Value:
        return Value(convert(np.array(value).astype(via), dtype)[()], ())

    return get


def _type(name: str) -> Any:
    found = IRType(NUMPY[name])
    return lambda self: found


def _cast(self: Builder, source: Value, to: IRType) -> Value:
    return Value(convert(source.data, to.dtype), source.shape)


class Builder:
    """Holds no state: what a program is and what it may access is `EXECUTION`'s, one a thread."""

    def __init__(self) -> None:
        floats8 = ("fp8e5", "fp8e5b16", "fp8e4nv", "fp8e4b8")
        precisions = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
        self.options = SimpleNamespace(
            arch=None,
            backend_name="reference",
            extern_libs=None,
            debug=True,  # a kernel's own assertions are checked
            sanitize_overflow=False,
            supported_fp8_dtypes=floats8,
            deprecated_fp8_dot_operand_dtypes=(),
            default_dot_input_precision="ieee",
            allowed_dot_input_precisions=precisions,
            max_num_imprecise_acc_default=0,
        )
        self.codegen_fns = {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"the reference driver does not interpret {name.removeprefix('create_')}")

    # types and constants
    get_void_ty = _type("int1")
    get_int1_ty, get_int8_ty, get_int16_ty = _type("int1"), _type("int8"), _type("int16")
    get_int32_ty, get_int64_ty = _type("int32"), _type("int64")
    get_half_ty, get_bf16_ty, get_float_ty, get_double_ty = _type("fp16"), _type("bf16"), _type("fp32"), _type("fp64")
    get_fp8e4nv_ty, get_fp8e5_ty = _type("fp8e4nv"), _type("fp8e5")
    get_fp8e4b8_ty, get_fp8e5b16_ty = _type("fp8e4b8"), _type("fp8e5b16")
    get_int1, get_int8, get_int16 = _constant("int1"), _constant("int8"), _constant("int16")
    get_int32, get_int64 = _constant("int32"), _constant("int64")
    get_uint8, get_uint16, get_uint32 = _constant("uint8"), _constant("uint16"), _constant("uint32")
    get_uint64 = _constant("uint64")
    get_fp16, get_bf16, get_fp32, get_fp64 = _constant("fp16"), _constant("bf16"), _constant("fp32"), _constant("fp64")

    def get_ptr_ty(self, element: IRType, address_space: Any) -> IRType:
        return IRType(np.dtype(np.int64), (), element.dtype)

    def get_block_ty(self, element: IRType, shape: Sequence[int]) -> IRType:
        return IRType(element.dtype, tuple(shape), element.pointee)

    def get_null_value(self, type: IRType) -> Value:
        return Value(type.dtype.type(0), type.shape)

    def get_all_ones_value(self, type: IRType) -> Value:
        ones = np.array(1 if type.dtype == np.bool_ else -1).astype(type.dtype)
        return Value(ones[()], type.shape)

    # programs
    def create_get_program_id(self, axis: int) -> Value:
        return Value(np.int32(EXECUTION.program[axis]), ())

    def create_get_num_programs(self, axis: int) -> Value:
        return Value(np.int32(EXECUTION.grid[axis]), ())

    def create_barrier(self) -> None:
        """Every operation ends before the next one begins."""

    def create_assert(self, condition: Value, message: str) -> None:
        if not np.all(condition.data):
            raise AssertionError(message)

    def create_assume(self, condition: Value) -> None:
        if not np.all(condition.data):
            raise AssertionError("what the kernel assumes does not hold")

    def create_print(self, prefix: str, hex: bool, values: Sequence[Handle], signed: Sequence[bool]) -> None:
        for value in values or [Value("", ())]:
            print(f"pid {EXECUTION.program}{prefix}", value.data)

    # arithmetic
    create_fadd, create_fsub, create_fmul = _binary(operator.add), _binary(operator.sub), _binary(operator.mul)
    create_fdiv = create_precise_divf = create_approx_divf = _binary(operator.truediv)
    create_frem = _binary(np.fmod)
    create_fneg = _unary(operator.neg)
    create_add, create_sub = _binary(_one_bit(operator.add)), _binary(_one_bit(operator.sub))
    create_mul = _binary(_one_bit(operator.mul))
    create_sdiv, create_udiv = _binary(quotient, _signed), _binary(operator.floordiv, _unsigned)
    create_srem, create_urem = _binary(np.fmod, _signed), _binary(operator.mod, _unsigned)
    create_and, create_or, create_xor = _binary(operator.and_), _binary(operator.or_), _binary(operator.xor)
    create_shl = _binary(_shift_left)
    create_lshr, create_ashr = _binary(_shift_right, _unsigned), _binary(_shift_right, _signed)
    create_minsi, create_maxsi = _binary(np.minimum, _signed), _binary(np.maximum, _signed)
    create_minui, create_maxui = _binary(np.minimum, _unsigned), _binary(np.maximum, _unsigned)
    create_minimumf, create_maximumf = _binary(np.minimum), _binary(np.maximum)
    create_minnumf, create_maxnumf = _binary(np.fmin), _binary(np.fmax)
    create_umulhi = _binary(mathematics.multiply_high, _unsigned)

    # comparisons; O: false where an operand is NaN, U: true there
    create_icmpSLE, create_icmpSLT = _binary(operator.le, _signed), _binary(operator.lt, _signed)
    create_icmpSGE, create_icmpSGT = _binary(operator.ge, _signed), _binary(operator.gt, _signed)
    create_icmpULE, create_icmpULT = _binary(operator.le, _unsigned), _binary(operator.lt, _unsigned)
    create_icmpUGE, create_icmpUGT = _binary(operator.ge, _unsigned), _binary(operator.gt, _unsigned)
    create_icmpEQ, create_icmpNE = _binary(operator.eq), _binary(operator.ne)
    create_fcmpOLE, create_fcmpOLT = _binary(operator.le), _binary(operator.lt)
    create_fcmpOGE, create_fcmpOGT = _binary(operator.ge), _binary(operator.gt)
    create_fcmpOEQ, create_fcmpUNE = _binary(operator.eq), _binary(operator.ne)

    # functions
    create_fabs = create_iabs = _unary(np.abs)
    create_floor, create_ceil = _unary(np.floor), _unary(np.ceil)
    create_exp, create_exp2, create_log, create_log2 = _unary(np.exp), _unary(np.exp2), _unary(np.log), _unary(np.log2)
    create_sin, create_cos = _unary(np.sin), _unary(np.cos)
    create_sqrt = create_precise_sqrt = _unary(np.sqrt)
    create_rsqrt, create_erf = _unary(mathematics.rsqrt), _unary(mathematics.erf)

    def create_fma(self, x: Value, y: Value, z: Value) -> Value:
        return Value(mathematics.fma(x.data, y.data, z.data), x.shape)

    def create_clampf(self, x: Value, low: Value, high: Value, propagate: Any) -> Value:
        if propagate.name == "ALL":
            return Value(np.minimum(np.maximum(x.data, low.data), high.data), x.shape)
        return Value(np.fmin(np.fmax(x.data, low.data), high.data), x.shape)

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, arguments: Sequence[Value], result: IRType, pure: bool
    ) -> Value:
        function = mathematics.library_function(symbol)
        return Value(function(*(a.data for a in arguments)).astype(result.dtype), result.shape)

    # conversions
    create_si_to_fp = create_fp_ext = create_fp_trunc = create_fp_to_si = _cast

    def create_fp_to_ui(self, source: Value, to: IRType) -> Value:
        unsigned = np.dtype(f"u{to.dtype.itemsize}")  # the upper half of its range is beyond the signed type's
        return Value(convert(source.data, unsigned).view(to.dtype), source.shape)

    def create_ui_to_fp(self, source: Value, to: IRType) -> Value:
        return Value(convert(_unsigned(source.data), to.dtype), source.shape)

    def create_int_cast(self, source: Value, to: IRType, signed: bool) -> Value:
        data = _signed(source.data) if signed else _unsigned(source.data)
        return Value(data.astype(to.dtype), source.shape)

    def create_fp_to_fp(self, source: Value, to: IRType, rounding: Any) -> Value:
        if rounding is not None and rounding.name == "RTZ":
            return Value(toward_zero(source.data, to.dtype), source.shape)
        return Value(convert(source.data, to.dtype), source.shape)

    def create_bitcast(self, source: Handle, to: IRType) -> Handle:
        if to.pointee is not None:
            if isinstance(source, Pointer):
                return Pointer(source.base, source.terms, source.shape, to.pointee, source.origin)
            return pointer_of(source.data, source.shape, to.pointee, None)
        if isinstance(source, Pointer):
            return Value(source.data, source.shape)
        return Value(source.data.view(to.dtype), source.shape)

    create_int_to_ptr = create_ptr_to_int = create_bitcast

    # shapes
    def create_splat(self, type: IRType, source: Handle) -> Handle:
        return self.create_broadcast(source, type.shape)

    def create_broadcast(self, source: Handle, shape: Sequence[int]) -> Handle:
        if isinstance(source, Pointer):
            return source.map(_same, tuple(shape))
        return Value(source.data, tuple(shape))

    def create_unsplat(self, source: Handle) -> Handle:
        if isinstance(source, Pointer):
            return pointer_of(source.full(), (), source.pointee, source.origin)
        return Value(np.asarray(source.data).reshape(-1)[0], ())

    def create_expand_dims(self, source: Handle, axis: int) -> Handle:
        shape = (*source.shape[:axis], 1, *source.shape[axis:])

        def expand(data: Any) -> Any:
            return data.reshape(*data.shape[:axis], 1, *data.shape[axis:]) if data.shape else data

        return source.map(expand, shape) if isinstance(source, Pointer) else Value(expand(source.data), shape)

    def create_trans(self, source: Handle, order: Sequence[int]) -> Handle:
        shape = tuple(source.shape[axis] for axis in order)

        def transpose(data: Any) -> Any:
            return data.transpose(tuple(order)) if data.shape else data

        return source.map(transpose, shape) if isinstance(source, Pointer) else Value(transpose(source.data), shape)

    def create_reshape(self, source: Handle, shape: Sequence[int], reorder: bool) -> Handle:
        return _rearranged(lambda a: a.reshape(tuple(shape)), tuple(shape), source)

    def create_cat(self, a: Handle, b: Handle) -> Handle:
        return _rearranged(lambda *arrays: np.concatenate(arrays), (a.shape[0] + b.shape[0],), a, b)

    def create_join(self, a: Handle, b: Handle) -> Handle:
        return _rearranged(lambda *arrays: np.stack(arrays, axis=-1), (*a.shape, 2), a, b)

    def create_split(self, source: Handle) -> tuple[Handle, Handle]:
        shape = source.shape[:-1]
        return _rearranged(lambda a: a[..., 0], shape, source), _rearranged(lambda a: a[..., 1], shape, source)

    def create_gather(self, source: Value, index: Value, axis: int) -> Value:
        return Value(np.take_along_axis(source.full(), index.full(), axis), index.shape)

    def create_make_range(self, type: IRType, start: int, end: int) -> Value:
        return Value(np.arange(start, end, dtype=np.int32), (end - start,))

    def create_select(self, condition: Value, x: Handle, y: Handle) -> Handle:
        if not condition.data.shape:
            return x if condition.data else y
        chosen = np.where(condition.data, x.data, y.data)
        if isinstance(x, Pointer):
            return pointer_of(chosen, x.shape, x.pointee, x.origin if x.origin == y.origin else None)
        return Value(chosen, x.shape)

    def create_histogram(self, source: Value, bins: int, mask: Value | None) -> Value:
        data = source.full()
        counted = (data >= 0) & (data < bins)
        if mask is not None:
            counted = counted & mask.full()
        return Value(np.bincount(data[counted], minlength=bins).astype(np.int32), (bins,))

    # memory
    def create_addptr(self, pointer: Pointer, offset: Value) -> Pointer:
        return pointer.plus(Value(_signed(offset.data), offset.shape), pointer.shape)

    def get_cache_policy(self, modifier: Any, eviction: Any) -> None:
        return None

    def create_load(self, pointer: Pointer, *policy: Any) -> Value:
        return Value(EXECUTION.memory.load(pointer, None, None), pointer.shape)

    def create_masked_load(self, pointer: Pointer, mask: Value, other: Value | None, *policy: Any) -> Value:
        data = EXECUTION.memory.load(pointer, mask.data, None if other is None else other.data)
        return Value(data, pointer.shape)

    def create_store(self, pointer: Pointer, value: Value, *policy: Any) -> None:
        EXECUTION.memory.store(pointer, _stored(value, pointer), None)

    def create_masked_store(self, pointer: Pointer, value: Value, mask: Value, *policy: Any) -> None:
        EXECUTION.memory.store(pointer, _stored(value, pointer), mask.data)

    def create_atomic_rmw(self, kind: Any, pointer: Pointer, value: Value, mask: Value | None, *order: Any) -> Value:
        operation = _ATOMIC[kind.name]
        operands = np.broadcast_to(_stored(value, pointer), value.shape).reshape(-1)
        data = EXECUTION.memory.update(
            pointer, None if mask is None else mask.data, lambda old, lane: operation(old, operands[lane])
        )
        return Value(data[()], pointer.shape)

    def create_atomic_cas(self, pointer: Pointer, compare: Value, value: Value, *order: Any) -> Value:
        expected, operands = (np.broadcast_to(_stored(v, pointer), pointer.shape).reshape(-1) for v in (compare, value))
        data = EXECUTION.memory.update(
            pointer, None, lambda old, lane: operands[lane] if old == expected[lane] else old
        )
        return Value(data[()], pointer.shape)

    def create_atomic_load(self, pointer: Pointer, mask: Value, *order: Any) -> Value:
        return self.create_masked_load(pointer, mask, None)

    def create_atomic_store(self, pointer: Pointer, value: Value, mask: Value, *order: Any) -> None:
        self.create_masked_store(pointer, value, mask)

    # products
    def create_dot(self, a: Value, b: Value, c: Value, *precision: Any) -> Value:
        to = c.data.dtype
        x, y = a.full(), b.full()
        # Products of 8-bit integers and their sums are exact in float64, which has a fast matrix product.
        wide = np.float64 if x.dtype.kind == "i" or x.dtype == np.float64 else np.float32
        product = np.matmul(x.astype(wide), y.astype(wide))
        if x.dtype.kind == "i":
            return Value(product.astype(np.int64).astype(to) + c.data, c.shape)
        return Value(convert(product + c.data.astype(product.dtype), to), c.shape)

    # tensor descriptors
    def create_make_tensor_descriptor(
        self,
        base: Pointer,
        shape: Sequence[Value],
        strides: Sequence[Value],
        block: Sequence[int],
        signed: bool,
        padding: Any,
    ) -> Descriptor:
        fill = np.nan if padding is not None and padding.name == "PAD_NAN" else 0
        return Descriptor(
            base, [int(s.data) for s in shape], [int(s.data) for s in strides], tuple(block), base.pointee.type(fill)
        )

    def create_descriptor_load(self, descriptor: Descriptor, offsets: Sequence[Value], *policy: Any) -> Value:
        pointer, inside = descriptor.at(offsets)
        return Value(EXECUTION.memory.load(pointer, inside, descriptor.padding), pointer.shape)

    def create_descriptor_store(self, descriptor: Descriptor, value: Value, offsets: Sequence[Value]) -> None:
        pointer, inside = descriptor.at(offsets)
        EXECUTION.memory.store(pointer, value.data, inside)


class Descriptor:
    """A tensor in memory of which blocks are loaded and stored; what lies outside of it reads as ``padding``."""

    __slots__ = ("base", "block", "padding", "shape", "strides")

    def __init__(self, base: Pointer, shape: list[int], strides: list[int], block: Shape, padding: Any):
        self.base, self.shape, self.strides, self.block, self.padding = base, shape, strides, block, padding

    def at(self, offsets: Sequence[Value]) -> tuple[Pointer, Array]:
        """The block at the offsets: its addresses, and which of them lie in the tensor."""
        pointer, inside = self.base.map(_same, self.block), np.ones((1,) * len(self.block), np.bool_)
        for axis, (offset, stride) in enumerate(zip(offsets, self.strides)):
            line = (int(offset.data) + np.arange(self.block[axis])).reshape(
                [-1 if a == axis else 1 for a in range(len(self.block))]
            )
            pointer = pointer.plus(Value(line * stride, self.block), self.block)
            inside = inside & (line >= 0) & (line < self.shape[axis])
        return pointer, inside


def _rearranged(change: Callable[..., Array], shape: Shape, *sources: Handle) -> Handle:
    """Tensors whose elements move: ``change`` takes their full arrays."""
    first = sources[0]
    if isinstance(first, Pointer):
        return pointer_of(change(*(s.full() for s in sources)), shape, first.pointee, first.origin)
    if len(sources) == 1 and not first.data.shape:
        return Value(first.data, shape)
    return Value(change(*(s.full() for s in sources)), shape)


def _stored(value: Value, pointer: Pointer) -> Any:
    """The value as memory holds it: in the pointee's dtype."""
    data = value.data
    return data if data.dtype == pointer.pointee else data.view(pointer.pointee)


_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "XCHG": lambda old, new: new,
    "ADD": operator.add,
    "FADD": operator.add,
    "AND": operator.and_,
    "OR": operator.or_,
    "XOR": operator.xor,
    "MAX": lambda old, new: max(_signed(old), _signed(new)).view(old.dtype),
    "MIN": lambda old, new: min(_signed(old), _signed(new)).view(old.dtype),
    "UMAX": lambda old, new: max(_unsigned(old), _unsigned(new)).view(old.dtype),
    "UMIN": lambda old, new: min(_unsigned(old), _unsigned(new)).view(old.dtype),
}
