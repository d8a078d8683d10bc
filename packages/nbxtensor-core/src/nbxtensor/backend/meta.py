"""The meta driver: a device that keeps books and executes nothing.

Its addresses are distinct, aligned and counted, and no memory stands behind them. Tracing and pricing run a program on
it as they would on a card, and the launch-cost benchmark measures what the library itself costs. It is never a default
device.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from nbxtensor.backend.contract import ALIGNMENT, DRIVER_API, Artifact, Bound, Capabilities, DeviceInfo, Variant
from nbxtensor.dtype import DTYPES
from nbxtensor.errors import ArgumentError, DeviceError, LaunchRefused, OutOfMemory, Unavailable

_UNLIMITED = 2**31 - 1  # what a 32-bit launch parameter holds
_FIRST_ADDRESS = 1 << 40

INFO = DeviceInfo(ordinal=0, name="meta", architecture="meta", memory_bytes=1 << 46, profile="cpu/reference")
CAPABILITIES = Capabilities(
    executes=False,
    binds_by_extent=False,
    host_addressable=False,
    pinned_host=False,
    timed_events=False,
    graph_capture=False,
    cooperative=False,
    max_grid=(_UNLIMITED, _UNLIMITED, _UNLIMITED),
    max_threads=_UNLIMITED,
    max_shared=_UNLIMITED,
    dtypes=frozenset(str(d) for d in DTYPES.values() if d.triton is not None),
)


class Module:
    """A loaded kernel: its artifact and the number of launch values it takes, -1 once it is unloaded."""

    __slots__ = ("artifact", "expected")

    def __init__(self, artifact: Artifact):
        self.artifact, self.expected = artifact, len(artifact.parameters)


class LiveMemory:
    """The live allocations of a device of ``total`` bytes. Not thread-safe: its owner locks."""

    def __init__(self, total: int):
        self.total, self.live = total, 0
        self._sizes: dict[int, int] = {}
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._sizes)

    def admit(self, nbytes: int) -> None:
        """Refuses a size that is no size, or that does not fit."""
        if nbytes <= 0:
            raise ArgumentError("allocate", "nbytes", nbytes, "must be positive")
        if self.live + nbytes > self.total:
            raise OutOfMemory(nbytes, self.total - self.live, self.total, self.live)

    def add(self, address: int, nbytes: int) -> None:
        """An allocation of so many bytes at the address, which overlaps no live one."""
        self._sizes[address] = nbytes
        bisect.insort(self._starts, address)
        self.live += nbytes

    def remove(self, address: int) -> None:
        """Raises `DeviceError` for an address that is not the start of a live allocation."""
        nbytes = self._sizes.pop(address, None)
        if nbytes is None:
            raise DeviceError(f"free: address={address:#x}: is not a live allocation")
        del self._starts[bisect.bisect_left(self._starts, address)]
        self.live -= nbytes

    def require(self, verb: str, address: int, nbytes: int) -> None:
        """Raises `DeviceError` unless the ``nbytes`` > 0 bytes at ``address`` lie inside one live allocation."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address + nbytes > self._starts[at] + self._sizes[self._starts[at]]:
            raise DeviceError(f"{verb}: address={address:#x}: {nbytes} bytes there are not inside a live allocation")


