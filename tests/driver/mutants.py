"""Contexts that are wrong in one way each, and the test of the conformance suite that must notice.

Each mutant passes every verb on to a right context but for the one it breaks. ``caught_by`` names the tests that fail
on it. `tests/driver/test_conformance.py` runs the file of the suite that holds them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from nbxtensor.backend.contract import Artifact, Context, DeviceInfo
from nbxtensor.backend.reference.driver import driver as right
from nbxtensor.errors import DeviceError, DriverError, OutOfMemory


class Mutant:
    """Everything of ``inner``; a subclass breaks one verb. The class itself is the driver that opens it."""

    name, device_type, api_version, priority, device_files = "mutant", right.device_type, right.api_version, 0, None
    file: ClassVar[str]
    select: ClassVar[str] = ""  # pytest's -k, where the file is long
    caught_by: ClassVar[frozenset[str]]

    def __init__(self, inner: Context):
        self.inner: Any = inner
        self.info, self.capabilities, self.target = inner.info, inner.capabilities, inner.target

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.inner, verb)

    @staticmethod
    def probe() -> list[DeviceInfo]:
        return list(right.probe())

    @classmethod
    def open(cls, ordinal: int) -> Mutant:
        return cls(right.open(ordinal))


class TwoDevicesOfOneNumber(Mutant):
    file, caught_by = "test_identity.py", frozenset({"test_probe_lists_devices"})

    @staticmethod
    def probe() -> list[DeviceInfo]:
        return list(right.probe()) * 2


class AlignsTo64(Mutant):
    file, caught_by = "test_memory.py", frozenset({"test_addresses_are_aligned"})

    def allocate(self, nbytes: int) -> int:
        return int(self.inner.allocate(nbytes + 64)) + 64

    def free(self, address: int) -> None:
        self.inner.free(address - 64)


class FreeDoesNothing(Mutant):
    file, caught_by = (
        "test_memory.py",
        frozenset({"test_double_free_is_refused", "test_free_of_a_foreign_address_is_refused"}),
    )

    def free(self, address: int) -> None:
        pass


class FreesTwice(Mutant):
    file, caught_by = "test_memory.py", frozenset({"test_double_free_is_refused"})

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.freed: set[int] = set()

    def allocate(self, nbytes: int) -> int:
        address: int = self.inner.allocate(nbytes)
        self.freed.discard(address)
        return address

    def free(self, address: int) -> None:
        if address not in self.freed:
            self.inner.free(address)
        self.freed.add(address)


class GivesOneBlockTwice(Mutant):
    """A pool that forgets which of its blocks are in use."""

    file = "test_memory.py"
    caught_by = frozenset(
        {"test_allocations_do_not_overlap", "test_allocations_keep_their_bytes", "test_many_small_allocations"}
    )

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.last: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        if nbytes not in self.last:
            self.last[nbytes] = self.inner.allocate(nbytes)
        return self.last[nbytes]

    def free(self, address: int) -> None:
        for nbytes in [n for n, a in self.last.items() if a == address]:
            del self.last[nbytes]
            self.inner.free(address)


class ReportsNegativeMemory(Mutant):
    file, caught_by = "test_memory.py", frozenset({"test_memory_info_is_plausible"})

    def memory_info(self) -> tuple[int, int]:
        return -1, self.inner.memory_info()[1]


class OutOfMemoryHasNoFigures(Mutant):
    file, caught_by = "test_memory.py", frozenset({"test_out_of_memory_says_how_much"})

    def allocate(self, nbytes: int) -> int:
        try:
            return int(self.inner.allocate(nbytes))
        except OutOfMemory:
            raise OutOfMemory(0, 0, 0, 0) from None


class FillsOneByteTooFew(Mutant):
    file, caught_by = "test_copies.py", frozenset({"test_fill_sets_its_bytes_only"})

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        self.inner.fill(address, byte, max(0, nbytes - 1), stream)


class CopiesFromAligned(Mutant):
    file, caught_by = "test_copies.py", frozenset({"test_copy_moves_its_bytes_only"})

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self.inner.copy(to, source & ~15, nbytes, stream)


class CopiesOutWholeWords(Mutant):
    file, caught_by = "test_copies.py", frozenset({"test_copy_out_reads_its_bytes_only"})

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        self.inner.copy_out(host, device, nbytes & ~3, stream)


class CopiesInLater(Mutant):
    """Reads the host's memory when the device needs it, not before the call returns."""

    file, caught_by = "test_copies.py", frozenset({"test_host_memory_is_reusable_after_copy_in"})

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.waiting: list[tuple[int, int, int]] = []

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        self.waiting.append((device, host, nbytes))

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        for one in self.waiting:
            self.inner.copy_in(*one)
        self.waiting.clear()
        self.inner.copy_out(host, device, nbytes, stream)


