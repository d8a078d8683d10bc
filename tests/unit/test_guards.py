"""Rules that the sources keep: no torch, rooms import downwards only, sizes, no machine's own paths, a light import."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import import_recorder
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
TESTS = sorted(ROOT.glob("tests/**/*.py"))
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("packages/*/*.md"),
    *ROOT.glob(".github/**/*.md"),
]

MAX_FILE, MAX_FUNCTION, MAX_DRIVER = 600, 60, 300

# The rooms of core, lowest first. A module imports from its own room and from the rooms before it.
ROOMS = (
    ("errors", "dtype", "shape"),
    ("host",),
    ("backend.contract", "backend.kernel_source", "backend.absent"),
    ("backend.device_files",),
    ("backend.pci", "backend.install_help"),
    ("backend.registry",),
    ("memory",),
    ("backend.runtime",),
    ("tensor", "dlpack", "printing"),
    ("kernels",),
    ("backend.artifact_cache", "backend.compiler"),
    ("backend.reference", "backend.meta"),
    ("backend.launcher",),
    ("ops",),
    ("interop",),
    ("program",),
    ("tuning",),
    ("",),  # nbxtensor/__init__.py
    ("conformance", "doctor"),
    ("doctor",),
    ("__main__",),
)
# What a vendor's package may import of core, besides itself.
FOR_VENDORS = (
    "errors",
    "host",  # under the name backend.cpu.pool
    "backend.absent",
    "backend.compiler",
    "backend.contract",
    "backend.device_files",
    "backend.install_help",
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The dotted name below ``nbxtensor`` of a file under packages/*/src; "" for nbxtensor/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[parts.index("src") + 2 :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below ``node`` but those under ``if TYPE_CHECKING``, which never run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            children: list[ast.AST] = list(child.orelse)
        else:
            children = [child]
        for one in children:
            yield one
            yield from executed(one)


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a module imports anywhere, inside functions too."""
    for node in executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> Iterator[str]:
    """The modules of nbxtensor, named below ``nbxtensor``, that a file imports."""
    for name in imported(ast.parse(path.read_text("utf-8"))):
        if name == "nbxtensor" or name.startswith("nbxtensor."):
            inner = name.partition(".")[2]
            while inner and inner not in MODULES and not is_namespace(inner):
                inner = inner.rpartition(".")[0]  # a name inside a module
            yield inner


def is_namespace(name: str) -> bool:
    return any(module.startswith(f"{name}.") for module in MODULES)


def room(name: str) -> int:
    for index, members in enumerate(ROOMS):
        if any(name == member or (member and name.startswith(f"{member}.")) for member in members):
            return index
    raise AssertionError(f"module nbxtensor.{name} is in no room: give it a place in ROOMS")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def python(code: str, **environment: str) -> str:
    """What a new Python process prints."""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert result.returncode == 0, result.stderr
    return result.stdout


CORE_FILES = [path for path in SOURCES if "nbxtensor-core" in path.parts]
VENDOR_FILES = [path for path in SOURCES if "nbxtensor-core" not in path.parts]


@pytest.mark.parametrize("path", CORE_FILES, ids=relative)
def test_a_room_imports_only_from_the_rooms_below_it(path: Path) -> None:
    here = room(module_name(path))
    assert [name for name in own_imports(path) if room(name) > here] == []


@pytest.mark.parametrize("path", VENDOR_FILES, ids=relative)
def test_a_vendor_imports_only_what_the_contract_gives_it(path: Path) -> None:
    own = ".".join(module_name(path).split(".")[:2])
    allowed = (*FOR_VENDORS, own)
    assert [name for name in own_imports(path) if not any(f"{name}.".startswith(f"{a}.") for a in allowed)] == []


@pytest.mark.parametrize("path", [*SOURCES, *TESTS, *sorted(ROOT.glob("examples/**/*.py"))], ids=relative)
def test_nothing_imports_torch(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert [name for name in imported(tree) if name.partition(".")[0] in import_recorder.FORBIDDEN] == []


def test_no_file_is_longer_than_it_should_be() -> None:
    limits = {
        path: MAX_DRIVER if path.name in ("driver.py", "contract.py") else MAX_FILE for path in [*SOURCES, *TESTS]
    }
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in limits}
    assert [(relative(path), lines) for path, lines in lengths.items() if lines > limits[path]] == []


