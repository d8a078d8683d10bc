"""Order: within a stream, between streams by events, and between a stream and the host. Times of events."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from nbxtensor.backend.contract import Context
from nbxtensor.conformance.marks import declares, executes, keeps_data, lacks
from nbxtensor.conformance.plugin import Load
from nbxtensor.conformance.variants import ADD_VALUE, COPY_AFTER, ITERATE, Block, LoadedKernel, Memory, variant
from nbxtensor.errors import DeviceError, NBXError

N = 1000
BLOCK = 1024
LONG_ENOUGH_MS = 20.0
MOST_STEPS = 1 << 27


@pytest.fixture(scope="session")
def add(load: Load) -> LoadedKernel:
    types = {"to": "*i32", "source": "*i32", "value": "i32", "n": "i32"}
    return load(variant(ADD_VALUE, types, {"BLOCK": BLOCK}))


@pytest.fixture(scope="session")
def iterate(load: Load) -> LoadedKernel:
    return load(variant(ITERATE, {"to": "*i32", "steps": "i32"}))


@pytest.fixture(scope="session")
def copy_after(load: Load) -> LoadedKernel:
    types = {"to": "*i32", "source": "*i32", "delay": "*i32", "steps": "i32"}
    return load(variant(COPY_AFTER, types))


@pytest.fixture(scope="session")
def long_steps(context: Context, iterate: LoadedKernel) -> int:
    """Steps that keep the device busy for some time, so that work which does not wait is found out."""
    memory = Memory(context)
    block = memory.filled(4, 1)
    steps = 16
    while steps < MOST_STEPS and min(milliseconds(context, iterate, block, steps) for _ in range(3)) < LONG_ENOUGH_MS:
        steps *= 4
    memory.release()
    return steps


def milliseconds(context: Context, iterate: LoadedKernel, block: Block, steps: int) -> float:
    """How long the host waits for a kernel of so many steps."""
    start = time.perf_counter()
    iterate((1, 1, 1), block, steps)
    context.synchronize()
    return (time.perf_counter() - start) * 1e3


def chain(value: int, steps: int) -> int:
    """What `iterate` leaves of a word, by squaring the affine map: steps are many."""
    a, b, total_a, total_b = 1103515245, 12345, 1, 0
    while steps:
        if steps & 1:
            total_a, total_b = a * total_a, a * total_b + b
        a, b = a * a, a * b + b
        a, b, total_a, total_b = (x & 0x7FFFFFFF for x in (a, b, total_a, total_b))
        steps >>= 1
    return (total_a * value + total_b) & 0x7FFFFFFF


def word(block: Block, stream: int | None = None) -> int:
    return int(block.read(np.int32, 1, stream)[0])


@keeps_data
def test_copies_and_fills_keep_their_order(context: Context, memory: Memory, streams: tuple[int, int]) -> None:
    for stream in (None, *streams):
        first, second = memory.block(1 << 20), memory.block(1 << 20)
        for byte in range(8):
            context.fill(first.address, byte, first.nbytes, stream)
            context.copy(second.address, first.address, first.nbytes, stream)
            context.fill(first.address, 255, first.nbytes, stream)
            assert (second.read(stream=stream) == byte).all(), f"stream {stream}, round {byte}"


@executes
def test_kernels_and_copies_keep_their_order(
    context: Context, memory: Memory, streams: tuple[int, int], add: LoadedKernel
) -> None:
    for stream in (None, *streams):
        a, b = memory.block(4 * N), memory.block(4 * N)
        a.write(np.arange(N, dtype=np.int32), stream)
        for _ in range(3):
            add((1, 1, 1), b, a, 1, N, stream=stream)
            context.copy(a.address, b.address, 4 * N, stream)
            context.fill(b.address, 0, 4 * N, stream)
            add((1, 1, 1), b, a, 10, N, stream=stream)
            add((1, 1, 1), a, b, 100, N, stream=stream)
        np.testing.assert_array_equal(a.read(np.int32, stream=stream), np.arange(N) + 3 * 111, f"stream {stream}")


@executes
def test_copy_out_waits_for_kernels(
    memory: Memory, streams: tuple[int, int], iterate: LoadedKernel, long_steps: int
) -> None:
    for stream in (None, *streams):
        block = memory.block(4)
        block.write(np.array([3], np.int32), stream)
        iterate((1, 1, 1), block, long_steps, stream=stream)
        assert word(block, stream) == chain(3, long_steps), f"stream {stream}"


@executes
def test_copy_in_waits_for_kernels(
    memory: Memory, streams: tuple[int, int], iterate: LoadedKernel, long_steps: int
) -> None:
    for stream in (None, *streams):
        block = memory.block(4)
        block.write(np.array([3], np.int32), stream)
        iterate((1, 1, 1), block, long_steps, stream=stream)
        block.write(np.array([5], np.int32), stream)
        assert word(block, stream) == 5, f"stream {stream}"


@executes
def test_synchronize_waits_for_its_stream(
    context: Context, memory: Memory, streams: tuple[int, int], iterate: LoadedKernel, long_steps: int
) -> None:
    stream, other = streams
    block = memory.block(4)
    block.write(np.array([9], np.int32), stream)
    iterate((1, 1, 1), block, long_steps, stream=stream)
    context.synchronize(stream)
    assert word(block, other) == chain(9, long_steps)


@executes
def test_an_event_orders_two_streams(
    context: Context, memory: Memory, streams: tuple[int, int], copy_after: LoadedKernel, long_steps: int
) -> None:
    """Each round, one stream computes slowly and the other continues from its result."""
    event = context.create_event()
    a, b, delay = memory.filled(4, 0), memory.filled(4, 0), memory.filled(4, 1)
    other_delay = memory.filled(4, 1)
    context.synchronize()
    first, second = streams
    rounds = 4
    for _ in range(rounds):
        copy_after((1, 1, 1), b, a, delay, long_steps, stream=first)
        context.record(event, first)
        context.wait(event, second)
        copy_after((1, 1, 1), a, b, other_delay, 1, stream=second)
        context.record(event, second)
        context.wait(event, first)
    assert word(a, second) == 2 * rounds
    context.synchronize(first)
    context.destroy_event(event)


@executes
def test_an_event_orders_the_contexts_own_stream(
    context: Context, memory: Memory, streams: tuple[int, int], copy_after: LoadedKernel, long_steps: int
) -> None:
    event = context.create_event()
    a, b, delay = memory.filled(4, 0), memory.filled(4, 0), memory.filled(4, 1)
    copy_after((1, 1, 1), b, a, delay, long_steps)
    context.record(event)
    context.wait(event, streams[0])
    context.copy(a.address, b.address, 4, streams[0])
    assert word(a, streams[0]) == 1
    copy_after((1, 1, 1), b, a, delay, long_steps, stream=streams[0])
    context.record(event, streams[0])
    context.wait(event)
    context.copy(a.address, b.address, 4)
    assert word(a) == 2
    context.destroy_event(event)


def test_events_and_streams_come_and_go(context: Context) -> None:
    streams = [context.create_stream() for _ in range(16)]
    events = [context.create_event() for _ in range(16)]
    assert len(set(streams)) == len(set(events)) == 16
    for stream, event in zip(streams, events, strict=True):
        context.record(event, stream)
        context.wait(event)
        context.wait(event, streams[0])
        context.synchronize(stream)
    for event in events:
        context.destroy_event(event)
    for stream in streams:
        context.destroy_stream(stream)


@declares("timed_events")
def test_time_goes_forward(context: Context) -> None:
    events = [context.create_event() for _ in range(4)]
    for event in events:
        context.record(event)
    for start, end in itertools.pairwise(events):
        assert 0 <= context.elapsed_ms(start, end) < float("inf")
    assert context.elapsed_ms(events[0], events[0]) == 0
    for event in events:
        context.destroy_event(event)


@declares("timed_events")
@executes
def test_elapsed_time_agrees_with_the_host(
    context: Context, memory: Memory, iterate: LoadedKernel, long_steps: int
) -> None:
    """An interval between two events lies inside the host's interval around them, and a long kernel fills it."""
    block = memory.filled(4, 1)
    context.synchronize()
    short, long = (timed(context, iterate, block, steps) for steps in (max(1, long_steps // 16), long_steps))
    for elapsed, on_host in (short, long):
        assert 0 < elapsed <= on_host + 0.01  # the resolution of an event's clock
    assert long[0] > 2 * short[0]


def timed(context: Context, iterate: LoadedKernel, block: Block, steps: int) -> tuple[float, float]:
    """Milliseconds of a kernel of so many steps, the least of three: by events, and on the host's clock."""
    start, end = context.create_event(), context.create_event()
    times = []
    for _ in range(3):
        before = time.perf_counter()
        context.record(start)
        iterate((1, 1, 1), block, steps)
        context.record(end)
        elapsed = context.elapsed_ms(start, end)
        times.append((elapsed, (time.perf_counter() - before) * 1e3))
    context.destroy_event(start)
    context.destroy_event(end)
    return min(times)


@declares("timed_events")
def test_an_event_that_was_never_recorded_has_no_time(context: Context) -> None:
    recorded, other = context.create_event(), context.create_event()
    context.record(recorded)
    for start, end in ((recorded, other), (other, recorded)):
        with pytest.raises(NBXError):
            context.elapsed_ms(start, end)
    context.destroy_event(recorded)
    context.destroy_event(other)


@lacks("timed_events")
def test_undeclared_times_are_refused(context: Context) -> None:
    start, end = context.create_event(), context.create_event()
    context.record(start)
    context.record(end)
    with pytest.raises(DeviceError):
        context.elapsed_ms(start, end)
    context.destroy_event(start)
    context.destroy_event(end)
