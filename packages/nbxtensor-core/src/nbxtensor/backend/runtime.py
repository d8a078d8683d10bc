"""Devices: an open context with its pool, its stream and its prepared launches; and which device is in force."""

from __future__ import annotations

import atexit
import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor.backend.contract import Context, DeviceInfo, Driver
from nbxtensor.errors import ArgumentError, DeviceError, NBXError, Unavailable
from nbxtensor.memory.pool import Pool

# The rooms that find devices (registry, install_help) are imported at the first use of one: they cost a third of
# `import nbxtensor`.
if TYPE_CHECKING:
    from nbxtensor.backend import registry
    from nbxtensor.backend.device_files import Facts

#: Names a device that is the default one, as "cuda:1"; it chooses a device and changes nothing about a kernel.
DEVICE_VARIABLE = "NBXTENSOR_DEVICE"

_HOST_TYPES = frozenset({"cpu", "meta"})


def _unknown_fault(code: int, value: int) -> Exception:
    return DeviceError(f"a kernel left the unknown fault code {code} with value {value}")


#: Makes the error of a fault code and value; the launcher, which knows the codes, puts its own in place.
fault_error: Callable[[int, int], Exception] = _unknown_fault

_lock = threading.RLock()
_open: dict[tuple[str, int], Device] = {}
_local = threading.local()