class MetaContext:
    """A context that executes nothing. ``launches`` counts its launches; ``memory`` holds its live allocations.

    With a ``target`` its kernels are compiled for that target all the same.
    """

    def __init__(self, info: DeviceInfo = INFO, capabilities: Capabilities = CAPABILITIES, target: Any = None):
        self.info, self.capabilities, self.target = info, capabilities, target
        self.launches = 0
        self.memory = LiveMemory(info.memory_bytes)
        self._lock = threading.RLock()
        self._next_address, self._next_handle = _FIRST_ADDRESS, 1
        self._host_blocks: dict[int, Any] = {}
        self._streams: set[int] = set()
        self._events: dict[int, int | None] = {}  # the time of the record in nanoseconds; None before it
        self._modules: set[Module] = set()
        self._max_grid = capabilities.max_grid
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for module in self._modules:
                module.expected = -1
            self._modules.clear()
            self._host_blocks.clear()
            self.memory = LiveMemory(self.info.memory_bytes)

    # memory
    def allocate(self, nbytes: int) -> int:
        with self._lock:
            self._open("allocate")
            self.memory.admit(nbytes)
            address = self._place(nbytes)
            self.memory.add(address, nbytes)
            return address

    def free(self, address: int) -> None:
        with self._lock:
            self._open("free")
            self.memory.remove(address)

    def _place(self, nbytes: int) -> int:
        """A new address. None is ever given twice: a trace may tell two tensors apart by it."""
        address = self._next_address
        self._next_address += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return address

    def allocate_host(self, nbytes: int) -> int:
        with self._lock:
            self._open("allocate_host")
            if nbytes <= 0:
                raise ArgumentError("allocate_host", "nbytes", nbytes, "must be positive")
            block = bytearray(nbytes + ALIGNMENT)
            address = _aligned(block)
            self._host_blocks[address] = block
            return address

    def free_host(self, address: int) -> None:
        with self._lock:
            self._open("free_host")
            if self._host_blocks.pop(address, None) is None:
                raise DeviceError(f"free_host: address={address:#x}: is not a live host block")

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        """Refused: the bytes would be lost in silence."""
        self._open("copy_in")
        self._no_data("copy_in")

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        """Refused: there is nothing to read."""
        self._open("copy_out")
        self._no_data("copy_out")

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        with self._lock:
            self._ordered("copy", stream)
            self._ranges("copy", nbytes, to, source)

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        with self._lock:
            self._ordered("fill", stream)
            if not 0 <= byte <= 255:
                raise ArgumentError("fill", "byte", byte, "must be from 0 to 255")
            self._ranges("fill", nbytes, address)

    def memory_info(self) -> tuple[int, int]:
        with self._lock:
            self._open("memory_info")
            return self.memory.total - self.memory.live, self.memory.total

    # streams and events
    def create_stream(self) -> int:
        with self._lock:
            self._open("create_stream")
            self._streams.add(stream := self._handle())
            return stream

    def destroy_stream(self, stream: int) -> None:
        with self._lock:
            self._ordered("destroy_stream", stream)
            self._streams.remove(stream)

    def synchronize(self, stream: int | None = None) -> None:
        with self._lock:
            self._ordered("synchronize", stream)

    def create_event(self) -> int:
        with self._lock:
            self._open("create_event")
            self._events[event := self._handle()] = None
            return event

    def destroy_event(self, event: int) -> None:
        with self._lock:
            self._event("destroy_event", event)
            del self._events[event]

    def record(self, event: int, stream: int | None = None) -> None:
        with self._lock:
            self._ordered("record", stream)
            self._event("record", event)
            self._events[event] = self._now()

    def wait(self, event: int, stream: int | None = None) -> None:
        with self._lock:
            self._ordered("wait", stream)
            self._event("wait", event)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Refused: nothing runs here, so nothing takes time."""
        self._open("elapsed_ms")
        raise DeviceError("elapsed_ms: the events of a meta device have no time")

    # kernels
    def compile(self, variant: Variant) -> Artifact:
        """For ``target`` where there is one; else an artifact of kind "none", whose payload is the variant."""
        self._open("compile")
        if self.target is not None:
            from nbxtensor.backend import compiler

            return compiler.compile_gpu(variant, self.target)
        return Artifact("none", variant.kernel.name, variant, variant.parameters, {})

    def load(self, artifact: Artifact) -> Module:
        with self._lock:
            self._open("load")
            if self.target is None:
                _check_artifact(artifact)
            self._modules.add(module := Module(artifact))
            return module

    def unload(self, loaded: Module) -> None:
        with self._lock:
            self._open("unload")
            if loaded not in self._modules:
                raise DeviceError(f"unload: {loaded.artifact.entry}: is not loaded here")
            self._modules.remove(loaded)
            loaded.expected = -1

    def launch(
        self,
        loaded: Module,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        stream: int | None,
        tensors: tuple[Bound, ...],
    ) -> None:
        """Counts the launch: no lock, one comparison a rule. This is the floor of the launch-cost benchmark."""
        x, y, z = grid
        most_x, most_y, most_z = self._max_grid
        if len(values) != loaded.expected or x > most_x or y > most_y or z > most_z:
            self._refuse_launch(loaded, grid, values)
        self.launches += 1

    def _refuse_launch(self, loaded: Module, grid: tuple[int, int, int], values: tuple[int | float, ...]) -> NoReturn:
        self._open("launch")
        entry = loaded.artifact.entry
        if loaded.expected < 0:
            raise LaunchRefused(entry, "the kernel was unloaded")
        if len(values) != loaded.expected:
            raise LaunchRefused(entry, f"{len(values)} values for {loaded.expected} parameters")
        raise LaunchRefused(entry, f"grid {grid} is over the device's {self._max_grid}")

    # checks
    def _open(self, verb: str) -> None:
        if self._closed:
            raise DeviceError(f"{verb}: the context of device {self.info.name!r} is closed")

    def _ordered(self, verb: str, stream: int | None) -> None:
        self._open(verb)
        if stream is not None and stream not in self._streams:
            raise DeviceError(f"{verb}: stream={stream}: is not a stream of this context")

    def _event(self, verb: str, event: int) -> None:
        self._open(verb)
        if event not in self._events:
            raise DeviceError(f"{verb}: event={event}: is not an event of this context")

    def _ranges(self, verb: str, nbytes: int, *addresses: int) -> None:
        if nbytes < 0:
            raise ArgumentError(verb, "nbytes", nbytes, "must not be negative")
        for address in addresses if nbytes else ():
            self.memory.require(verb, address, nbytes)

    def _no_data(self, verb: str) -> NoReturn:
        raise DeviceError(f"{verb}: a meta device holds no data")

    def _handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def _now(self) -> int:
        return 0


def _check_artifact(artifact: Artifact) -> None:
    if artifact.kind != "none":
        raise LaunchRefused(artifact.entry, f"a meta device loads artifacts of kind 'none', not {artifact.kind!r}")
    stated, own = artifact.parameters, artifact.payload.parameters
    if stated != own:
        raise LaunchRefused(artifact.entry, f"the artifact states the parameters {stated}, its kernel takes {own}")


def _aligned(block: bytearray) -> int:
    """The first aligned address inside the block."""
    address = int(np.frombuffer(block, np.uint8).ctypes.data)
    return -(-address // ALIGNMENT) * ALIGNMENT


class MetaDriver:
    """The driver. ``info`` and ``capabilities`` may be those of a card that is not here, to trace a program for it."""

    name = "meta"
    device_type = "meta"
    api_version = DRIVER_API
    priority = 0
    device_files: str | None = None

    def __init__(self, info: DeviceInfo = INFO, capabilities: Capabilities = CAPABILITIES, target: Any = None):
        self.info = info._replace(ordinal=0)
        self.capabilities = capabilities._replace(
            executes=False, host_addressable=False, timed_events=False, graph_capture=False, cooperative=False
        )
        self.target = target

    def probe(self) -> Sequence[DeviceInfo]:
        return [self.info]

    def open(self, ordinal: int) -> MetaContext:
        if ordinal != 0:
            raise Unavailable("no device", f"driver meta has one device, 0; asked for {ordinal}")
        return MetaContext(self.info, self.capabilities, self.target)


def for_target(target: Any) -> MetaDriver:
    """A driver whose device compiles every kernel for ``target`` (a ``GPUTarget``), loads it and launches nothing."""
    architecture = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)
    return MetaDriver(INFO._replace(architecture=architecture, profile=None), target=target)


driver = MetaDriver()
