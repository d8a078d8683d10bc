"""Drivers, found through the entry-point group ``nbxtensor.drivers`` at the first use of a device.

A plug-in that cannot be used stays in the list with its exception: it breaks no other, and asking for it raises that
exception. Nothing is opened here but what a driver's own `probe` opens.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nbxtensor.backend.contract import DRIVER_API, DeviceInfo, Driver
from nbxtensor.errors import ArgumentError, DeviceError, Unavailable

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "nbxtensor.drivers"

_DEVICE = re.compile(r"([a-z][a-z0-9_-]*)(?::(0|[1-9][0-9]*))?")
_ATTRIBUTES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "device_type": (str,),
    "api_version": (int,),
    "priority": (int,),
    "device_files": (str, type(None)),
}
_METHODS = ("probe", "open")


class Entry(NamedTuple):
    """An entry point and what came of it: a ``driver``, or the ``error`` for which it is broken.

    ``name`` is the entry point's, ``value`` what it refers to; ``distribution`` and ``version`` are the package's.
    """

    name: str
    distribution: str
    version: str
    value: str
    driver: Driver | None
    error: BaseException | None

    @property
    def device_type(self) -> str:
        """The type that the driver serves; of a broken one nothing is known but its name."""
        return self.name if self.driver is None else self.driver.device_type

    def __str__(self) -> str:
        return f"driver {self.name!r} ({self.value}) of {self.distribution} {self.version}"


_lock = threading.RLock()
_drivers: tuple[Entry, ...] | None = None
_probed: dict[tuple[str, str, str, int], list[DeviceInfo] | Unavailable] = {}


def entry_points() -> list[EntryPoint]:
    """The entry points of the installed distributions, sorted, not imported."""
    import importlib.metadata as installed  # reading all distributions costs about 20 ms

    try:
        found = list(installed.entry_points(group=GROUP))
    except Exception:  # one distribution's malformed file makes the question fail for all
        found = [point for one in installed.distributions() for point in _readable(one)]
    return sorted(found, key=_order)


def distribution(point: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that declares an entry point, as far as they can be read."""
    return _named(point.dist) if point.dist is not None else ("unknown distribution", "?")


def _named(one: Distribution) -> tuple[str, str]:
    with warnings.catch_warnings():
        # A torn installation has no metadata: Python gives None, warns since 3.12, and will raise KeyError.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return one.name or "unknown distribution", one.version or "?"
        except KeyError:
            return "unknown distribution", "?"


def entries(source: Iterable[EntryPoint]) -> tuple[Entry, ...]:
    """Imports entry points; those of the best drivers first. Never raises for what a plug-in does."""
    return tuple(sorted(map(_entry, sorted(source, key=_order)), key=_rank))


def drivers() -> tuple[Entry, ...]:
    """Every installed driver, broken ones included, by priority and then by name. Read once, until `refresh`."""
    global _drivers
    with _lock:
        if _drivers is None:
            _drivers = entries(entry_points())
        return _drivers


def refresh() -> None:
    """Forgets drivers and what they answered; the next question reads the installed distributions again."""
    global _drivers
    with _lock:
        _drivers = None
        _probed.clear()


def parse(device: str) -> tuple[str, int | None]:
    """Splits a device string: "cuda:1" into ("cuda", 1), "cpu" into ("cpu", None). Raises `ArgumentError`."""
    match = _DEVICE.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        rule = 'must be a device type or a driver\'s name, and a number from 0 if wanted: "cpu", "cuda", "cuda:1"'
        raise ArgumentError("device", "name", device, rule)
    return match[1], None if match[2] is None else int(match[2])


def for_type(device_type: str) -> list[Entry]:
    """The drivers that serve a device type, the first choice first; a broken one only where no other does."""
    usable = [entry for entry in drivers() if entry.driver is not None and entry.device_type == device_type]
    return usable or [entry for entry in drivers() if entry.device_type == device_type]


def by_name(name: str) -> list[Entry]:
    """The drivers of a name, the first choice first; broken ones last."""
    return [entry for entry in drivers() if entry.name == name]


def load(entry: Entry) -> Driver:
    """The driver of an entry. Raises `Unavailable` ("broken") from the plug-in's own exception."""
    if entry.driver is None:
        raise _broken(entry)
    return entry.driver


