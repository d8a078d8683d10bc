"""Every call that the library makes into a driver fails once: a typed error, no leak, and the next call works."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend.meta import driver as meta
from nbxtensor.backend.reference.driver import driver as reference
from nbxtensor.backend.runtime import Device
from nbxtensor.conformance.null import VERBS, FaultyContext, FaultyDriver, Live, NullDriver
from nbxtensor.conformance.variants import COPY, LoadedKernel, Memory, variant
from nbxtensor.errors import ArgumentError, CompileError, DeviceError, DriverError, NBXError, OutOfMemory

NOTHING = Live(0, 0, 0, 0, 0, 0, 0)
COPY_VARIANT = variant(COPY, {"to": "*fp32", "source": "*fp32", "n": "i32"}, {"BLOCK": 128})

# the contexts themselves


def test_a_null_context_keeps_data_and_notes_launches() -> None:
    context = NullDriver().open(0)
    memory, kernel = Memory(context), LoadedKernel(context, COPY_VARIANT)
    content = np.arange(100, dtype=np.float32)
    source, to = memory.of(content), memory.filled(400, 0)
    kernel((1, 2, 3), to, source, 100)
    assert [*context.launched] == [("copy", (1, 2, 3), (to.ptr, source.ptr, 100), None)]
    assert (to.read() == 0).all(), "kernels do nothing"
    context.copy(to.ptr, source.ptr, 400)
    np.testing.assert_array_equal(to.read(np.float32), content)
    assert context.calls == {
        "allocate": 2, "compile": 1, "load": 1, "launch": 1, "copy_in": 1, "fill": 1, "copy": 1, "copy_out": 2,
    }  # fmt: skip


def test_what_is_alive_is_counted() -> None:
    context = NullDriver().open(0)
    address, host = context.allocate(1000), context.allocate_host(10)
    stream, event = context.create_stream(), context.create_event()
    module = context.load(context.compile(COPY_VARIANT))
    context.allocate(24)
    assert context.live() == Live(2, 1024, 1, 1, 1, 1, 0)
    context.free(address)
    context.free_host(host)
    context.destroy_stream(stream)
    context.destroy_event(event)
    context.unload(module)
    assert context.live() == Live(1, 24, 0, 0, 0, 0, 0)
    context.close()
    assert context.live() == NOTHING


@pytest.mark.parametrize(
    "inner", [NullDriver().open(0).inner, meta.open(0), reference.open(0)], ids=lambda c: c.info.name
)
def test_the_nth_call_fails_and_no_other(inner: Any) -> None:
    context = FaultyContext(inner)
    context.allocate(8)
    context.fail("allocate", 2)
    context.fail("allocate", 3, DriverError("allocate", 719, "LAUNCH_FAILED", "the device is lost"))
    first = context.allocate(8)
    with pytest.raises(OutOfMemory):
        context.allocate(8)
    assert context.pending() == 1
    with pytest.raises(DriverError, match="the device is lost"):
        context.allocate(8)
    context.allocate(8)
    assert context.calls["allocate"] == 5
    assert context.live().allocations == 3
    context.fail("free")
    with pytest.raises(DriverError, match="INJECTED"):
        context.free(first)
    assert context.live().allocations == 3, "what was not freed is alive"
    context.free(first)
    assert context.live().allocations == 2


ARGUMENTS = {"launch": 5, "copy_in": 3, "copy_out": 3, "copy": 3, "fill": 3, "elapsed_ms": 2}
ARGUMENTS |= dict.fromkeys(("close", "memory_info", "create_stream", "create_event"), 0)


@pytest.mark.parametrize("verb", [v for v in VERBS if not v.startswith("graph_")])
def test_every_verb_can_fail(verb: str) -> None:
    context = NullDriver().open(0)
    context.fail(verb)
    with pytest.raises(OutOfMemory if verb == "allocate" else DriverError):
        getattr(context, verb)(*[0] * ARGUMENTS.get(verb, 1))
    assert context.pending() == 0


def test_a_wrong_plan_is_refused() -> None:
    context = NullDriver().open(0)
    with pytest.raises(ArgumentError, match="verb='alocate': must be one of"):
        context.fail("alocate")
    with pytest.raises(ArgumentError, match="nth=0: counts from 1"):
        context.fail("allocate", 0)
    context.fail("allocate", 5)
    context.forget()
    assert context.pending() == 0


def test_graph_verbs_are_those_of_the_inner_context() -> None:
    context = NullDriver().open(0)
    for call in (context.graph_begin, context.graph_end, lambda stream: context.graph_launch(None, stream)):
        with pytest.raises(DeviceError, match="no such verb"):
            call(context.create_stream())


# the library above them

N = 12
A = np.linspace(-2, 2, N, dtype=np.float32).reshape(3, 4)
B = np.arange(N, dtype=np.float32).reshape(3, 4) + 1


class Call(NamedTuple):
    """A public call on operands that are on the device already, and what it gives as numpy."""

    run: Callable[[nbx.Tensor, nbx.Tensor], Any]
    expected: Callable[[], Any]


def assigned(a: nbx.Tensor, b: nbx.Tensor) -> nbx.Tensor:
    x = a.clone()
    x[1:] = b[:2]
    x[0] = 7
    return x


CALLS = {
    "from_numpy": Call(lambda a, b: nbx.from_numpy(A, a.device), lambda: A),
    "add": Call(lambda a, b: a + b, lambda: A + B),
    "add of a number": Call(lambda a, b: a + 1.5, lambda: A + 1.5),
    "add of views": Call(lambda a, b: a.T + b.T[::-1], lambda: A.T + B.T[::-1]),
    "chain": Call(lambda a, b: (a + b) * (a - b), lambda: (A + B) * (A - B)),
    "matmul": Call(lambda a, b: a @ b.T, lambda: A @ B.T),
    "sum": Call(lambda a, b: b.sum(1), lambda: B.sum(1)),
    "softmax": Call(lambda a, b: nbx.softmax(a, -1), lambda: np.exp(A) / np.exp(A).sum(-1, keepdims=True)),
    "numpy": Call(lambda a, b: a.numpy(), lambda: A),
    "numpy of a view": Call(lambda a, b: b[:, ::3].T.numpy(), lambda: B[:, ::3].T),
    "item": Call(lambda a, b: np.float32(b[1, 2].item()), lambda: B[1, 2]),
    "cast": Call(lambda a, b: b.to("int64"), lambda: B.astype(np.int64)),
    "to another device": Call(lambda a, b: a.to(OTHER), lambda: A),
    "assign": Call(assigned, lambda: np.concatenate([np.full((1, 4), 7, np.float32), B[:2]])),
    "cat": Call(lambda a, b: nbx.cat([a, b]), lambda: np.concatenate([A, B])),
}
OTHER = Device(NullDriver())
FAILING = ("allocate", "copy_in", "copy_out", "copy", "fill", "compile", "load", "launch", "synchronize")
ERRORS: dict[str, Exception] = {
    "compile": CompileError("kernel", "reference", "no registers are left"),
    "launch": DriverError("launch", 1, "INVALID_VALUE", "invalid argument"),
}


class Setting:
    """A device whose context can be made to fail, with two tensors on it."""

    def __init__(self, warm: Call | None = None):
        self.device = Device(FaultyDriver(reference))
        self.context: FaultyContext = self.device.context  # type: ignore[assignment]
        self.a, self.b = nbx.from_numpy(A, self.device), nbx.from_numpy(B, self.device)
        if warm is not None:
            warm.run(self.a, self.b)
            self.device.pool.empty_cache()
        self.calls_before = self.context.calls.copy()

    def made(self, verb: str) -> int:
        """How many calls of the verb were made since the operands are here."""
        return self.context.calls[verb] - self.calls_before[verb]

    def held(self) -> tuple[int, int]:
        """Bytes that tensors hold, as the pool says and, without cached blocks, as the context says."""
        gc.collect()
        self.device.pool.empty_cache()
        return self.device.pool.statistics().live, self.context.live().nbytes


def calls_of(call: Call, warm: bool) -> Iterator[tuple[str, int]]:
    """(verb, how many times) that a call makes of the verbs that may fail."""
    setting = Setting(call if warm else None)
    call.run(setting.a, setting.b)
    counts = [(verb, setting.made(verb)) for verb in FAILING]
    setting.device.close()
    return ((verb, count) for verb, count in counts if count)


def raised_by(run: Callable[[], Any]) -> Exception:
    """The error that a call raises, without the frames that it came through, for they hold the call's tensors."""
    with pytest.raises(NBXError) as caught:
        run()
    error = caught.value
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def numpy_of(result: Any) -> Any:
    return result.numpy() if isinstance(result, nbx.Tensor) else result


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("name", CALLS)
def test_a_failed_driver_call_is_reported_and_leaves_nothing_behind(name: str, warm: bool) -> None:
    call = CALLS[name]
    tried = 0
    for verb, count in calls_of(call, warm):
        for nth in range(1, count + 1):
            setting = Setting(call if warm else None)
            held = setting.held()
            error = ERRORS.get(verb, DriverError(verb, 700, "ILLEGAL_ADDRESS", "the device met a fault"))
            setting.context.fail(verb, nth, error)
            assert raised_by(lambda s=setting: call.run(s.a, s.b)) is error, f"{verb} {nth} of {count}"
            assert setting.held() == held, f"{verb} {nth} of {count} failed and left memory behind"
            result = numpy_of(call.run(setting.a, setting.b))
            np.testing.assert_allclose(result, call.expected(), rtol=1e-6, err_msg=f"after {verb} {nth} of {count}")
            np.testing.assert_array_equal(setting.a.numpy(), A)
            setting.device.close()
            assert setting.context.live() == NOTHING
            tried += 1
    assert tried, "the call never reached the driver"


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("numpy", "item", "to another device")])
def test_out_of_memory_is_reported_with_its_figures(name: str) -> None:
    call = CALLS[name]
    for nth in range(1, dict(calls_of(call, warm=True)).get("allocate", 0) + 1):
        setting = Setting(call)
        held = setting.held()
        for later in range(5):  # also when the pool has returned its cached blocks and asks again
            setting.context.fail("allocate", nth + later)
        error = raised_by(lambda s=setting: call.run(s.a, s.b))
        assert isinstance(error, OutOfMemory)
        assert error.requested > 0
        assert error.total == setting.context.memory_info()[1]
        assert error.live >= A.nbytes + B.nbytes
        setting.context.forget()
        assert setting.held() == held
        np.testing.assert_allclose(numpy_of(call.run(setting.a, setting.b)), call.expected(), rtol=1e-6)
        setting.device.close()


