"""Asks every driver, device and GPU of this machine, each driver and device in a process of its own."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nbxtensor import __version__
from nbxtensor.backend import install_help, pci, registry
from nbxtensor.backend.runtime import DEVICE_VARIABLE
from nbxtensor.doctor.children import Answer, ask
from nbxtensor.errors import Unavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OK, UNAVAILABLE, BROKEN = "OK", "UNAVAILABLE", "BROKEN"
PASSED, FAILED, NOTHING_RUNS, SHADOWED = "passed", "failed", "executes nothing", "shadowed"
_AT_ONCE = 4


class DeviceReport(NamedTuple):
    """A device that a driver lists. ``device`` is its device string; ``check`` what came of computing on it: "passed",
    "failed", "executes nothing" (a tracing device), "shadowed" (a driver of the same name comes first)."""

    device: str
    ordinal: int
    name: str
    architecture: str
    memory_bytes: int
    pci_id: str | None
    uuid: str | None
    profile: str | None
    check: str
    detail: str
    seconds: float | None


class DriverReport(NamedTuple):
    """An installed driver. ``state``: "OK"; "UNAVAILABLE", with reason, detail, fix; "BROKEN", with its exception."""

    name: str
    distribution: str
    version: str
    value: str
    device_type: str | None
    priority: int | None
    api_version: int | None
    state: str
    reason: str
    detail: str
    fix: str
    devices: tuple[DeviceReport, ...]


class GpuReport(NamedTuple):
    """A GPU that the system lists. ``served``: a driver lists it too; else ``missing`` and ``commands`` say why not."""

    address: str
    vendor: str
    device_id: str
    kernel_driver: str | None
    supported: bool
    served: bool
    missing: str
    commands: tuple[str, ...]
    alternative: str


class DefaultReport(NamedTuple):
    """The device that is used when none is named, and why this one; ``detail`` is what it failed with."""

    works: bool
    device: str | None
    driver: str | None
    why: str
    detail: str


class Survey(NamedTuple):
    """All that was found. ``works``, the verdict: the default device works, no driver is broken, no device failed."""

    works: bool
    nbxtensor: str
    python: str
    platform: str
    triton: str | None
    default: DefaultReport
    drivers: tuple[DriverReport, ...]
    gpus: tuple[GpuReport, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data under stable names, for JSON."""
        drivers = [{**d._asdict(), "devices": [device._asdict() for device in d.devices]} for d in self.drivers]
        gpus = [gpu._asdict() for gpu in self.gpus]
        return {**self._asdict(), "default": self.default._asdict(), "drivers": drivers, "gpus": gpus}


def survey(timeout: float) -> Survey:
    """Asks everything; ``timeout`` seconds for each driver and each device. Never raises for what a driver does."""
    points = registry.entry_points()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        default = pool.submit(ask, "--check-default", timeout=timeout)
        drivers = _ranked(pool.map(partial(_driver, timeout=timeout), points))
        jobs = [[pool.submit(_checked, driver, device, timeout) for device in driver.devices] for driver in drivers]
        drivers = [d._replace(devices=tuple(j.result() for j in js)) for d, js in zip(drivers, jobs, strict=True)]
        answer = default.result()
    gpus = tuple(_gpu(gpu, drivers) for gpu in pci.gpus())
    reported = _default(answer, drivers)
    failed = any(device.check == FAILED for driver in drivers for device in driver.devices)
    return Survey(
        works=reported.works and not failed and all(driver.state != BROKEN for driver in drivers),
        nbxtensor=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        triton=_installed("triton"),
        default=reported,
        drivers=tuple(drivers),
        gpus=gpus,
    )


def _driver(point: EntryPoint, timeout: float) -> DriverReport:
    distribution = registry.distribution(point)
    answer = ask("--probe", point.name, distribution[0], timeout=timeout)
    said = answer.said or {}
    refusal = said.get("unavailable", {"reason": "", "detail": "", "fix": ""})
    state = UNAVAILABLE if refusal["reason"] else OK
    if answer.failure:
        state, refusal = BROKEN, {"reason": "broken", "detail": f"probing: {answer.failure}", "fix": ""}
    elif refusal["reason"] == "broken":
        state = BROKEN
    infos = said["devices"] if state == OK else ()
    devices = tuple(DeviceReport("", **info, check="", detail="", seconds=None) for info in infos)
    return DriverReport(
        point.name,
        *distribution,
        point.value,
        said.get("device_type"),
        said.get("priority"),
        said.get("api_version"),
        state,
        refusal["reason"],
        refusal["detail"],
        refusal["fix"],
        devices,
    )


