"""The dtype table, type promotion, and the one host conversion between any two dtypes. No device, no Triton.

All facts of a dtype (its numpy, Triton, DLPack and safetensors names, its limits) derives from its row in ``_TABLE``.
Promotion is the Array API's table (2024.12, "Type Promotion Rules"), extended to bfloat16, float8 and mixed kinds.
"""

from __future__ import annotations

import math
from functools import cache
from operator import index
from types import MappingProxyType
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from nbxtensor.errors import DTypeError, ScalarOverflow

Array = np.ndarray[Any, Any]
DTypeLike = Any  #: what `dtype` accepts: a `DType`, its name, a numpy or ml_dtypes type, or a Python scalar type

# DLPack's DLDataTypeCode, dlpack.h version 1.1.
_DL_INT, _DL_UINT, _DL_FLOAT, _DL_BFLOAT, _DL_COMPLEX, _DL_BOOL, _DL_E4M3FN, _DL_E5M2 = 0, 1, 2, 4, 5, 6, 10, 12

# Name, kind, bits, exponent bits, stored mantissa bits, Triton, DLPack code, safetensors; narrow to wide within a kind.
# A complex row gives the exponent and mantissa bits of one component.
_Row = tuple[str, str, int, int, int, str | None, int, str | None]
_TABLE: tuple[_Row, ...] = (
    ("bool", "bool", 8, 0, 0, "i1", _DL_BOOL, "BOOL"),
    ("uint8", "uint", 8, 0, 0, "u8", _DL_UINT, "U8"),
    ("uint16", "uint", 16, 0, 0, "u16", _DL_UINT, "U16"),
    ("uint32", "uint", 32, 0, 0, "u32", _DL_UINT, "U32"),
    ("uint64", "uint", 64, 0, 0, "u64", _DL_UINT, "U64"),
    ("int8", "int", 8, 0, 0, "i8", _DL_INT, "I8"),
    ("int16", "int", 16, 0, 0, "i16", _DL_INT, "I16"),
    ("int32", "int", 32, 0, 0, "i32", _DL_INT, "I32"),
    ("int64", "int", 64, 0, 0, "i64", _DL_INT, "I64"),
    ("float8_e4m3fn", "float", 8, 4, 3, "fp8e4nv", _DL_E4M3FN, "F8_E4M3"),
    ("float8_e5m2", "float", 8, 5, 2, "fp8e5", _DL_E5M2, "F8_E5M2"),
    ("float16", "float", 16, 5, 10, "fp16", _DL_FLOAT, "F16"),
    ("bfloat16", "float", 16, 8, 7, "bf16", _DL_BFLOAT, "BF16"),
    ("float32", "float", 32, 8, 23, "fp32", _DL_FLOAT, "F32"),
    ("float64", "float", 64, 11, 52, "fp64", _DL_FLOAT, "F64"),
    ("complex64", "complex", 64, 8, 23, None, _DL_COMPLEX, "C64"),
    ("complex128", "complex", 128, 11, 52, None, _DL_COMPLEX, None),
)
_KINDS = ("bool", "uint", "int", "float", "complex")


class DType(str):
    """A dtype, equal to its table name: ``nbxtensor.float32 == "float32"``. Each exists once: ``is`` compares them too.

    ``name``, ``kind`` ("bool", "uint", "int", "float", "complex"), ``bits`` and ``itemsize`` (bytes) of one element;
    ``triton``: Triton's name, None for complex; ``numpy``: the `numpy.dtype` (from ml_dtypes for bfloat16 and float8);
    ``dlpack``: (code, bits); ``safetensors``: the name in that format, None where it has none.

    Limits: ``min`` and ``max`` are the lowest and highest finite values, ints for bool and integers. ``exponent_bits``,
    ``mantissa_bits`` (stored), ``eps`` (gap above 1), ``smallest_normal`` and ``smallest_subnormal`` are 0 for bool and
    integers. A complex dtype states the limits of its components, whose dtype is ``real``; else ``real`` is itself.
    """

    __slots__ = (
        "bits", "dlpack", "eps", "exponent_bits", "itemsize", "kind", "mantissa_bits", "max", "min", "name", "numpy",
        "real", "safetensors", "smallest_normal", "smallest_subnormal", "triton",
    )  # fmt: skip
    name: str
    kind: str
    bits: int
    itemsize: int
    triton: str | None
    numpy: np.dtype[Any]
    dlpack: tuple[int, int]
    safetensors: str | None
    min: int | float
    max: int | float
    exponent_bits: int
    mantissa_bits: int
    eps: float
    smallest_normal: float
    smallest_subnormal: float
    real: DType

    def __new__(cls, name: str) -> DType:
        """The dtype of that name, as `dtype` does."""
        return dtype(name, where="DType", argument="name")

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise AttributeError(f"{self!r} is constant; {attribute} cannot be set")

    def __repr__(self) -> str:
        return f"nbxtensor.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


