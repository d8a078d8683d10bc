"""Closing: idempotent, final, and nobody else's business."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nbxtensor.backend.contract import Context, Driver
from nbxtensor.conformance import variants
from nbxtensor.conformance.marks import executes, keeps_data
from nbxtensor.conformance.null import GRAPH_VERBS, VERBS
from nbxtensor.conformance.plugin import Subject
from nbxtensor.conformance.variants import Block, LoadedKernel, Memory, variant
from nbxtensor.errors import DeviceError

STORE = variant(variants.STORE_VALUE, {"to": "*i32", "value": "i32"})


def test_close_is_idempotent(fresh: Context) -> None:
    fresh.allocate(4096)
    fresh.allocate_host(64)
    fresh.create_stream()
    fresh.create_event()
    fresh.close()
    fresh.close()


@pytest.fixture
def closed(driver: Driver, subject: Subject) -> dict[str, Callable[[], object]]:
    """Every verb but ``close`` on a closed context, with arguments that were good before."""
    context = driver.open(subject.ordinal)
    address, buffer = context.allocate(64), np.zeros(64, np.uint8)
    host = buffer.ctypes
    host_block, stream, event = context.allocate_host(64), context.create_stream(), context.create_event()
    context.record(event)
    kernel = LoadedKernel(context, STORE)
    context.close()
    block = Block(context, address, 64)
    return {
        "allocate": lambda: context.allocate(64),
        "free": lambda: context.free(address),
        "allocate_host": lambda: context.allocate_host(64),
        "free_host": lambda: context.free_host(host_block),
        "copy_in": lambda: context.copy_in(address, host.data, 64),
        "copy_out": lambda: context.copy_out(host.data, address, 64),
        "copy": lambda: context.copy(address, address + 32, 32),
        "fill": lambda: context.fill(address, 0, 64),
        "memory_info": context.memory_info,
        "create_stream": context.create_stream,
        "destroy_stream": lambda: context.destroy_stream(stream),
        "synchronize": context.synchronize,
        "create_event": context.create_event,
        "destroy_event": lambda: context.destroy_event(event),
        "record": lambda: context.record(event),
        "wait": lambda: context.wait(event),
        "elapsed_ms": lambda: context.elapsed_ms(event, event),
        "compile": lambda: context.compile(STORE),
        "load": lambda: context.load(kernel.artifact),
        "unload": lambda: context.unload(kernel.module),
        "launch": lambda: kernel((1, 1, 1), block, 1),
    }


def test_a_closed_context_refuses_every_verb(closed: dict[str, Callable[[], object]]) -> None:
    assert closed.keys() == set(VERBS) - set(GRAPH_VERBS) - {"close"}
    accepted = []
    for verb, call in closed.items():
        try:
            call()
        except DeviceError:
            continue
        accepted.append(verb)
    assert accepted == []


@keeps_data
def test_closing_one_context_leaves_another_alone(driver: Driver, subject: Subject, fresh: Context) -> None:
    memory = Memory(fresh)
    block = memory.filled(4096, 3)
    other = driver.open(subject.ordinal)
    other.allocate(4096)
    other.close()
    assert (block.read() == 3).all()
    assert (memory.filled(4096, 4).read() == 4).all()
    memory.release()


@executes
def test_a_kernel_outlives_another_context_that_loaded_it(driver: Driver, subject: Subject, fresh: Context) -> None:
    kernel = LoadedKernel(fresh, STORE)
    other = driver.open(subject.ordinal)
    LoadedKernel(other, STORE)
    other.close()
    memory = Memory(fresh)
    to = memory.filled(4, 0)
    kernel((1, 1, 1), to, 77)
    assert to.read(np.int32)[0] == 77
    memory.release()


@executes
def test_a_context_closed_with_work_under_way_finishes_or_drops_it(driver: Driver, subject: Subject) -> None:
    context = driver.open(subject.ordinal)
    to = Block(context, context.allocate(4), 4)
    context.fill(to.address, 0, 4)
    kernel = LoadedKernel(context, variant(variants.ITERATE, {"to": "*i32", "steps": "i32"}))
    kernel((1, 1, 1), to, 1000, stream=context.create_stream())
    context.close()
    with pytest.raises(DeviceError):
        to.read()
