"""What the doctor's child processes do: probe one driver, or compute on one device. A child may hang or crash."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from nbxtensor.backend import registry
from nbxtensor.errors import DeviceError, Unavailable


def answer(question: Callable[[], dict[str, Any]]) -> int:
    """Prints what ``question`` returns, or its exception, as one line of JSON. Exit status: 0, or 1 for an exception.

    Libraries like to print: what they write to standard output meanwhile goes to standard error.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        try:
            said, status = question(), 0
        except Exception as error:
            said, status = {"unavailable": _refusal(error)}, 1
        output.write(json.dumps(said) + "\n")
    return status


def probe(name: str, distribution: str) -> dict[str, Any]:
    """Imports one driver and asks it for its devices; the other drivers are not imported."""
    points = [p for p in registry.entry_points() if (p.name, registry.distribution(p)[0]) == (name, distribution)]
    entry = registry.entries(points)[0]
    if entry.driver is None:
        return {"unavailable": _refusal(entry.error or DeviceError("no driver"))}
    driver = entry.driver
    facts = {"device_type": driver.device_type, "priority": driver.priority, "api_version": driver.api_version}
    devices = registry.probe(entry)
    if isinstance(devices, Unavailable):
        return {**facts, "unavailable": _refusal(devices)}
    return {**facts, "devices": [info._asdict() for info in devices]}


def check(name: str, ordinal: str) -> dict[str, Any]:
    """Computes on one device of a driver. Raises `DeviceError` when another driver serves it or the result is wrong."""
    return _computed(f"{name}:{ordinal}", name)


def check_default() -> dict[str, Any]:
    """Computes on the default device."""
    return _computed(None, None)


def _computed(device: str | None, driver: str | None) -> dict[str, Any]:
    import numpy as np

    import nbxtensor as nbx

    start = time.perf_counter()
    on = nbx.device(device)
    if driver is not None and on.driver.name != driver:
        raise DeviceError(f"device {device!r} is served by driver {on.driver.name!r}, not by {driver!r}")
    executes = on.context.capabilities.executes
    if executes:
        # No multiple of any block, so that the last one is masked; the sum of two float32 has one right answer.
        a = np.linspace(-3.0, 5.0, 4099, dtype=np.float32)
        b = np.linspace(7.0, -11.0, 4099, dtype=np.float32)
        got = (nbx.from_numpy(a, device=device) + nbx.from_numpy(b, device=device)).numpy()
        wrong = int(np.count_nonzero(got != a + b))
        if wrong:
            raise DeviceError(f"a + b on {on}: {wrong} of {a.size} elements are wrong")
    seconds = round(time.perf_counter() - start, 3)
    return {"device": on.name, "driver": on.driver.name, "executes": executes, "seconds": seconds}


def _refusal(error: BaseException) -> dict[str, str]:
    if isinstance(error, Unavailable):
        return {"reason": error.reason, "detail": error.detail, "fix": error.fix}
    return {"reason": "broken", "detail": f"{type(error).__name__}: {error}", "fix": ""}
