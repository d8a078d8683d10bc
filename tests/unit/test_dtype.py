"""The dtype table, the names it answers to, and promotion."""

from __future__ import annotations

import ast
import copy
import importlib
import itertools
import pickle
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    complex64,
    dtype,
    float16,
    float32,
    float64,
    from_dlpack,
    from_safetensors,
    from_triton,
    int8,
    int16,
    int32,
    int64,
    promote,
    promote_scalar,
    result_type,
    uint8,
    uint64,
)
from nbxtensor.errors import DTypeError, ScalarOverflow

ALL = list(DTYPES.values())


def test_the_table() -> None:
    names = (
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float8_e4m3fn float8_e5m2 float16 bfloat16 float32 "
        "float64 complex64 complex128"
    )
    assert list(DTYPES) == names.split()
    module = importlib.import_module("nbxtensor.dtype")  # the package exports a function of that name
    for name, d in DTYPES.items():
        assert d == name == d.name == str(d) == f"{d}"
        assert getattr(module, "bool_" if name == "bool" else name) is d
        assert repr(d) == f"nbxtensor.{name}"


@pytest.mark.parametrize("d", ALL)
def test_size_and_limits_are_those_of_numpy_and_ml_dtypes(d: DType) -> None:
    assert d.itemsize * 8 == d.bits == d.numpy.itemsize * 8
    assert d.dlpack[1] == d.bits
    if d.kind in ("int", "uint"):
        integers = np.iinfo(d.numpy)
        assert (type(d.min), type(d.max)) == (int, int)
        assert (d.min, d.max, d.eps) == (integers.min, integers.max, 0.0)
    elif d is bool_:
        assert (d.min, d.max) == (0, 1)
    else:
        info: Any = ml_dtypes.finfo(d.real.numpy)  # type: ignore[no-untyped-call]
        limits = (d.min, d.max, d.eps, d.smallest_normal, d.smallest_subnormal)
        names = ("min", "max", "eps", "smallest_normal", "smallest_subnormal")
        assert limits == tuple(float(getattr(info, name)) for name in names)
        assert all(type(x) is float for x in limits)
        assert (d.exponent_bits, d.mantissa_bits) == (info.nexp, info.nmant)
        assert d.real.bits == (d.bits // 2 if d.kind == "complex" else d.bits)


def test_names_in_other_libraries() -> None:
    assert {d: d.triton for d in ALL} == {
        "bool": "i1", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
        "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
        "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32",
        "float64": "fp64", "complex64": None, "complex128": None,
    }  # fmt: skip
    assert {d: d.safetensors for d in ALL} == {
        "bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
        "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
        "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float16": "F16", "bfloat16": "BF16", "float32": "F32",
        "float64": "F64", "complex64": "C64", "complex128": None,
    }  # fmt: skip
    codes = {"bool": 6, "uint": 1, "int": 0, "float": 2, "complex": 5}
    exceptions = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
    assert {d: d.dlpack[0] for d in ALL} == {d: exceptions.get(d, codes[d.kind]) for d in ALL}


def test_names_of_other_libraries_come_back() -> None:
    for d in ALL:
        assert from_dlpack(*d.dlpack) is d
        if d.triton:
            assert from_triton(d.triton) is d
        if d.safetensors:
            assert from_safetensors(d.safetensors) is d
    with pytest.raises(DTypeError, match=r"from_dlpack: \(code, bits\)=\(2, 128\): must be one of"):
        from_dlpack(2, 128)
    with pytest.raises(DTypeError, match=r"read: lanes=4: .*must be 1"):
        from_dlpack(2, 32, 4, where="read")
    with pytest.raises(DTypeError, match=r"from_triton: name='fp4': must be one of i1, u8"):
        from_triton("fp4")
    with pytest.raises(DTypeError, match=r"from_safetensors: name='F4': must be one of BOOL, U8"):
        from_safetensors("F4")


def test_a_dtype_is_constant_and_unique() -> None:
    for d in ALL:
        assert DType(d.name) is pickle.loads(pickle.dumps(d)) is copy.deepcopy(d) is copy.copy(d) is d
    with pytest.raises(AttributeError, match="float32 is constant"):
        float32.itemsize = 8
    with pytest.raises(TypeError):
        DTYPES["float31"] = float32  # type: ignore[index]
    with pytest.raises(DTypeError, match="DType: name='float31'"):
        DType("float31")


@pytest.mark.parametrize("d", ALL)
def test_dtype_accepts_every_spelling(d: DType) -> None:
    for spelling in (d, d.name, np.str_(d.name), d.numpy, d.numpy.type):
        assert dtype(spelling) is d


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [(bool, "bool"), (int, "int64"), (float, "float32"), (complex, "complex64"), (np.longlong, "int64")]
    + [(np.dtype("ulonglong"), "uint64"), (np.dtype(np.float32, metadata={"unit": "m"}), "float32")],
)
def test_dtype_of_types(given_type: Any, expected: str) -> None:
    assert dtype(given_type) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("float31", "must be one of bool, uint8"),
        ("fp32", "must be one of"),
        (None, "must be one of"),
        (3.0, "must be one of"),
        ([np.float32], "must be one of"),
        (list, "must be one of"),
        (np.floating, "must be one of"),
        (np.generic, "must be one of"),
        (ml_dtypes.float8_e4m3b11fnuz, "must be one of"),
        (np.dtype(ml_dtypes.int4), "must be one of"),
        (np.dtype("V8"), "must be one of"),
        (np.dtype(">f4"), "byte order"),
        (np.dtype("O"), "objects have no fixed layout"),
        (np.object_, "objects have no fixed layout"),
        (np.dtype("S3"), "strings"),
        (np.str_, "strings"),
        (np.dtype("M8[s]"), "dates"),
        (np.timedelta64, "time spans"),
        (np.dtype([("x", "f4")]), "structured"),
        (np.dtype(("f4", 3)), "structured"),
        (np.dtype("longdouble"), "long double"),
        (np.clongdouble, "long double"),
    ],
)
def test_dtype_refuses_by_reason(value: Any, reason: str) -> None:
    with pytest.raises(DTypeError, match=reason) as caught:
        dtype(value, where="full", argument="kind")
    assert str(caught.value).startswith("full: kind=")
    assert caught.value.value is value or isinstance(value, type)


