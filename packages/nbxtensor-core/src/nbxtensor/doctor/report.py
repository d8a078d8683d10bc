"""The doctor's report on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nbxtensor.doctor.survey import (
    BROKEN,
    FAILED,
    NOTHING_RUNS,
    OK,
    PASSED,
    SHADOWED,
    UNAVAILABLE,
    DriverReport,
    Survey,
)

_STYLES = {
    OK: "green",
    PASSED: "green",
    UNAVAILABLE: "yellow",
    SHADOWED: "yellow",
    BROKEN: "bold red",
    FAILED: "bold red",
}
_STYLES[NOTHING_RUNS] = "dim"
_WIDTH = 120  # where standard output is no terminal


@contextmanager
def waiting() -> Iterator[None]:
    """A sign of life on standard error while the drivers are asked, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status("asking every driver and device"):
        yield


def show(survey: Survey, console: Console | None = None) -> None:
    """Prints the survey: drivers, devices, GPUs, what each lacks, and the verdict."""
    console = console or Console(
        width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False, emoji=False
    )
    triton = f"Triton {survey.triton}" if survey.triton else "no Triton"
    console.print(f"nbxtensor {survey.nbxtensor}, Python {survey.python}, {triton}, {survey.platform}\n")
    console.print(_drivers(survey.drivers))
    if any(driver.devices for driver in survey.drivers):
        console.print(_devices(survey.drivers))
    if survey.gpus:
        console.print(_gpus(survey))
    else:
        console.print("No GPU of NVIDIA, AMD, Intel or Apple was found.\n")
    for title, lines in _troubles(survey):
        console.print(Text(title, style="bold"), soft_wrap=True)
        for line in lines:
            console.print(f"    {line}", soft_wrap=True)  # unbroken, so that a command can be copied
        console.print()
    default = survey.default
    why = f": {default.why}" if default.why else ""
    console.print(f"default device {default.device or 'none'}{why}", soft_wrap=True)
    verdict = "everything that should work works" if survey.works else "something that should work does not"
    console.print(Text(verdict, style="green" if survey.works else "bold red"))


def _drivers(drivers: Sequence[DriverReport]) -> Table:
    table = _table("drivers", "name", "distribution", "type", "priority", "state", "reason")
    for driver in drivers:
        first = driver.detail.splitlines()[0] if driver.detail else ""
        reason = first if driver.state == BROKEN else ": ".join(filter(None, [driver.reason, first]))
        priority = "" if driver.priority is None else str(driver.priority)
        package = f"{driver.distribution} {driver.version}"
        table.add_row(driver.name, package, driver.device_type or "", priority, _state(driver.state), reason)
    return table


def _devices(drivers: Sequence[DriverReport]) -> Table:
    table = _table("devices", "device", "name", "architecture", "memory", "PCI", "uuid", "profile", "a + b")
    for driver in drivers:
        for device in driver.devices:
            memory = f"{device.memory_bytes / 2**30:.1f} GiB"
            time = Text("" if device.seconds is None else f" {device.seconds:.2f} s")
            table.add_row(
                device.device,
                device.name,
                device.architecture,
                memory,
                device.pci_id or "",
                device.uuid or "",
                device.profile or "",
                _state(device.check) + time,
            )
    return table


def _gpus(survey: Survey) -> Table:
    table = _table("GPUs", "address", "vendor", "id", "kernel driver", "served", "missing")
    for gpu in survey.gpus:
        served = Text("yes", "green") if gpu.served else Text("no", "yellow" if gpu.supported else "dim")
        missing = gpu.missing.splitlines()[0] if gpu.missing else ""
        table.add_row(gpu.address, gpu.vendor, gpu.device_id, gpu.kernel_driver or "", served, missing)
    return table


def _troubles(survey: Survey) -> Iterator[tuple[str, list[str]]]:
    """What does not work, in full, each with its fix."""
    for driver in survey.drivers:
        if driver.state == BROKEN:
            yield (
                f"driver {driver.name} of {driver.distribution} {driver.version} is broken",
                driver.detail.splitlines(),
            )
        for device in driver.devices:
            if device.check == FAILED:
                yield f"device {device.device} does not compute", device.detail.splitlines()
    for gpu in survey.gpus:
        if gpu.supported and not gpu.served:
            title = " ".join(filter(None, [gpu.vendor, "GPU", gpu.device_id, "at", gpu.address]))
            yield f"{title}: {gpu.missing}", [*gpu.commands, f"or run on the host: {gpu.alternative}"]
    if not survey.default.works:
        yield "the default device does not work", survey.default.detail.splitlines()


def _state(state: str) -> Text:
    return Text(state, _STYLES.get(state, ""))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in ("priority", "memory") else "left")
    return table
