"""README's examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/index.md")
_BLOCK = re.compile(r"(<!-- needs-gpu -->\n)?```python\n(.*?)```", re.DOTALL)


def examples(gpu: bool) -> list[object]:
    found = []
    for document in DOCUMENTS:
        for number, match in enumerate(_BLOCK.finditer((ROOT / document).read_text(encoding="utf-8"))):
            if (match[1] is not None) == gpu:
                found.append(pytest.param(match[2], id=f"{document}-{number}"))
    return found


def run(program: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    source = "\n".join([*prefix, program])
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("program", examples(gpu=False))
def test_example_runs(program: str) -> None:
    done = run(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", examples(gpu=True))
def test_example_for_a_gpu_runs_on_the_cpu_when_asked(program: str) -> None:
    """The examples that want a GPU say nothing of one: with another default device they run where there is none."""
    done = run(program, "import os", "os.environ['NBXTENSOR_DEVICE'] = 'cpu'")
    assert done.returncode == 0, done.stderr


def test_readme_names_both_commands_and_its_links_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "python -m pip install nox && nox -s demo" in text
    assert "nox -s tests" in text
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (ROOT / target).exists(), target
