"""The pytest plug-in: options, fixtures, and the selection of tests by what the context under test declares."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbxtensor.backend.contract import Capabilities, Context, Driver, Variant
from nbxtensor.conformance.variants import LoadedKernel, Memory
from nbxtensor.errors import NBXError

_HERE = Path(__file__).parent
_SUBJECT = pytest.StashKey["Subject"]()
_NEEDS = "needs(condition): collect the test when condition(capabilities) holds"

Load = Callable[[Variant], LoadedKernel]


class Subject:
    """The driver under test, a context that the tests share, and where the driver is (``spelling``)."""

    def __init__(self, config: pytest.Config):
        name, spelling = config.getoption("driver", None), config.getoption("driver_object", None)
        if (name is None) == (spelling is None):
            raise pytest.UsageError(
                "nbxtensor.conformance: give one of --driver NAME and --driver-object MODULE:ATTRIBUTE"
            )
        self.ordinal: int = config.getoption("ordinal")
        self.spelling = spelling or _entry_point(name)
        module, _, attribute = self.spelling.partition(":")
        try:
            self.driver: Driver = getattr(importlib.import_module(module), attribute)
            self.context: Context = self.driver.open(self.ordinal)
        except (ImportError, AttributeError, NBXError) as error:
            raise pytest.UsageError(
                f"nbxtensor.conformance: {self.spelling}: {type(error).__name__}: {error}"
            ) from error


def _entry_point(name: str) -> str:
    from importlib.metadata import entry_points

    found = {entry.name: entry.value for entry in entry_points(group="nbxtensor.drivers")}
    if name not in found:
        raise pytest.UsageError(f"nbxtensor.conformance: no driver {name!r}; installed: {', '.join(sorted(found))}")
    return found[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nbxtensor")
    group.addoption("--driver", metavar="NAME", help="the installed driver to test")
    group.addoption("--driver-object", metavar="MODULE:ATTRIBUTE", help="the driver to test, by its place")
    group.addoption("--ordinal", type=int, default=0, metavar="N", help="its device (default 0)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _NEEDS)


def subject_of(config: pytest.Config) -> Subject:
    """The subject, opened at the first request."""
    if _SUBJECT not in config.stash:
        config.stash[_SUBJECT] = Subject(config)
    return config.stash[_SUBJECT]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" in metafunc.fixturenames and _HERE in metafunc.definition.path.parents:
        metafunc.parametrize("dtype", sorted(subject_of(metafunc.config).context.capabilities.dtypes))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if _HERE in item.path.parents]
    if not mine:
        return
    capabilities = subject_of(config).context.capabilities
    gone = [i for i in mine if not all(m.args[0](capabilities) for m in i.iter_markers("needs"))]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SUBJECT in config.stash:
        config.stash[_SUBJECT].context.close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _SUBJECT in config.stash:
        subject = config.stash[_SUBJECT]
        info = subject.context.info
        device = f"device {info.ordinal}: {info.name}, {info.architecture}"
        terminalreporter.write_line(f"driver {subject.driver.name} ({subject.spelling}), {device}")


@pytest.fixture(scope="session")
def subject(pytestconfig: pytest.Config) -> Subject:
    return subject_of(pytestconfig)


@pytest.fixture(scope="session")
def driver(subject: Subject) -> Driver:
    return subject.driver


@pytest.fixture(scope="session")
def context(subject: Subject) -> Context:
    """The shared context. A test leaves nothing on it."""
    return subject.context


@pytest.fixture(scope="session")
def capabilities(context: Context) -> Capabilities:
    return context.capabilities


@pytest.fixture
def fresh(driver: Driver, subject: Subject) -> Iterator[Context]:
    """A context of the test's own."""
    context = driver.open(subject.ordinal)
    yield context
    context.close()


@pytest.fixture
def memory(context: Context) -> Iterator[Memory]:
    memory = Memory(context)
    yield memory
    memory.release()


@pytest.fixture
def streams(context: Context) -> Iterator[tuple[int, int]]:
    pair = context.create_stream(), context.create_stream()
    yield pair
    for stream in pair:
        context.synchronize(stream)
        context.destroy_stream(stream)


@pytest.fixture(scope="session")
def load(context: Context) -> Iterator[Load]:
    """Compiles and loads a variant on the shared context, once."""
    loaded: dict[Variant, LoadedKernel] = {}

    def load(variant: Variant) -> LoadedKernel:
        if variant not in loaded:
            loaded[variant] = LoadedKernel(context, variant)
        return loaded[variant]

    yield load
    for kernel in loaded.values():
        context.unload(kernel.module)
