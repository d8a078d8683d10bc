"""The CUDA driver on the stand-in library, beyond what the conformance suite asks of every backend."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nbxtensor.backend.contract import Artifact, Context, GraphContext, Parameter, TensorDescriptor, Variant
from nbxtensor.backend.cuda import CudaContext, cubin, ffi, library
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.conformance import variants
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import ArgumentError, CompileError, DeviceError, DriverError, LaunchRefused, OutOfMemory
from standins.cuda.execute import Standin
from standins.cuda.processes import run
from standins.cuda.subject import driver, prepare

ONE = (1, 1, 1)
STORE = variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"})
COPY = variant(variants.COPY, {"to": "*i32", "source": "*i32", "n": "i32"}, {"BLOCK": 128})
TILE_TYPES = {"to": "*fp32", "source": "*fp32", "rows": "i32", "columns": "i32"}
TILE = variant(variants.COPY_TILE, TILE_TYPES, {"BLOCK": 32}, divisible=("to", "source", "rows", "columns"))


@pytest.fixture(scope="session")
def standin() -> Standin:
    return prepare()


@pytest.fixture
def context(standin: Standin) -> Iterator[CudaContext]:
    """A context that lets go of everything: the driver holds afterwards what it held before."""
    before = standin.live()
    context = driver.open(0)
    yield context
    context.close()
    gc.collect()
    assert standin.live() == before


@pytest.fixture
def memory(context: CudaContext) -> Memory:
    return Memory(context)


# Contracts and books


def test_it_is_what_the_contract_asks(context: CudaContext) -> None:
    opened: Context = context
    assert isinstance(context, GraphContext)
    assert (opened.target.backend, opened.target.arch, opened.target.warp_size) == ("cuda", 90, 32)


@pytest.mark.parametrize("ordinal", [-1, 1, 99])
def test_a_device_that_is_not_there(standin: Standin, ordinal: int) -> None:
    with pytest.raises(DeviceError, match=f"1 GPUs, numbered from 0; asked for {ordinal}"):
        driver.open(ordinal)


def test_dtypes_follow_the_generation(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    def dtypes(architecture: int) -> frozenset[str]:
        monkeypatch.setenv("STANDIN_ARCH", str(architecture))
        opened = driver.open(0)
        opened.close()
        return opened.capabilities.dtypes

    newest = dtypes(90)
    assert newest - dtypes(80) == {"float8_e4m3fn"}
    assert newest - dtypes(75) == {"float8_e4m3fn", "bfloat16"}


def test_closing_lets_go_of_what_was_left(context: CudaContext) -> None:
    """The fixture counts; graphs, captures under way, events, streams and kernels are left on purpose."""
    stream, other = context.create_stream(), context.create_stream()
    context.create_event()
    context.allocate_host(64)
    to = context.allocate(4)
    kernel = context.load(context.compile(STORE))
    context.launch(kernel, ONE, (to, 1), stream, ())
    context.graph_begin(stream)
    context.launch(kernel, ONE, (to, 1), stream, ())
    graph = context.graph_end(stream)
    context.graph_begin(other)
    context.close()
    context.close()
    with pytest.raises(DeviceError, match="is closed"):
        context.graph_launch(graph)


def test_a_graph_that_nobody_refers_to_is_freed(context: CudaContext, standin: Standin) -> None:
    stream = context.create_stream()
    context.graph_begin(stream)
    context.graph_end(stream)
    gc.collect()
    assert standin.live()["executables"] == 0


def test_the_legacy_stream_is_never_used(context: CudaContext, memory: Memory, standin: Standin) -> None:
    before = standin.library.standin_legacy_uses()
    to = memory.filled(4, 0)
    LoadedKernel(context, STORE)(ONE, to, 3)
    event = context.create_event()
    context.record(event)
    context.wait(event)
    assert to.read(np.int32)[0] == 3
    memory.release()
    assert standin.library.standin_legacy_uses() == before


# Memory


@pytest.mark.parametrize("pools", ["0", "1"])
def test_memory_comes_from_where_the_device_has_it(
    standin: Standin, monkeypatch: pytest.MonkeyPatch, pools: str
) -> None:
    monkeypatch.setenv("STANDIN_POOLS", pools)
    before, plain, ordered = standin.live(), standin.calls("cuMemAlloc_v2"), standin.calls("cuMemAllocAsync")
    opened = driver.open(0)
    free, total = opened.memory_info()
    address = opened.allocate(1000)
    assert opened.memory_info() == (free - 1000, total)
    opened.free(address)
    assert opened.memory_info() == (free, total)
    opened.close()
    assert standin.calls("cuMemAlloc_v2") - plain == (pools == "0")
    assert standin.calls("cuMemAllocAsync") - ordered == (pools == "1")
    assert standin.live() == before


def test_memory_is_usable_on_every_stream_at_once(context: CudaContext, memory: Memory) -> None:
    stream = context.create_stream()
    block = memory.block(64)
    context.fill(block.address, 7, 64, stream)
    assert (block.read(stream=stream) == 7).all()
    memory.release()


def test_memory_is_not_freed_under_work_that_uses_it(context: CudaContext, standin: Standin) -> None:
    """Work of any stream, though nobody waited for it: the stand-in has not even begun it."""
    stream, faults = context.create_stream(), len(standin.faults)
    to = context.allocate(4)
    context.launch(context.load(context.compile(STORE)), ONE, (to, 1), stream, ())
    context.free(to)
    context.synchronize(stream)
    assert len(standin.faults) == faults


def test_out_of_memory_names_its_figures(context: CudaContext) -> None:
    kept = context.allocate(4096)
    free, total = context.memory_info()
    with pytest.raises(OutOfMemory) as caught:
        context.allocate(free + 1)
    error = caught.value
    assert (error.requested, error.free, error.total, error.live) == (free + 1, free, total, 4096)
    context.free(kept)


def test_page_locked_memory_is_read_before_copy_in_returns(context: CudaContext, memory: Memory) -> None:
    host = context.allocate_host(64)
    bytes_ = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(host))
    block = memory.block(64)
    bytes_[:] = 1
    context.copy_in(block.address, host, 64)
    bytes_[:] = 2
    assert (block.read() == 1).all()
    context.free_host(host)
    memory.release()


@pytest.mark.parametrize("verb", ["copy_in", "copy_out", "copy", "fill"])
def test_negative_sizes_are_refused(context: CudaContext, verb: str) -> None:
    with pytest.raises(ArgumentError, match="nbytes=-1"):
        getattr(context, verb)(64, 0, -1)


def test_what_is_not_the_contexts_is_refused(context: CudaContext) -> None:
    for call in (context.free, context.free_host, context.destroy_stream, context.destroy_event, context.record):
        with pytest.raises(DeviceError, match="0x1234"):
            call(0x1234)


def test_another_threads_first_call_makes_the_context_current(context: CudaContext, memory: Memory) -> None:
    """The stand-in refuses every call of a thread whose current context is another's or none."""
    kernel, to, seen = LoadedKernel(context, STORE), memory.filled(4, 0), []

    def work() -> None:
        kernel(ONE, to, 5)
        seen.append(to.read(np.int32)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [5]
    memory.release()


# Two devices


@pytest.fixture
def pair(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CudaContext, CudaContext]]:
    monkeypatch.setenv("STANDIN_DEVICES", "2")
    before = standin.live()
    contexts = driver.open(0), driver.open(1)
    yield contexts
    for context in contexts:
        context.close()
    assert standin.live() == before


