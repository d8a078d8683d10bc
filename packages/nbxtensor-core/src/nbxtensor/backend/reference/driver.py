"""The reference driver. Importing this module imports neither Triton nor anything slow.

A launch runs at once, program after program, in the calling thread; a context does one thing at a time. Every access of
a kernel is checked against the memory that the context allocated or that its caller registered."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import platform
import threading
import time
from collections.abc import Sequence
from typing import Any

from nbxtensor.backend.contract import DRIVER_API, Artifact, Bound, DeviceInfo, Variant
from nbxtensor.backend.reference import machine
from nbxtensor.backend.reference.memory import AddressSpace, Block, owned
from nbxtensor.backend.reference.registrations import Registrations
from nbxtensor.errors import ArgumentError, CompileError, DeviceError, LaunchRefused, OutOfMemory, Unavailable


class ReferenceDriver:
    """Serves the host's processor, after a driver that compiles for it."""

    name = "reference"
    device_type = "cpu"
    api_version = DRIVER_API
    priority = 10
    device_files: str | None = None

    def probe(self) -> Sequence[DeviceInfo]:
        if importlib.util.find_spec("triton") is None:
            raise Unavailable(
                "no Triton backend",
                "the reference driver interprets Triton kernels and Triton is not installed",
                "pip install nbxtensor-cpu, or pip install 'triton>=3.6' (Linux)",
            )
        return [
            DeviceInfo(
                ordinal=0,
                name=machine.processor(),
                architecture=platform.machine(),
                memory_bytes=machine.memory()[1],
                profile="cpu/reference",
            )
        ]

    def open(self, ordinal: int) -> ReferenceContext:
        devices = self.probe()
        if not 0 <= ordinal < len(devices):
            raise Unavailable("no device", f"reference:{ordinal} of {len(devices)} devices")
        return ReferenceContext(devices[ordinal])