def _build(row: _Row, known: dict[str, DType]) -> DType:
    name, kind, bits, exponent, mantissa, triton, dlpack_code, safetensors = row
    facts: dict[str, Any] = {
        "name": name, "kind": kind, "bits": bits, "itemsize": bits // 8, "triton": triton, "safetensors": safetensors,
        "dlpack": (dlpack_code, bits), "exponent_bits": exponent, "mantissa_bits": mantissa,
        "numpy": np.dtype(getattr(ml_dtypes, name) if "bfloat" in name or "float8" in name else name),
    }  # fmt: skip
    if kind in ("float", "complex"):
        bias = 2 ** (exponent - 1) - 1
        facts["eps"] = 2.0**-mantissa
        facts["smallest_normal"] = 2.0 ** (1 - bias)
        facts["smallest_subnormal"] = math.ldexp(1.0, 1 - bias - mantissa)
        # An "fn" format has no infinity: its top exponent holds numbers too, but for the last pattern, which is NaN.
        top, unused = (bias + 1, 2) if name.endswith("fn") else (bias, 1)
        facts["max"] = (2 - unused * 2.0**-mantissa) * 2.0**top
        facts["min"] = -facts["max"]
    else:
        signed = kind == "int"
        facts["min"] = -(2 ** (bits - 1)) if signed else 0
        facts["max"] = 1 if kind == "bool" else 2 ** (bits - signed) - 1
        facts["eps"] = facts["smallest_normal"] = facts["smallest_subnormal"] = 0.0
    self = str.__new__(DType, name)
    facts["real"] = known[f"float{bits // 2}"] if kind == "complex" else self
    for attribute, value in facts.items():
        object.__setattr__(self, attribute, value)
    return self


_BY_NAME: dict[str, DType] = {}
for _row in _TABLE:
    _BY_NAME[_row[0]] = _build(_row, _BY_NAME)

#: Every dtype by name, in table order.
DTYPES = MappingProxyType(_BY_NAME)

bool_ = _BY_NAME["bool"]
uint8 = _BY_NAME["uint8"]
uint16 = _BY_NAME["uint16"]
uint32 = _BY_NAME["uint32"]
uint64 = _BY_NAME["uint64"]
int8 = _BY_NAME["int8"]
int16 = _BY_NAME["int16"]
int32 = _BY_NAME["int32"]
int64 = _BY_NAME["int64"]
float8_e4m3fn = _BY_NAME["float8_e4m3fn"]
float8_e5m2 = _BY_NAME["float8_e5m2"]
float16 = _BY_NAME["float16"]
bfloat16 = _BY_NAME["bfloat16"]
float32 = _BY_NAME["float32"]
float64 = _BY_NAME["float64"]
complex64 = _BY_NAME["complex64"]
complex128 = _BY_NAME["complex128"]

#: What a Python scalar becomes when no tensor decides.
default_int, default_float, default_complex = int64, float32, complex64

