"""Core alone, without Triton, is an installation of its own; its tests are for it only."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    alone = config.getoption("installed") == "core"
    return True if (collection_path.name == "test_core_alone.py") is not alone and collection_path.is_file() else None


@pytest.fixture(scope="session")
def installed(pytestconfig: pytest.Config) -> str:
    """How the packages are installed: "editable", "wheels", "mixed" or "core"."""
    return str(pytestconfig.getoption("installed"))
