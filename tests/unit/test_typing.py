"""The stub of the methods that operators bind, against the operators."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

from nbxtensor.ops.table import OPERATORS
from nbxtensor.tensor import NBXTensor


def test_the_stub_is_what_the_generator_writes(repository: Path) -> None:
    generator = runpy.run_path(str(repository / "docs" / "generate_stubs.py"))
    assert generator["TARGET"].read_text("utf-8") == generator["render"](), "run python docs/generate_stubs.py"


def test_the_stub_has_every_method_of_the_table_and_no_other(repository: Path) -> None:
    (path,) = repository.glob("packages/*/src/nbxtensor/operator_methods.pyi")
    (stub,) = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    methods = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert methods == {method for operator in OPERATORS.values() for method in operator.methods} | {
        "new_empty", "new_full", "new_ones", "new_zeros"
    }  # fmt: skip
    assert all(callable(getattr(NBXTensor, method)) for method in methods)


def test_the_stub_is_installed() -> None:
    import nbxtensor

    assert (Path(nbxtensor.__file__).parent / "operator_methods.pyi").is_file()
