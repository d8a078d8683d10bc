"""What every test session has: the import recorder, hypothesis' fixed profile, and the options of the suite."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORDER = Path(__file__).resolve().parent / "recorder"

sys.path.insert(0, str(RECORDER))
import import_recorder  # noqa: E402

OWNS_RECORD = import_recorder.LOG not in os.environ  # a worker of pytest-xdist shares its parent's
if OWNS_RECORD:
    handle, os.environ[import_recorder.LOG] = tempfile.mkstemp(prefix="nbxtensor-imports-", suffix=".jsonl")
    os.close(handle)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(RECORDER), os.environ.get("PYTHONPATH")]))
import_recorder.install()

# The same examples in every run, and no time limit: a slow machine is not a wrong result.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.register_profile("full", parent=hypothesis.settings.get_profile("ci"), max_examples=500)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nbxtensor")
    group.addoption("--device", default="cpu", help="device string that the tests of operators run on")
    group.addoption("--full", action="store_true", help="the full product of cases, not a pairwise covering set")
    group.addoption(
        "--installed",
        choices=("editable", "wheels", "mixed", "core"),
        default="editable",
        help="how the packages are installed; tests/install checks it",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("full"):
        hypothesis.settings.load_profile("full")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device string that the tests of operators run on."""
    return str(pytestconfig.getoption("device"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if OWNS_RECORD and import_recorder.attempts(os.environ[import_recorder.LOG]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    if OWNS_RECORD:
        for attempt in import_recorder.attempts(os.environ[import_recorder.LOG]):
            terminalreporter.section("forbidden import", red=True)
            for key, value in attempt.items():
                terminalreporter.write_line(f"{key}: {value}")


def pytest_unconfigure() -> None:
    if OWNS_RECORD:
        Path(os.environ.pop(import_recorder.LOG)).unlink(missing_ok=True)
