"""Every operator of the table over dtypes, samples, layouts and fillings, against its oracle; and the harness."""

from __future__ import annotations

from itertools import combinations, product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend.runtime import Device
from nbxtensor.conformance import cases
from nbxtensor.dtype import DTYPES, dtype
from nbxtensor.ops.table import OPERATORS, ROUNDING, Input, Operator, Sample, Tolerance, register
from nbxtensor.tensor import NBXTensor

SHOWN = 10


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_agrees_with_its_oracle(name: str, target: Device, pytestconfig: pytest.Config) -> None:
    wrong = cases.failures(OPERATORS[name], target, full=pytestconfig.getoption("full"))
    target.synchronize()
    assert not wrong, "\n".join([f"{len(wrong)} cases are wrong", *wrong[:SHOWN]])


@pytest.mark.parametrize("name", OPERATORS)
def test_entry_is_complete(name: str) -> None:
    operator = OPERATORS[name]
    assert operator.doc.strip(), "the public function has no docstring"
    samples = list(operator.samples())
    assert samples and all(len(sample.operands) == len(operator.operands) for sample in samples)
    assert any(0 in i.shape for sample in samples for i in cases.inputs(sample.operands)), "no sample of size 0"
    for d in operator.dtypes:
        assert d in DTYPES
        result = dtype(operator.out_dtype(dtype(d), **samples[0].params))
        assert result.kind not in ("float", "complex") or operator.tolerance[result.real].reason
    for method, function in operator.methods.items():
        assert getattr(NBXTensor, method) is function


@pytest.mark.parametrize("name", OPERATORS)
def test_results_without_elements_launch_nothing(name: str, target: Device, launches: list[str]) -> None:
    operator, empty = OPERATORS[name], 0
    for sample in operator.samples():
        if any(0 in i.shape for i in cases.inputs(sample.operands)):
            case = cases.Case(operator, dtype(operator.dtypes[0]), sample, "contiguous", "random")
            tensors = cases.operands(case, target).tensors
            launches.clear()
            result = operator.function(**dict(zip(operator.operands, tensors)), **sample.params)
            assert result.size or not launches, case
            empty += not result.size
    assert empty or name == "dot", "no sample has such a result"


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="add is in the table already"):
        register(OPERATORS["add"])


# the pairwise set


@given(st.lists(st.integers(1, 6), max_size=5), st.integers(0, 3))
def test_pairwise_covers_every_pair_with_few_rows(sizes: list[int], seed: int) -> None:
    rows = cases.pairwise(sizes, seed)
    assert all(len(row) == len(sizes) and all(0 <= a < n for a, n in zip(row, sizes)) for row in rows)
    for first, second in combinations(range(len(sizes)), 2):
        assert {(row[first], row[second]) for row in rows} == set(product(range(sizes[first]), range(sizes[second])))
    assert len(rows) <= prod(sizes)
    assert rows == cases.pairwise(sizes, seed)


def test_pairwise_is_much_smaller_than_the_product() -> None:
    assert len(cases.pairwise([17, 10, 6, 4])) == 170  # the least possible: each pair of the two largest once
    assert len(cases.pairwise([3] * 13)) < 30  # 3 ** 13 in full


def test_cases_are_few_by_default_and_all_when_asked(target: Device) -> None:
    operator = OPERATORS["neg"]
    few, all_ = list(cases.cases(operator, target)), list(cases.cases(operator, target, full=True))
    able = [d for d in operator.dtypes if d in target.context.capabilities.dtypes]
    samples = len(list(operator.samples()))
    assert len(few) == len(able) * samples
    assert len(all_) == len(few) * len(cases.LAYOUTS) * len(cases.FILLS)
    assert {(c.layout, c.fill) for c in few} == set(product(cases.LAYOUTS, cases.FILLS))


# operands


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 0, 3), (1, 1)])
@pytest.mark.parametrize("d", ["float32", "bfloat16", "float8_e5m2", "int64", "complex64"])
def test_every_layout_holds_the_same_values(layout: str, shape: tuple[int, ...], d: str, target: Device) -> None:
    array = np.random.default_rng(0).integers(0, 9, shape).astype(dtype(d).numpy)
    array = cases.repeated(array) if layout == "broadcast" else array
    tensor = cases.place(array, layout, target)
    assert tensor.shape == shape and tensor.dtype == d
    assert tensor.numpy().tobytes() == np.ascontiguousarray(array).tobytes()
    if shape == (3, 4):
        strides = {"transposed": (1, 3), "step": (8, 2), "negative": (-4, -1), "broadcast": (0, 1)}
        assert tensor.strides == strides.get(layout, (4, 1))
        assert (tensor.ptr % 16 != 0) == (layout in ("offset", "negative"))


