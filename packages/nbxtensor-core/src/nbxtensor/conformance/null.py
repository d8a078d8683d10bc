"""Contexts for tests: one that has memory but runs no kernel, and one that makes another's verbs fail on demand.

`NullDriver` opens `NullContext`: copies and fills work on host memory; kernels are accepted, noted in ``launched`` and
do nothing. `FaultyContext` stands before any context: it counts every verb, fails the calls it is told to fail, and
knows what is still alive.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from nbxtensor.backend.contract import (
    ALIGNMENT,
    DRIVER_API,
    Artifact,
    Bound,
    Capabilities,
    Context,
    DeviceInfo,
    Driver,
    GraphContext,
    Variant,
)
from nbxtensor.backend.meta import MetaContext, Module
from nbxtensor.dtype import DTYPES
from nbxtensor.errors import ArgumentError, DeviceError, DriverError, OutOfMemory, Unavailable

P = ParamSpec("P")
R = TypeVar("R")

GRAPH_VERBS = tuple(name for name, _ in inspect.getmembers(GraphContext, inspect.isfunction) if name[0] != "_")
VERBS = tuple(name for name, _ in inspect.getmembers(Context, inspect.isfunction) if name[0] != "_") + GRAPH_VERBS

INFO = DeviceInfo(ordinal=0, name="null", architecture="host", memory_bytes=1 << 32, profile="cpu/reference")
CAPABILITIES = Capabilities(
    executes=False,
    binds_by_extent=False,
    host_addressable=True,
    pinned_host=False,
    timed_events=True,
    graph_capture=False,
    cooperative=False,
    max_grid=(2**31 - 1, 65535, 65535),
    max_threads=1024,
    max_shared=48 << 10,
    dtypes=frozenset(str(d) for d in DTYPES.values() if d.triton is not None),
)


class Live(NamedTuple):
    """What a context still holds; all zero when nothing leaks."""

    allocations: int
    nbytes: int  # bytes of the allocations
    host_blocks: int
    streams: int
    events: int
    modules: int
    graphs: int


class Launched(NamedTuple):
    """A launch that a `NullContext` accepted."""

    kernel: str
    grid: tuple[int, int, int]
    values: tuple[int | float, ...]
    stream: int | None


class _HostContext(MetaContext):
    """`MetaContext` with host memory behind its addresses and a clock behind its events."""

    def __init__(self, info: DeviceInfo, capabilities: Capabilities):
        super().__init__(info, capabilities)
        self.launched: list[Launched] = []
        self._blocks: dict[int, Any] = {}

    def close(self) -> None:
        super().close()
        self._blocks.clear()

    def free(self, address: int) -> None:
        super().free(address)
        del self._blocks[address]

    def _place(self, nbytes: int) -> int:
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
        address = -(-int(block.ctypes.data) // ALIGNMENT) * ALIGNMENT
        self._blocks[address] = block
        return address

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        self._check("copy_in", stream, nbytes, device)
        ctypes.memmove(device, host, nbytes)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        self._check("copy_out", stream, nbytes, device)
        ctypes.memmove(host, device, nbytes)

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        super().copy(to, source, nbytes, stream)
        ctypes.memmove(to, source, nbytes)

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        super().fill(address, byte, nbytes, stream)
        ctypes.memset(address, byte, nbytes)

    def elapsed_ms(self, start: int, end: int) -> float:
        with self._lock:
            self._open("elapsed_ms")
            times = []
            for event in (start, end):
                self._event("elapsed_ms", event)
                if self._events[event] is None:
                    raise ArgumentError("elapsed_ms", "event", event, "was never recorded")
                times.append(self._events[event] or 0)
            return (times[1] - times[0]) / 1e6

    def launch(
        self,
        loaded: Module,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        stream: int | None,
        tensors: tuple[Bound, ...],
    ) -> None:
        super().launch(loaded, grid, values, stream, tensors)
        self.launched.append(Launched(loaded.artifact.entry, grid, values, stream))

    def _check(self, verb: str, stream: int | None, nbytes: int, address: int) -> None:
        with self._lock:
            self._ordered(verb, stream)
            self._ranges(verb, nbytes, address)

    def _now(self) -> int:
        return time.perf_counter_ns()


class FaultyContext:
    """Passes every verb to ``inner``, counts it in ``calls``, and makes the calls named to `fail` raise.

    What is `live` is counted here, from what the verbs gave and took back, so that it holds for any inner context.
    """

    def __init__(self, inner: Context):
        self.inner = inner
        self.info, self.capabilities, self.target = inner.info, inner.capabilities, inner.target
        self.calls: Counter[str] = Counter()
        self._failures: dict[tuple[str, int], Exception] = {}
        self._sizes: dict[int, int] = {}
        self._held: dict[str, list[Any]] = {kind: [] for kind in _GIVES.values()}
        self._lock = threading.Lock()

    def fail(self, verb: str, nth: int = 1, error: Exception | None = None) -> None:
        """The ``nth`` call of ``verb`` from now on raises ``error`` and does nothing. Without one: `OutOfMemory` for
        "allocate", else a `DriverError` of the name "INJECTED"."""
        if verb not in VERBS:
            raise ArgumentError("fail", "verb", verb, f"must be one of {', '.join(VERBS)}")
        if nth < 1:
            raise ArgumentError("fail", "nth", nth, "counts from 1")
        with self._lock:
            self._failures[verb, self.calls[verb] + nth] = error or self._default_error(verb)

    def pending(self) -> int:
        """How many failures no call has met yet."""
        with self._lock:
            return len(self._failures)

    def forget(self) -> None:
        """Drops the failures that no call has met yet."""
        with self._lock:
            self._failures.clear()

    def live(self) -> Live:
        """What was given out and not taken back."""
        with self._lock:
            held = {kind: len(items) for kind, items in self._held.items()}
            return Live(len(self._sizes), sum(self._sizes.values()), **held)

    def _default_error(self, verb: str) -> Exception:
        if verb == "allocate":
            return OutOfMemory(0, 0, self.info.memory_bytes, sum(self._sizes.values()))
        return DriverError(verb, -1, "INJECTED", "this call was told to fail")

    def _pass(self, verb: str, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        with self._lock:
            self.calls[verb] += 1
            failure = self._failures.pop((verb, self.calls[verb]), None)
        if failure is not None:
            raise failure
        result = call(*arguments, **named)
        with self._lock:
            if verb in _GIVES:
                self._held[_GIVES[verb]].append(result)
            elif verb in _TAKES:
                self._held[_TAKES[verb]].remove(arguments[0])
        return result

    def _pass_graph(self, verb: str, *arguments: Any) -> Any:
        call = getattr(self.inner, verb, None)
        if call is None:
            raise DeviceError(f"{verb}: a context without graph capture has no such verb")
        return self._pass(verb, call, *arguments)

    def close(self) -> None:
        self._pass("close", self.inner.close)
        with self._lock:
            self._sizes.clear()
            for items in self._held.values():
                items.clear()

    def allocate(self, nbytes: int) -> int:
        address = self._pass("allocate", self.inner.allocate, nbytes)
        with self._lock:
            self._sizes[address] = nbytes
        return address

    def free(self, address: int) -> None:
        with self._lock:
            nbytes = self._sizes.pop(address, None)  # before the call: another thread may be given the address after it
        try:
            self._pass("free", self.inner.free, address)
        except Exception:
            if nbytes is not None:
                self._sizes[address] = nbytes
            raise

    def allocate_host(self, nbytes: int) -> int:
        return self._pass("allocate_host", self.inner.allocate_host, nbytes)

    def free_host(self, address: int) -> None:
        self._pass("free_host", self.inner.free_host, address)

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        self._pass("copy_in", self.inner.copy_in, device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        self._pass("copy_out", self.inner.copy_out, host, device, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self._pass("copy", self.inner.copy, to, source, nbytes, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        self._pass("fill", self.inner.fill, address, byte, nbytes, stream)

    def memory_info(self) -> tuple[int, int]:
        return self._pass("memory_info", self.inner.memory_info)

    def create_stream(self) -> int:
        return self._pass("create_stream", self.inner.create_stream)

    def destroy_stream(self, stream: int) -> None:
        self._pass("destroy_stream", self.inner.destroy_stream, stream)

    def synchronize(self, stream: int | None = None) -> None:
        self._pass("synchronize", self.inner.synchronize, stream)

    def create_event(self) -> int:
        return self._pass("create_event", self.inner.create_event)

    def destroy_event(self, event: int) -> None:
        self._pass("destroy_event", self.inner.destroy_event, event)

    def record(self, event: int, stream: int | None = None) -> None:
        self._pass("record", self.inner.record, event, stream)

    def wait(self, event: int, stream: int | None = None) -> None:
        self._pass("wait", self.inner.wait, event, stream)

    def elapsed_ms(self, start: int, end: int) -> float:
        return self._pass("elapsed_ms", self.inner.elapsed_ms, start, end)

    def compile(self, variant: Variant) -> Artifact:
        return self._pass("compile", self.inner.compile, variant)

    def load(self, artifact: Artifact) -> Any:
        return self._pass("load", self.inner.load, artifact)

    def unload(self, loaded: Any) -> None:
        self._pass("unload", self.inner.unload, loaded)

    def launch(
        self,
        loaded: Any,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        stream: int | None,
        tensors: tuple[Bound, ...],
    ) -> None:
        self._pass("launch", self.inner.launch, loaded, grid, values, stream, tensors)

    def graph_begin(self, stream: int) -> None:
        self._pass_graph("graph_begin", stream)

    def graph_end(self, stream: int) -> Any:
        return self._pass_graph("graph_end", stream)

    def graph_launch(self, graph: Any, stream: int | None = None) -> None:
        self._pass_graph("graph_launch", graph, stream)


_GIVES = {
    "allocate_host": "host_blocks",
    "create_stream": "streams",
    "create_event": "events",
    "load": "modules",
    "graph_end": "graphs",
}
_TAKES = {"free_host": "host_blocks", "destroy_stream": "streams", "destroy_event": "events", "unload": "modules"}


class NullContext(FaultyContext):
    """Host memory, no execution; ``launched`` lists the kernels that were started."""

    def __init__(self, info: DeviceInfo = INFO, capabilities: Capabilities = CAPABILITIES):
        inner = _HostContext(info, capabilities)
        super().__init__(inner)
        self.launched = inner.launched


class NullDriver:
    """Opens `NullContext` on each of ``devices`` devices of so many bytes; ``contexts`` lists those it opened."""

    name = "null"
    device_type = "null"
    api_version = DRIVER_API
    priority = 0
    device_files: str | None = None

    def __init__(
        self, devices: int = 1, memory_bytes: int = INFO.memory_bytes, capabilities: Capabilities = CAPABILITIES
    ):
        self.devices, self.memory_bytes, self.capabilities = devices, memory_bytes, capabilities
        self.contexts: list[NullContext] = []

    def probe(self) -> Sequence[DeviceInfo]:
        return [INFO._replace(ordinal=n, memory_bytes=self.memory_bytes) for n in range(self.devices)]

    def open(self, ordinal: int) -> NullContext:
        if not 0 <= ordinal < self.devices:
            raise Unavailable("no device", f"driver null has {self.devices} device(s); asked for {ordinal}")
        context = NullContext(INFO._replace(ordinal=ordinal, memory_bytes=self.memory_bytes), self.capabilities)
        self.contexts.append(context)
        return context


class FaultyDriver:
    """A driver whose contexts are those of ``inner`` behind a `FaultyContext`; ``contexts`` lists them."""

    api_version = DRIVER_API

    def __init__(self, inner: Driver):
        self.inner = inner
        self.name, self.device_type = f"faulty-{inner.name}", inner.device_type
        self.priority, self.device_files = 0, inner.device_files
        self.contexts: list[FaultyContext] = []

    def probe(self) -> Sequence[DeviceInfo]:
        return self.inner.probe()

    def open(self, ordinal: int) -> FaultyContext:
        self.contexts.append(context := FaultyContext(self.inner.open(ordinal)))
        return context


driver = NullDriver()
