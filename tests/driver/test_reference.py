"""The reference driver: its verbs, its books and its refusals."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from driver.interpreted import operation, variant
from driver.reference_context import loaded, place, read
from nbxtensor.backend.contract import ALIGNMENT, DRIVER_API, Driver
from nbxtensor.backend.reference.driver import ReferenceContext, driver
from nbxtensor.errors import (
    DeviceError,
    MemoryFault,
    NBXError,
    OutOfMemory,
    Unavailable,
)

TESTS = Path(__file__).resolve().parents[1]


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
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS), *(p for p in sys.path if p), environment.get("PYTHONPATH", "")]
    )
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