class Deferred(Mutant):
    """Kernels of a created stream run when the stream is waited for, as on an asynchronous device."""

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.queues: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        if stream is None:
            self.inner.launch(loaded, grid, values, stream, tensors)
        else:
            self.queues[stream].append(lambda: self.inner.launch(loaded, grid, values, stream, tensors))

    def synchronize(self, stream: int | None = None) -> None:
        self.run(stream)
        self.inner.synchronize(stream)

    def run(self, stream: int | None) -> None:
        for launch in self.queues.pop(stream, []) if stream is not None else []:
            launch()


class EventsDoNotWait(Deferred):
    """In order within a stream; an event holds nobody back."""

    file, caught_by = "test_order.py", frozenset({"test_an_event_orders_two_streams"})

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        self.run(stream)
        self.inner.copy_in(device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        self.run(stream)
        self.inner.copy_out(host, device, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self.run(stream)
        self.inner.copy(to, source, nbytes, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        self.run(stream)
        self.inner.fill(address, byte, nbytes, stream)


class CopiesDoNotWait(Deferred):
    file = "test_order.py"
    caught_by = frozenset({"test_copy_out_waits_for_kernels", "test_kernels_and_copies_keep_their_order"})


class SynchronizeDoesNotWait(EventsDoNotWait):
    caught_by = frozenset({"test_synchronize_waits_for_its_stream"})

    def synchronize(self, stream: int | None = None) -> None:
        pass


class TimeRunsBackwards(Mutant):
    file, caught_by = "test_order.py", frozenset({"test_time_goes_forward", "test_elapsed_time_agrees_with_the_host"})

    def elapsed_ms(self, start: int, end: int) -> float:
        return -float(self.inner.elapsed_ms(start, end)) - 1


class TimeInSeconds(Mutant):
    file, caught_by = "test_order.py", frozenset({"test_elapsed_time_agrees_with_the_host"})

    def elapsed_ms(self, start: int, end: int) -> float:
        return float(self.inner.elapsed_ms(start, end)) * 1000


class SwapsPointers(Mutant):
    file, caught_by = "test_kernels.py", frozenset({"test_arguments_keep_their_places"})

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        if len(tensors) == 3:
            values = (values[0], values[2], values[1], *values[3:])
        self.inner.launch(loaded, grid, values, stream, tensors)


class SwapsGridAxes(Mutant):
    file, caught_by = "test_kernels.py", frozenset({"test_programs_know_their_place_in_the_grid"})

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        self.inner.launch(loaded, grid[::-1], values, stream, tensors)


class PassesNumbersAsFloat(Mutant):
    """Every number through a double: a 64-bit integer loses its low bits."""

    file, caught_by = "test_kernels.py", frozenset({"test_scalars_arrive_exactly"})

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        addresses = {tensor.ptr for tensor in tensors}
        values = tuple(v if v in addresses or isinstance(v, float) else int(float(v)) for v in values)
        self.inner.launch(loaded, grid, values, stream, tensors)


class LoadCountsNothing(Mutant):
    file, caught_by = "test_refusals.py", frozenset({"test_an_artifact_with_a_wrong_number_of_parameters_is_refused"})

    def load(self, artifact: Artifact) -> Any:
        return self.inner.load(artifact._replace(parameters=artifact.payload.parameters))


class PadsMissingValues(Mutant):
    file, caught_by = "test_refusals.py", frozenset({"test_a_missing_or_further_value_is_refused"})

    def load(self, artifact: Artifact) -> Any:
        return self.inner.load(artifact), len(artifact.parameters)

    def unload(self, loaded: Any) -> None:
        self.inner.unload(loaded[0])

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        module, count = loaded
        self.inner.launch(module, grid, (*values, *[0] * count)[:count], stream, tensors)


class CutsGridsToSize(Mutant):
    """Too large a grid runs in part and says nothing."""

    file, caught_by = "test_refusals.py", frozenset({"test_a_grid_over_the_limits_is_refused"})

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        self.inner.launch(loaded, tuple(min(n, 1000) for n in grid), values, stream, tensors)


class UnloadDoesNothing(Mutant):
    file, caught_by = "test_refusals.py", frozenset({"test_an_unloaded_kernel_does_not_launch"})

    def unload(self, loaded: Any) -> None:
        pass


class SharesTheArgumentArena(Mutant):
    """One arena for all threads: arguments are packed, and another thread packs before the launch reads them."""

    file, caught_by = "test_threads.py", frozenset({"test_arguments_of_concurrent_launches_do_not_mix"})

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        self.arena = values
        time.sleep(1e-4)  # lets the other threads run
        self.inner.launch(loaded, grid, self.arena if len(self.arena) == len(values) else values, stream, tensors)


class CloseDoesNothing(Mutant):
    file, caught_by = "test_lifetime.py", frozenset({"test_a_closed_context_refuses_every_verb"})

    def close(self) -> None:
        pass


class ClosesOnce(Mutant):
    file, caught_by = "test_lifetime.py", frozenset({"test_close_is_idempotent"})

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.closed = False

    def close(self) -> None:
        if self.closed:
            raise DriverError("close", 201, "INVALID_CONTEXT", "the context is gone")
        self.closed = True
        self.inner.close()


class LosesSomeLaunches(Mutant):
    file, caught_by = "test_operators.py", frozenset({"test_operator_agrees_with_its_oracle"})
    select = "neg or where"

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.launches = 0

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        self.launches += 1
        if self.launches % 5:
            self.inner.launch(loaded, grid, values, stream, tensors)


class MeasuresUndeclaredTime(Mutant):
    """States that its events have no time and gives one."""

    file, caught_by = "test_order.py", frozenset({"test_undeclared_times_are_refused"})

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.capabilities = inner.capabilities._replace(timed_events=False)


class CapturesUnasked(Mutant):
    """Has the verbs of a capture that it does not declare."""

    file, caught_by = "test_graphs.py", frozenset({"test_undeclared_capture_is_refused"})

    def graph_begin(self, stream: int) -> None:
        pass


class WithGraphs(Mutant):
    """Not wrong: graph capture over a context that has none."""

    file = "test_graphs.py"

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.capabilities = inner.capabilities._replace(graph_capture=True)
        self.captures: dict[int, list[Callable[[], None]]] = {}

    def graph_begin(self, stream: int) -> None:
        self.captures[stream] = []

    def graph_end(self, stream: int) -> list[Callable[[], None]]:
        if stream not in self.captures:
            raise DeviceError(f"graph_end: stream={stream}: is not capturing")
        return self.captures.pop(stream)

    def graph_launch(self, graph: list[Callable[[], None]], stream: int | None = None) -> None:
        for work in graph:
            work()

    def give(self, stream: int | None, work: Callable[[], None]) -> None:
        if stream in self.captures:
            self.captures[stream].append(work)
        else:
            work()

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        self.give(stream, lambda: self.inner.launch(loaded, grid, values, None, tensors))

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self.give(stream, lambda: self.inner.copy(to, source, nbytes))

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        self.give(stream, lambda: self.inner.fill(address, byte, nbytes))


class RunsWhileCapturing(WithGraphs):
    caught_by = frozenset({"test_a_graph_runs_what_was_captured_each_time"})

    def give(self, stream: int | None, work: Callable[[], None]) -> None:
        super().give(stream, work)
        if stream in self.captures:
            work()


class CapturesTheArenaAndNotTheArguments(WithGraphs):
    caught_by = frozenset({"test_a_graph_keeps_the_arguments_of_its_capture"})

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        self.arena = values
        self.give(stream, lambda: self.inner.launch(loaded, grid, self.arena, None, tensors))


class BindsByExtent(Mutant):
    """Not wrong: launches from what it is told of each tensor's allocation, as a driver without addresses does."""

    file = "test_kernels.py"

    def __init__(self, inner: Context):
        super().__init__(inner)
        self.capabilities = inner.capabilities._replace(binds_by_extent=True)

    def load(self, artifact: Artifact) -> Any:
        return self.inner.load(artifact), [i for i, p in enumerate(artifact.parameters) if p.type.startswith("*")]

    def unload(self, loaded: Any) -> None:
        self.inner.unload(loaded[0])

    def launch(self, loaded: Any, grid: Any, values: Any, stream: int | None, tensors: Any) -> None:
        module, pointers = loaded
        bound = list(values)
        for i, tensor in zip(pointers, tensors, strict=True):
            base, nbytes = tensor.extent
            offset = tensor.ptr - base
            if not 0 <= offset < nbytes:
                raise DeviceError(f"launch: pointer {i} is not inside its allocation")
            bound[i] = base + offset
        self.inner.launch(module, grid, tuple(bound), stream, tensors)


def _breaking(cls: type[Mutant]) -> Iterator[type[Mutant]]:
    for child in cls.__subclasses__():
        if "caught_by" in vars(child):
            yield child
        yield from _breaking(child)


MUTANTS = tuple(_breaking(Mutant))