_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}
_BY_PYTHON: dict[Any, DType] = {bool: bool_, int: default_int, float: default_float, complex: default_complex}
_BY_TRITON = {d.triton: d for d in DTYPES.values() if d.triton}
_BY_DLPACK = {d.dlpack: d for d in DTYPES.values()}
_BY_SAFETENSORS = {d.safetensors: d for d in DTYPES.values() if d.safetensors}
_ML_SCALARS: tuple[type, ...] = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
_SCALARS: tuple[type, ...] = (bool, int, float, complex, np.generic, *_ML_SCALARS)
_SCALAR_TYPES = {*np.sctypeDict.values(), *_ML_SCALARS}  # concrete ones, which an np.dtype can be made of
_NUMPY_REFUSALS = {
    "O": "Python objects have no fixed layout",
    "S": "strings are not numbers",
    "U": "strings are not numbers",
    "T": "strings are not numbers",
    "M": "dates are not numbers",
    "m": "time spans are not numbers",
    "g": "long double differs from machine to machine; convert to float64 first",
    "G": "long double differs from machine to machine; convert to complex128 first",
}


def dtype(x: DTypeLike, *, where: str = "dtype", argument: str = "dtype") -> DType:
    """The `DType` that ``x`` names: a DType, a table name, a numpy dtype, a numpy or ml_dtypes scalar type, or Python's
    ``bool`` (bool), ``int`` (int64), ``float`` (float32) or ``complex`` (complex64).

    Raises `DTypeError`, in the name of ``where`` and ``argument``, for anything else: unknown names, foreign byte
    order, objects, strings, dates, structured types, long double.
    """
    if type(x) is DType:
        return x
    found: DType | None = None
    if isinstance(x, str):
        found = _BY_NAME.get(x)
    elif isinstance(x, np.dtype):
        found = _of_numpy(x, where, argument)
    elif isinstance(x, type):
        found = _BY_PYTHON.get(x)
        if found is None and x in _SCALAR_TYPES:
            found = _of_numpy(np.dtype(x), where, argument)
    if found is None:
        raise DTypeError(where, argument, x, f"must be one of {', '.join(DTYPES)}")
    return found


def _of_numpy(x: np.dtype[Any], where: str, argument: str) -> DType | None:
    if not x.isnative:
        raise DTypeError(where, argument, x, "is not in this machine's byte order; use .astype(x.newbyteorder('='))")
    if x.names is not None or x.subdtype is not None:
        raise DTypeError(where, argument, x, "structured types have no equivalent; take one field of plain numbers")
    found = _BY_NUMPY.get(x)
    if found is None and x.char in _NUMPY_REFUSALS:
        raise DTypeError(where, argument, x, _NUMPY_REFUSALS[x.char])
    return found


def from_triton(name: str, *, where: str = "from_triton") -> DType:
    """The dtype of Triton's element name, such as "fp32". Raises `DTypeError` for an unknown name."""
    found = _BY_TRITON.get(name)
    if found is None:
        raise DTypeError(where, "name", name, f"must be one of {', '.join(map(str, _BY_TRITON))}")
    return found


def from_dlpack(code: int, bits: int, lanes: int = 1, *, where: str = "from_dlpack") -> DType:
    """The dtype of a DLDataType (DLPack 1.1). Raises `DTypeError` for vectors (lanes > 1) and other types."""
    if lanes != 1:
        raise DTypeError(where, "lanes", lanes, "vector elements are not supported; must be 1")
    found = _BY_DLPACK.get((code, bits))
    if found is None:
        raise DTypeError(where, "(code, bits)", (code, bits), f"must be one of {', '.join(map(str, _BY_DLPACK))}")
    return found


def from_safetensors(name: str, *, where: str = "from_safetensors") -> DType:
    """The dtype of a safetensors name, such as "BF16". Raises `DTypeError` for an unknown name."""
    found = _BY_SAFETENSORS.get(name)
    if found is None:
        raise DTypeError(where, "name", name, f"must be one of {', '.join(map(str, _BY_SAFETENSORS))}")
    return found


def promote(a: DTypeLike, b: DTypeLike, *, where: str = "promote") -> DType:
    """The dtype that holds ``a`` together with ``b``.

    Within a kind: the Array API's table; float16 with bfloat16 is float32, float8_e4m3fn with float8_e5m2 is float16.
    Across kinds the higher one wins unchanged (int64 with float16 is float16), but for complex64 with float64, which is
    complex128. Raises `DTypeError` for uint64 with a signed integer: no integer type holds both.
    """
    found = _promote(dtype(a, where=where), dtype(b, where=where))
    if found is None:
        raise DTypeError(where, "dtypes", (a, b), "no integer type holds both; cast one of them")
    return found


