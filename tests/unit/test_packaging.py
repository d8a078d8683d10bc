"""The seven distributions: one version, exact pins, equal licences, and wheels that hold only what is theirs."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VENDORS = ("cpu", "cuda", "hip", "metal", "xpu")
DISTRIBUTIONS = ("nbxtensor", "nbxtensor-core", *(f"nbxtensor-{vendor}" for vendor in VENDORS))


def project(repository: Path, distribution: str) -> dict[str, Any]:
    return tomllib.loads((repository / "packages" / distribution / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def core_version(repository: Path) -> str:
    """The literal that core's __init__ assigns to __version__."""
    source = (repository / "packages/nbxtensor-core/src/nbxtensor/__init__.py").read_text("utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__version__":
            return str(ast.literal_eval(statement.value))
    raise AssertionError("nbxtensor/__init__.py assigns no __version__")


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of every distribution."""
    folder = tmp_path_factory.mktemp("dist")
    for distribution in DISTRIBUTIONS:
        build(repository / "packages" / distribution, folder, "wheel", "sdist")
    return folder


def build(package: Path, folder: Path, *targets: str) -> None:
    options = [option for target in targets for option in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options]
    result = subprocess.run(command, cwd=package, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """Name to content of what a wheel installs, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def wheel_of(folder: Path, distribution: str) -> Path:
    (wheel,) = folder.glob(f"{distribution.replace('-', '_')}-*.whl")
    return wheel


def test_every_package_is_a_known_distribution(repository: Path) -> None:
    assert sorted(path.parent.name for path in (repository / "packages").glob("*/pyproject.toml")) == sorted(
        DISTRIBUTIONS
    )


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_one_version(repository: Path, core_version: str, distribution: str) -> None:
    stated = project(repository, distribution)
    assert stated["version"] == core_version
    assert importlib.metadata.version("nbxtensor-core") == core_version
    for requirement in requirements(stated):
        if requirement.startswith("nbxtensor"):
            name, pin, version = requirement.partition("==")
            assert (pin, version) == ("==", core_version), requirement
            assert name in DISTRIBUTIONS
    assert f"## [{core_version}]" in (repository / "CHANGELOG.md").read_text("utf-8")


def requirements(stated: dict[str, Any]) -> list[str]:
    extras = stated.get("optional-dependencies", {}).values()
    return [*stated.get("dependencies", ()), *(requirement for extra in extras for requirement in extra)]


def test_the_umbrella_is_core_and_cpu_with_an_extra_for_every_other_vendor(repository: Path, core_version: str) -> None:
    stated = project(repository, "nbxtensor")
    others = [vendor for vendor in VENDORS if vendor != "cpu"]
    pins = {vendor: f"nbxtensor-{vendor}=={core_version}" for vendor in VENDORS}
    assert stated["dependencies"] == [f"nbxtensor-core=={core_version}", pins["cpu"]]
    extras = {name: sorted(pins) for name, pins in stated["optional-dependencies"].items()}
    assert extras == {"all": sorted(pins[v] for v in others), **{v: [pins[v]] for v in others}}


def test_triton_is_a_requirement_of_its_compilers_alone(repository: Path) -> None:
    needs = {name: [r for r in requirements(project(repository, name)) if "triton" in r] for name in DISTRIBUTIONS}
    triton = ['triton>=3.6; sys_platform == "linux"']
    assert {name for name, found in needs.items() if found} == {"nbxtensor-cpu", "nbxtensor-cuda", "nbxtensor-hip"}
    assert all(found in ([], triton) for found in needs.values())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_python_versions_and_licence(repository: Path, distribution: str) -> None:
    stated = project(repository, distribution)
    declared = [
        c.rpartition(" ")[2] for c in stated["classifiers"] if c.startswith("Programming Language :: Python :: 3.")
    ]
    assert declared == ["3.10", "3.11", "3.12", "3.13"]
    assert stated["requires-python"] == ">=3.10"
    assert (stated["license"], stated["license-files"]) == ("Apache-2.0", ["LICENSE"])
    licence = repository / "packages" / distribution / "LICENSE"
    assert not licence.is_symlink()  # a link is not followed into a wheel
    assert licence.read_bytes() == (repository / "LICENSE").read_bytes()


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_wheel_holds_its_own_folder_and_nothing_else(built: Path, vendor: str) -> None:
    files = wheel_files(wheel_of(built, f"nbxtensor-{vendor}"))
    own = f"nbxtensor/backend/{vendor}/"
    assert {f"{own}__init__.py", f"{own}py.typed"} <= set(files)
    assert [name for name in files if not name.startswith(own)] == []


def test_core_owns_the_namespace_and_no_vendor(repository: Path, built: Path) -> None:
    files = wheel_files(wheel_of(built, "nbxtensor-core"))
    assert {"nbxtensor/__init__.py", "nbxtensor/py.typed"} <= set(files)
    assert "nbxtensor/backend/__init__.py" not in files  # it would close the namespace to vendors
    assert [name for name in files if name.startswith(tuple(f"nbxtensor/backend/{v}/" for v in VENDORS))] == []
    facts = {path.relative_to(repository).as_posix() for path in (repository / "devices").rglob("*.yml")}
    assert facts
    assert {name.removeprefix("nbxtensor/backend/") for name in files if name.endswith(".yml")} == facts


def test_the_umbrella_wheel_holds_no_file(built: Path) -> None:
    assert wheel_files(wheel_of(built, "nbxtensor")) == {}


@pytest.mark.parametrize("distribution", ["nbxtensor-core", "nbxtensor-cuda"])
def test_an_sdist_builds_the_same_wheel(built: Path, distribution: str, tmp_path: Path) -> None:
    (sdist,) = built.glob(f"{distribution.replace('-', '_')}-*.tar.gz")
    with tarfile.open(sdist) as archive:
        # Our own archive; the filter argument is missing from early 3.10 and 3.11 releases.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    build(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path, "wheel")
    assert wheel_files(wheel_of(tmp_path, distribution)) == wheel_files(wheel_of(built, distribution))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_states_its_licence_and_drivers(repository: Path, built: Path, distribution: str) -> None:
    with zipfile.ZipFile(wheel_of(built, distribution)) as archive:
        information = {
            Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name
        }
    assert information["LICENSE"] == (repository / "LICENSE").read_text("utf-8")
    drivers = project(repository, distribution).get("entry-points", {}).get("nbxtensor.drivers", {})
    assert all(f"{name} = {value}" in information["entry_points.txt"] for name, value in drivers.items())
    vendor = distribution.removeprefix("nbxtensor-")
    expected = {vendor} if vendor in VENDORS else {"reference", "meta"} if vendor == "core" else set()
    assert set(drivers) == expected