def test_no_function_is_longer_than_it_should_be() -> None:
    long = [
        (relative(path), function.name, length)
        for path in [*SOURCES, *TESTS]
        for function in functions(ast.parse(path.read_text("utf-8")))
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize(
    "what, pattern",
    [
        ("a path of one machine", r"(?<![\w.\]])/(?:home|mnt|root|srv|Users|work)/\w"),
        (
            "an index other than pip's own",
            r"--(?:extra-)?index-url|https?://[\w.-]*(?:artifact|mirror|nexus|registry)[\w.-]*/",
        ),
    ],
)
def test_no_file_knows_the_machine_it_was_written_on(what: str, pattern: str) -> None:
    texts = [*SOURCES, *TESTS, *DOCUMENTS, *ROOT.glob("packages/*/*.toml"), *ROOT.glob("devices/**/*.yml")]
    texts += [*ROOT.glob("examples/**/*.py"), ROOT / "noxfile.py", ROOT / "pyproject.toml", ROOT / ".ci/run"]
    found = [(relative(path), match[0]) for path in texts for match in re.finditer(pattern, path.read_text("utf-8"))]
    assert found == [], what


def test_import_is_light() -> None:
    """`import nbxtensor` loads neither a compiler, nor a vendor's library, nor what only commands need."""
    code = """
import sys, json
import numpy, ml_dtypes
before = set(sys.modules)
import nbxtensor
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = set(json.loads(python(code)))
    heavy = {"asyncio", "cffi", "concurrent.futures", "importlib.metadata", "multiprocessing", "platformdirs", "rich"}
    heavy |= {"subprocess", "torch", "triton", "yaml", "nbxtensor.backend.compiler", "nbxtensor.conformance"}
    assert sorted(loaded & heavy) == []
    vendors = tuple(f"nbxtensor.backend.{vendor}" for vendor in ("cpu", "cuda", "hip", "metal", "xpu"))
    assert [name for name in loaded if name.startswith(vendors)] == []
    assert [name for name in loaded if name.startswith("nbxtensor.kernels.") and name.endswith(".source")] == []


def test_every_driver_imports_without_triton_and_without_opening_a_library() -> None:
    code = """
import sys, json
from importlib.metadata import entry_points
drivers = {point.name: type(point.load()).__name__ for point in entry_points(group="nbxtensor.drivers")}
print(json.dumps([sorted(drivers), sorted({"cffi", "torch", "triton", "yaml"} & set(sys.modules))]))
"""
    drivers, loaded = json.loads(python(code))
    assert set(drivers) >= {"reference", "meta", "cpu", "cuda", "hip", "metal", "xpu"}
    assert loaded == []


def test_the_recorder_sees_caught_attempts_in_child_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    attempt = "try:\n    import torch.nn\nexcept ImportError:\n    pass\n"
    python(attempt, **{import_recorder.LOG: str(log)})
    (recorded,) = import_recorder.attempts(str(log))
    assert recorded["module"] == "torch"
    assert "test_the_recorder_sees_caught_attempts_in_child_processes" in recorded["test"]


def test_a_session_with_an_attempt_fails_and_names_the_test(tmp_path: Path) -> None:
    attempt = "try:\n        import torch\n    except ImportError:\n        assert True\n"
    (tmp_path / "test_it.py").write_text(f"def test_innocent(): assert True\ndef test_guilty():\n    {attempt}")
    environment = {k: v for k, v in os.environ.items() if k not in (import_recorder.LOG, "PYTEST_XDIST_WORKER")}
    environment["PYTHONPATH"] = str(ROOT / "tests")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        "-p",
        "conftest",
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout + result.stderr
    assert "2 passed" in result.stdout
    assert "test_guilty" in result.stdout
    assert "test_innocent" not in result.stdout
