"""The conformance suite passes on what is right, and each of its areas fails on what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nbxtensor.conformance
from driver.mutants import MUTANTS, BindsByExtent, Mutant, WithGraphs

PLUGIN = "nbxtensor.conformance.plugin"
SUITE = Path(nbxtensor.conformance.__file__).parent


def run_suite(folder: Path, *arguments: str) -> str:
    """The output of the suite in a process of its own, as a backend's author runs it. Fails where it fails."""
    command = [sys.executable, "-m", "nbxtensor.conformance", "-q", "-p", "no:cacheprovider", *arguments]
    child = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def test_the_reference_driver_conforms(tmp_path: Path) -> None:
    """All but the operators, which tests/ops runs on it."""
    assert "driver reference" in run_suite(tmp_path, "--driver", "reference", "-k", "not agrees_with_its_oracle")


@pytest.mark.parametrize("where", [("--driver", "meta"), ("--driver-object", "nbxtensor.conformance.null:driver")])
def test_drivers_that_execute_nothing_conform(tmp_path: Path, where: tuple[str, str]) -> None:
    assert "deselected" in run_suite(tmp_path, *where)


class Outcomes:
    """Collects the names of the tests that fail and of those that pass, without their parameters."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.failed:
            self.failed.add(name)
        elif report.when == "call":
            self.passed.add(name)


def run_here(*arguments: str, plugins: tuple[object, ...] = ()) -> int | pytest.ExitCode:
    """The suite in this process, apart from the session that runs this test."""
    own = ["-c", os.devnull, "--rootdir", str(SUITE), "--noconftest", "-p", "no:cacheprovider", "-p", PLUGIN]
    return pytest.main([*own, "-q", "--tb=no", *arguments], plugins=list(plugins))


def outcomes(mutant: type[Mutant]) -> Outcomes:
    seen = Outcomes()
    driver = f"{mutant.__module__}:{mutant.__name__}"
    run_here("--driver-object", driver, "-k", mutant.select, str(SUITE / mutant.file), plugins=(seen,))
    return seen


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_broken_context_is_caught(mutant: type[Mutant]) -> None:
    seen = outcomes(mutant)
    assert mutant.caught_by <= seen.failed
    assert seen.passed or seen.failed == mutant.caught_by, "a mutant that fails everything shows nothing"


@pytest.mark.parametrize("context", [WithGraphs, BindsByExtent], ids=lambda m: m.__name__)
def test_abilities_that_the_reference_lacks_conform_where_they_are_declared(context: type[Mutant]) -> None:
    seen = outcomes(context)
    assert seen.failed == set()
    assert seen.passed


def test_every_area_of_the_suite_catches_a_mutant() -> None:
    areas = {path.name for path in SUITE.glob("test_*.py")}
    assert areas - {mutant.file for mutant in MUTANTS} == set()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "give one of --driver NAME and --driver-object"),
        (("--driver", "no-such-driver"), "no driver 'no-such-driver'"),
        (("--driver-object", "nbxtensor.conformance.null:no_such"), "no_such"),
        (("--driver", "meta", "--ordinal", "7"), "asked for 7"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    assert run_here(*arguments, str(SUITE)) == pytest.ExitCode.USAGE_ERROR
    assert complaint in "".join(capfd.readouterr())
