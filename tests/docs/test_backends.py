"""docs/BACKENDS.md is true to the contract: it names every piece of it, and its examples are real ones."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nbxtensor.backend import contract, device_files


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "BACKENDS.md").read_text("utf-8")


def example(page: str, language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(code)


PROTOCOLS = (contract.Driver, contract.Context, contract.GraphContext, contract.HostAddressableContext)
RECORDS = (contract.DeviceInfo, contract.Capabilities)


@pytest.mark.parametrize("described", [*PROTOCOLS, *RECORDS], ids=lambda c: c.__name__)
def test_every_verb_and_field_of_the_contract_is_named(page: str, described: type) -> None:
    verbs = [name for name, _ in inspect.getmembers(described, inspect.isfunction) if not name.startswith("_")]
    if described in RECORDS:
        verbs = []  # methods of a tuple
    names = {*verbs, *inspect.get_annotations(described)}
    assert names
    assert sorted(name for name in names if not re.search(rf"`{name}[`(]", page)) == []


def test_every_reason_is_named(page: str) -> None:
    text = " ".join(page.split())
    assert [reason for reason in contract.REASONS if f"*{reason}*" not in text] == []


def test_the_example_driver_meets_the_contract(page: str) -> None:
    namespace: dict[str, object] = {}
    exec(compile(example(page, "python"), "BACKENDS.md", "exec"), namespace)
    assert isinstance(namespace["driver"], contract.Driver)


def test_the_example_device_file_is_read(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_files, "_folders", [])
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "rocket.yml").write_text(example(page, "yaml"), "utf-8")
    info = contract.DeviceInfo(0, "Rocket", "rocket1", 1 << 30, profile="acme/rocket")
    facts = device_files.for_device(info, tmp_path)
    assert facts["memory.max_shared_memory_per_block"] == 65536
    assert facts.architectures == ("rocket1",)


def test_the_example_package_builds_a_wheel_of_its_own_files(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "src" / "nbxtensor" / "backend" / "acme"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(example(page, "toml"), "utf-8")
    (folder / "__init__.py").write_text(example(page, "python"), "utf-8")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        code = [name for name in archive.namelist() if ".dist-info/" not in name]
        (points,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert code == ["nbxtensor/backend/acme/__init__.py"]
    assert points.split("\n")[:2] == ["[nbxtensor.drivers]", "acme = nbxtensor.backend.acme:driver"]
