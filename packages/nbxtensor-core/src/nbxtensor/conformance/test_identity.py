"""What a driver and its context say about themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nbxtensor.backend.contract import DRIVER_API, Capabilities, Context, DeviceInfo, Driver, GraphContext
from nbxtensor.conformance.marks import declares, executes
from nbxtensor.conformance.null import GRAPH_VERBS, VERBS
from nbxtensor.conformance.plugin import Subject
from nbxtensor.dtype import DTYPES
from nbxtensor.errors import NBXError

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def test_driver_states_who_it_is(driver: Driver) -> None:
    assert isinstance(driver, Driver)
    assert _NAME.fullmatch(driver.name), driver.name
    assert _NAME.fullmatch(driver.device_type), driver.device_type
    assert driver.api_version == DRIVER_API
    assert type(driver.priority) is int
    assert driver.device_files is None or Path(driver.device_files).is_dir()


def test_driver_is_cheap_to_import(subject: Subject) -> None:
    module, _, attribute = subject.spelling.partition(":")
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import importlib\n"
        f"getattr(importlib.import_module({module!r}), {attribute!r})\n"
        "print(*sorted(sys.modules.keys() & {'triton', 'torch'}))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == [], "importing the driver must not import these"


def test_probe_lists_devices(driver: Driver) -> None:
    infos = list(driver.probe())
    assert infos, "a driver without a device raises Unavailable"
    assert [info.ordinal for info in infos] == list(range(len(infos)))
    for info in infos:
        assert isinstance(info, DeviceInfo)
        assert info.name and info.architecture
        assert type(info.memory_bytes) is int and info.memory_bytes > 0
        for text in (info.pci_id, info.uuid, info.profile):
            assert text is None or (isinstance(text, str) and text)
    assert len({info.uuid for info in infos if info.uuid}) == sum(info.uuid is not None for info in infos)


def test_probe_is_repeatable(driver: Driver) -> None:
    assert list(driver.probe()) == list(driver.probe())


def test_context_is_the_probed_device(driver: Driver, context: Context) -> None:
    assert context.info == list(driver.probe())[context.info.ordinal]


@pytest.mark.parametrize("beyond", [-1, 0, 1 << 20])
def test_unknown_ordinal_is_refused(driver: Driver, beyond: int) -> None:
    ordinal = beyond if beyond < 0 else len(driver.probe()) + beyond
    with pytest.raises(NBXError):
        driver.open(ordinal)


def test_capabilities_have_their_types(capabilities: Capabilities) -> None:
    assert isinstance(capabilities, Capabilities)
    for name, kind in Capabilities.__annotations__.items():
        if kind == "bool":
            assert type(getattr(capabilities, name)) is bool, name
    assert len(capabilities.max_grid) == 3
    for limit in (*capabilities.max_grid, capabilities.max_threads):
        assert type(limit) is int and limit >= 1
    assert type(capabilities.max_shared) is int and capabilities.max_shared >= 0
    assert isinstance(capabilities.dtypes, frozenset)


def test_capabilities_name_dtypes_of_the_table(capabilities: Capabilities) -> None:
    for name in capabilities.dtypes:
        assert name in DTYPES and DTYPES[name].triton is not None, name


@executes
def test_every_device_computes_on_the_common_dtypes(capabilities: Capabilities) -> None:
    assert {"bool", "int32", "float32"} <= capabilities.dtypes


def test_context_has_every_verb(context: Context) -> None:
    missing = [verb for verb in VERBS if verb not in GRAPH_VERBS and not callable(getattr(context, verb, None))]
    assert missing == []


@declares("graph_capture")
def test_graph_context_has_every_verb(context: Context) -> None:
    assert isinstance(context, GraphContext)