def _ranked(drivers: Iterable[DriverReport]) -> list[DriverReport]:
    """The drivers, the first choice first; their devices with the device strings that reach them."""
    ranked = sorted(drivers, key=lambda d: (d.state == BROKEN, -(d.priority or 0), d.name, d.distribution))
    named: list[DriverReport] = []
    for driver in ranked:
        check = SHADOWED if any(other.name == driver.name and other.state == OK for other in named) else ""
        strings = [f"{driver.name}:{device.ordinal}" for device in driver.devices]
        devices = (d._replace(device=s, check=check) for d, s in zip(driver.devices, strings, strict=True))
        named.append(driver._replace(devices=tuple(devices)))
    return named


def _checked(driver: DriverReport, device: DeviceReport, timeout: float) -> DeviceReport:
    if device.check == SHADOWED:
        return device
    answer = ask("--check", driver.name, str(device.ordinal), timeout=timeout)
    failure = _failure(answer)
    if failure:
        return device._replace(check=FAILED, detail=failure)
    said = answer.said or {}
    return device._replace(check=PASSED if said["executes"] else NOTHING_RUNS, seconds=said["seconds"])


def _failure(answer: Answer) -> str:
    """What went wrong in a computation; "" for nothing."""
    if answer.failure:
        return answer.failure
    refusal = (answer.said or {}).get("unavailable")
    if refusal is None:
        return ""
    text = refusal["detail"] if refusal["reason"] == "broken" else f"{refusal['reason']}: {refusal['detail']}"
    return "\n".join(filter(None, [text, refusal["fix"]]))


def _default(answer: Answer, drivers: Sequence[DriverReport]) -> DefaultReport:
    failure = _failure(answer)
    said = answer.said or {}
    device, driver = said.get("device"), said.get("driver")
    named = os.environ.get(DEVICE_VARIABLE)
    if named:
        why = f"named by {DEVICE_VARIABLE}={named!r}"
    elif device is None:
        why = ""
    else:
        why = _why(next((d for d in drivers if d.name == driver), None), drivers)
    return DefaultReport(not failure, device, driver, why, failure)


def _why(winner: DriverReport | None, drivers: Sequence[DriverReport]) -> str:
    if winner is None or winner.device_type == "cpu":
        return "no driver serves a GPU, and no supported GPU is on the PCI bus"
    others = [d for d in drivers if d.state == OK and d.device_type not in ("cpu", "meta")]
    count = sum(len(driver.devices) for driver in others)
    if count == 1:
        return "the only GPU that a driver serves"
    return f"the best of {count} GPUs: by the driver's priority ({winner.priority}), then by memory"


def _gpu(gpu: pci.PciGpu, drivers: Sequence[DriverReport]) -> GpuReport:
    own = [driver for driver in drivers if (driver.device_type or driver.name) == gpu.device_type]
    devices = [device for driver in own for device in driver.devices]
    served = any(device.pci_id is None or _same_place(device.pci_id, gpu.address) for device in devices)
    missing, alternative = gpu.unsupported, ""
    commands: tuple[str, ...] = ()
    if gpu.supported and not served:
        refusals = [Unavailable(d.reason, d.detail, d.fix) for d in own if d.state != OK]
        if devices:
            others = f"driver {own[0].name} lists {len(devices)} device(s) and this one not"
            refusals = [Unavailable("no device", others)]
        _, _, missing, commands, alternative = install_help.for_gpu(gpu, refusals)
    number = f"{gpu.device_id:04x}" if gpu.device_id else ""
    identity = (gpu.address, gpu.vendor, number, gpu.kernel_driver)
    return GpuReport(*identity, gpu.supported, served, missing, commands, alternative)


def _same_place(pci_id: str, address: str) -> bool:
    """Whether two PCI addresses are one; NVIDIA's library writes eight digits of domain, sysfs four, some none."""

    def parts(text: str) -> list[int]:
        numbers = [int(part, 16) for part in text.replace(".", ":").split(":")]
        return [0] * (4 - len(numbers)) + numbers

    try:
        return parts(pci_id) == parts(address)
    except ValueError:
        return pci_id == address


def _installed(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