def probe(entry: Entry) -> list[DeviceInfo] | Unavailable:
    """The devices of a driver, or why it has none; asked once, until `refresh`.

    What a driver raises other than `Unavailable` becomes an `Unavailable` ("broken") that carries it as its cause.
    """
    key = (entry.name, entry.distribution, entry.value, id(entry.driver))
    with _lock:
        if key not in _probed:
            try:
                _probed[key] = _devices(entry)
            except Unavailable as refusal:
                _probed[key] = refusal.with_traceback(None)  # it is kept, and its frames hold the callers' tensors
        return _probed[key]


def refusals() -> dict[str, list[Unavailable]]:
    """For each device type that no driver serves here, why not: its drivers' answers, the first choice first."""
    found: dict[str, list[Unavailable]] = {}
    served = set()
    for entry in drivers():
        answer = probe(entry)
        if isinstance(answer, Unavailable):
            found.setdefault(entry.device_type, []).append(answer)
        else:
            served.add(entry.device_type)
    return {device_type: answers for device_type, answers in found.items() if device_type not in served}


def _order(point: EntryPoint) -> tuple[str, str, str]:
    return point.name, distribution(point)[0], point.value


def _rank(entry: Entry) -> tuple[bool, int, str, str]:
    priority = 0 if entry.driver is None else entry.driver.priority
    return entry.driver is None, -priority, entry.name, entry.distribution


def _readable(one: Distribution) -> list[EntryPoint]:
    try:
        return list(one.entry_points.select(group=GROUP))
    except Exception as error:
        warnings.warn(
            f"the entry points of {_named(one)[0]} cannot be read: {_said(error)}", RuntimeWarning, stacklevel=4
        )
        return []


def _entry(point: EntryPoint) -> Entry:
    driver: Driver | None = None
    error: BaseException | None = None
    try:
        driver = _checked(point.name, point.load())
    except (
        Exception,
        SystemExit,
    ) as raised:  # whatever a plug-in does at import is its own; a keyboard interrupt is not
        error = raised
    return Entry(point.name, *distribution(point), point.value, driver, error)


def _checked(name: str, found: Any) -> Driver:
    """The value of an entry point, when it is a driver of this contract. Raises `DeviceError`."""
    if isinstance(found, type):
        raise DeviceError(f"the entry point names the class {found.__name__}; it must name a driver, an object")
    version = getattr(found, "api_version", DRIVER_API)
    if version != DRIVER_API:  # the first question: another contract has other members
        raise DeviceError(f"the driver is written for contract {version}; this nbxtensor has contract {DRIVER_API}")
    lacking = [member for member in (*_ATTRIBUTES, *_METHODS) if not hasattr(found, member)]
    if lacking:
        raise DeviceError(f"{type(found).__name__} is no driver: it lacks {', '.join(lacking)}")
    for attribute, types in _ATTRIBUTES.items():
        if not isinstance(getattr(found, attribute), types):
            wanted = " or ".join(t.__name__ for t in types)
            raise DeviceError(f"{attribute}={getattr(found, attribute)!r} of {type(found).__name__} is no {wanted}")
    for method in _METHODS:
        if not callable(getattr(found, method)):
            raise DeviceError(f"{method} of {type(found).__name__} is not callable")
    if found.name != name:
        raise DeviceError(f"the entry point is called {name!r} and its driver {found.name!r}")
    for part in (found.name, found.device_type):
        if not _DEVICE.fullmatch(part) or ":" in part:
            raise DeviceError(f"{part!r} cannot stand in a device string: lower-case letters, digits, - and _ only")
    return cast(Driver, found)


def _devices(entry: Entry) -> list[DeviceInfo]:
    driver = load(entry)
    try:
        found = list(driver.probe())
    except Unavailable:
        raise
    except (Exception, SystemExit) as raised:
        raise Unavailable("broken", f"{entry}: probing raised {_said(raised)}") from raised
    if not found or not all(isinstance(info, DeviceInfo) for info in found):
        raise Unavailable("broken", f"{entry}: probing gave {found!r}; it must give devices or raise Unavailable")
    return found


def _broken(entry: Entry) -> Unavailable:
    error = cast(BaseException, entry.error)
    refusal = Unavailable("broken", f"{entry} cannot be loaded: {_said(error)}")
    refusal.__cause__ = error
    return refusal


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