# The Array API standard 2024.12, "Type Promotion Rules", table by table; what is undefined there (--) is
# refused here. The last table is our own.
ARRAY_API = """
             int8   int16  int32  int64
    int8     int8   int16  int32  int64
    int16    int16  int16  int32  int64
    int32    int32  int32  int32  int64
    int64    int64  int64  int64  int64

             uint8  uint16 uint32 uint64
    uint8    uint8  uint16 uint32 uint64
    uint16   uint16 uint16 uint32 uint64
    uint32   uint32 uint32 uint32 uint64
    uint64   uint64 uint64 uint64 uint64

             uint8  uint16 uint32 uint64
    int8     int16  int32  int64  --
    int16    int16  int32  int64  --
    int32    int32  int32  int64  --
    int64    int64  int64  int64  --

               float32    float64    complex64  complex128
    float32    float32    float64    complex64  complex128
    float64    float64    float64    complex128 complex128
    complex64  complex64  complex128 complex64  complex128
    complex128 complex128 complex128 complex128 complex128

               float8_e4m3fn float8_e5m2 float16 bfloat16 float32 float64 complex64  complex128
float8_e4m3fn  float8_e4m3fn float16     float16 bfloat16 float32 float64 complex64  complex128
float8_e5m2    float16       float8_e5m2 float16 bfloat16 float32 float64 complex64  complex128
float16        float16       float16     float16 float32  float32 float64 complex64  complex128
bfloat16       bfloat16      bfloat16    float32 bfloat16 float32 float64 complex64  complex128
"""


def promotions() -> dict[tuple[str, str], str]:
    """The tables above, and what crosses kinds: bool with anything, integers with anything floating."""
    table = {}
    for block in ARRAY_API.strip("\n").split("\n\n"):
        header, *rows = (line.split() for line in block.splitlines())
        for name, *results in rows:
            for other, result in zip(header, results, strict=True):
                table[name, other] = table[other, name] = result
    floating = [d.name for d in ALL if d.kind in ("float", "complex")]
    table |= {pair: name for name in DTYPES for pair in ((name, "bool"), ("bool", name))}
    for name in floating:
        for integer in DTYPES:
            if "int" in integer:
                table[name, integer] = table[integer, name] = name
    return table


def test_promote_is_the_table() -> None:
    table = promotions()
    assert set(table) == set(itertools.product(DTYPES, repeat=2))
    for (a, b), expected in table.items():
        if expected == "--":
            with pytest.raises(DTypeError, match=r"add: dtypes=.*no integer type holds both"):
                promote(a, b, where="add")
        else:
            assert promote(a, b) is DTYPES[expected], (a, b)


def test_promote_holds_both() -> None:
    """Within a kind every value of either dtype is exact in the result."""
    for a, b in itertools.product(ALL, repeat=2):
        if a.kind == b.kind and a.kind in ("int", "uint", "float"):
            result = promote(a, b)
            assert min(a.min, b.min) >= result.min and max(a.max, b.max) <= result.max
            assert max(a.mantissa_bits, b.mantissa_bits) <= result.mantissa_bits
            assert min(a.smallest_subnormal, b.smallest_subnormal) >= result.smallest_subnormal


def test_promote_takes_numpy_and_python_types() -> None:
    assert promote(np.dtype("int8"), np.uint8) is int16
    assert promote(int, "float16") is float16
    with pytest.raises(DTypeError, match="add: dtype='half'"):
        promote("half", "float32", where="add")


