"""The reference driver: its verbs, its books, its refusals, its faults, threads, and Triton left as it was."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.interpreted import Array, launch, operation, variant

from nbxtensor.backend.contract import ALIGNMENT, DRIVER_API, Driver, Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.backend.reference.driver import ReferenceContext, driver
from nbxtensor.errors import CompileError, DeviceError, KernelFault, LaunchRefused, MemoryFault, NBXError, OutOfMemory, Unavailable

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def context() -> Iterator[ReferenceContext]:
    context = driver.open(0)
    yield context
    context.close()


def place(context: ReferenceContext, array: Array) -> int:
    address = context.allocate(array.nbytes)
    context.copy_in(address, array.ctypes.data, array.nbytes)
    return address


def read(context: ReferenceContext, address: int, like: Array) -> Array:
    array = np.empty_like(like)
    context.copy_out(array.ctypes.data, address, array.nbytes)
    return array


def loaded(context: ReferenceContext, module: str, name: str, /, **arguments: Any) -> Any:
    made, _ = variant(module, name, **arguments)
    return context.load(context.compile(made))


# the driver


def test_driver_is_the_last_choice_for_the_processor() -> None:
    assert isinstance(driver, Driver)
    assert (driver.name, driver.device_type, driver.api_version) == ("reference", "cpu", DRIVER_API)
    assert driver.priority < 100
    assert driver.device_files is None


def test_probe_describes_this_machine() -> None:
    (info,) = driver.probe()
    assert info.ordinal == 0
    assert info.architecture == platform.machine()
    assert info.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert info.profile == "cpu/reference"
    assert info.name


@pytest.mark.parametrize("ordinal", [-1, 1])
def test_there_is_one_device(ordinal: int) -> None:
    with pytest.raises(Unavailable) as caught:
        driver.open(ordinal)
    assert caught.value.reason == "no device"


def child(code: str, **variables: str) -> str:
    """What a fresh process prints; its imports of torch are recorded like this one's."""
    environment = {**os.environ, **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *(p for p in sys.path if p), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_triton_it_says_what_to_install() -> None:
    code = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else real(name, package)
from nbxtensor.backend.reference.driver import driver
from nbxtensor.errors import Unavailable
for call in (driver.probe, lambda: driver.open(0)):
    try:
        call()
    except Unavailable as error:
        print(error.reason, "|", error.fix)
"""
    lines = child(code).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("no Triton backend | pip install nbxtensor-cpu")


def test_probing_and_opening_import_neither_triton_nor_torch() -> None:
    code = """
import sys
from nbxtensor.backend.reference.driver import driver
driver.open(driver.probe()[0].ordinal).close()
print(sorted(sys.modules.keys() & {"triton", "torch"}))
"""
    assert child(code) == "[]\n"


RUN = """
import sys
import numpy as np
from driver.interpreted import launch
x = np.arange(5 * 37, dtype=np.float32).reshape(5, 37)
out = np.zeros_like(x)
launch("kernels_blocks", "softmax", (5,), out=out, x=x, n=37, BLOCK=64)
e = np.exp(x - x.max(1, keepdims=True))
print(np.abs(out - e / e.sum(1, keepdims=True)).max() < 1e-6, "torch" in sys.modules)
import driver.kernels_blocks as kernels
print(type(kernels.softmax).__name__)
"""


@pytest.mark.parametrize(("value", "kind"), [("0", "JITFunction"), ("1", "InterpretedFunction")])
def test_triton_interpret_changes_nothing(value: str, kind: str) -> None:
    assert child(RUN, TRITON_INTERPRET=value).splitlines() == ["True False", kind]


# memory


def test_allocations_are_aligned_and_freed_once(context: ReferenceContext) -> None:
    addresses = [context.allocate(n) for n in (1, 255, 256, 1000)]
    assert all(address % ALIGNMENT == 0 for address in addresses)
    for address in addresses:
        context.free(address)
        with pytest.raises(DeviceError, match="free"):
            context.free(address)
    with pytest.raises(DeviceError):
        context.free(64)


def test_host_and_device_memory_are_not_confused(context: ReferenceContext) -> None:
    device, host = context.allocate(64), context.allocate_host(64)
    with pytest.raises(DeviceError):
        context.free(host)
    with pytest.raises(DeviceError):
        context.free_host(device)
    context.free(device)
    context.free_host(host)


@pytest.mark.parametrize("nbytes", [0, -4])
def test_no_size_is_refused(context: ReferenceContext, nbytes: int) -> None:
    for verb in (context.allocate, context.allocate_host):
        with pytest.raises(NBXError):
            verb(nbytes)


def test_out_of_memory_says_how_much(context: ReferenceContext) -> None:
    context.allocate(1000)
    with pytest.raises(OutOfMemory) as caught:
        context.allocate(1 << 60)
    assert (caught.value.requested, caught.value.live) == (1 << 60, 1000)
    assert caught.value.total == context.memory_info()[1]


def test_copies_and_fills(context: ReferenceContext) -> None:
    x = np.arange(100, dtype=np.uint8)
    a, b = place(context, x), context.allocate(100)
    context.copy(b, a, 100)
    context.fill(b + 10, 7, 5)
    x[10:15] = 7
    np.testing.assert_array_equal(read(context, b, x), x)


def test_copies_past_an_allocation_are_refused(context: ReferenceContext) -> None:
    a, b, host = context.allocate(64), context.allocate(64), np.zeros(128, np.uint8)
    for call in (
        lambda: context.copy_in(a, host.ctypes.data, 65),
        lambda: context.copy_in(a + 1, host.ctypes.data, 64),
        lambda: context.copy_in(a - 1, host.ctypes.data, 2),
        lambda: context.copy_out(host.ctypes.data, a + 60, 5),
        lambda: context.copy(a, b + 1, 64),
        lambda: context.copy(a + 1, b, 64),
        lambda: context.fill(a + 63, 0, 2),
        lambda: context.copy_in(host.ctypes.data, a, 8),
    ):
        with pytest.raises(DeviceError, match="not inside live memory"):
            call()
    context.free(a)
    with pytest.raises(DeviceError):
        context.fill(a, 0, 1)


@pytest.mark.parametrize("byte", [-1, 256])
def test_fill_takes_a_byte(context: ReferenceContext, byte: int) -> None:
    with pytest.raises(NBXError, match="byte"):
        context.fill(context.allocate(4), byte, 4)


def test_registered_memory(context: ReferenceContext) -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    add = loaded(context, "kernels_arithmetic", "unary", out=out, x=x, n=64, OP=operation("half_plus"), BLOCK=64)
    arguments = (out.ctypes.data, x.ctypes.data, 64)
    with pytest.raises(MemoryFault):
        context.launch(add, (1, 1, 1), arguments, None, ())
    context.register(x.ctypes.data, x.nbytes, writable=False)
    context.register(out.ctypes.data, out.nbytes)
    context.launch(add, (1, 1, 1), arguments, None, ())
    np.testing.assert_array_equal(out, x * 0.5 + 1)
    with pytest.raises(MemoryFault, match="read-only") as caught:
        context.launch(add, (1, 1, 1), (x.ctypes.data, out.ctypes.data, 64), None, ())
    assert caught.value.parameter == "out"
    with pytest.raises(DeviceError, match="read-only"):
        context.fill(x.ctypes.data, 0, 4)
    for address in (x.ctypes.data, out.ctypes.data):
        with pytest.raises(DeviceError):
            context.free(address)
        with pytest.raises(DeviceError):
            context.unregister(address, x.nbytes - 4)
        context.unregister(address, x.nbytes)
        with pytest.raises(DeviceError):
            context.unregister(address, x.nbytes)
    with pytest.raises(MemoryFault):
        context.launch(add, (1, 1, 1), arguments, None, ())


def test_registrations_may_overlap(context: ReferenceContext) -> None:
    x = np.arange(64, dtype=np.float32)
    out = context.allocate(x.nbytes)
    kernel = loaded(context, "kernels_arithmetic", "unary", out=x, x=x, n=64, OP=operation("identity"), BLOCK=64)
    ranges = [(x.ctypes.data, 160), (x.ctypes.data + 96, 160), (x.ctypes.data + 96, 160), (out, 16)]
    for address, nbytes in ranges:
        context.register(address, nbytes)
    context.launch(kernel, (1, 1, 1), (out, x.ctypes.data, 64), None, ())
    np.testing.assert_array_equal(read(context, out, x), x)
    context.unregister(*ranges[1])
    context.launch(kernel, (1, 1, 1), (out, x.ctypes.data, 64), None, ())
    context.unregister(*ranges[2])
    context.launch(kernel, (1, 1, 1), (out, x.ctypes.data, 40), None, ())
    with pytest.raises(MemoryFault):
        context.launch(kernel, (1, 1, 1), (out, x.ctypes.data, 41), None, ())
    with pytest.raises(DeviceError, match="overlaps"):
        context.register(out + 64, x.nbytes)


def test_a_file_in_memory_is_read_in_place(context: ReferenceContext, tmp_path: Path) -> None:
    x = np.arange(1000, dtype=np.float32)
    (tmp_path / "weights").write_bytes(b"12345678" + x.tobytes())
    with open(tmp_path / "weights", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        context.register(view.ctypes.data, view.nbytes, writable=False)
        out = context.allocate(x.nbytes)
        copy = loaded(context, "kernels_arithmetic", "unary", out=x, x=x, n=1000, OP=operation("identity"), BLOCK=256)
        context.launch(copy, (4, 1, 1), (out, view.ctypes.data + 8, 1000), None, ())
        np.testing.assert_array_equal(read(context, out, x), x)
        context.unregister(view.ctypes.data, view.nbytes)
        del view


@pytest.mark.parametrize(("address", "nbytes"), [(0, 8), (4096, 0), (4096, -1)])
def test_no_memory_is_not_registered(context: ReferenceContext, address: int, nbytes: int) -> None:
    with pytest.raises(DeviceError):
        context.register(address, nbytes)


def test_after_close_every_verb_is_refused() -> None:
    context = driver.open(0)
    address, stream, event = context.allocate(64), context.create_stream(), context.create_event()
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    made, _ = variant("kernels_arithmetic", "linger", out=out, steps=1)
    artifact = context.compile(made)
    context.close()
    context.close()
    for call in (
        lambda: context.allocate(1),
        lambda: context.free(address),
        lambda: context.allocate_host(1),
        lambda: context.free_host(address),
        lambda: context.register(address, 64),
        lambda: context.copy_in(address, address, 0),
        lambda: context.copy_out(address, address, 4),
        lambda: context.copy(address, address, 4),
        lambda: context.fill(address, 0, 1),
        context.memory_info,
        context.create_stream,
        lambda: context.destroy_stream(stream),
        lambda: context.synchronize(stream),
        context.synchronize,
        context.create_event,
        lambda: context.record(event),
        lambda: context.compile(made),
        lambda: context.load(artifact),
        lambda: context.unload(kernel),
        lambda: context.launch(kernel, (1, 1, 1), (address, 1), None, ()),
    ):
        with pytest.raises(DeviceError, match="closed"):
            call()


# streams and events


def test_events_tell_the_time_between_them(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    stream, start, end = context.create_stream(), context.create_event(), context.create_event()
    context.record(start, stream)
    context.launch(kernel, (1, 1, 1), (place(context, out), 50), stream, ())
    context.record(end, stream)
    context.wait(end)
    context.synchronize(stream)
    assert context.elapsed_ms(start, end) > 0
    assert context.elapsed_ms(end, start) == -context.elapsed_ms(start, end)


def test_unknown_streams_and_events_are_refused(context: ReferenceContext) -> None:
    stream, event = context.create_stream(), context.create_event()
    address = context.allocate(4)
    for call in (
        lambda: context.synchronize(event),
        lambda: context.destroy_stream(event),
        lambda: context.fill(address, 0, 4, 99),
        lambda: context.record(stream),
        lambda: context.wait(99),
        lambda: context.elapsed_ms(event, event),
        lambda: context.destroy_event(stream),
    ):
        with pytest.raises(DeviceError):
            call()
    context.destroy_stream(stream)
    context.destroy_event(event)
    for call in (lambda: context.destroy_stream(stream), lambda: context.destroy_event(event)):
        with pytest.raises(DeviceError):
            call()


# kernels


def test_compile_errors_name_the_kernel(context: ReferenceContext) -> None:
    for module, name in (("driver.kernels_arithmetic", "no_such_kernel"), ("driver.no_such_module", "add")):
        with pytest.raises(CompileError) as caught:
            context.compile(Variant(Kernel(module, name, {}), (), (), (), ()))
        assert caught.value.kernel == name


def test_parameters_are_counted_against_the_function(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    made, _ = variant("kernels_arithmetic", "linger", out=out, steps=1)
    for parameters, words in (
        (made.parameters[:1], "steps"),
        ((*made.parameters, Parameter("extra", "i32", True)), "extra"),
        ((made.parameters[0], Parameter("steps", "i33", True)), "i33"),
    ):
        with pytest.raises(CompileError, match=words):
            context.compile(made._replace(parameters=parameters))


def test_artifacts_of_others_are_refused(context: ReferenceContext) -> None:
    made, _ = variant("kernels_arithmetic", "linger", out=np.zeros(1, np.int32), steps=1)
    artifact = context.compile(made)
    assert (artifact.kind, artifact.entry, artifact.payload) == ("python", "linger", made)
    for other in (artifact._replace(kind="cubin", payload=b""), artifact._replace(parameters=())):
        with pytest.raises(LaunchRefused):
            context.load(other)


def test_launches_that_cannot_be_are_refused(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    address = place(context, out)
    for grid, values in (
        ((1, 1, 1), (address,)),
        ((1, 1, 1), (address, 1, 2)),
        ((1, 1, 1), (address, 2**31)),
        ((0, 1, 1), (address, 1)),
        ((1, -1, 1), (address, 1)),
        ((2**31, 1, 1), (address, 1)),
    ):
        with pytest.raises(LaunchRefused):
            context.launch(kernel, grid, values, None, ())
    context.unload(kernel)
    with pytest.raises(DeviceError, match="not loaded"):
        context.launch(kernel, (1, 1, 1), (address, 1), None, ())
    assert read(context, address, out)[0] == 0


def test_a_float_beyond_its_parameters_range_is_infinite(context: ReferenceContext) -> None:
    out = np.zeros(4, np.float32)
    kernel = loaded(context, "kernels_arithmetic", "scalars", out=out, a=0.0, b=0.0, c=0.0, d=0.0)
    address = place(context, out)
    context.launch(kernel, (1, 1, 1), (address, 1e300, -1e300, 3, float("nan")), None, ())
    np.testing.assert_array_equal(read(context, address, out), [np.inf, -np.inf, 3, np.nan])


def test_folded_values_stand_in_the_launch_values(context: ReferenceContext) -> None:
    x = np.arange(8, dtype=np.float32)
    made, _ = variant("kernels_arithmetic", "copy_tile", out=x, x=x, rows=1, columns=8, so=(8, 1), sx=(8, 1), M=1, N=8)
    folded = tuple(p._replace(kept=p.name not in ("rows", "so.1", "sx.1")) for p in made.parameters)
    kernel = context.load(context.compile(made._replace(parameters=folded)))
    out = context.allocate(32)
    context.launch(kernel, (1, 1, 1), (out, place(context, x), 1, 8, 8, 1, 8, 1), None, ())
    np.testing.assert_array_equal(read(context, out, x), x)


def test_a_tuple_may_be_empty() -> None:
    out = np.zeros(200, np.int64)
    launch("kernels_blocks", "loops", out=out, n=2, shape=(), EMPTY=2)
    assert out[[0, 1, 2, 4]].tolist() == [1, 4 - 4 + 5, 3, 9]
    assert out[100:102].tolist() == [0, 1]


def test_unaligned_pointers(context: ReferenceContext) -> None:
    x = np.arange(64, dtype=np.float32)
    kernel = loaded(context, "kernels_arithmetic", "gather", out=x, x=x, index=np.zeros(64, np.int32), BLOCK=64)
    source, index = context.allocate(x.nbytes + 3), np.arange(63, -1, -1, dtype=np.int32)
    context.copy_in(source + 3, x.ctypes.data, x.nbytes)
    out = context.allocate(x.nbytes + 1)
    context.launch(kernel, (1, 1, 1), (out + 1, source + 3, place(context, index)), None, ())
    np.testing.assert_array_equal(read(context, out + 1, x), x[::-1])


def test_pointers_from_a_table_reach_several_allocations(context: ReferenceContext) -> None:
    rows = [np.arange(8, dtype=np.float32) + 10 * i for i in range(4)]
    table = np.array([place(context, row) for row in rows], np.int64)
    out = np.zeros((4, 8), np.float32)
    kernel = loaded(context, "kernels_arithmetic", "through_table", out=out, table=table, ROWS=4, COLUMNS=8)
    to, pointers = place(context, out), place(context, table)
    context.launch(kernel, (1, 1, 1), (to, pointers), None, ())
    np.testing.assert_array_equal(read(context, to, out), np.stack(rows))
    context.free(int(table[2]))
    with pytest.raises(MemoryFault) as caught:
        context.launch(kernel, (1, 1, 1), (to, pointers), None, ())
    assert int(table[2]) <= caught.value.address < int(table[2]) + 32
    assert caught.value.parameter is None


# faults


def test_a_fault_names_kernel_program_and_cause() -> None:
    out = np.zeros(1, np.int32)
    with pytest.raises(KernelFault, match="this program is not welcome") as caught:
        launch("kernels_arithmetic", "fails_in", (2, 4, 3), out=out, program=2)
    assert (caught.value.kernel, caught.value.program) == ("fails_in", (0, 2, 0))
    assert "kernels_arithmetic.py" in caught.value.cause


def test_an_exception_in_a_kernel_is_a_fault(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "raises", out=out)
    address = place(context, out)
    with pytest.raises(KernelFault, match="TypeError"):
        context.launch(kernel, (1, 1, 1), (address,), None, ())
    context.fill(address, 1, 4)  # the context still works


def test_a_load_past_the_end_names_parameter_and_address(context: ReferenceContext) -> None:
    x = np.arange(64, dtype=np.float32)
    kernel = loaded(context, "kernels_arithmetic", "past_the_end", out=x, x=x, n=0, BLOCK=64)
    out, source = context.allocate(x.nbytes), place(context, x)
    context.launch(kernel, (1, 1, 1), (out, source, 0), None, ())
    for n, first in ((1, source + 64 * 4), (64, source + 64 * 4), (-1, source - 4)):
        with pytest.raises(MemoryFault, match="parameter 'x'") as caught:
            context.launch(kernel, (1, 1, 1), (out, source, n), None, ())
        assert (caught.value.parameter, caught.value.address) == ("x", first)
        assert caught.value.kernel == "past_the_end"


def test_a_store_past_the_end_changes_nothing(context: ReferenceContext) -> None:
    out = np.full(20, -1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "ignores_its_mask", out=out, n=0, BLOCK=32)
    address = place(context, out)
    context.launch(kernel, (1, 1, 1), (address, 20), None, ())  # lanes that are masked out may point anywhere
    np.testing.assert_array_equal(read(context, address, out), np.arange(20))
    with pytest.raises(MemoryFault, match="store of 4 bytes"):
        context.launch(kernel, (1, 1, 1), (address, 21), None, ())
    np.testing.assert_array_equal(read(context, address, out), np.arange(20))


class Part:
    """A tensor in a part of an allocation, as a launch is told of it."""

    def __init__(self, address: int, nbytes: int):
        self.ptr, self.extent = address, (address, nbytes)


def test_a_launch_told_of_its_tensors_keeps_to_them(context: ReferenceContext) -> None:
    """A pool hands out parts of one allocation: what lies past a tensor there is live memory, and still not its own."""
    x = np.arange(128, dtype=np.float32)
    pool = place(context, x)
    kernel = loaded(context, "kernels_arithmetic", "past_the_end", out=x, x=x, n=0, BLOCK=16)
    tensors = (Part(pool + 256, 64), Part(pool, 64))
    context.launch(kernel, (1, 1, 1), (pool + 256, pool, 0), None, tensors)
    with pytest.raises(MemoryFault, match=f"{pool:#x}, {pool + 64:#x}"):
        context.launch(kernel, (1, 1, 1), (pool + 256, pool, 1), None, tensors)
    context.launch(kernel, (1, 1, 1), (pool + 256, pool, 1), None, ())


def test_freed_memory_is_not_touched(context: ReferenceContext) -> None:
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    address = place(context, out)
    context.free(address)
    with pytest.raises(MemoryFault):
        context.launch(kernel, (1, 1, 1), (address, 1), None, ())


# threads, and Triton beside it


def test_eight_threads_on_one_context(context: ReferenceContext) -> None:
    x = [np.random.default_rng(i).standard_normal((3, 37)).astype(np.float32) for i in range(8)]
    kernel = loaded(context, "kernels_blocks", "softmax", out=x[0], x=x[0], n=37, BLOCK=64)

    def work(i: int) -> Array:
        source, out = place(context, x[i]), context.allocate(x[i].nbytes)
        for _ in range(10):
            context.launch(kernel, (3, 1, 1), (out, source, 37), None, ())
        return read(context, out, x[i])

    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(work, range(8))):
            e = np.exp(x[i] - x[i].max(1, keepdims=True))
            np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_eight_threads_on_contexts_of_their_own_with_different_kernels() -> None:
    barrier = threading.Barrier(8)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(5):
            if i % 2:
                out = np.zeros(4 * (i + 1), np.int32)
                launch("kernels_arithmetic", "ignores_its_mask", out=out, n=out.size, BLOCK=64)
                np.testing.assert_array_equal(out, np.arange(out.size))
            else:
                with pytest.raises(KernelFault) as caught:
                    launch("kernels_arithmetic", "fails_in", (1, i + 2), out=np.zeros(1, np.int32), program=i)
                assert caught.value.program == (0, i, 0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_launches_of_one_context_do_not_overlap(context: ReferenceContext) -> None:
    """Each launch adds 1 many times by loads and stores: a lost update would show."""
    out = np.zeros(1, np.int32)
    kernel = loaded(context, "kernels_arithmetic", "linger", out=out, steps=1)
    address = place(context, out)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: context.launch(kernel, (1, 1, 1), (address, 50), None, ()), range(16)))
    assert read(context, address, out)[0] == 16 * 50


def members(*owners: Any) -> dict[tuple[str, str], int]:
    return {(owner.__name__, name): id(value) for owner in owners for name, value in vars(owner).items()}


def test_triton_is_left_as_it_was() -> None:
    """Its own compiler works afterwards, and in other threads while kernels are interpreted."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    from nbxtensor.backend.compiler import compile_gpu, gpu_target

    owners = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.constexpr, JITFunction)
    before = members(*owners)
    x = np.zeros((8, 64), np.float32)
    made, _ = variant("kernels_blocks", "softmax", out=x, x=x, n=64, BLOCK=64)
    target = gpu_target("cuda", 80, 32)
    running = threading.Event()

    def interpret() -> None:
        while not running.is_set():
            launch("kernels_blocks", "softmax", (8,), out=np.zeros_like(x), x=x, n=64, BLOCK=64)

    with ThreadPoolExecutor(2) as pool:
        interpreting = pool.submit(interpret)
        try:
            artifact = compile_gpu(made, target)
        finally:
            running.set()
        interpreting.result()
    assert artifact.kind == "cubin"
    assert len(artifact.payload) > 1000
    assert {name for name, value in members(*owners).items() if before.get(name) != value} == set()


def test_kernel_modules_keep_their_globals() -> None:
    import driver.kernels_blocks as kernels

    before = dict(vars(kernels))
    out = np.zeros(200, np.int64)
    launch("kernels_blocks", "loops", out=out, n=2, shape=(3,), EMPTY=0)
    assert dict(vars(kernels)) == before


def test_addresses_are_the_hosts(context: ReferenceContext) -> None:
    assert context.capabilities.host_addressable
    address = context.allocate(8)
    ctypes.memset(address, 5, 8)
    assert (read(context, address, np.zeros(8, np.uint8)) == 5).all()


def test_capabilities_name_what_triton_can_hold(context: ReferenceContext) -> None:
    held = context.capabilities.dtypes
    assert {"bool", "int8", "uint64", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"} <= held
    assert not any(name.startswith("complex") for name in held)
    assert context.capabilities.executes
    assert not context.capabilities.binds_by_extent
