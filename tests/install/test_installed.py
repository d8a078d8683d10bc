"""The packages work together however they are installed: editable, as wheels, or core as a wheel and a vendor
editable."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path

import nbxtensor
from nbxtensor.backend import device_files, registry

VENDORS = ("cpu", "cuda", "hip", "metal", "xpu")
# Which distributions each way of installation has, and which of them are editable.
PRESENT = {"editable": ("core", *VENDORS), "wheels": ("core", *VENDORS), "mixed": ("core", "cuda")}
EDITABLE = {"editable": ("core", *VENDORS), "wheels": (), "mixed": ("cuda",)}


def is_from(repository: Path, module_file: str | None) -> bool:
    assert module_file is not None
    return (repository / "packages") in Path(module_file).resolve().parents


def test_every_module_comes_from_where_it_was_installed(installed: str, repository: Path) -> None:
    files = {"core": nbxtensor.__file__}
    for vendor in PRESENT[installed][1:]:
        files[vendor] = importlib.import_module(f"nbxtensor.backend.{vendor}").__file__
    assert {name for name, file in files.items() if is_from(repository, file)} == set(EDITABLE[installed])


def test_every_driver_of_an_installed_package_is_found(installed: str) -> None:
    entries = {entry.name: entry for entry in registry.drivers()}
    assert {name: entry.error for name, entry in entries.items() if entry.error is not None} == {}
    assert {*PRESENT[installed][1:], "reference", "meta"} <= set(entries)
    for vendor in PRESENT[installed][1:]:
        assert entries[vendor].distribution == f"nbxtensor-{vendor}"
        assert entries[vendor].version == nbxtensor.__version__


def test_the_distributions_have_the_version_of_the_code(installed: str) -> None:
    versions = {name: importlib.metadata.version(f"nbxtensor-{name}") for name in PRESENT[installed]}
    assert set(versions.values()) == {nbxtensor.__version__}


def test_device_files_are_carried(installed: str, repository: Path) -> None:
    sources = {
        path.relative_to(repository / "devices").with_suffix("").as_posix()
        for path in (repository / "devices").rglob("*.yml")
    }
    assert sources
    assert set(device_files.profiles()) == sources
