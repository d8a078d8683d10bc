"""What a context refuses, by a typed error, and that it works on afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from nbxtensor.backend.contract import Artifact, Capabilities, Context, Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.conformance import variants
from nbxtensor.conformance.marks import executes, lacks
from nbxtensor.conformance.plugin import Load
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import CompileError, DeviceError, LaunchRefused, NBXError

ONE = (1, 1, 1)
COPY_TYPES = {"to": "*i32", "source": "*i32", "n": "i32"}
FAILS = Kernel("nbxtensor.conformance.kernels", "fails", {"to": "ptr"})


@pytest.fixture(scope="session")
def copy(load: Load) -> LoadedKernel:
    return load(variant(variants.COPY, COPY_TYPES, {"BLOCK": 128}))


@pytest.fixture
def arguments(memory: Memory) -> tuple[variants.Block, variants.Block, int]:
    return memory.filled(512, 0), memory.filled(512, 7), 128


Arguments = tuple[variants.Block, variants.Block, int]


def test_a_missing_or_further_value_is_refused(copy: LoadedKernel, arguments: Arguments) -> None:
    for wrong in (arguments[:2], (*arguments, 1), ()):
        with pytest.raises(LaunchRefused):
            copy(ONE, *wrong)


def parameter_lists(right: Artifact) -> list[tuple[Parameter, ...]]:
    extra = Parameter("extra", "i32", True)
    return [right.parameters[:-1], (*right.parameters, extra), (extra, *right.parameters)]


def test_an_artifact_with_a_wrong_number_of_parameters_is_refused(context: Context, copy: LoadedKernel) -> None:
    for wrong in parameter_lists(copy.artifact):
        with pytest.raises(LaunchRefused):
            context.load(copy.artifact._replace(parameters=wrong))


def test_a_parameter_said_to_be_folded_that_is_not_is_refused(context: Context, copy: LoadedKernel) -> None:
    *others, last = copy.artifact.parameters
    with pytest.raises(LaunchRefused):
        context.load(copy.artifact._replace(parameters=(*others, last._replace(kept=False))))


def test_a_foreign_artifact_is_refused(context: Context, copy: LoadedKernel) -> None:
    with pytest.raises(DeviceError):
        context.load(copy.artifact._replace(kind="no-such-kind"))
    if isinstance(copy.artifact.payload, bytes):
        for payload in (b"", b"\0" * len(copy.artifact.payload), b"not a binary" * 50):
            with pytest.raises(DeviceError):
                context.load(copy.artifact._replace(payload=payload))


def test_a_grid_over_the_limits_is_refused(
    context: Context, copy: LoadedKernel, arguments: Arguments, capabilities: Capabilities
) -> None:
    tried = 0
    for axis, limit in enumerate(capabilities.max_grid):
        if limit < 2**32 - 1:  # beyond, no launch parameter could say it
            grid = tuple(limit + 1 if a == axis else 1 for a in range(3))
            with pytest.raises(DeviceError):
                copy(grid, *arguments)  # type: ignore[arg-type]
            tried += 1
    assert tried or min(capabilities.max_grid) >= 2**32 - 1
    context.synchronize()


@executes
def test_the_largest_second_axis_runs(memory: Memory, load: Load, capabilities: Capabilities) -> None:
    """As many programs as the limit of an axis lets one expect, up to what an interpreter runs in a test."""
    most = min(capabilities.max_grid[1], 300)
    to = memory.filled(4 * most, 0xFF)
    load(variant(variants.PROGRAM_IDS, {"to": "*i32"}))((1, most, 1), to)
    np.testing.assert_array_equal(to.read(np.int32), np.arange(most) * 100)


@executes
@pytest.mark.parametrize(("type", "value"), [("i32", 2**31), ("i32", -(2**31) - 1), ("i64", 2**63), ("u64", -1)])
def test_a_value_that_its_type_cannot_hold_is_refused(memory: Memory, load: Load, type: str, value: int) -> None:
    kernel = load(variant(variants.STORE_VALUE, {"to": f"*{type}", "value": type}))
    to = memory.filled(8, 0)
    with pytest.raises(NBXError):
        kernel(ONE, to, value)
    assert (to.read() == 0).all()


def test_an_unloaded_kernel_does_not_launch(context: Context, arguments: Arguments) -> None:
    kernel = LoadedKernel(context, variant(variants.COPY, COPY_TYPES, {"BLOCK": 256}))
    kernel(ONE, *arguments)
    context.unload(kernel.module)
    with pytest.raises(DeviceError):
        kernel(ONE, *arguments)
    with pytest.raises(DeviceError):
        context.unload(kernel.module)


@executes
def test_kernels_of_one_name_do_not_mix(context: Context, memory: Memory, load: Load) -> None:
    """Two loaded specialisations of a kernel, one of them unloaded: the other still runs."""
    types = {"to": "*i32", "source": "*i32", "n": "i32"}
    content = np.arange(64, dtype=np.int32)
    gone = LoadedKernel(context, variant(variants.APPLY, types, {"FUNCTION": variants.TWICE, "BLOCK": 64}))
    kept = load(variant(variants.APPLY, types, {"FUNCTION": variants.SQUARE, "BLOCK": 64}))
    context.unload(gone.module)
    to = memory.block(256)
    kept(ONE, to, memory.of(content), 64)
    np.testing.assert_array_equal(to.read(np.int32), content**2)


@executes
def test_a_kernel_that_does_not_compile_is_refused(context: Context, memory: Memory, load: Load) -> None:
    """At compile time where there is one, else at the launch; the context works on."""
    to = memory.filled(4, 0)
    with pytest.raises(DeviceError) as caught:
        LoadedKernel(context, variant(FAILS, {"to": "*i32"}))(ONE, to)
    assert "fails" in str(caught.value)
    load(variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"}))(ONE, to, 5)
    assert to.read(np.int32)[0] == 5


@executes
def test_a_declaration_that_is_not_the_source_is_refused(context: Context) -> None:
    wrong: list[Variant] = [
        variant(Kernel("nbxtensor.conformance.kernels", "copy", {"to": "ptr", "n": "int"}), {"to": "*i32", "n": "i32"}),
        variant(variants.COPY, {"to": "*i32", "source": "*i32"}, {"BLOCK": 128}),
        variant(variants.COPY, COPY_TYPES, {}),
    ]
    for one in wrong:
        with pytest.raises(CompileError):
            context.compile(one)


@lacks("cooperative")
@executes
def test_an_undeclared_cooperative_launch_is_refused(memory: Memory, context: Context) -> None:
    to = memory.filled(4, 0)
    wanted = variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"}, launch_cooperative_grid=True)
    with pytest.raises(DeviceError):
        LoadedKernel(context, wanted)(ONE, to, 5)


@lacks("executes")
def test_nothing_runs_where_nothing_executes(context: Context, copy: LoadedKernel, arguments: Arguments) -> None:
    to, *_ = arguments
    copy(ONE, *arguments)
    context.synchronize()
    if context.capabilities.host_addressable:
        assert (to.read() == 0).all()
