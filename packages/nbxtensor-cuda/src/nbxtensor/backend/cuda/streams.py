"""Streams and events."""

from __future__ import annotations

from typing import Any

from nbxtensor.backend.cuda.session import Session
from nbxtensor.errors import DeviceError


class StreamVerbs(Session):
    """Streams and the legacy default stream do not wait for each other. A verb takes a foreign stream's handle too."""

    def __init__(self, *arguments: Any):
        self._streams: set[int] = set()
        self._events: set[int] = set()
        super().__init__(*arguments)

    def create_stream(self) -> int:
        self._enter()
        stream = self._create_stream()
        self._streams.add(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        """Its work still finishes."""
        self._enter()
        if stream not in self._streams:
            raise DeviceError(f"destroy_stream: stream={stream:#x}: is not a stream of this context")
        self._cuda.cuStreamDestroy_v2(stream)
        self._streams.discard(stream)

    def synchronize(self, stream: int | None = None) -> None:
        self._enter()
        self._cuda.cuStreamSynchronize(self._handle(stream))

    def create_event(self) -> int:
        self._enter()
        event = self._cuda.integer(self._cuda.cuEventCreate, 0, type="CUevent")
        self._events.add(event)
        return event

    def destroy_event(self, event: int) -> None:
        self._enter()
        self._check_event("destroy_event", event)
        self._cuda.cuEventDestroy_v2(event)
        self._events.discard(event)

    def record(self, event: int, stream: int | None = None) -> None:
        self._enter()
        self._check_event("record", event)
        self._cuda.cuEventRecord(event, self._handle(stream))

    def wait(self, event: int, stream: int | None = None) -> None:
        self._enter()
        self._check_event("wait", event)
        self._cuda.cuStreamWaitEvent(self._handle(stream), event, 0)

    def elapsed_ms(self, start: int, end: int) -> float:
        self._enter()
        self._check_event("elapsed_ms", start)
        self._check_event("elapsed_ms", end)
        self._cuda.cuEventSynchronize(end)
        out = self._ffi.new("float *")
        self._cuda.cuEventElapsedTime(out, start, end)
        return float(out[0])

    def _check_event(self, verb: str, event: int) -> None:
        if event not in self._events:
            raise DeviceError(f"{verb}: event={event:#x}: is not an event of this context")
