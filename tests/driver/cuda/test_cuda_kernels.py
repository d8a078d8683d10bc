"""Kernels of the CUDA driver on the stand-in: what is checked at load and at launch, and what the driver is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbxtensor.backend.contract import Artifact, Parameter
from nbxtensor.backend.cuda import CudaContext, cubin, ffi
from nbxtensor.conformance import variants
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import CompileError, DriverError, LaunchRefused
from standins.cuda.execute import Standin
from standins.cuda.processes import run

ONE = (1, 1, 1)
STORE = variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"})


def binary_parameters(artifact: Artifact) -> list[cubin.BinaryParameter]:
    return cubin.parameters(artifact.payload, artifact.entry)


def test_a_cubin_states_its_parameters(context: CudaContext) -> None:
    types = {"to": "*i32", "source": "*i32", "shape.0": "i32", "shape.1": "i64", "strides.0": "i32", "strides.1": "i32"}
    artifact = context.compile(variant(variants.COPY_2D, types, {"BLOCK": 16}, folded=("strides.1",)))
    found = binary_parameters(artifact)
    assert [parameter.size for parameter in found] == [8, 8, 4, 8, 4, 8, 8]
    assert [parameter.offset for parameter in found] == [0, 8, 16, 24, 32, 40, 48]


@pytest.mark.parametrize(("type", "size"), [("i32", 4), ("i64", 8), ("u64", 8), ("fp32", 4), ("fp64", 8), ("u1", 1)])
def test_a_binary_has_the_size_of_every_scalar_type(context: CudaContext, type: str, size: int) -> None:
    stored = variant(variants.STORE_VALUE, {"to": f"*{type}", "value": type})
    flag = variant(variants.STORE_FLAG, {"to": "*i32", "flag": "u1"})
    found = binary_parameters(context.compile(flag if type == "u1" else stored))
    assert [parameter.size for parameter in found] == [8, size, 8, 8]


def test_a_damaged_cubin_is_refused_and_never_reaches_the_driver(context: CudaContext, standin: Standin) -> None:
    artifact = context.compile(STORE)
    calls = standin.calls("cuModuleLoadData")
    whole = artifact.payload
    unnamed = whole.replace(b".nv.info.", b".nv.else.")
    for payload in (whole[:100], whole[:-200], b"\x7fELF" + bytes(200), unnamed, "text"):
        with pytest.raises(LaunchRefused, match=artifact.entry):
            context.load(artifact._replace(payload=payload))
    assert standin.calls("cuModuleLoadData") == calls


def test_a_parameter_of_another_size_is_refused(context: CudaContext) -> None:
    artifact = context.compile(STORE)
    to, value = artifact.parameters
    with pytest.raises(LaunchRefused, match="value has 8 bytes by its type, the binary's parameter 4"):
        context.load(artifact._replace(parameters=(to, value._replace(type="i64"))))
    with pytest.raises(LaunchRefused, match="type bf16 cannot be passed by value"):
        context.load(artifact._replace(parameters=(to, Parameter("value", "bf16", True))))


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"shared": 232449}, "needs 232449 bytes of shared memory, a block of Stand-in GPU 0 can have 232448"),
        ({"num_warps": 64}, "2048 threads a block, the device allows 1024"),
        ({"profile_scratch_size": 8}, "Triton's profiler"),
        ({"global_scratch_size": 8, "global_scratch_align": 4096}, "aligned to 4096"),
        ({"global_scratch_size": 8, "launch_pdl": True}, "overlapping launches"),
    ],
)
def test_a_launch_that_the_device_cannot_do_is_refused_at_load(
    context: CudaContext, metadata: dict[str, Any], text: str
) -> None:
    artifact = context.compile(STORE)
    with pytest.raises(LaunchRefused, match=text):
        context.load(artifact._replace(metadata={**artifact.metadata, **metadata}))


def test_a_kernel_of_too_many_registers_is_refused_at_load(
    context: CudaContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_KERNEL_THREADS", "64")
    with pytest.raises(LaunchRefused, match="128 threads a block of 40 registers each, the kernel allows 64"):
        context.load(context.compile(STORE))


@pytest.mark.parametrize("code", [222, 218, 209, 200])
def test_a_binary_that_the_driver_cannot_take_is_told_with_the_versions(
    context: CudaContext, standin: Standin, code: int
) -> None:
    artifact = context.compile(STORE)
    standin.fail("cuModuleLoadData", 1, code)
    with pytest.raises(DriverError) as caught:
        context.load(artifact)
    error = caught.value
    assert (error.call, error.code) == ("cuModuleLoadData", code)
    versions = "The driver supports CUDA 13.0; Triton {} made the binary for sm90 from PTX {}"
    assert versions.format(artifact.metadata["triton_version"], artifact.metadata["ptx_version"]) in error.text
    assert "kernel store_value" in error.text


def test_those_texts_differ(context: CudaContext, standin: Standin) -> None:
    artifact, texts = context.compile(STORE), set()
    for code in (222, 218, 209, 200):
        standin.fail("cuModuleLoadData", 1, code)
        with pytest.raises(DriverError) as caught:
            context.load(artifact)
        texts.add(caught.value.text)
    assert len(texts) == 4


def test_a_binary_for_another_architecture_is_refused_by_the_driver(
    context: CudaContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = context.compile(STORE)
    monkeypatch.setenv("STANDIN_ARCH", "80")
    with pytest.raises(DriverError, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        context.load(artifact)


def test_shared_memory_is_asked_for(context: CudaContext, memory: Memory, standin: Standin) -> None:
    """More than 48 KiB; the stand-in refuses a launch that did not raise its limit."""
    types = {"to": "*fp32", "a": "*fp16", "b": "*fp16", "K": "i32"}
    constants = {"M": 128, "N": 128, "BLOCK_K": 64}
    wanted = variant(variants.DOT, types, constants, divisible=("to", "a", "b", "K"), num_stages=4, num_warps=8)
    kernel = LoadedKernel(context, wanted)
    a, b = memory.of(np.ones((128, 64), np.float16)), memory.of(np.ones((64, 128), np.float16))
    to = memory.block(4 * 128 * 128)
    kernel(ONE, to, a, b, 64)
    assert (to.read(np.float32) == 64).all()
    launch = standin.last_launch()
    assert launch.shared == kernel.artifact.metadata["shared"] > 48 << 10
    assert launch.block[0] == 32 * kernel.artifact.metadata["num_warps"]
    memory.release()


def test_clusters(context: CudaContext, memory: Memory, standin: Standin) -> None:
    types = {"to": "*i32", "source": "*i32", "n": "i32"}
    kernel = LoadedKernel(context, variant(variants.COPY, types, {"BLOCK": 1024}, num_ctas=2))
    content = np.arange(3000, dtype=np.int32)
    source, to = memory.of(content), memory.filled(4 * 3000, 0)
    kernel((3, 1, 1), to, source, 3000)
    np.testing.assert_array_equal(to.read(np.int32), content)
    launch = standin.last_launch()
    assert (list(launch.grid), list(launch.cluster)) == ([6, 1, 1], [2, 1, 1])
    assert launch.policy == ffi.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
    with pytest.raises(LaunchRefused, match=r"from 1 to \(1073741823, 65535, 65535\)"):
        kernel((1 << 30, 1, 1), to, source, 3000)
    memory.release()


def test_cooperative_and_dependent_launches_say_so(context: CudaContext, memory: Memory, standin: Standin) -> None:
    to = memory.filled(4, 0)
    artifact = context.compile(STORE)
    plain = context.load(artifact)
    for name, field in (("launch_cooperative_grid", "cooperative"), ("launch_pdl", "dependent")):
        loaded = context.load(artifact._replace(metadata={**artifact.metadata, name: True}))
        context.launch(loaded, ONE, (to.ptr, 6), None, ())
        assert getattr(standin.last_launch(), field) == 1
        context.launch(plain, ONE, (to.ptr, 7), None, ())
        assert getattr(standin.last_launch(), field) == 0
    assert to.read(np.int32)[0] == 7
    memory.release()


def test_a_cooperative_grid_that_does_not_fit_is_refused(context: CudaContext, memory: Memory) -> None:
    artifact = context.compile(STORE)
    loaded = context.load(artifact._replace(metadata={**artifact.metadata, "launch_cooperative_grid": True}))
    with pytest.raises(LaunchRefused, match=r"fit on the GPU all at once .*COOPERATIVE.*grid \(100000, 1, 1\)"):
        context.launch(loaded, (100000, 1, 1), (memory.filled(4, 0).ptr, 1), None, ())
    memory.release()


def test_a_launch_that_the_driver_refuses_names_what_was_asked(
    context: CudaContext, memory: Memory, standin: Standin
) -> None:
    kernel, to = LoadedKernel(context, STORE), memory.filled(4, 0)
    standin.fail("cuLaunchKernel", 1, ffi.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
    asked = r"registers.*grid \(1, 1, 1\), 128 threads of 40 registers, 0 bytes shared"
    with pytest.raises(LaunchRefused, match=asked):
        kernel(ONE, to, 1)
    memory.release()


def test_a_context_that_another_library_displaced_is_told_and_restored(
    context: CudaContext, memory: Memory, standin: Standin
) -> None:
    kernel, to = LoadedKernel(context, STORE), memory.filled(4, 0)
    assert standin.library.cuCtxSetCurrent(None) == 0
    with pytest.raises(DriverError, match=r"kernel store_value\): this thread's current context is another library's"):
        kernel(ONE, to, 1)
    kernel(ONE, to, 8)
    assert to.read(np.int32)[0] == 8
    memory.release()


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (1, 65536, 1), (1, 1, 65536), (1 << 31, 1, 1)])
def test_grids_outside_the_limits_never_reach_the_driver(
    context: CudaContext, standin: Standin, grid: tuple[int, int, int]
) -> None:
    kernel = context.load(context.compile(STORE))
    calls = standin.calls("cuLaunchKernel")
    with pytest.raises(LaunchRefused, match="each size must be from 1 to"):
        context.launch(kernel, grid, (0, 1), None, ())
    assert standin.calls("cuLaunchKernel") == calls


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3), (1, "2"), (1.5, 2), (-1, 2), (1, None), (1, 1 << 31)])
def test_values_that_do_not_fit_are_refused_by_name(context: CudaContext, values: tuple[Any, ...]) -> None:
    kernel = context.load(context.compile(STORE))
    with pytest.raises(LaunchRefused, match=r"values for 2 parameters|(to|value)=.* is not a value of type"):
        context.launch(kernel, ONE, values, None, ())


def test_a_number_too_large_for_float32_is_refused(context: CudaContext, memory: Memory) -> None:
    kernel = LoadedKernel(context, variant(variants.STORE_VALUE, {"to": "*fp32", "value": "fp32"}))
    to = memory.filled(4, 0)
    with pytest.raises(LaunchRefused, match=r"value=1e\+39 is not a value of type fp32"):
        kernel(ONE, to, 1e39)
    for value in (float("inf"), -0.0, 1e-45):
        kernel(ONE, to, value)
        assert to.read(np.float32)[0].tobytes() == np.float32(value).tobytes()
    memory.release()


def test_a_kernel_that_touches_foreign_memory_is_told_where_it_is_waited_for(standin: Standin) -> None:
    """In a process of its own: the fault ends the primary context."""
    code = """
from standins.cuda.subject import driver, prepare
from nbxtensor.conformance import variants
from nbxtensor.errors import DriverError
context = driver.open(0)
types = {"to": "*i32", "value": "i32"}
kernel = context.load(context.compile(variants.variant(variants.STORE_VALUE, types)))
context.launch(kernel, (1, 1, 1), (4096, 1), None, ())
for call in (context.synchronize, lambda: context.allocate(4)):
    try: call(); print("nothing")
    except DriverError as e: print(e.call, e.code, e.name, "compute-sanitizer" in e.text, "lost" in e.text)
context.close()
"""
    lines = run(code, silent=False).splitlines()
    assert lines == [
        "cuStreamSynchronize 700 CUDA_ERROR_ILLEGAL_ADDRESS True True",
        "cuMemAllocAsync 700 CUDA_ERROR_ILLEGAL_ADDRESS True True",
    ]


def test_a_failed_compile_leaves_the_context_alone(context: CudaContext, memory: Memory) -> None:
    with pytest.raises(CompileError):
        context.compile(STORE._replace(parameters=STORE.parameters[:1]))
    to = memory.filled(4, 0)
    LoadedKernel(context, STORE)(ONE, to, 4)
    assert to.read(np.int32)[0] == 4
    memory.release()
