"""Element-wise operators: numbers and promotion, integer division, comparisons, special values, empty tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend.runtime import Device
from nbxtensor.dtype import DType
from nbxtensor.errors import ArgumentError, DTypeError, ScalarOverflow, ShapeError
from nbxtensor.tensor import NBXTensor

Make = Callable[..., NBXTensor]
NAN, INF = float("nan"), float("inf")


# numbers beside tensors


def test_a_number_of_a_higher_kind_promotes(tensor: Make, integer: DType) -> None:
    x = tensor([1, 2, 3], integer)
    for result in (x * 0.5, 0.5 * x):
        assert result.dtype == "float32" and result.tolist() == [0.5, 1.0, 1.5]
    assert (x + 2).dtype is integer and (x + True).dtype is integer
    assert (x > 1.5).tolist() == [False, True, True]


def test_a_number_never_changes_the_width_of_a_float(tensor: Make, floating: DType) -> None:
    x = tensor([1.0, -2.0], floating)
    for number in (3, True, 2.5, np.float64(2.5), np.int64(7), np.float32(2)):
        assert (x + number).dtype is floating and (number * x).dtype is floating
        np.testing.assert_allclose((x * number).numpy().astype(np.float64), [number, -2.0 * number], rtol=1e-2)


def test_bool_with_a_number(tensor: Make) -> None:
    b = tensor([True, False])
    assert (b + 1).dtype == "int64" and (b + 1).tolist() == [2, 1]
    assert (b + True).dtype == "bool" and (b + True).tolist() == [True, True]
    assert (b * 0.5).dtype == "float32"
    assert (b & True).tolist() == [True, False] and (b | 2).tolist() == [3, 2]


def test_promotion_between_tensors(tensor: Make) -> None:
    half, brain = tensor([1.0], "float16"), tensor([1.0], "bfloat16")
    assert (half + brain).dtype == "float32"
    assert (tensor([200], "uint8") + tensor([-100], "int8")).dtype == "int16"
    assert (tensor([200], "uint8") + tensor([-100], "int8")).tolist() == [100]
    assert (tensor([2**53 + 1]) + half).dtype == "float16"
    with pytest.raises(DTypeError, match=r"add: dtypes=.*: no integer type holds both"):
        tensor([1], "uint64") + tensor([1], "int64")


@pytest.mark.parametrize("number", [300, -1, 2**70])
def test_an_integer_out_of_range_is_refused_at_every_call(tensor: Make, number: int) -> None:
    x = tensor([1, 255], "uint8")
    rule = rf"add: scalar={number}: must lie in 0..255, the range of uint8"
    with pytest.raises(ScalarOverflow, match=rule):
        x + number
    assert (x + 1).tolist() == [2, 0]  # the launch is prepared now, and another number comes
    with pytest.raises(ScalarOverflow, match=rule):
        x + number
    with pytest.raises(ScalarOverflow, match=rule):
        number + x


def test_an_integer_beyond_any_float_is_refused_at_every_call(tensor: Make) -> None:
    x = tensor([1.0], "float32")
    for _ in range(2):
        with pytest.raises(ScalarOverflow, match=r"mul: scalar=1000"):
            x * 10**400
        assert (x * 10**30).tolist() == [float(np.float32(1e30))]
    assert (x + 1e300).tolist() == [INF] and (x - 1e300).tolist() == [-INF]


def test_a_comparison_rounds_its_number_to_the_dtype_of_the_tensor(tensor: Make, floating: DType) -> None:
    x = tensor([0.1], floating)
    assert (x == 0.1).tolist() == [True] and (x < 0.1).tolist() == [False] and (x >= 0.1).tolist() == [True]


@pytest.mark.parametrize("number", [1j, np.complex64(1)])
def test_complex_numbers_are_refused(tensor: Make, number: Any) -> None:
    with pytest.raises(DTypeError, match=r"add: a, b=nbxtensor.complex64: not accepted"):
        tensor([1.0], "float32") + number


# what is no tensor and no number


@pytest.mark.parametrize("other", [None, "text", [1.0, 2.0], (1.0,), {}, object()])
@pytest.mark.parametrize("operation", [operator.add, operator.truediv, operator.lt, operator.matmul, operator.and_])
def test_foreign_operands_are_left_to_python(tensor: Make, operation: Any, other: Any) -> None:
    for operands in ((tensor([1, 2]), other), (other, tensor([1, 2]))):
        with pytest.raises(TypeError, match=r"unsupported operand|not supported between|can only concatenate"):
            operation(*operands)


def test_a_foreign_operand_may_answer_itself(tensor: Make) -> None:
    class Answers:
        def __radd__(self, other: Any) -> str:
            return "radd"

        def __add__(self, other: Any) -> str:
            return "add"

        def __gt__(self, other: Any) -> str:
            return "gt"

        def __eq__(self, other: object) -> Any:
            return "eq"

        __hash__ = None  # type: ignore[assignment]

    x, other = tensor([1.0]), Answers()
    assert (x + other, other + x, x < other, x == other, other == x) == ("radd", "add", "gt", "eq", "eq")
    assert (x == None) is False and (x != None) is True  # noqa: E711 - what the operator answers


@pytest.mark.parametrize("operation", [operator.add, operator.eq, operator.ne, operator.lt, operator.matmul])
def test_arrays_are_refused_by_name(tensor: Make, operation: Any) -> None:
    for operands in ((tensor([1.0, 2.0]), np.ones(2)), (np.ones(2), tensor([1.0, 2.0]))):
        with pytest.raises(DTypeError, match=r"must be a tensor.*nbxtensor.from_numpy makes one of an array"):
            operation(*operands)


def test_reflected_operators(tensor: Make) -> None:
    x = tensor([2, 5])
    assert (1 - x).tolist() == [-1, -4] and (10 // x).tolist() == [5, 2] and (7 % x).tolist() == [1, 2]
    assert (1 / x).tolist() == [0.5, float(np.float32(0.2))]
    assert operator.gt(3, x).tolist() == [True, False] and operator.eq(2, x).tolist() == [True, False]
    assert (6 & x).tolist() == [2, 4] and (6 ^ x).tolist() == [4, 3] and (6 | x).tolist() == [6, 7]


def test_two_numbers_are_no_operands() -> None:
    with pytest.raises(ArgumentError, match=r"add: a=None: at least one operand must be a tensor"):
        nbx.add(1, 2)


# integers


def test_division_of_integers_floors(tensor: Make, signed: DType) -> None:
    low = int(signed.min)
    a, b = [-7, 7, -7, 7, low, 5, -5, 0, low], [2, -2, -2, 2, -1, 0, 0, 0, 2]
    quotient, rest = tensor(a, signed) // tensor(b, signed), tensor(a, signed) % tensor(b, signed)
    assert quotient.tolist() == [-4, -4, 3, 3, low, 0, 0, 0, low // 2]  # the smallest by -1 wraps, by 0 gives 0
    assert rest.tolist() == [1, -1, -1, 1, 0, 0, 0, 0, 0]
    assert quotient.dtype is signed and rest.dtype is signed
    assert (tensor(a, signed) // -2).tolist() == [x // -2 for x in a]


def test_division_of_floats_follows_python(tensor: Make, floating: DType) -> None:
    a, b = [-7.5, 7.5, -7.5, 1.0, -1.0, 0.0, -0.0, INF], [2.0, -2.0, -2.0, INF, INF, 3.0, 3.0, 2.0]
    x, y = tensor(a, floating), tensor(b, floating)
    expected = [p // q for p, q in zip(a, b)], [p % q if p != INF else NAN for p, q in zip(a, b)]
    for got, wanted in zip((x // y, x % y), expected):
        np.testing.assert_array_equal(got.numpy().astype(np.float64), wanted)
        assert np.signbit(got.numpy()).tolist()[:6] == np.signbit(wanted).tolist()[:6]
    zero = tensor([1.0, -1.0, 0.0], floating)
    np.testing.assert_array_equal((zero // 0.0).numpy().astype(np.float64), [INF, -INF, NAN])
    np.testing.assert_array_equal((zero % 0.0).numpy().astype(np.float64), [NAN, NAN, NAN])


def test_remainder_is_exact_where_the_quotient_rounds(tensor: Make) -> None:
    """The float quotient of 0.3 by 0.1 is 3, of 1 by 0.1 is 10, and neither is what the remainder says."""
    a = np.array([0.3, 1.0, 5.0, 1e6, -1e6, 16777215.0], np.float32)
    b = np.array([0.1, 0.1, 0.1, 0.3, 0.3, 1.5], np.float32)
    np.testing.assert_array_equal((tensor(a) % tensor(b)).numpy(), np.remainder(a, b))
    np.testing.assert_array_equal((tensor(a) // tensor(b)).numpy(), np.floor_divide(a, b))


def test_integers_wrap(tensor: Make, integer: DType) -> None:
    top, low = int(integer.max), int(integer.min)
    x = tensor([top, low], integer)
    assert (x + 1).tolist() == [low, low + 1]
    assert (-x).tolist() == [(-n - low) % (top - low + 1) + low for n in (top, low)]
    assert (x * 2).tolist() == [(2 * n - low) % (top - low + 1) + low for n in (top, low)]
    assert (~x).tolist() == [low, top]
    assert (x - x).tolist() == [0, 0]


def test_true_division_of_integers_is_a_float(tensor: Make, integer: DType) -> None:
    x = tensor([1, 7, 0], integer) / tensor([2, 2, 0], integer)
    assert x.dtype == "float32"
    np.testing.assert_array_equal(x.numpy(), [0.5, 3.5, NAN])


def test_bool_arithmetic(tensor: Make) -> None:
    a, b = tensor([True, True, False]), tensor([True, False, False])
    assert (a + b).tolist() == [True, True, False] and (a * b).tolist() == [True, False, False]
    assert (~a).tolist() == [False, False, True] and (a ^ b).tolist() == [False, True, False]
    with pytest.raises(DTypeError, match=r"sub: a, b=nbxtensor.bool: not accepted"):
        a - b
    with pytest.raises(DTypeError, match=r"neg: x=nbxtensor.bool: not accepted"):
        operator.neg(a)


# special values


def test_nan_is_unequal_and_in_no_order(tensor: Make, floating: DType) -> None:
    a, b = tensor([NAN, NAN, 1.0], floating), tensor([NAN, 1.0, NAN], floating)
    for operation in (operator.eq, operator.lt, operator.le, operator.gt, operator.ge):
        assert operation(a, b).tolist() == [False] * 3
    assert (a != b).tolist() == [True] * 3


def test_nan_wins_in_maximum_and_minimum(tensor: Make, floating: DType) -> None:
    a, b = tensor([NAN, 1.0, -INF, 2.0], floating), tensor([1.0, NAN, INF, -2.0], floating)
    np.testing.assert_array_equal(nbx.maximum(a, b).numpy().astype(np.float32), [NAN, NAN, INF, 2.0])
    np.testing.assert_array_equal(nbx.minimum(a, b).numpy().astype(np.float32), [NAN, NAN, -INF, -2.0])


def test_arithmetic_overflows_to_infinity_and_casts_saturate(tensor: Make) -> None:
    x = tensor([60000.0, -60000.0], "float16")
    assert (x + x).tolist() == [INF, -INF] and (x * 2).tolist() == [INF, -INF]
    wide = x.float() + x.float()
    assert wide.half().tolist() == [65504.0, -65504.0]
    e4, e5 = tensor([448.0], "float8_e4m3fn"), tensor([57344.0], "float8_e5m2")
    assert np.isnan((e4 + e4).item()) and (e5 + e5).item() == INF  # e4m3fn has no infinity


def test_the_sign_of_zero_is_kept(tensor: Make, floating: DType) -> None:
    x = tensor([0.0, -0.0], floating)
    assert np.signbit((-x).numpy()).tolist() == [True, False]
    assert np.signbit(abs(x).numpy()).tolist() == [False, False]
    assert np.signbit((x * 1.0).numpy()).tolist() == [False, True]
    assert (x == -x).tolist() == [True, True]


def test_functions_at_their_limits(tensor: Make, floating: DType) -> None:
    def near(result: NBXTensor, wanted: list[float]) -> None:
        got = result.numpy().astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=max(2e-6, 2 * floating.eps), atol=0)

    big = 11.0 if floating == "float16" else 88.0
    near(nbx.exp(tensor([0.0, -INF, INF, NAN, big], floating)), [1.0, 0.0, INF, NAN, np.exp(big)])
    near(nbx.log(tensor([1.0, 0.0, -0.0, INF, -1.0, NAN], floating)), [0.0, -INF, -INF, INF, NAN, NAN])
    near(nbx.sqrt(tensor([0.0, 4.0, INF, -1.0], floating)), [0.0, 2.0, INF, NAN])
    near(nbx.rsqrt(tensor([0.0, 4.0, INF, -1.0], floating)), [INF, 0.5, 0.0, NAN])
    near(nbx.tanh(tensor([0.0, INF, -INF, 30.0, NAN], floating)), [0.0, 1.0, -1.0, 1.0, NAN])
    near(nbx.sigmoid(tensor([0.0, INF, -INF, NAN], floating)), [0.5, 1.0, 0.0, NAN])
    near(nbx.erf(tensor([0.0, INF, -INF, NAN], floating)), [0.0, 1.0, -1.0, NAN])
    near(nbx.relu(tensor([-1.0, NAN, INF, -INF, 2.0], floating)), [0.0, NAN, INF, 0.0, 2.0])


def test_float_functions_of_integers_give_float32(tensor: Make, integer: DType) -> None:
    x = nbx.exp(tensor([0, 1], integer))
    assert x.dtype == "float32"
    np.testing.assert_allclose(x.numpy(), [1.0, np.e], rtol=1e-6)


def test_bfloat16_arithmetic_rounds_to_nearest_even(tensor: Make) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**16, 20000, np.uint16).view(ml_dtypes.bfloat16) for _ in range(2))
    with np.errstate(all="ignore"):
        for operation in (operator.add, operator.sub, operator.mul, operator.truediv):
            exact = operation(a.astype(np.float32), b.astype(np.float32)).astype(ml_dtypes.bfloat16)
            got = operation(tensor(a), tensor(b)).numpy()
            nan = np.isnan(exact)
            assert np.array_equal(np.isnan(got), nan)
            assert np.array_equal(got[~nan].view(np.uint16), exact[~nan].view(np.uint16))


# shapes and devices


def test_empty_results_launch_nothing(tensor: Make, launches: list[str]) -> None:
    for shape, other in (((0,), (1,)), ((3, 0, 4), (4,)), ((0,), ()), ((1, 0), (5, 1))):
        result = tensor(np.ones(shape, np.float32)) + tensor(np.ones(other, np.float32))
        assert result.shape == np.broadcast_shapes(shape, other) and result.size == 0
    assert nbx.exp(tensor(np.ones((0, 2)))).numpy().shape == (0, 2)
    assert launches == []
    tensor([1.0]) + 1
    assert launches == ["flat"]


def test_shapes_that_do_not_broadcast(tensor: Make) -> None:
    with pytest.raises(
        ShapeError, match=r"add: shapes=\(\(2, 3\), \(4,\)\): sizes 3 and 4 at axis -1 do not broadcast"
    ):
        tensor(np.ones((2, 3))) + tensor(np.ones(4))


def test_many_dimensions(tensor: Make) -> None:
    """No axis coalesces: every size differs and the order of the strides alternates."""
    shape = (1, 2) * 16
    a = np.arange(2**16, dtype=np.float32).reshape((2,) * 16)
    order = (*range(0, 16, 2), *range(1, 16, 2))
    x = tensor(a).permute(order)
    np.testing.assert_array_equal(
        (x + x.permute(order)).numpy(), a.transpose(order) + a.transpose(order).transpose(order)
    )
    assert (tensor(a).view(shape) * 2).shape == shape


def test_operands_on_two_devices_are_refused_by_name(tensor: Make, target: Device) -> None:
    x, other = tensor([1.0]), nbx.empty((1,), device="meta")
    with pytest.raises(ArgumentError, match=rf"add: b='tensor on meta': must be on {target.name}, the device of a"):
        x + other
    with pytest.raises(ArgumentError, match=r"where: a='tensor on meta'"):
        nbx.where(x > 0, other, 1.0)


# selection


def test_where(tensor: Make) -> None:
    condition = tensor([[True], [False]])
    result = nbx.where(condition, tensor([1, 2, 3], "int32"), 0.5)
    assert result.dtype == "float32" and result.tolist() == [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]]
    assert nbx.where(condition, 1, 2).dtype == "int64"
    assert nbx.where(condition, True, False).tolist() == [[True], [False]]
    assert tensor([1.0, NAN]).where(tensor([True, False]), 0).tolist() == [1.0, 0.0]
    with pytest.raises(DTypeError, match=r"where: condition=nbxtensor.int32: not accepted; takes bool"):
        nbx.where(tensor([1], "int32"), 1, 2)


def test_masked_fill(tensor: Make) -> None:
    x, mask = tensor([1, 2, 3], "uint8"), tensor([True, False, True])
    assert x.masked_fill(mask, 9).tolist() == [9, 2, 9] and x.tolist() == [1, 2, 3]
    assert x.masked_fill(mask, tensor([[7]], "uint8")).tolist() == [7, 2, 7]
    assert tensor([1.0, 2.0]).masked_fill(tensor([True, False]), -INF).tolist() == [-INF, 2.0]
    with pytest.raises(ScalarOverflow, match=r"masked_fill: scalar=300: must lie in 0..255"):
        x.masked_fill(mask, 300)
    with pytest.raises(DTypeError, match=r"masked_fill: value='float': does not fit in x's dtype uint8"):
        x.masked_fill(mask, 0.5)
    with pytest.raises(ShapeError, match=r"masked_fill: mask="):
        x.masked_fill(tensor(np.ones((2, 3), bool)), 1)
