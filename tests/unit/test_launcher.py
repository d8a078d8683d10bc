"""From a kernel and its arguments to a launch: specialisation, preparation, records, the routines kept."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.backend import launcher, runtime
from nbxtensor.backend.kernel_source import Kernel, KernelFunction, Scalar
from nbxtensor.backend.launcher import Pointer, specialise
from nbxtensor.conformance import null
from nbxtensor.errors import LaunchRefused

KERNEL = Kernel("no.module", "kernel", {"x": "ptr", "n": "int", "shape": "ints", "y": "operand", "OP": "const"})


def variant(n: Any = 5, shape: Any = (), x: Any = None, y: Any = None, op: Any = None) -> Any:
    x = Pointer("*fp32", True) if x is None else x
    return specialise(KERNEL, {"x": x, "n": n, "shape": shape, "y": y, "OP": op})


def test_an_integer_of_one_is_folded() -> None:
    made, values = variant(n=1)
    assert [(p.name, p.type, p.kept) for p in made.parameters] == [("x", "*fp32", True), ("n", "i32", False)]
    assert values[1] == 1


@pytest.mark.parametrize(
    ("value", "type"),
    [(0, "i32"), (2**31 - 1, "i32"), (2**31, "i64"), (-(2**31), "i32"), (-(2**31) - 1, "i64"), (2**63, "u64")],
)
def test_integers_take_the_narrowest_type(value: int, type: str) -> None:
    made, _ = variant(n=value)
    assert made.parameters[1].type == type


@given(st.integers(-(2**63), 2**64 - 1))
def test_specialisation_is_tritons_own(value: int) -> None:
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend

    try:
        type, attribute = native_specialize_impl(CUDABackend, value, False, True, True)
    except TypeError:  # before Triton 3.7 the binder lives elsewhere
        pytest.fail("Triton's specialisation is not where this test expects it")
    made, _ = variant(n=value)
    parameter = made.parameters[1]
    assert parameter.kept is (type != "constexpr")
    if parameter.kept:
        assert parameter.type == type
        assert (("n", "tt.divisibility", 16) in made.attributes) is (attribute == "D")


def test_tuples_are_flattened_and_each_element_specialised() -> None:
    made, values = variant(shape=(16, 1, 3))
    assert [(p.name, p.kept) for p in made.parameters[2:]] == [("shape.0", True), ("shape.1", False), ("shape.2", True)]
    assert ("shape.0", "tt.divisibility", 16) in made.attributes and values[2:] == (16, 1, 3)


def test_pointers_carry_their_alignment() -> None:
    aligned, _ = variant(x=Pointer("*fp16", True))
    not_aligned, _ = variant(x=Pointer("*fp16", False))
    assert ("x", "tt.divisibility", 16) in aligned.attributes and not_aligned != aligned
    assert not [name for name, _, _ in not_aligned.attributes if name == "x"]


def test_operands_are_pointers_numbers_or_nothing() -> None:
    assert variant(y=Pointer("*i64", True))[0].parameters[-1].type == "*i64"
    assert variant(y=Scalar(2.5, "fp32"))[1][-1] == 2.5
    assert ("y", None) in variant()[0].constants


def test_functions_are_constants_that_hash_without_triton() -> None:
    made, _ = variant(op=KernelFunction("nbxtensor.kernels.elementwise.functions", "add"))
    assert hash(made) == hash(variant(op=KernelFunction("nbxtensor.kernels.elementwise.functions", "add"))[0])


@pytest.mark.parametrize(
    "arguments", [{"n": 2.5}, {"n": True}, {"n": 2**64}, {"shape": 3}, {"shape": (1.5,)}, {"y": "z"}]
)
def test_what_a_parameter_cannot_take_is_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(LaunchRefused, match=next(iter(arguments))):
        variant(**arguments)


def test_missing_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(LaunchRefused, match="shape"):
        specialise(KERNEL, {"x": Pointer("*fp32", True), "n": 1, "y": None, "OP": None})
    with pytest.raises(LaunchRefused, match="more"):
        specialise(KERNEL, {"x": 1, "n": 1, "shape": (), "y": None, "OP": None, "more": 1})


def test_a_variant_is_prepared_once() -> None:
    device = runtime.Device(null.NullDriver())
    a, b = (nbx.empty((n,), device=device) for n in (68, 100))
    for x in (a, b, a):
        x + x
    context: Any = device.context
    assert context.calls["compile"] == context.calls["load"] == 1 and context.calls["launch"] == 3


def test_a_repeated_call_takes_no_driver_memory() -> None:
    device = runtime.Device(null.NullDriver())
    x = nbx.empty((64,), device=device)
    x + x
    context: Any = device.context
    before = context.calls["allocate"]
    for _ in range(100):
        x + x
    assert context.calls["allocate"] == before and context.calls["free"] == 0


def test_an_unaligned_operand_has_a_variant_of_its_own() -> None:
    device = runtime.Device(null.NullDriver())
    x = nbx.empty((65,), device=device)
    x[:64] + x[:64]
    x[1:] + x[1:]
    context: Any = device.context
    assert context.calls["compile"] == 2


def test_no_elements_no_launch() -> None:
    device = runtime.Device(null.NullDriver())
    x = nbx.empty((3, 0, 4), device=device)
    (x + x, nbx.exp(x), nbx.softmax(x, -1), x.to("float16"), nbx.matmul(x, x.mT))
    context: Any = device.context
    assert context.calls["launch"] <= 1  # the product over no terms is a tensor of zeros, which is filled
    assert (x @ x.mT).shape == (3, 0, 0)


def test_a_grid_past_the_devices_limits_is_refused_before_the_launch() -> None:
    driver = null.NullDriver()
    device = runtime.Device(driver)
    context: Any = device.context
    context.capabilities = context.capabilities._replace(max_grid=(1, 1, 1))
    x = nbx.empty((1 << 20,), device=device)
    with pytest.raises(LaunchRefused, match="limits"):
        x + x
    assert context.calls["launch"] == 0


# the recorder


def recorded(work: Any) -> list[Any]:
    seen: list[Any] = []
    assert launcher.set_launch_recorder(lambda *launch: seen.append(launch)) is None
    try:
        work()
    finally:
        launcher.set_launch_recorder(None)
    return seen


def test_every_launch_is_reported() -> None:
    x = nbx.ones((3, 4), device="cpu")
    (prepared, grid, params, extents), *rest = recorded(lambda: x + 2.0)
    assert prepared.name == "flat" and grid == (1, 1, 1) and extents is None and not rest
    assert (
        [type for type, _ in params][:2] == ["*fp32", "*fp32"]
        and params[1][1] == x.ptr
        and 2.0 in dict(params).values()
    )
    assert recorded(lambda: None) == []


def test_the_recorder_is_the_threads_own() -> None:
    x = nbx.ones((3,), device="cpu")

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: x + x)
        thread.start()
        thread.join()

    assert recorded(elsewhere) == []


def test_a_recorded_launch_launches_again() -> None:
    x = nbx.from_numpy(np.random.default_rng(0).normal(size=(7, 33)).astype(np.float32), "cpu")
    results: list[Any] = []
    launches = recorded(lambda: results.append(nbx.softmax(x, -1)))
    first = results[0].numpy()
    results[0].fill_(0.0)
    for prepared, grid, params, extents in launches:
        prepared.launch(grid, params, extents)
    assert (results[0].numpy() == first).all()
    prepared, grid, params, _ = launches[0]
    with pytest.raises(LaunchRefused, match="values"):
        prepared.launch(grid, params[1:])


def test_a_target_is_compiled_for_without_a_card() -> None:
    from triton.backends.compiler import GPUTarget

    device = launcher.bind_target(GPUTarget("cuda", 90, 32))
    seen: list[Any] = []
    launcher.set_launch_recorder(lambda *launch: seen.append(launch))
    x = nbx.empty((128,), dtype="float16", device=device)
    x + x
    launcher.set_launch_recorder(None)
    artifact = seen[0][0].artifact
    assert artifact.kind == "cubin" and artifact.payload[:4] == b"\x7fELF"


def test_prewarming_ends_by_itself() -> None:
    thread = launcher.prewarm_compiler()
    thread.join(60)
    assert thread.daemon and not thread.is_alive()
