"""docs/API.md is what the sources say, and every public name says something."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def generator(repository: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location("generate_api", repository / "docs" / "generate_api.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_committed_reference_is_the_generated_one(generator: ModuleType) -> None:
    fresh = generator.render()
    assert fresh == generator.TARGET.read_text("utf-8"), "run: python docs/generate_api.py"


def test_every_public_name_is_documented(generator: ModuleType) -> None:
    assert generator.undocumented() == []


def test_every_operator_is_in_the_reference(generator: ModuleType) -> None:
    from nbxtensor.ops.table import OPERATORS

    text = generator.TARGET.read_text("utf-8")
    assert OPERATORS
    assert [name for name in OPERATORS if f"#### `{name}`" not in text] == []


def test_a_name_without_documentation_is_found(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = tmp_path / "packages/nbxtensor-core/src/nbxtensor/backend/contract.py"
    contract.parent.mkdir(parents=True)
    contract.write_text(
        '"""Contract."""\nclass Driver:\n    """Driver."""\n    def probe(self):\n        """Devices."""\n'
    )
    module = contract.with_name("other.py")
    module.write_text(
        '"""Other."""\n'
        'class Mine:\n    """Mine."""\n    def probe(self): ...\n    def bare(self): ...\n    def _own(self): ...\n'
        'class Derived(Base):\n    """Derived."""\n    def told(self): ...\n'
        'class Base:\n    """Base."""\n    def told(self):\n        """Told."""\n'
        "def plain(): ...\n"
    )
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.undocumented() == ["nbxtensor.backend.other.Mine.bare", "nbxtensor.backend.other.plain"]