def test_each_launch_goes_to_its_own_device(pair: tuple[CudaContext, CudaContext]) -> None:
    memories = [Memory(context) for context in pair]
    kernels = [LoadedKernel(context, STORE) for context in pair]
    blocks = [memory.filled(4, 0) for memory in memories]
    for value in range(3):
        for kernel, block in zip(kernels, blocks, strict=True):
            kernel(ONE, block, value)
            assert block.read(np.int32)[0] == value
    for memory in memories:
        memory.release()


def test_copies_between_devices(pair: tuple[CudaContext, CudaContext], standin: Standin) -> None:
    first, second = pair
    source, to = Memory(first).filled(64, 9), Memory(second).filled(64, 0)
    first.synchronize()
    second.copy_from(to.address, first, source.address, 64)
    assert (to.read() == 9).all()
    rights = standin.library.standin_peer_rights()
    assert second.enable_peer(first)
    assert second.enable_peer(first)
    assert standin.library.standin_peer_rights() == rights + 2  # the pool's own rights, besides the context's


def test_devices_that_cannot_reach_each_other(
    pair: tuple[CudaContext, CudaContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_PEERS", "0")
    assert not pair[0].enable_peer(pair[1])


# Kernels


def binary_parameters(artifact: Artifact) -> list[cubin.BinaryParameter]:
    return cubin.parameters(artifact.payload, artifact.entry)


def test_a_cubin_states_its_parameters(context: CudaContext) -> None:
    types = {"to": "*i32", "source": "*i32", "shape.0": "i32", "shape.1": "i64", "strides.0": "i32", "strides.1": "i32"}
    artifact = context.compile(variant(variants.COPY_2D, types, {"BLOCK": 16}, folded=("strides.1",)))
    found = binary_parameters(artifact)
    assert [parameter.size for parameter in found] == [8, 8, 4, 8, 4, 8, 8]
    assert [parameter.offset for parameter in found] == [0, 8, 16, 24, 32, 40, 48]


@pytest.mark.parametrize("name", ["STORE_FLAG", "STORE_VALUE"])
@pytest.mark.parametrize("type", ["i32", "i64", "u64", "fp32", "fp64", "u1"])
def test_a_binary_has_the_size_of_every_scalar_type(context: CudaContext, name: str, type: str) -> None:
    if (name == "STORE_FLAG") != (type == "u1"):
        return
    types = {"to": "*i32", "flag": "u1"} if type == "u1" else {"to": f"*{type}", "value": type}
    found = binary_parameters(context.compile(variant(getattr(variants, name), types)))
    size = {"i32": 4, "fp32": 4, "u1": 1}.get(type, 8)
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


# Tensor descriptors made on the host


def move_tile(element: str) -> Variant:
    type = f"tensordesc<{element}[16, 32]>"
    declared = Kernel("standins.cuda.kernels", "move_tile", {"to": "ptr", "source": "ptr", "value": "fp32"})
    return variant(declared, {"to": type, "source": type, "value": "fp32"})


def read(type: Any, address: int) -> Any:
    return type.from_address(address).value


@pytest.mark.parametrize(("element", "host_type"), [("fp16", 6), ("fp32", 7), ("bf16", 9)])
def test_descriptors_become_tensor_maps(context: CudaContext, standin: Standin, element: str, host_type: int) -> None:
    """The stand-in's tensor map states what it was made from: address, type, rank, swizzle, sizes, strides, box."""
    artifact = context.compile(move_tile(element))
    size, seen = 4 if element == "fp32" else 2, []

    def run(parameters: list[int]) -> None:
        assert len(parameters) == 2 * 5 + 3
        for first in (0, 5):
            words = [read(ctypes.c_uint64, parameters[first] + 8 * i) for i in range(16)]
            rest = [ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64]
            seen.append((words, [read(t, p) for t, p in zip(rest, parameters[first + 1 : first + 5], strict=True)]))
        assert read(ctypes.c_float, parameters[10]) == 2.5

    standin.teach(artifact, run)
    kernel = context.load(artifact)
    address = context.allocate(1 << 16)
    to = TensorDescriptor(address, (100, 64), (128, 1))
    source = TensorDescriptor(address + 512, (60, 40), (48, 1), nan=True)
    for _ in range(2):
        context.launch(kernel, ONE, (to, source, 2.5), None, ())
    context.synchronize()
    assert standin.calls("cuTensorMapEncodeTiled") and len(seen) == 4 and seen[:2] == seen[2:]
    meta = artifact.metadata["tensordesc_meta"]
    for (words, rest), value, described in zip(seen[:2], (to, source), meta, strict=True):
        kind = host_type | 2 << 8 | described["swizzle"] << 16 | value.nan << 24
        assert words[:2] == [value.address, kind]
        assert words[2:4] == [value.shape[1], value.shape[0]]
        assert words[7] == value.strides[0] * size
        assert words[11] == 32 | 16 << 32
        assert rest == [*value.shape, *value.strides]


def test_before_sm_90_a_descriptor_is_taken_apart(
    context: CudaContext, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_ARCH", "80")
    older = driver.open(0)
    artifact, seen = older.compile(move_tile("fp16")), []
    flags = 2 if artifact.metadata["triton_version"] >= "3.8" else 1
    byte, word, long = ctypes.c_uint8, ctypes.c_int32, ctypes.c_int64
    words = [ctypes.c_uint64, *[long] * 4, *[byte] * flags, *[word] * 2, *[long] * 2]

    def run(parameters: list[int]) -> None:
        seen.append([read(type, parameter) for type, parameter in zip(words, parameters[: len(words)], strict=True)])

    standin.teach(artifact, run)
    descriptor = TensorDescriptor(older.allocate(4096), (16, 32), (64, 1), nan=True)
    older.launch(older.load(artifact), ONE, (descriptor, descriptor, 1.0), None, ())
    older.synchronize()
    assert seen == [[descriptor.address, 16, 32, 64, 1, 1, *[0] * (flags - 1), 16, 32, 64, 1]]
    older.close()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (4096, "must be a TensorDescriptor"),
        ([1], "must be a TensorDescriptor"),
        (TensorDescriptor(4096, (16,), (1,)), "of 2 dimensions"),
        (TensorDescriptor(4096, (16, 32), (1, 16)), "the last must be 1"),
        (TensorDescriptor(4098, (16, 32), (32, 1)), "multiples of 16"),
        (TensorDescriptor(4096, (16, 32), (33, 1)), "multiples of 16"),
        (TensorDescriptor(4096, (0, 32), (32, 1)), "no size 0"),
    ],
)
def test_a_tensor_that_no_map_describes_is_refused(context: CudaContext, wrong: Any, text: str) -> None:
    kernel = context.load(context.compile(move_tile("fp16")))
    with pytest.raises(LaunchRefused, match=text):
        context.launch(kernel, ONE, (TensorDescriptor(4096, (16, 32), (32, 1)), wrong, 1.0), None, ())


# Scratch memory and graphs


def run_tile(context: CudaContext, memory: Memory, rows: int, stream: int | None = None) -> None:
    kernel = LoadedKernel(context, TILE)
    content = np.random.default_rng(rows).random((rows, 80), np.float32)
    source, to = memory.of(content), memory.block(content.nbytes)
    context.synchronize()
    kernel((3, rows // 32, 1), to, source, rows, 80, stream=stream)
    np.testing.assert_array_equal(to.read(np.float32, stream=stream).reshape(content.shape), content)


def test_scratch_memory_is_a_streams_own_and_grows(context: CudaContext, memory: Memory, standin: Standin) -> None:
    streams = None, context.create_stream()
    for rows in (32, 320, 64):
        for stream in streams:
            run_tile(context, memory, rows, stream)
    size = context.compile(TILE).metadata["global_scratch_size"]
    blocks = [context._scratch[context._handle(stream)] for stream in streams]
    assert blocks[0].address != blocks[1].address
    assert all(block.nbytes >= 10 * 3 * size and len(block.older) == 1 for block in blocks)
    memory.release()
    live = standin.live()["allocations"]
    context.destroy_stream(streams[1])
    assert standin.live()["allocations"] == live - 2


def test_a_graphs_scratch_memory_is_its_own(context: CudaContext, memory: Memory) -> None:
    stream = context.create_stream()
    run_tile(context, memory, 32, stream)
    eager = context._scratch[stream].address
    kernel, content = LoadedKernel(context, TILE), np.random.default_rng(0).random((32, 80), np.float32)
    source, to = memory.of(content), memory.filled(content.nbytes, 0)
    context.synchronize()
    context.graph_begin(stream)
    kernel((3, 1, 1), to, source, 32, 80, stream=stream)
    graph = context.graph_end(stream)
    assert graph.scratch is not None and graph.scratch.address != eager == context._scratch[stream].address
    context.graph_launch(graph, stream)
    np.testing.assert_array_equal(to.read(np.float32, stream=stream), content.ravel())
    context.graph_destroy(graph)
    with pytest.raises(DeviceError, match="destroyed before"):
        context.graph_destroy(graph)
    memory.release()


def test_a_graph_is_updated_in_place(context: CudaContext, memory: Memory) -> None:
    kernel, to, stream = LoadedKernel(context, STORE), memory.filled(4, 0), context.create_stream()
    context.synchronize()

    def capture(*values: int) -> None:
        context.graph_begin(stream)
        for value in values:
            kernel(ONE, to, value, stream=stream)

    capture(1)
    graph = context.graph_end(stream)
    capture(2)
    assert context.graph_update(graph, stream)
    context.graph_launch(graph, stream)
    assert to.read(np.int32, stream=stream)[0] == 2
    capture(3, 4)
    assert not context.graph_update(graph, stream)
    context.graph_launch(graph, stream)
    assert to.read(np.int32, stream=stream)[0] == 2
    memory.release()


def test_the_host_cannot_take_part_in_a_capture(context: CudaContext, memory: Memory) -> None:
    stream, block, host = context.create_stream(), memory.filled(64, 1), np.zeros(64, np.uint8)
    context.synchronize()
    context.graph_begin(stream)
    with pytest.raises(DeviceError, match="copy_in: the stream is being captured"):
        context.copy_in(block.address, host.ctypes.data, 64, stream)
    with pytest.raises(DeviceError, match="copy_out: the stream is being captured"):
        context.copy_out(host.ctypes.data, block.address, 64, stream)
    with pytest.raises(DeviceError, match="is being captured already"):
        context.graph_begin(stream)
    context.fill(block.address, 2, 64, stream)
    context.graph_launch(context.graph_end(stream))
    assert (block.read() == 2).all()
    memory.release()


def test_a_capture_that_was_broken_off_is_told_and_over(context: CudaContext) -> None:
    stream = context.create_stream()
    context.graph_begin(stream)
    with pytest.raises(DriverError, match="cannot be waited for"):
        context.synchronize(stream)
    with pytest.raises(DriverError, match="broken off by an earlier refused call"):
        context.graph_end(stream)
    context.synchronize(stream)
    context.graph_begin(stream)
    context.graph_end(stream)


def test_memory_grows_during_a_capture(context: CudaContext) -> None:
    stream = context.create_stream()
    context.graph_begin(stream)
    address = context.allocate(4096)
    context.fill(address, 1, 4096, stream)
    context.graph_launch(context.graph_end(stream))
    out = np.zeros(4096, np.uint8)
    context.copy_out(out.ctypes.data, address, 4096)
    assert (out == 1).all()


def test_streams_join_a_capture_through_events(context: CudaContext, memory: Memory) -> None:
    first, second = context.create_stream(), context.create_stream()
    begun, ended, block = context.create_event(), context.create_event(), memory.filled(64, 0)
    context.synchronize()
    context.graph_begin(first)
    context.record(begun, first)
    context.wait(begun, second)
    context.fill(block.address, 5, 64, second)
    context.record(ended, second)
    context.wait(ended, first)
    graph = context.graph_end(first)
    assert (block.read() == 0).all()
    context.graph_launch(graph)
    assert (block.read() == 5).all()
    memory.release()


# Every call fails once

RELEASES = {
    "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost", "cuStreamDestroy_v2", "cuEventDestroy_v2", "cuModuleUnload",
    "cuGraphDestroy", "cuGraphExecDestroy", "cuDevicePrimaryCtxRelease_v2", "cuStreamEndCapture",
}  # fmt: skip


def scenario() -> None:
    """A use of everything, which ends with nothing held whatever fails on the way."""
    context = driver.open(0)
    try:
        memory = Memory(context)
        stream, start, end = context.create_stream(), context.create_event(), context.create_event()
        host = context.allocate_host(256)
        a, b = memory.filled(256, 3), memory.block(256)
        context.copy_in(b.address, host, 256)
        context.copy(b.address, a.address, 256)
        context.memory_info()
        kernel = LoadedKernel(context, COPY)
        cluster = LoadedKernel(context, COPY._replace(options=(("num_ctas", 2),)))
        artifact = kernel.artifact
        context.load(artifact._replace(metadata={**artifact.metadata, "shared": 64 << 10}))
        context.record(start, stream)
        context.wait(start)
        kernel(ONE, b, a, 64)
        cluster(ONE, b, a, 64, stream=stream)
        context.record(end, stream)
        context.elapsed_ms(start, end)
        context.graph_begin(stream)
        kernel(ONE, b, a, 64, stream=stream)
        graph = context.graph_end(stream)
        context.graph_begin(stream)
        kernel(ONE, a, b, 64, stream=stream)
        context.graph_update(graph, stream)
        context.graph_launch(graph)
        context.graph_destroy(graph)
        assert (b.read() == 3).all()
        context.unload(kernel.module)
        context.free_host(host)
        context.destroy_event(start)
        context.destroy_stream(stream)
        memory.release()
    finally:
        context.close()


def calls_of_the_scenario(standin: Standin) -> dict[str, int]:
    before = {name: standin.calls(name) for name in library.functions()}
    scenario()
    return {name: count for name, calls in before.items() if (count := standin.calls(name) - calls)}


def test_the_scenario_reaches_every_function_that_a_context_uses(standin: Standin) -> None:
    unused = set(library.functions()) - calls_of_the_scenario(standin).keys()
    assert unused == {
        "cuInit", "cuDriverGetVersion", "cuCtxGetCurrent", "cuDeviceGetUuid", "cuMemAlloc_v2", "cuMemFree_v2",
        "cuGetErrorName", "cuGetErrorString", "cuTensorMapEncodeTiled", "cuMemcpyPeerAsync", "cuCtxEnablePeerAccess",
        "cuDeviceCanAccessPeer", "cuDeviceGetDefaultMemPool", "cuMemPoolSetAccess",
    }  # fmt: skip


@pytest.mark.parametrize("code", [ffi.CUDA_ERROR_UNKNOWN, ffi.CUDA_ERROR_OUT_OF_MEMORY])
def test_every_call_may_fail_once(standin: Standin, code: int) -> None:
    """A typed error that names the call, nothing lost but what could not be released, and all works afterwards."""
    silent = []
    for name, count in calls_of_the_scenario(standin).items():
        for nth in sorted({1, (count + 1) // 2, count}):
            before = standin.live()
            standin.fail(name, nth, code)
            try:
                scenario()
                silent.append(name)
            except (DriverError, OutOfMemory, LaunchRefused) as error:
                assert not isinstance(error, DriverError) or error.call == name
            finally:
                standin.fail(name, 0)
            gc.collect()
            lost = {kind: n - before[kind] for kind, n in standin.live().items() if n != before[kind]}
            assert sum(lost.values()) <= (name in RELEASES), f"{name}, call {nth}: {lost}"
    assert set(silent) <= {"cuPointerGetAttribute"}, "only a question whose answer may be no fails in silence"
    scenario()


def test_a_failed_compile_leaves_the_context_alone(context: CudaContext, memory: Memory) -> None:
    with pytest.raises(CompileError):
        context.compile(STORE._replace(parameters=STORE.parameters[:1]))
    to = memory.filled(4, 0)
    LoadedKernel(context, STORE)(ONE, to, 4)
    assert to.read(np.int32)[0] == 4
    memory.release()