class ReferenceContext:
    """Host memory and an interpreter.

    Beyond the contract, `register` admits memory that the context did not allocate, as a memory-mapped file, to kernels
    and copies.
    """

    target: Any = None

    def __init__(self, info: DeviceInfo):
        self.info, self.capabilities = info, machine.capabilities()
        self._space = AddressSpace()
        self._registered = Registrations(self._space)
        self._live = 0
        self._lock = threading.RLock()
        self._handles = itertools.count(1)
        self._streams: set[int] = set()
        self._events: dict[int, float | None] = {}  # the time of the record in seconds; None before it
        self._loaded: set[Any] = set()
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._space.clear()
            self._registered.clear()
            self._loaded.clear()
            self._live = 0

    # memory
    def allocate(self, nbytes: int) -> int:
        return self._allocate(nbytes, "allocate")

    def free(self, address: int) -> None:
        self._free(address, "allocate", "free")

    def allocate_host(self, nbytes: int) -> int:
        return self._allocate(nbytes, "allocate_host")

    def free_host(self, address: int) -> None:
        self._free(address, "allocate_host", "free_host")

    def register(self, address: int, nbytes: int, writable: bool = True) -> None:
        """Lets kernels and copies access ``nbytes`` bytes of the caller's memory, which the caller keeps alive until
        `unregister`; ranges may overlap. A store to memory that is not ``writable`` is refused. Raises `DeviceError`
        where the range is empty or reaches past the end of an allocation."""
        with self._lock:
            self._require_open("register")
            if nbytes <= 0 or address <= 0:
                raise DeviceError(f"register: {nbytes} bytes at {address:#x}: no memory")
            try:
                self._registered.add(address, nbytes, writable)
            except ValueError as error:
                raise DeviceError(f"register: {nbytes} bytes at {address:#x}: {error}") from None

    def unregister(self, address: int, nbytes: int) -> None:
        """Ends what one `register` of these bytes began; others raise `DeviceError`."""
        with self._lock:
            self._require_open("unregister")
            if not self._registered.remove(address, nbytes):
                raise DeviceError(f"unregister: {nbytes} bytes at {address:#x} are not registered")

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        with self._lock:
            if self._checked("copy_in", stream, nbytes, (device, True)):
                ctypes.memmove(device, host, nbytes)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        with self._lock:
            if self._checked("copy_out", stream, nbytes, (device, False)):
                ctypes.memmove(host, device, nbytes)

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        with self._lock:
            if self._checked("copy", stream, nbytes, (to, True), (source, False)):
                ctypes.memmove(to, source, nbytes)

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        if not 0 <= byte <= 255:
            raise ArgumentError("fill", "byte", byte, "must be of 0 to 255")
        with self._lock:
            if self._checked("fill", stream, nbytes, (address, True)):
                ctypes.memset(address, byte, nbytes)

    def memory_info(self) -> tuple[int, int]:
        with self._lock:
            self._require_open("memory_info")
            return machine.memory()

    # streams and events: all work ends before the call that asks for it returns
    def create_stream(self) -> int:
        with self._lock:
            self._require_open("create_stream")
            stream = next(self._handles)
            self._streams.add(stream)
            return stream

    def destroy_stream(self, stream: int) -> None:
        with self._lock:
            self._require_open("destroy_stream")
            if stream not in self._streams:
                raise DeviceError(f"destroy_stream: stream={stream}: is not a live stream")
            self._streams.discard(stream)

    def synchronize(self, stream: int | None = None) -> None:
        with self._lock:
            self._require_open("synchronize", stream)

    def create_event(self) -> int:
        with self._lock:
            self._require_open("create_event")
            event = next(self._handles)
            self._events[event] = None
            return event

    def destroy_event(self, event: int) -> None:
        with self._lock:
            self._recorded("destroy_event", event)
            del self._events[event]

    def record(self, event: int, stream: int | None = None) -> None:
        with self._lock:
            self._require_open("record", stream)
            self._recorded("record", event)
            self._events[event] = time.perf_counter()

    def wait(self, event: int, stream: int | None = None) -> None:
        with self._lock:
            self._require_open("wait", stream)
            self._recorded("wait", event)

    def elapsed_ms(self, start: int, end: int) -> float:
        with self._lock:
            times = [self._recorded("elapsed_ms", event) for event in (start, end)]
            if times[0] is None or times[1] is None:
                raise DeviceError(f"elapsed_ms: events {start} and {end}: both must have been recorded")
            return (times[1] - times[0]) * 1e3

    # kernels
    def compile(self, variant: Variant) -> Artifact:
        from nbxtensor.backend.reference.interpreter import InterpretedKernel

        self._require_open("compile")
        if dict(variant.options).get("launch_cooperative_grid"):
            why = "launch_cooperative_grid: programs run one after another here and cannot wait for each other"
            raise CompileError(variant.kernel.name, "reference", why)
        InterpretedKernel(variant)
        return Artifact("python", variant.kernel.name, variant, variant.parameters, {})

    def load(self, artifact: Artifact) -> Any:
        from nbxtensor.backend.reference.interpreter import InterpretedKernel

        if artifact.kind != "python":
            raise LaunchRefused(artifact.entry, f"the reference driver loads no artifact of kind {artifact.kind!r}")
        if artifact.parameters != artifact.payload.parameters:
            raise LaunchRefused(artifact.entry, "the artifact's parameters are not those of its variant")
        loaded = InterpretedKernel(artifact.payload)
        with self._lock:
            self._require_open("load")
            self._loaded.add(loaded)
        return loaded

    def unload(self, loaded: Any) -> None:
        with self._lock:
            self._require_open("unload")
            if loaded not in self._loaded:
                raise DeviceError(f"unload: {loaded!r} is not loaded here")
            self._loaded.discard(loaded)

    def launch(
        self,
        loaded: Any,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        stream: int | None,
        tensors: tuple[Bound, ...],
    ) -> None:
        with self._lock:
            self._require_open("launch", stream)
            if loaded not in self._loaded:
                raise DeviceError(f"launch: {loaded!r} is not loaded here")
            if len(grid) != 3 or not all(0 < n <= machine.UNLIMITED for n in grid):
                raise LaunchRefused(loaded.name, f"grid={grid}: must be three sizes of 1 to {machine.UNLIMITED}")
            loaded.run(grid, values, self._space, tuple(t.extent for t in tensors))

    def _allocate(self, nbytes: int, verb: str) -> int:
        with self._lock:
            self._require_open(verb)
            if nbytes <= 0:
                raise ArgumentError(verb, "nbytes", nbytes, "must be positive")
            free, total = machine.memory()
            try:
                if nbytes > total:
                    raise MemoryError
                block = owned(nbytes, verb)
            except MemoryError:
                raise OutOfMemory(nbytes, free, total, self._live) from None
            self._space.add(block)
            self._live += nbytes
            return block.start

    def _free(self, address: int, origin: str, verb: str) -> None:
        with self._lock:
            self._require_open(verb)
            block: Block | None = self._space.remove(address, origin)
            if block is None:
                raise DeviceError(f"{verb}: address={address:#x}: is not one that {origin} gave, or no longer")
            self._live -= block.end - block.start

    def _checked(self, verb: str, stream: int | None, nbytes: int, *ranges: tuple[int, bool]) -> bool:
        """Whether there is anything to do; refuses (address, written) ranges that are not inside live memory."""
        self._require_open(verb, stream)
        if nbytes < 0:
            raise ArgumentError(verb, "nbytes", nbytes, "must not be negative")
        for address, written in ranges if nbytes else ():
            block = self._space.find(address, address + nbytes)
            if block is None:
                raise DeviceError(f"{verb}: {nbytes} bytes at {address:#x} are not inside live memory of this context")
            if written and not block.writable:
                raise DeviceError(f"{verb}: {nbytes} bytes at {address:#x} are registered read-only")
        return nbytes > 0

    def _recorded(self, verb: str, event: int) -> float | None:
        self._require_open(verb)
        if event not in self._events:
            raise DeviceError(f"{verb}: event={event}: is not a live event")
        return self._events[event]

    def _require_open(self, verb: str, stream: int | None = None) -> None:
        if self._closed:
            raise DeviceError(f"{verb}: the context is closed")
        if stream is not None and stream not in self._streams:
            raise DeviceError(f"{verb}: stream={stream}: is not a live stream")


driver = ReferenceDriver()
