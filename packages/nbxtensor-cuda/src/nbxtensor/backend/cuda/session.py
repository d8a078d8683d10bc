"""An open primary context: the threads it is current on, its own stream, and what ended it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from nbxtensor.backend.contract import DeviceInfo
from nbxtensor.backend.cuda import errors, ffi
from nbxtensor.backend.cuda.library import Library
from nbxtensor.errors import DeviceError

#: Kernel parameters that an argument arena holds, 8 bytes each: all that fit into the 4 KiB that any GPU accepts.
SLOTS = 512

_open: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """What the verbs of a context share. ``stream`` is the context's own, which ``None`` stands for in every verb."""

    def __init__(self, library: Library, info: DeviceInfo, ordinal: int):
        self.info = info
        self._cuda, self._ffi, self._raw = library, library.ffi, library.raw
        self._device = library.integer(library.cuDeviceGet, ordinal, type="CUdevice")
        self._several = library.integer(library.cuDeviceGetCount) > 1
        self._lock = threading.RLock()
        self._threads = threading.local()
        self._ended: str | None = f"device {ordinal}, {info.name}, could not be opened"
        self._context = library.integer(library.cuDevicePrimaryCtxRetain, self._device, type="CUcontext")
        try:
            self._make_current()
            self.stream = self._create_stream()
        except BaseException:
            self._raw.cuDevicePrimaryCtxRelease_v2(self._device)
            raise
        self._ended = None
        _open.add(self)

    def _enter(self) -> None:
        """Makes the context current on this thread; every verb's first step. Raises `DeviceError` on an ended context.

        On a thread that was here before, a machine with one GPU needs no call: the current context is the same still.
        """
        try:
            self._threads.arena  # noqa: B018  (its absence is the question)
        except AttributeError:
            self._attach()
        if self._ended is not None:
            raise DeviceError(self._ended)
        if self._several:
            self._cuda.cuCtxSetCurrent(self._context)

    def _attach(self) -> tuple[Any, Any]:
        """The argument arena of this thread, on which the context is current from here on.

        It is (a writable buffer of `SLOTS` 8-byte slots, the C array of their addresses).
        """
        if self._ended is not None:
            raise DeviceError(self._ended)
        return self._make_current()

    def _make_current(self) -> tuple[Any, Any]:
        self._cuda.cuCtxSetCurrent(self._context)
        memory = self._ffi.new(f"unsigned long long[{SLOTS}]")
        addresses = self._ffi.new(f"void *[{SLOTS}]", [memory + i for i in range(SLOTS)])
        arena: tuple[Any, Any] = (self._ffi.buffer(memory), addresses)
        self._threads.arena = arena
        self._threads.memory, self._threads.pointers = memory, {}
        return arena

    def _pointers(self, slots: tuple[int, ...]) -> Any:
        """The C array of the addresses of these slots in this thread's arena."""
        found = self._threads.pointers.get(slots)
        if found is None:
            memory = self._threads.memory
            found = self._threads.pointers[slots] = self._ffi.new("void *[]", [memory + slot for slot in slots])
        return found

    def _handle(self, stream: int | None) -> int:
        return self.stream if stream is None else stream

    def _create_stream(self) -> int:
        return self._cuda.integer(self._cuda.cuStreamCreate, ffi.CU_STREAM_NON_BLOCKING, type="CUstream")

    def _end(self, why: str) -> None:
        """From here on every verb raises `DeviceError` with ``why``."""
        self._ended = why


def _forked() -> None:
    """In a child process the parent's contexts are of no use: they say so and do not call a driver that may hang."""
    for session in list(_open):
        session._end(str(errors.after_fork(os.getppid())))


os.register_at_fork(after_in_child=_forked)