@cache
def _promote(a: DType, b: DType) -> DType | None:
    if _rank(a) < _rank(b):
        a, b = b, a
    if a is b or b is bool_:
        return a
    if a.kind == "complex":
        return complex128 if b is float64 else a
    if a.kind == "float":
        if b.kind != "float" or a.bits > b.bits:
            return a
        return float32 if a.bits == 16 else float16
    if a.kind == b.kind or a.bits > b.bits:
        return a
    return _BY_NAME.get(f"int{2 * b.bits}")  # signed with an unsigned at least as wide


def _rank(d: DType) -> tuple[int, int]:
    return _KINDS.index(d.kind), d.bits


def promote_scalar(d: DTypeLike, scalar: Any, *, where: str = "promote_scalar") -> DType:
    """The dtype of a tensor of dtype ``d`` together with a scalar, which counts by its kind alone.

    A scalar of the tensor's kind or a lower one changes nothing. A bool tensor with an int is int64; a bool or integer
    tensor with a float is float32; with a complex, complex64, or complex128 for a float64 tensor. numpy's scalars count
    as Python's. Raises `ScalarOverflow` for an int that the resulting integer dtype (or, for a floating result, a
    Python float) cannot hold, and `DTypeError` for what is no number.
    """
    tensor = dtype(d, where=where)
    kind = _scalar_kind(scalar, where)
    if kind == "complex":
        return tensor if tensor.kind == "complex" else promote(tensor, default_complex)
    if kind == "float":
        return tensor if tensor.kind in ("float", "complex") else default_float
    if kind == "int":
        result = default_int if tensor is bool_ else tensor
        _check_range(result, index(scalar), where)
        return result
    return tensor


def _scalar_kind(scalar: object, where: str) -> str:
    for python_type in (bool, int, float, complex):
        if isinstance(scalar, python_type):
            return python_type.__name__
    if not isinstance(scalar, _SCALARS):
        raise DTypeError(where, "scalar", scalar, "must be a bool, int, float or complex number")
    kind = dtype(type(scalar), where=where, argument="scalar").kind
    return "int" if kind == "uint" else kind


def _check_range(d: DType, value: int, where: str) -> None:
    if d.kind in ("int", "uint"):
        if not d.min <= value <= d.max:
            raise ScalarOverflow(where, "scalar", value, f"must lie in {d.min}..{d.max}, the range of {d}")
    elif abs(value) > float64.max:
        raise ScalarOverflow(where, "scalar", value, f"must lie within +-{float64.max}, the range of float64")


def result_type(*things: Any, where: str = "result_type") -> DType:
    """The dtype of all ``things`` together: dtypes (as `dtype` accepts), scalars, and what has a ``dtype`` attribute.

    The order of the arguments does not matter. Scalars alone give bool, int64, float32 or complex64. Raises as
    `promote` and `promote_scalar` do, and `DTypeError` for no argument.
    """
    scalars = [x for x in things if isinstance(x, _SCALARS)]
    dtypes = [dtype(x if isinstance(x, (str, type, np.dtype)) else getattr(x, "dtype", x), where=where)
              for x in things if not isinstance(x, _SCALARS)]  # fmt: skip
    if not things:
        raise DTypeError(where, "things", things, "at least one dtype, tensor or scalar is needed")
    # Widest first: float8_e4m3fn, float8_e5m2 and bfloat16 are then bfloat16 in any order.
    dtypes.sort(key=_rank, reverse=True)
    result = dtypes[0] if dtypes else bool_
    for other in dtypes[1:]:
        result = promote(result, other, where=where)
    # Highest kind first, so that an int is checked against the type that results.
    for scalar in sorted(scalars, key=lambda x: _KINDS.index(_scalar_kind(x, where)), reverse=True):
        result = promote_scalar(result, scalar, where=where)
    return result