SCALARS = {"bool": True, "int": 7, "float": 0.5, "complex": 2j}
NUMPY_SCALARS: dict[str, list[Any]] = {
    "bool": [np.True_],
    "int": [np.int8(7), np.uint64(7), np.int64(7)],
    "float": [np.float16(0.5), np.float32(0.5), np.float64(0.5), ml_dtypes.bfloat16(0.5), ml_dtypes.float8_e5m2(0.5)],
    "complex": [np.complex64(2j), np.complex128(2j)],
}
WITH_SCALAR = {
    # tensor's kind: result with a bool, int, float, complex scalar; "=": the tensor's dtype
    "bool": ("=", "int64", "float32", "complex64"),
    "uint": ("=", "=", "float32", "complex64"),
    "int": ("=", "=", "float32", "complex64"),
    "float": ("=", "=", "=", "complex64"),
    "complex": ("=", "=", "=", "="),
}


@pytest.mark.parametrize("d", ALL)
def test_promote_scalar(d: DType) -> None:
    for kind, expected in zip(SCALARS, WITH_SCALAR[d.kind], strict=True):
        if (d, kind) == ("float64", "complex"):
            expected = "complex128"
        for scalar in (SCALARS[kind], *NUMPY_SCALARS[kind]):
            assert promote_scalar(d, scalar) is (d if expected == "=" else DTYPES[expected])


@pytest.mark.parametrize("d", [d for d in ALL if d.kind in ("int", "uint")])
def test_an_int_must_fit_an_integer_dtype(d: DType) -> None:
    assert promote_scalar(d, int(d.min)) is promote_scalar(d, int(d.max)) is d
    for value in (int(d.min) - 1, int(d.max) + 1, 10**40):
        with pytest.raises(ScalarOverflow, match=rf"add: scalar=-?\d+: must lie in {d.min}\.\.{d.max}") as caught:
            promote_scalar(d, value, where="add")
        assert isinstance(caught.value, OverflowError) and isinstance(caught.value, ValueError)
        assert caught.value.value == value


def test_an_int_must_fit_the_default_or_a_float() -> None:
    with pytest.raises(ScalarOverflow, match="the range of int64"):
        promote_scalar(bool_, 2**63)
    assert promote_scalar(float16, 10**300) is float16  # becomes infinity, as arithmetic does
    for d in (float16, float64, complex64):
        with pytest.raises(ScalarOverflow, match="the range of float64"):
            promote_scalar(d, -(10**400))


@pytest.mark.parametrize(
    "scalar", ["1", None, [1], np.ones(()), np.datetime64("2020-01-01"), np.timedelta64(3, "s"), float]
)
def test_what_is_no_scalar_is_refused(scalar: Any) -> None:
    with pytest.raises(DTypeError, match=r"^add: scalar="):
        promote_scalar(float32, scalar, where="add")


def test_result_type() -> None:
    assert result_type(int8, uint8, 5) is int16
    assert result_type(np.ones(2, np.float16), bfloat16) is float32
    assert result_type(np.array(1.0), float32) is float64  # a 0-d array is no scalar
    assert result_type(int32, 0.5) is float32
    assert result_type(bool_, 1, 2.0) is float32
    assert result_type(uint8, 300, 1.0) is float32  # 300 goes to the float, not to uint8
    assert [result_type(x) for x in (True, 1, 1.0, 1j)] == ["bool", "int64", "float32", "complex64"]
    assert result_type("int8", int, np.int16) is int64
    for things, text in (((), "at least one"), ((uint64, int8), "no integer type"), (([1],), "must be one of")):
        with pytest.raises(DTypeError, match=f"concat: .*{text}"):
            result_type(*things, where="concat")
    with pytest.raises(ScalarOverflow):
        result_type(uint8, 300)


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        (("float8_e4m3fn", "float8_e5m2", "bfloat16"), "bfloat16"),  # not float32 by way of float16
        (("uint64", "int8", "float16"), "float16"),
        (("bool", "uint8", "int8", "uint16"), "int32"),
        (("complex64", "bfloat16", "float64"), "complex128"),
    ],
)
def test_result_type_of_several_dtypes(things: tuple[str, ...], expected: str) -> None:
    assert {result_type(*order) for order in itertools.permutations(things)} == {expected}


@given(st.lists(st.sampled_from([*ALL, True, 3, 0.5, 1j]), min_size=1, max_size=5), st.randoms())
def test_result_type_does_not_depend_on_the_order(things: list[Any], random: Any) -> None:
    def attempt(things: list[Any]) -> Any:
        try:
            return result_type(*things)
        except DTypeError:
            return DTypeError

    shuffled = list(things)
    random.shuffle(shuffled)
    assert attempt(shuffled) is attempt(things)
    assert attempt([*things, things[0]]) is attempt(things)


@pytest.mark.parametrize(("name", "allowed"), [("dtype", {"numpy", "ml_dtypes"}), ("shape", set())])
def test_the_lowest_rooms_import_little(name: str, allowed: set[str]) -> None:
    source = Path(str(importlib.import_module(f"nbxtensor.{name}").__file__)).read_text()
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    assert {module for module in imported if module.split(".")[0] not in sys.stdlib_module_names} == {
        "nbxtensor.errors",
        *allowed,
    }
