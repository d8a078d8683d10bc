"""Every call of the CUDA driver API fails once: a typed error, nothing lost, everything works afterwards."""

from __future__ import annotations

import gc

import pytest

from nbxtensor.backend.cuda import ffi, library
from nbxtensor.conformance import variants
from nbxtensor.conformance.variants import LoadedKernel, Memory, variant
from nbxtensor.errors import DriverError, LaunchRefused, OutOfMemory
from standins.cuda.execute import Standin
from standins.cuda.subject import driver

ONE = (1, 1, 1)
COPY = variant(variants.COPY, {"to": "*i32", "source": "*i32", "n": "i32"}, {"BLOCK": 128})


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