@pytest.mark.parametrize("d", DTYPES)
@pytest.mark.parametrize("fill", cases.FILLS)
def test_fillings_hold_what_their_names_say(fill: str, d: str) -> None:
    kind = dtype(d)
    case = cases.Case(OPERATORS["clone"], kind, Sample((Input((4000,)),)), "contiguous", fill)
    values = cases.values(Input((4000,)), case, np.random.default_rng(1))
    assert values.dtype == kind.numpy
    real = np.asarray(values.real if kind.kind == "complex" else values, np.float64)
    if fill == "zeros":
        assert not real.any()
    elif kind.kind == "bool":
        assert set(real) == {0, 1}
    elif fill == "extremes":
        assert {float(kind.min), float(kind.max)} <= set(real)
        if kind.kind in ("float", "complex"):
            assert {kind.smallest_subnormal, -kind.smallest_normal} <= set(real)
            assert np.signbit(real[real == 0]).any() and not np.signbit(real[real == 0]).all()
    elif fill == "nonfinite" and kind.kind in ("float", "complex"):
        assert 0 < np.sum(~np.isfinite(real)) < 400
    else:
        assert np.isfinite(real).all() and len(set(real)) > 5


def test_bounds_of_an_operand_hold() -> None:
    operator = OPERATORS["embedding"]
    for fill in cases.FILLS:
        case = cases.Case(operator, dtype("float32"), Sample(()), "contiguous", fill)
        index = cases.values(Input((500,), "int64", 2, 6), case, np.random.default_rng(0))
        assert index.min() >= 2 and index.max() <= 6
        positive = cases.values(Input((500,), positive=True), case, np.random.default_rng(0))
        assert not (positive <= 0).any()


# comparing


@pytest.mark.parametrize(
    "got, exact, right",
    [
        (np.float16(65504), 65519.0, True),  # rounds down to the largest finite number
        (np.float16(np.inf), 65521.0, True),
        (np.float16(np.inf), 65400.0, False),
        (np.float16(np.inf), -1e6, False),
        (np.float16(65504), 1e6, False),  # saturated
        (np.float16(np.nan), np.nan, True),
        (np.float16(np.nan), 1.0, False),
        (np.float16(1.0), np.nan, False),
        (np.float16(1.0), np.inf, False),
        (np.float16(0.0), 2.0**-26, True),  # underflow
        (np.float16(1.0), 1.0 + 2.0**-11, True),  # half a unit
        (np.float16(1.0), 1.0 + 2.0**-10, False),
        (ml_dtypes.float8_e4m3fn(np.nan), 500.0, True),  # has no infinity
        (ml_dtypes.float8_e4m3fn(448), 500.0, False),
        (ml_dtypes.float8_e5m2(np.inf), 70000.0, True),
        (np.float64(np.inf), np.inf, True),
        (np.int8(-1), 255, True),  # wraps
        (np.int8(1), 2, False),
        (np.bool_(True), False, False),
        (np.complex64(1 + 2j), 1 + 2j, True),
        (np.complex64(1 + 2j), 1 + 3j, False),
    ],
)
def test_difference(got: Any, exact: Any, right: bool) -> None:
    got = np.asarray(got)
    found = cases.difference(got, np.asarray(exact), ROUNDING[dtype(got.dtype).real])
    assert (found is None) == right, found


def test_difference_without_a_tolerance_sees_the_sign_of_zero() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    assert cases.difference(zeros, zeros, None) is None
    assert "1 of 2 elements are off: [(1,)] is -0.0" in str(cases.difference(zeros, np.abs(zeros), None))
    assert "[(1,)]" in str(cases.difference(np.float32([0, 1, 0]), np.float32([0, 9, 0.1]), Tolerance(0, 0.2, "loose")))
    assert "shape (2,), the oracle says (1, 2)" in str(cases.difference(zeros, zeros[None], None))


# the harness finds what is wrong


def _wrong(**changed: Any) -> Operator:
    return OPERATORS["neg"]._replace(dtypes=("float32",), errors=list, **changed)


@pytest.mark.parametrize(
    "operator, complaint",
    [
        (_wrong(function=lambda x: x.exp()), "elements are off"),
        (_wrong(function=lambda x: x), "shares the memory of an operand"),
        (_wrong(function=lambda x: (-x).to("float64")), "dtype float64, the table says float32"),
        (_wrong(function=lambda x: (-x).unsqueeze(0)), "the oracle says"),
        (_wrong(function=lambda x: (-x).numpy()), "returned ndarray"),
        (_wrong(function=lambda x: (-x).mT.contiguous().mT if x.ndim > 1 else -x), "not contiguous"),
        (_wrong(function=lambda x: -x.fill_(1) if x.is_contiguous() else -x), "changed an operand"),
        (_wrong(function=lambda x: 1 / 0), "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_wrong_operator_is_found(operator: Operator, complaint: str, target: Device) -> None:
    found = cases.failures(operator, target)
    assert any(complaint in line for line in found), found


def test_a_call_that_is_not_refused_is_found(target: Device) -> None:
    operator, kept = OPERATORS["neg"], []
    sample = operator.errors()[0]

    def careless(x: NBXTensor) -> NBXTensor:
        kept.append(x + 1)
        raise sample.error("neg", "x", x.dtype, "not accepted")

    float_sample = sample._replace(dtype="float32")
    found = {
        "was accepted; must raise DTypeError": cases.check_error(operator, float_sample, target),
        "raised DTypeError, not KeyError": cases.check_error(operator, sample._replace(error=KeyError), target),
        "does not match 'no such text'": cases.check_error(operator, sample._replace(match="no such text"), target),
        "bytes stay allocated": cases.check_error(operator._replace(function=careless), float_sample, target),
    }
    for complaint, said in found.items():
        assert complaint in str(said)