class Device:
    """An open device. Compares equal to its name: ``tensor.device == "cuda:0"``.

    Attributes: ``name`` ("cuda:0", "cpu"), ``type``, ``index``, ``driver``, ``context``, ``info``, ``pool``, ``facts``
    (its device file), ``stream`` (None: the context's own ordered stream), ``prepared`` (kernels loaded so far, by
    variant)."""

    __slots__ = (
        "name",
        "type",
        "index",
        "driver",
        "context",
        "info",
        "pool",
        "stream",
        "prepared",
        "closed",
        "status",
        "suspect",
        "_facts",
    )

    def __init__(self, driver: Driver, ordinal: int = 0):
        self.driver, self.type, self.index = driver, driver.device_type, ordinal
        self.name = driver.device_type if driver.device_type in _HOST_TYPES else f"{driver.device_type}:{ordinal}"
        self.context: Context = driver.open(ordinal)
        self.info: DeviceInfo = self.context.info
        self.pool = Pool(self.context.allocate, self.context.free, self.context.memory_info)
        self.stream: int | None = None
        self.prepared: dict[Any, Any] = {}
        self.closed = False
        self.status: Any = None  # two int64 on the device: the code and the value of a data-dependent fault
        self.suspect = False  # a kernel that may write the status word ran since it was last read
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """The facts of the device file in force for this device. Raises `MissingFact` when there is none."""
        if self._facts is None:
            from nbxtensor.backend import device_files

            self._facts = device_files.for_device(self.info, self.driver.device_files)
        return self._facts

    def synchronize(self) -> None:
        """Waits for all work of the device's stream; reports the faults of its kernels."""
        self.context.synchronize(self.stream)
        if self.suspect:
            self.check()

    def check(self) -> None:
        """Raises the error that a kernel left in the status word (an index out of range, say), and clears the word."""
        self.suspect = False
        if not self.context.capabilities.executes:
            return
        word = np.zeros(2, np.int64)
        self.context.copy_out(word.ctypes.data, self.status.ptr, word.nbytes, self.stream)
        if word[0]:
            self.context.fill(self.status.ptr, 0, word.nbytes, self.stream)
            raise fault_error(int(word[0]), int(word[1]))

    def close(self) -> None:
        """Closes the context and frees its memory; tensors on it must not be used any more. Idempotent."""
        with _lock:
            if self.closed:
                return
            self.closed = True
            for key in [key for key, device in _open.items() if device is self]:
                del _open[key]
            self.prepared.clear()
            self.context.close()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Device({self.name!r}, {self.info.name!r}, driver={self.driver.name!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and other == self.name)

    def __hash__(self) -> int:
        return hash(self.name)


def device(name: str | Device | None = None) -> Device:
    """The open device of a device string ``type[:n]``, opened at its first use; None is the current device.

    Of the drivers that serve the type the one of the highest priority that opens is taken; a string that is no type
    names a driver ("reference"). Raises `ArgumentError` for a malformed string, `Unavailable` when nothing can serve
    it."""
    from nbxtensor.backend import install_help, registry

    if name is None:
        return current_device()
    if isinstance(name, Device):
        if name.closed:
            raise DeviceError(f"device {name.name} is closed")
        return name
    wanted, index = registry.parse(name)
    entries = registry.for_type(wanted) or registry.by_name(wanted)
    if not entries:
        known = sorted({e.driver.device_type for e in registry.drivers() if e.driver is not None})
        broken = [e.name for e in registry.drivers() if e.error is not None]
        raise ArgumentError(
            "device",
            "name",
            name,
            f"no driver serves it; types served here: {', '.join(known)}"
            + (f"; broken drivers: {', '.join(broken)} (python -m nbxtensor doctor)" if broken else "")
            + f"; {install_help.package_hint(wanted)}",
        )
    return _first_that_opens(name, entries, index)


def current_device() -> Device:
    """The device that this thread uses when none is named: set by `use_device`, else `default_device`."""
    chosen: Device | None = getattr(_local, "device", None)
    return default_device() if chosen is None or chosen.closed else chosen


@contextmanager
def use_device(name: str | Device) -> Iterator[Device]:
    """Makes a device the current one of this thread inside a ``with`` block."""
    before = getattr(_local, "device", None)
    _local.device = chosen = device(name)
    try:
        yield chosen
    finally:
        _local.device = before


def default_device() -> Device:
    """The device of `DEVICE_VARIABLE`; else the best GPU that opens; else the CPU when no supported GPU is on the PCI
    bus.

    Best is the driver's priority, then the device's memory. Raises `Unavailable` with the install help when a supported
    GPU is present and no driver opens it: there is no quiet fall back to the CPU.
    """
    from nbxtensor.backend import install_help, registry

    chosen = getattr(_local, "default", None)
    if chosen is not None and not chosen.closed:
        return chosen  # type: ignore[no-any-return]
    named = os.environ.get(DEVICE_VARIABLE)
    found = device(named) if named else _best_gpu()
    if found is None:
        refusal = install_help.refusal(registry.refusals())
        if refusal is not None:
            raise refusal
        found = device("cpu")
    _local.default = found
    return found


def _best_gpu() -> Device | None:
    from nbxtensor.backend import registry

    candidates = []
    for entry in registry.drivers():
        if entry.driver is None or entry.driver.device_type in _HOST_TYPES:
            continue
        infos = registry.probe(entry)
        if not isinstance(infos, Unavailable):
            candidates += [
                (-entry.driver.priority, -info.memory_bytes, entry.name, info.ordinal, entry) for info in infos
            ]
    failures: list[Exception] = []
    for _, _, _, ordinal, entry in sorted(candidates, key=lambda c: c[:4]):
        try:
            return _opened(registry.load(entry), ordinal)
        except DeviceError as error:
            failures.append(error)
    if failures:
        raise Unavailable("broken", "; ".join(str(f) for f in failures), 'use device="cpu"') from failures[0]
    return None


def _first_that_opens(name: str, entries: list[registry.Entry], index: int | None) -> Device:
    from nbxtensor.backend import registry

    refusals: list[tuple[str, Unavailable]] = []
    for entry in entries:
        driver = registry.load(entry)
        infos = registry.probe(entry)
        if isinstance(infos, Unavailable):
            refusals.append((entry.name, infos))
            continue
        if index is not None and index not in {info.ordinal for info in infos}:
            rule = f"driver {entry.name} has {len(infos)} device(s), numbered from 0"
            raise ArgumentError("device", "name", name, rule)
        return _opened(driver, index if index is not None else infos[0].ordinal)
    if len(refusals) == 1:
        raise copy.copy(refusals[0][1]) from refusals[0][1].__cause__  # the registry keeps the one it was given
    detail = "; ".join(f"{refused}: {refusal.reason}: {refusal.detail}" for refused, refusal in refusals)
    raise Unavailable(refusals[0][1].reason, detail, refusals[0][1].fix) from refusals[0][1]


def _opened(driver: Driver, ordinal: int) -> Device:
    with _lock:
        found = _open.get((driver.name, ordinal))
        if found is None:
            from nbxtensor.backend import device_files

            device_files.serve_in_force(lambda: current_device().facts)
            found = _open[driver.name, ordinal] = Device(driver, ordinal)
        return found


def opened() -> list[Device]:
    """The devices that are open in this process."""
    with _lock:
        return list(_open.values())


@atexit.register
def _close_all() -> None:
    for found in opened():
        try:
            found.close()
        except NBXError as error:  # the process ends; the driver's own word goes to stderr, not into a traceback
            import sys

            print(f"nbxtensor: closing {found.name}: {error}", file=sys.stderr)


# Names of release 0.0.2.


def gpu_backend() -> str:
    """The type of the GPU in force: "cuda", "hip", "xpu" or "metal". Raises `Unavailable` with the install help when no
    GPU can be used; it never names the CPU."""
    return gpu_runtime().type


def gpu_runtime() -> Device:
    """The open GPU in force: the current device where it is a GPU, else the best one. Raises `Unavailable`."""
    from nbxtensor.backend import install_help, registry

    chosen: Device | None = getattr(_local, "device", None)
    if chosen is not None and not chosen.closed and chosen.type not in _HOST_TYPES:
        return chosen
    found = _best_gpu()
    if found is None:
        raise install_help.refusal(registry.refusals()) or Unavailable(
            "no device", "no GPU is on the PCI bus", install_help.GENERAL_FIX
        )
    return found


def backend_table() -> dict[str, str]:
    """Entry-point name of every registered driver and the distribution that brings it."""
    from nbxtensor.backend import registry

    return {entry.name: entry.distribution for entry in registry.drivers()}


def device_memory() -> Context:
    """The memory verbs (`nbxtensor.backend.contract.Context`) of the current device."""
    return current_device().context


def set_device(tensor: Any) -> None:
    """Makes the tensor's device the current one of this thread."""
    _local.device = device(tensor.device)