def convert(array: Array, to: DTypeLike, out: Array | None = None) -> Array:
    """``array`` with dtype ``to``: the host's conversion, which every device matches.

    - float to integer truncates toward zero and saturates; NaN gives 0. Integer to integer wraps.
    - anything to bool is ``!= 0``; NaN is True.
    - to float16 and float8: nearest even; a finite value too large gives the largest finite one. Infinity stays, or
      becomes NaN in float8_e4m3fn, which has none.
    - to bfloat16, float32 and float64: nearest even; a finite value too large gives infinity.
    - float64 and integers reach bfloat16 and float8 through float32, as in ml_dtypes, whose bits these are (but for the
      saturation). Every other conversion rounds once; the two differ only where the first rounding lands on a tie.
    - NaN stays NaN and becomes quiet; its sign stays. Subnormals stay.
    - complex to real numbers is refused: take the real part.

    Any shape and strides; ``array`` is never modified. Returns ``array`` itself where it has that dtype already, else a
    new array; or ``out`` (same shape, dtype ``to``), which may share memory with ``array``. Raises `DTypeError`.
    """
    array = np.asarray(array)
    source = dtype(array.dtype, where="convert", argument="array.dtype")
    target = dtype(to, where="convert", argument="to")
    if source.kind == "complex" and target.kind not in ("complex", "bool"):
        raise DTypeError("convert", "to", target, f"{source} has an imaginary part; take the real part first")
    if out is not None and (out.dtype != target.numpy or out.shape != array.shape):
        raise DTypeError("convert", "out", (out.dtype, out.shape), f"must be {target} of shape {array.shape}")
    if source is target:
        result = array
    else:
        with np.errstate(all="ignore"):  # the rules above say what overflow and NaN become
            result = _convert(array.reshape(array.shape or (1,)), source, target).reshape(array.shape)
    if out is None:
        return result
    np.copyto(out, result)
    return out


def _convert(x: Array, source: DType, target: DType) -> Array:
    """As `convert`, for two different dtypes and at least one dimension."""
    if source.kind == "bool":
        return x.astype(target.numpy)
    small = source.kind == "float" and source.bits < 32
    if target is bool_ and small:  # any bit but the sign
        nonzero: Array = (x.view(f"u{source.itemsize}") & (2 ** (source.bits - 1) - 1)) != 0
        return nonzero
    # float32 holds every value of the smaller types exactly, and ml_dtypes converts from and to it.
    wide = x.astype(np.float32) if small else x
    if target.kind in ("int", "uint") and source.kind == "float":
        return _saturate_to_integer(wide, target)
    if target.kind == "float" and target.bits < 32 and target is not float16:
        wide = wide.astype(np.float32, copy=False)
    result = wide.astype(target.numpy, copy=False)
    if target in (float16, float8_e4m3fn, float8_e5m2) and target.max < source.max:
        _undo_overflow(result, x, target)
    if source.kind in ("float", "complex") and target is not bool_:
        for part in (result.real, result.imag) if target.kind == "complex" else (result,):
            _quiet(part, target.real)
    return result


def _saturate_to_integer(x: Array, target: DType) -> Array:
    # Both limits are powers of two (or 0), hence exact in x's dtype; the highest integer itself often is not.
    low, high = x.dtype.type(target.min), x.dtype.type(target.max + 1)
    below, above = x <= low, x >= high
    x = np.where(below | above | np.isnan(x), x.dtype.type(0), x)
    result = x.astype(target.numpy)
    result[below] = target.min
    result[above] = target.max
    return result


def _undo_overflow(result: Array, source: Array, target: DType) -> None:
    """Overflow to infinity (NaN in e4m3fn) becomes the largest finite value, whose bit pattern is one less."""
    bits = result.view(f"u{target.itemsize}")
    magnitude = (1 << (target.bits - 1)) - 1
    overflow = magnitude if target is float8_e4m3fn else magnitude & -(1 << target.mantissa_bits)
    over = (bits & magnitude) == overflow
    if over.any():
        over &= np.isfinite(source)
        bits[over] -= 1


def _quiet(x: Array, d: DType) -> None:
    """Set the quiet bit of every NaN of ``x``."""
    if d is float8_e4m3fn:  # has one NaN only
        return
    nan = np.isnan(x)
    if nan.any():
        x.view(f"u{d.itemsize}")[nan] |= 1 << (d.mantissa_bits - 1)