def test_memory_that_the_pool_caches_is_given_up_before_a_refusal() -> None:
    """A device of 64 KiB: what dead tensors left in the pool in one size class serves another class."""
    driver = NullDriver(memory_bytes=64 << 10)
    device = Device(driver)
    (context,) = driver.contexts
    for _ in range(3):
        small = [nbx.empty((1024,), dtype="float32", device=device) for _ in range(15)]
        del small
        large = nbx.empty((12 << 10,), dtype="float32", device=device)
        assert context.live().nbytes <= 64 << 10
        with pytest.raises(OutOfMemory) as caught:
            nbx.empty((12 << 10,), dtype="float32", device=device)
        assert caught.value.requested >= 48 << 10
        assert caught.value.live >= large.nbytes
        del large
    device.close()


def test_a_block_whose_free_failed_is_not_forgotten() -> None:
    setting = Setting()
    del setting.b
    for nth in (1, 2):
        setting.a + setting.a  # leaves a block of its size class and those of others
        (setting.a[:, :1] + 1).sum()
        before = setting.context.live().nbytes
        setting.context.fail("free", nth)
        with pytest.raises(DriverError, match="INJECTED"):
            setting.device.pool.empty_cache()
        assert setting.context.live().nbytes <= before
        setting.context.forget()
        assert setting.held() == (setting.device.pool.statistics().live, setting.context.live().nbytes)
        assert setting.context.live().allocations == 1, "the tensor that lives, and no block that was lost"
    setting.device.close()


def test_a_kernel_that_failed_to_load_is_loaded_at_the_next_call() -> None:
    setting = Setting()
    setting.context.fail("load", 1)
    with pytest.raises(DriverError):
        setting.a + setting.b
    assert setting.context.live().modules == 0
    np.testing.assert_array_equal((setting.a + setting.b).numpy(), A + B)
    assert setting.context.live().modules == 1
    setting.device.close()


def test_a_device_that_does_not_open_leaves_none_open() -> None:
    class Closed(FaultyDriver):
        def open(self, ordinal: int) -> FaultyContext:
            raise DriverError("open", 2, "OUT_OF_MEMORY", "no room for a context")

    with pytest.raises(DriverError, match="no room for a context"):
        Device(Closed(reference))


def test_the_errors_are_the_librarys_own() -> None:
    for error in (*ERRORS.values(), OutOfMemory(1, 2, 3, 4), DriverError("call", 1, "NAME", "text")):
        assert isinstance(error, NBXError)
